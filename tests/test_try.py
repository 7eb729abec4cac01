"""``fixpack try``: a profile on a scratch copy, by the very same apply."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fixpack import cache, cli, lock, locksmith, registry, sources, trial
from fixpack.cli import try_
from fixpack.errors import UsageError

REPO = Path(__file__).resolve().parent.parent
CORE = b"def rows(swapped):\n    total = 1\n    kept = swapped\n    return total + kept\n"
FIX = """\
id: demo-fix
revision: 3
title: count the row that was swapped
symptom: one row is missing
cause: the count starts too late
origin: {kind: own}
upstream: {status: not-reported}
retires-when: upstream counts it
edits:
  demo-pkg:
    - {anchor: total, op: insert-after, code: count.py}
    - {op: add-file, path: demo_pkg/_fixpack/rows.py, code: rows.py}
proof:
  test: tests/fixes/test_demo_fix.py
  stock: {test_count: "missing"}
"""
EXTRA = FIX.replace("demo-fix", "demo-extra").replace("test_demo_fix", "test_demo_extra").replace("rows.py", "more.py")


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A git repository of the package, tagged v1."""
    repo = tmp_path / "upstream"
    (repo / "demo_pkg").mkdir(parents=True)
    (repo / "demo_pkg/__init__.py").write_bytes(b"")
    (repo / "demo_pkg/core.py").write_bytes(CORE)
    (repo / "demo_pkg/other.py").write_bytes(b"x = 1\n")
    (repo / "README").write_bytes(b"not installed\n")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "v1"], ["tag", "v1"]):
        subprocess.run(["git", "-C", str(repo), *identity, *words], env=env, check=True)
    return repo


@pytest.fixture
def root(tmp_path: Path, upstream: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with one profile on that release, locked; and an empty cache."""
    monkeypatch.setenv("FIXPACK_SOURCES", str(tmp_path / "locking"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = tmp_path / "registry"
    commit = subprocess.run(["git", "-C", str(upstream), "rev-parse", "v1"], capture_output=True, text=True, check=True)
    for path, text in {
        "anchors/demo-pkg/v1.yaml": (
            f'distribution: demo-pkg\nrelease: v1\nversion: "1"\npackage: demo_pkg\ncommit: {commit.stdout}'
            f"files:\n  demo_pkg/core.py:\n    sha256: {hashlib.sha256(CORE).hexdigest()}\n"
            "    anchors:\n      total:\n        within: rows\n        text: total = 1\n"
            "      result:\n        within: rows\n        text: return total + kept\n"
        ),
        "fixes/demo-fix.yaml": FIX,
        "fixes/demo-extra.yaml": EXTRA.replace("anchor: total, op: insert-after", "anchor: result, op: insert-before"),
        "patches/demo-fix/count.py": "total += 1\n",
        "patches/demo-fix/rows.py": "ROWS = 1\n",
        "patches/demo-extra/count.py": "total += 2\ntotal += 3\n",
        "patches/demo-extra/more.py": "ROWS = 2\n",
        "tests/fixes/test_demo_fix.py": "def test_count(): pass\n",
        "tests/fixes/test_demo_extra.py": "def test_count(): pass\n",
        "profiles/demo-v1.yaml": (
            "profile: demo-v1\naliases: [v1]\nhardware: a demo\nreleases: {demo-pkg: v1}\n"
            "fixes: [demo-fix]\nopt-in: [demo-extra]\n"
        ),
    }.items():
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(text)
    loaded = registry.load(str(made))
    tree = sources.fetch(loaded.releases["demo-pkg@v1"], str(upstream))
    profile = loaded.profiles["demo-v1"]
    (made / "profiles/demo-v1.lock.json").write_bytes(lock.dump(locksmith.make(loaded, profile, {"demo-pkg": tree})))
    monkeypatch.setenv("FIXPACK_SOURCES", str(tmp_path / "cache"))
    return made


def test_whole_run(root: Path, upstream: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    words = ["try", "--profile", "v1", "demo-extra", "--registry", str(root), "--dir", str(site)]
    assert cli.main([*words, "--from", f"demo-pkg={upstream}"]) == 0
    out, err = capfd.readouterr()
    assert err == "getting demo-pkg@v1\n"
    command = f"{sys.executable} {REPO}/apply_all.py --profile demo-v1 demo-extra --site {site} --registry {root}"
    tree = f"{tmp_path}/cache/trees/demo-pkg@v1"
    head, first, rest = out.split("\n$ ")
    second, report = rest.split("\n\nwhat each", 1)
    assert head == f"demo-v1 (a demo) on a scratch copy of demo-pkg@v1\n  3 files in {site}\n"
    assert first.splitlines()[0] == command
    assert "demo-v1: applied: 2 fixes in 3 files; 3 files written" in first
    assert second.splitlines()[0] == command + " --check"
    assert "demo-v1: confirmed: 2 fixes in 3 files" in second
    assert report == (
        " fix put in:\n"
        "  demo-fix r3: count the row that was swapped\n"
        "    demo_pkg/_fixpack/rows.py:1  1 line a module of its own\n"
        "    demo_pkg/core.py:3  1 line at total\n"
        "  demo-extra r3: count the row that was swapped\n"
        "    demo_pkg/_fixpack/more.py:1  1 line a module of its own\n"
        "    demo_pkg/core.py:7  2 lines at result\n"
        "\n"
        "1 file changed, 2 new, 2 of the packages' files as they were:\n"
        "  demo_pkg/_fixpack/more.py  new, 3 lines\n"
        "  demo_pkg/_fixpack/rows.py  new, 3 lines\n"
        "  demo_pkg/core.py  +7 -0\n"
        "\n"
        "look at it:\n"
        f"  diff -ruN {tree}/demo_pkg {site}/demo_pkg\n"
        "remove it:\n"
        f"  rm -r {site}\n"
        "on a real image, in its Dockerfile:\n"
        "  COPY . /opt/fixpack\n"
        "  RUN python /opt/fixpack/apply_all.py --profile demo-v1 demo-extra\n"
    )
    assert sources.verify(registry.load(str(root)).releases["demo-pkg@v1"]) == []


def test_folder_of_its_own_by_default(root: Path, upstream: Path, tmp_path: Path) -> None:
    assert cli.main(["try", "--profile", "v1", "--registry", str(root), "--from", f"demo-pkg={upstream}"]) == 0
    [site] = tmp_path.glob("fixpack-try-*")
    assert sorted(os.listdir(site)) == ["demo_pkg", "demo_pkg-1.dist-info"]


def test_copy_is_what_pip_would_have_installed(root: Path, upstream: Path, tmp_path: Path) -> None:
    release = registry.load(str(root)).releases["demo-pkg@v1"]
    tree = sources.fetch(release, str(upstream))
    (tmp_path / "site").mkdir()
    laid = trial.lay_out([release], str(tmp_path / "site"))
    assert laid == {
        f"demo_pkg/{name}": hashlib.sha256(data).hexdigest()
        for name, data in {"__init__.py": b"", "core.py": CORE, "other.py": b"x = 1\n"}.items()
    }
    [found] = importlib.metadata.distributions(path=[str(tmp_path / "site")])
    assert (found.metadata["Name"], found.version) == ("demo-pkg", "1")
    with open(tmp_path / "site/demo_pkg-1.dist-info/RECORD", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    listed = {path for path, _, _ in rows}
    assert listed == {str(p.relative_to(tmp_path / "site")) for p in (tmp_path / "site").rglob("*") if p.is_file()}
    for path in found.files or ():
        data = Path(str(path.locate())).read_bytes()
        if path.name != "RECORD":
            assert path.hash is not None
            assert path.hash.value == trial.base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert path.size == len(data)
    originals = {path.stat().st_ino for path in Path(tree).rglob("*") if path.is_file()}
    assert not originals & {path.stat().st_ino for path in (tmp_path / "site").rglob("*") if path.is_file()}


def test_failed_apply_is_the_result(
    root: Path, upstream: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    release = registry.load(str(root)).releases["demo-pkg@v1"]
    core = Path(sources.fetch(release, str(upstream)), "demo_pkg/core.py")
    core.write_bytes(CORE + b"# touched\n")
    site = tmp_path / "site"
    assert cli.main(["try", "--profile", "v1", "--registry", str(root), "--dir", str(site)]) == 1
    out, err = capfd.readouterr()
    assert "core.py" in err
    assert err.endswith(f"the scratch folder is kept: {site}\n")
    assert "what each fix put in" not in out
    assert (site / "demo_pkg/core.py").read_bytes() == CORE + b"# touched\n"


def test_source_that_nobody_gives(root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    anchors = root / "anchors/demo-pkg/v1.yaml"
    anchors.write_text(anchors.read_text().replace("files:", "git: https://127.0.0.1:9/demo\nfiles:"))
    assert cli.main(["try", "--profile", "v1", "--registry", str(root), "--dir", str(tmp_path / "site")]) == 1
    err = capfd.readouterr().err
    assert "https://127.0.0.1:9/demo cannot be reached for the commit that demo-pkg@v1 pins" in err
    assert "next: with a copy of your own: fixpack try --profile demo-v1 --from demo-pkg=PATH_OR_URL" in err
    assert not (tmp_path / "site").exists()
    assert not os.path.exists(cache.tree_dir(registry.load(str(root)).releases["demo-pkg@v1"]))


def test_folder_that_holds_something(root: Path, upstream: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/mine").write_text("x")
    words = ["try", "--profile", "v1", "--registry", str(root), "--from", f"demo-pkg={upstream}"]
    assert cli.main([*words, "--dir", str(tmp_path / "site")]) == 2
    assert cli.main([*words, "--dir", str(tmp_path / "site/mine")]) == 2
    assert os.listdir(tmp_path / "site") == ["mine"]
    with pytest.raises(UsageError):
        trial.prepare(str(tmp_path / "site"))


@pytest.mark.parametrize("named", [True, False])
def test_interrupted_trial_leaves_no_nameless_folder(
    root: Path, upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    named: bool,
) -> None:  # fmt: skip
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    words = ["try", "--profile", "v1", "--registry", str(root), "--from", f"demo-pkg={upstream}"]
    loaded = registry.load(str(root)).releases["demo-pkg@v1"]
    sources.fetch(loaded, str(upstream))
    monkeypatch.setattr(try_.subprocess, "run", interrupted)
    assert cli.main([*words, *(["--dir", str(tmp_path / "site")] if named else [])]) == 130
    err = capfd.readouterr().err.splitlines()
    assert list(tmp_path.glob("fixpack-try-*")) == []
    if named:
        assert err[-2:] == [f"the scratch folder is kept: {tmp_path}/site", "interrupted"]
        assert (tmp_path / "site/demo_pkg/core.py").read_bytes() == CORE
    else:
        assert err[-1] == "interrupted"


@pytest.mark.parametrize("kilobytes", [4, 8, 12])
def test_full_disk(
    root: Path, upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    kilobytes: int,
) -> None:  # fmt: skip
    release = registry.load(str(root)).releases["demo-pkg@v1"]
    sources.fetch(release, str(upstream))
    words = ["try", "--profile", "v1", "--registry", str(root)]
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        assert cli.main([*words, "--dir", str(disk)]) == 1
        err = capfd.readouterr().err
        assert err.startswith(f"the scratch folder is kept: {disk}\nerror: ")
        assert "there is no room left to write [disk_full]\n" in err
        assert "No space left on device" in err
        for path in disk.iterdir():
            shutil.rmtree(path)
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        assert cli.main(words) == 1
        assert "there is no room left to write" in capfd.readouterr().err
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_region_ends_with_its_own_marker(tmp_path: Path) -> None:
    """Another revision, and a comment that only looks like a marker, end nothing."""
    text = (
        "    # fixpack begin demo-fix r3: total\n    x = 1\n    # fixpack end demo-fix r2: total\n"
        "    # fixpack end demo-fix r3: total \n    # fixpack end demo-fix r3: total\n"
    )
    (tmp_path / "x.py").write_text(text)
    assert trial._regions("x.py", str(tmp_path / "x.py")) == [trial.Region("demo-fix", "x.py", "total", 1, 3)]


@pytest.mark.parametrize("origin", ["demo-pkg", "demo-pkg=", "other=x"])
def test_useless_from(root: Path, origin: str) -> None:
    assert cli.main(["try", "--profile", "v1", "--registry", str(root), "--from", origin]) == 2


def test_unknown_names(root: Path, upstream: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["try", "--registry", str(root), "--from", f"demo-pkg={upstream}", "--profile"]
    assert cli.main([*words, "v2"]) == 2
    assert cli.main([*words, "v1", "demo-extar"]) == 2
    assert "demo-extra" in capfd.readouterr().err
