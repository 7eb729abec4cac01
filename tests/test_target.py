"""Where the files are: image roots, source trees, and what a real interpreter would import, without importing it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit import UPSTREAM, Kit, state, write

from fixpack.target import read_file

#: A package that must not be imported to be found.
BOOM = {
    "demo_plugin/__init__.py": "raise SystemExit('imported')\n",
    "demo_core/__init__.py": "raise SystemExit('imported')\n",
}


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


# -- sources ----------------------------------------------------------------------------------------------------------


def test_source_trees(kit: Kit) -> None:
    trees = {name: kit.trees / f"{name}@v1.0.0" for name in ("demo-plugin", "demo-core")}
    options = [item for name, tree in trees.items() for item in ("--source", f"{name}={tree}")]
    assert kit.run("--profile", "v1.0.0", *options).code == 0
    assert "fixpack begin" in (trees["demo-core"] / "demo_core/core.py").read_text()
    before = state(kit.folder)
    done = kit.run("--profile", "v1.0.0", *options, "--json")
    assert (done.code, done.json["action"]) == (0, "confirmed")
    assert state(kit.folder) == before


def test_one_source_tree_is_not_enough(kit: Kit) -> None:
    before = state(kit.folder)
    done = kit.run("--profile", "v1.0.0", "--source", f"demo-core={kit.trees / 'demo-core@v1.0.0'}")
    assert (done.code, done.codes) == (1, ["distribution_missing"])
    assert state(kit.folder) == before


# -- an image's root --------------------------------------------------------------------------------------------------


def image(kit: Kit, folder: str = "usr/lib/python3/dist-packages") -> Path:
    root = kit.folder / "image"
    kit.fresh_site(folder=root / folder)
    write(root, {"etc/hostname": "x\n", "proc/site-packages/demo_core/__init__.py": ""})
    return root


def run_root(kit: Kit, root: Path | str, *args: str) -> tuple[int, list[str]]:
    done = kit.run("--profile", "v1.0.0", "--root", str(root), *args)
    return done.code, done.codes


@pytest.mark.parametrize("folder", ["usr/lib/python3/dist-packages", "opt/venv/lib/python3.12/site-packages"])
def test_root(kit: Kit, folder: str) -> None:
    root = image(kit, folder)
    (root / "opt").mkdir(exist_ok=True)
    (root / "lib64").symlink_to("usr/lib")
    assert run_root(kit, root) == (0, [])
    assert "fixpack begin" in (root / folder / "demo_core/core.py").read_text()
    assert run_root(kit, root, "--check") == (0, [])


def test_root_with_two_copies(kit: Kit) -> None:
    root = image(kit)
    kit.fresh_site(folder=root / "opt/venv/lib/python3.12/site-packages")
    before = state(root)
    done = kit.run("--profile", "v1.0.0", "--root", str(root))
    assert (done.code, done.codes) == (1, ["two_copies", "two_copies"])
    assert "usr/lib/python3/dist-packages" in done.err
    assert "opt/venv/lib/python3.12/site-packages" in done.err
    assert state(root) == before


@pytest.mark.parametrize("line", ["/src/plugin", "../../../../src/plugin"])
def test_root_with_an_editable_install(kit: Kit, line: str) -> None:
    """A .pth line is meant inside the image, absolute or relative to its folder."""
    root = image(kit)
    site = root / "usr/lib/python3/dist-packages"
    shutil.rmtree(site / "demo_plugin")
    write(root, {f"src/plugin/{path}": text for path, text in UPSTREAM["demo-plugin@v1.0.0"].items()})
    write(site, {"__editable__.demo.pth": f"# about\nimport os\n\n/nowhere\n{line}\n"})
    (site / "broken.pth").symlink_to("/nowhere.pth")
    os.mkfifo(site / "fifo.pth")
    assert run_root(kit, root) == (0, [])
    assert "fixpack begin" in (root / "src/plugin/demo_plugin/runner.py").read_text()
    kit.fresh_site(folder=site)
    write(site, {"__editable__.demo.pth": f"{line}\n"})
    assert run_root(kit, root) == (1, ["two_copies"])


def test_root_never_leaves_the_image(kit: Kit) -> None:
    """An absolute link of the image means the image; on this machine it means another place."""
    root = image(kit)
    site = root / "usr/lib/python3/dist-packages"
    outside = kit.folder / "outside"
    (site / "demo_core").rename(outside)
    (site / "demo_core").symlink_to(outside)
    before = state(kit.folder)
    assert run_root(kit, root) == (1, ["leaves_target"])
    (site / "demo_core").unlink()
    write(site, {"demo.pth": f"/../../{outside.name}\n{outside.parent}\n"})
    outside.rename(kit.folder / "demo_core")
    assert run_root(kit, root) == (1, ["distribution_missing"])
    (kit.folder / "demo_core").rename(outside)
    (site / "demo.pth").unlink()
    (site / "demo_core").symlink_to(outside)
    assert state(kit.folder).keys() == before.keys()
    assert (outside / "core.py").read_text() == UPSTREAM["demo-core@v1.0.0"]["demo_core/core.py"]


def test_a_trailing_slash_and_a_linked_root(kit: Kit) -> None:
    root = image(kit)
    link = kit.folder / "link"
    link.symlink_to(root)
    assert run_root(kit, f"{link}/") == (0, [])
    assert run_root(kit, root, "--check") == (0, [])


# -- the running interpreter ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def venv_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of its own; PyYAML comes from a copy of this one's."""
    import venv

    import yaml

    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    shutil.copytree(Path(yaml.__file__).parent, site / "yaml")
    return folder / "bin" / "python"


@pytest.fixture
def site(venv_python: Path) -> Path:
    """Its site-packages, without what another test put in."""
    [found] = venv_python.parent.parent.glob("lib/python*/site-packages")
    for path in found.iterdir():
        if path.name != "yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found


def install(kit: Kit, site: Path) -> None:
    """Both packages, which must not be imported."""
    kit.fresh_site(folder=kit.folder / "wheel")
    shutil.copytree(kit.folder / "wheel", site, dirs_exist_ok=True)
    write(site, BOOM)


def test_interpreter(kit: Kit, venv_python: Path, site: Path) -> None:
    install(kit, site)
    done = kit.command("--profile", "v1.0.0", python=str(venv_python))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"demo-plugin 1.0.0 in {site}  [import path of {venv_python}]"
    assert "fixpack begin" in (site / "demo_core/core.py").read_text()
    before = state(site)
    for flags in ([], ["-I"], ["-B"]):
        done = kit.command("--profile", "v1.0.0", python=str(venv_python), flags=flags)
        assert (done.code, done.out.splitlines()[-1]) == (
            0,
            "bench-v1.0.0: confirmed: 3 fixes in 4 files, every byte of them as proven; nothing written",
        )
    assert state(site) == before


def test_interpreter_does_not_count_the_working_folder(kit: Kit, venv_python: Path, site: Path) -> None:
    """A server started from elsewhere would not see it."""
    install(kit, site)
    for files in UPSTREAM.values():
        write(kit.folder, files)
    done = kit.command("--profile", "v1.0.0", python=str(venv_python))
    assert done.code == 0, done.err
    assert "fixpack begin" not in (kit.folder / "demo_core/core.py").read_text()


def test_interpreter_without_the_packages(kit: Kit, venv_python: Path, site: Path) -> None:
    done = kit.command("--profile", "v1.0.0", python=str(venv_python))
    assert (done.code, done.codes) == (1, ["distribution_missing", "distribution_missing"])


def test_two_copies_on_the_import_path(kit: Kit, venv_python: Path, site: Path) -> None:
    """The fixed one might be shadowed."""
    install(kit, site)
    other = kit.fresh_site(folder=kit.folder / "other")
    before = state(kit.folder)
    done = kit.command("--profile", "v1.0.0", python=str(venv_python), env={"PYTHONPATH": str(other)})
    assert (done.code, done.codes) == (1, ["two_copies", "two_copies"])
    assert f"{other}, {site}" in done.err
    (kit.folder / "link").symlink_to(site)
    done = kit.command("--profile", "v1.0.0", python=str(venv_python), env={"PYTHONPATH": str(kit.folder / "link")})
    assert done.code == 0, "the same folder by another name is one copy"
    (kit.folder / "link").unlink()
    assert state(kit.folder) == before


def editable(kit: Kit, site: Path) -> Path:
    """The plugin as an editable install's source tree, the core as a wheel."""
    install(kit, site)
    shutil.rmtree(site / "demo_plugin")
    shutil.rmtree(site / "demo_plugin-1.0.0.dist-info")
    source = kit.folder / "src"
    write(source, {**UPSTREAM["demo-plugin@v1.0.0"], "demo_plugin/__init__.py": BOOM["demo_plugin/__init__.py"]})
    return source


def test_editable_by_path(kit: Kit, venv_python: Path, site: Path) -> None:
    source = editable(kit, site)
    write(site, {"__editable__.demo_plugin-1.0.0.pth": f"{source}\n"})
    done = kit.command("--profile", "v1.0.0", python=str(venv_python))
    assert done.code == 0, done.err
    assert "fixpack begin" in (source / "demo_plugin/runner.py").read_text()


FINDER = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "demo_plugin":
            return spec_from_file_location(name, {init!r}, submodule_search_locations=[{folder!r}])

class Older:
    def find_module(self, name, path=None):
        return None

sys.meta_path[:0] = [Older()]
sys.meta_path.append(Finder)
"""


def test_editable_by_finder(kit: Kit, venv_python: Path, site: Path) -> None:
    """As setuptools makes it; a finder of the old kind is passed over."""
    source = editable(kit, site)
    finder = FINDER.format(init=str(source / "demo_plugin/__init__.py"), folder=str(source / "demo_plugin"))
    write(site, {"__editable___demo_finder.py": finder, "__editable__.demo.pth": "import __editable___demo_finder\n"})
    done = kit.command("--profile", "v1.0.0", python=str(venv_python))
    assert done.code == 0, done.err
    assert f"[editable install of {venv_python}]" in done.out
    assert "fixpack begin" in (source / "demo_plugin/runner.py").read_text()


def test_uninstall_takes_the_added_files(kit: Kit, venv_python: Path, site: Path) -> None:
    """By pip itself, from the rows of RECORD."""
    install(kit, site)
    assert kit.command("--profile", "v1.0.0", python=str(venv_python)).code == 0
    added = site / "demo_plugin/_fixpack/rows.py"
    assert added.exists()
    command = [sys.executable, "-m", "pip", "--python", str(venv_python), "uninstall", "-y", "demo-plugin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        pytest.skip("needs pip")
    assert done.returncode == 0, done.stderr
    assert not (site / "demo_plugin").exists()


# -- files ------------------------------------------------------------------------------------------------------------


def test_read_file(tmp_path: Path) -> None:
    write(tmp_path, {"a": "x"})
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("a")

    def read(name: str) -> object:
        found = read_file(str(tmp_path / name))
        return found if isinstance(found, bytes | None) else found.code

    assert [read(name) for name in ("a", "b", "fifo", "link", ".", "a/b")] == [
        *(b"x", None, "not_a_file", "unreadable", "not_a_file", "unreadable")
    ]
