"""Installed by the real pip, fixed, and then uninstalled, reinstalled, upgraded, linked, or there twice."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kit import UPSTREAM, Done, Kit, write

BACKEND = '''"""A build backend of one function: an editable install by a .pth file."""

import os
import zipfile


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "demo_plugin-1.0.0-py3-none-any.whl"
    info = "demo_plugin-1.0.0.dist-info"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("__editable__.demo_plugin.pth", os.getcwd() + "\\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: demo-plugin\\nVersion: 1.0.0\\n")
        about = ("Wheel-Version: 1.0", "Generator: demo", "Root-Is-Purelib: true", "Tag: py3-none-any")
        wheel.writestr(f"{info}/WHEEL", "\\n".join((*about, "")))
        wheel.writestr(f"{info}/RECORD", "")
    return name
'''

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "demo-plugin"
version = "1.0.0"
"""


class Environment:
    """A virtual environment into which the machine's pip installs wheels of the invented packages."""

    def __init__(self, kit: Kit, python: str = sys.executable) -> None:
        self.kit, self.folder = kit, kit.folder / "env"
        subprocess.run([python, "-m", "venv", "--without-pip", str(self.folder)], check=True)
        self.python = self.folder / "bin/python"
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        found = subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True)
        self.site = kit.site = Path(found.stdout.strip())

    def wheel(self, ref: str) -> Path:
        name, _, version = ref.partition("@v")
        project = name.replace("-", "_")
        path = self.kit.folder / f"{project}-{version}-py3-none-any.whl"
        if path.exists():
            return path  # the very same archive: pip notes its hash
        info = f"{project}-{version}.dist-info"
        files = dict(UPSTREAM[ref])
        files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        rows = [f"{each},sha256={digest(text.encode())},{len(text.encode())}" for each, text in files.items()]
        with zipfile.ZipFile(path, "w") as wheel:
            for each, text in {**files, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,", ""])}.items():
                wheel.writestr(each, text)
        return path

    def pip(self, *args: str) -> str:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *refs: str, flags: tuple[str, ...] = ()) -> None:
        wheels = [str(self.wheel(ref)) for ref in refs]
        self.pip("install", "--no-index", "--no-deps", "--quiet", *flags, *wheels)

    def apply(self, *args: str, env: dict[str, str] | None = None) -> Done:
        """The real command with the environment's own Python and what that would import."""
        return self.kit.command("--profile", "v1.0.0", *args, python=str(self.python), env=env)

    def files(self) -> set[str]:
        return {path.relative_to(self.site).as_posix() for path in self.site.rglob("*")}

    def content(self) -> dict[str, object]:
        """The installed files without bytecode, which an apply drops and Python makes again."""
        found: dict[str, object] = {}
        for path, about in self.kit.content().items():
            if path.endswith("/RECORD"):
                lines = (self.site / path).read_bytes().splitlines()
                found[path] = [line for line in lines if b".pyc," not in line]
            elif "__pycache__" not in path:
                found[path] = about
        return found

    def mismatches(self) -> list[str]:
        """Files whose RECORD row is not what is there, over all distributions."""
        wrong = []
        for record in self.site.glob("*.dist-info/RECORD"):
            with record.open(newline="") as file:
                rows = [row for row in csv.reader(file) if not row[0].endswith(".pyc")]  # Python's own business
                for path, wanted, size in rows:
                    data = (self.site / path).read_bytes() if (self.site / path).exists() else None
                    if data is None or (wanted and (wanted, size) != (f"sha256={digest(data)}", str(len(data)))):
                        wrong.append(path)
        return sorted(wrong)


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    made = Environment(Kit(tmp_path))
    made.install("demo-plugin@v1.0.0", "demo-core@v1.0.0")
    return made


CHANGED = ["demo_core/core.py", "demo_plugin/batch.py", "demo_plugin/runner.py"]


@pytest.mark.parametrize("update", [False, True])
def test_record_and_uninstall(env: Environment, update: bool) -> None:
    flags = ("--update-record",) if update else ()
    stock = env.content()
    assert env.mismatches() == []
    done = env.apply(*flags)
    assert (done.code, done.err) == (0, "")
    assert env.mismatches() == ([] if update else CHANGED)  # what pip's own row says of a changed file
    assert env.apply(*flags).out.count(": confirmed: ") == 1
    assert env.pip("check") == "No broken requirements found.\n"
    shown = env.pip("show", "--files", "demo-plugin")
    assert "demo_plugin/_fixpack/rows.py" in shown
    assert "fixpack.json" in shown
    assert env.kit.verb("revert").code == 0
    assert env.content() == stock  # RECORD too, byte for byte
    assert env.apply(*flags).code == 0
    env.pip("uninstall", "--yes", "demo-plugin", "demo-core")
    assert env.files() == set()


def test_update_record_on_what_is_in_place(env: Environment) -> None:
    stock = env.content()
    env.apply()
    done = env.apply("--update-record", "--check")
    assert (done.code, ": not applied: " in done.out) == (1, True)
    assert env.apply("--update-record").code == 0
    assert env.mismatches() == []
    assert env.apply("--update-record").out.count(": confirmed: ") == 1
    assert env.apply("long-share").code == 0  # the rows keep following the files
    assert env.mismatches() == []
    assert env.kit.verb("revert").code == 0
    assert env.content() == stock


def test_force_reinstall_takes_fix_and_receipt(env: Environment) -> None:
    stock = env.content()
    env.apply()
    env.install("demo-plugin@v1.0.0", "demo-core@v1.0.0", flags=("--force-reinstall",))
    assert env.content() == stock
    assert env.apply("--check").code == 1
    assert env.apply().code == 0


def test_reinstall_of_one_of_two(env: Environment) -> None:
    env.apply()
    env.install("demo-core@v1.0.0", flags=("--force-reinstall",))
    assert env.kit.states()["core-guard"] == "pristine"
    assert env.kit.states()["rows-counted"] == "applied"
    done = env.apply()
    assert (done.code, "1 file written" in done.out) == (0, True)


def test_upgrade_leaves_nothing_behind(env: Environment) -> None:
    env.apply()
    env.install("demo-plugin@v2.0.0", flags=("--upgrade",))
    assert not any("_fixpack" in path or "fixpack.json" in path for path in env.files() if "demo_plugin" in path)
    done = env.apply()  # without PyYAML it can say no more than that
    assert (done.code, done.codes[0]) == (1, "base_sha_unknown")
    done = env.kit.apply()
    assert (done.code, done.codes) == (1, ["other_release"])
    assert "use --profile bench-v2.0.0" in done.err
    assert env.kit.command("--profile", "v2.0.0", python=str(env.python)).code == 0


def test_an_editable_install(tmp_path: Path) -> None:
    env = Environment(Kit(tmp_path))
    source = tmp_path / "source"
    write(source, {**UPSTREAM["demo-plugin@v1.0.0"], "backend.py": BACKEND, "pyproject.toml": PYPROJECT})
    env.install("demo-core@v1.0.0")
    env.pip("install", "--no-index", "--no-build-isolation", "--no-deps", "--quiet", "--editable", str(source))
    stock = {path: path.read_bytes() for path in source.rglob("*.py")}
    done = env.apply()
    assert (done.code, done.err) == (0, "")
    assert str(source) in done.out
    assert (source / ".fixpack.demo-plugin.json").is_file()  # its dist-info lies elsewhere
    assert env.apply().out.count(": confirmed: ") == 1
    env.pip("uninstall", "--yes", "demo-plugin")  # pip leaves a source tree alone, fixes included
    assert (source / "demo_plugin/_fixpack/rows.py").is_file()
    sources = ("--source", f"demo-plugin={source}", "--source", f"demo-core={env.site}")
    assert env.kit.verb("revert", *sources).code == 0
    assert {path: path.read_bytes() for path in source.rglob("*.py")} == stock
    assert not (source / ".fixpack.demo-plugin.json").exists()


def test_a_store_that_shares_its_files_by_hard_links(env: Environment) -> None:
    """As uv and other installers lay out environments: every file is a second name of the store's."""
    store = env.kit.folder / "store"
    for path in [path for path in env.site.rglob("*") if path.is_file()]:
        place = store / path.relative_to(env.site)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, place)
    before = {path: (path.read_bytes(), path.stat().st_ino) for path in store.rglob("*") if path.is_file()}
    assert env.apply("--update-record").code == 0
    assert env.kit.verb("revert", "core-guard").code == 0
    assert {path: (path.read_bytes(), path.stat().st_ino) for path in before} == before
    env.pip("uninstall", "--yes", "demo-plugin", "demo-core")
    assert {path: (path.read_bytes(), path.stat().st_ino) for path in before} == before


UV = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


@pytest.mark.skipif(not UV, reason="uv is not installed")
def test_the_real_uv(tmp_path: Path) -> None:
    env = Environment(Kit(tmp_path))
    cache = tmp_path / "uv-cache"
    wheels = [str(env.wheel("demo-plugin@v1.0.0")), str(env.wheel("demo-core@v1.0.0"))]
    command = [str(UV), "pip", "install", "--offline", "--no-deps", "--link-mode", "hardlink"]
    command += ["--cache-dir", str(cache), "--python", str(env.python)]
    subprocess.run([*command, *wheels], check=True, capture_output=True)
    runner = env.site / "demo_plugin/runner.py"
    assert runner.stat().st_nlink > 1
    stored = {path: path.read_bytes() for path in cache.rglob("*.py")}
    assert env.apply().code == 0
    assert runner.stat().st_nlink == 1
    assert {path: path.read_bytes() for path in cache.rglob("*.py")} == stored
    command = [str(UV), "pip", "uninstall", "--python", str(env.python), "demo-plugin", "demo-core"]
    subprocess.run(command, check=True, capture_output=True)
    assert not any(path.startswith("demo") for path in env.files())


def other_python() -> str:
    """An interpreter of another version than this one, this one if there is none."""
    here = f"python3.{sys.version_info.minor}"
    names = [f"python3.{minor}" for minor in range(10, 16)]
    beside = [path for name in names for path in sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))]
    for found in [*(shutil.which(name) for name in names), *beside]:
        if found and Path(found).name != here:
            command = [str(found), "-c", "import venv"]
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                return str(found)
    return sys.executable


def test_an_environment_of_another_interpreter(tmp_path: Path) -> None:
    """Fixed from outside; bytecode of every version goes, and the environment's own Python runs the fixed code."""
    env = Environment(Kit(tmp_path), other_python())
    env.install("demo-plugin@v1.0.0", "demo-core@v1.0.0")
    cache = env.site / "demo_core/__pycache__"
    program = "import demo_core.core; print(sorted(vars(demo_core.core)))"
    subprocess.run([env.python, "-c", program], check=True, capture_output=True)
    for tag in ("cpython-39", "cpython-310", "cpython-313", "pypy310", "cpython-312.opt-2"):
        (cache / f"core.{tag}.pyc").write_bytes(b"old")
    os.utime(env.site / "demo_core/core.py", (1, 1))
    done = env.kit.apply()  # this Python, the other's folder
    assert done.code == 0
    assert [path.name for path in cache.iterdir() if path.name.startswith("core.")] == []
    code = "import demo_plugin._fixpack.rows as rows; print(rows.count_rows([1, 2]))"
    found = subprocess.run([env.python, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "2\n"
    assert env.apply().out.count(": confirmed: ") == 1  # and its own Python confirms


def test_two_importable_copies(env: Environment) -> None:
    twin = env.kit.folder / "twin"
    shutil.copytree(env.site / "demo_plugin", twin / "demo_plugin")
    before = env.content()
    done = env.apply(env={"PYTHONPATH": str(twin)})
    assert (done.code, done.codes) == (1, ["two_copies"])
    assert str(twin) in done.err
    assert str(env.site) in done.err
    assert env.content() == before
    assert env.apply("--site", str(env.site), env={"PYTHONPATH": str(twin)}).code == 0


def test_a_running_python_goes_on_with_what_it_imported(env: Environment) -> None:
    """Files are replaced, not rewritten: a process that has them open or imported is not disturbed."""
    program = (
        "import demo_plugin.runner as runner, demo_plugin.batch, linecache, sys\n"
        "file = open(runner.__file__, 'rb')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(runner.Runner().step([3, 1, 2]), b'fixpack' in file.read(), flush=True)\n"
    )
    run = subprocess.Popen([env.python, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    assert env.apply().code == 0
    out, _ = run.communicate("\n", timeout=60)
    assert (run.returncode, out) == (0, "[1, 2, 3] False\n")
    code = "import demo_plugin.runner as runner; print(runner.Runner().step([3, 1, 2]))"
    found = subprocess.run([env.python, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "[3, 1, 2]\n"
