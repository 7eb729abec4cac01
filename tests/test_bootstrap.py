"""The set-up program: its pins agree, its stamps hold, its failures are messages."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PIN_FILES = ("requirements/try.txt", "requirements/test.txt", "tests/harness/requirements.txt")


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, with its checkout and environment in a temporary folder."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bootstrap.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv/bin/python")
    return module


def requirements(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_requirement_is_pinned_and_the_files_agree() -> None:
    pins: dict[str, set[str]] = {}
    for file in PIN_FILES:
        for requirement in requirements(file):
            assert re.fullmatch(r"==[^*]+", str(requirement.specifier)), f"{file}: {requirement}"
            if requirement.marker is None or requirement.marker.evaluate():
                pins.setdefault(canonical(requirement.name), set()).add(str(requirement.specifier))
    assert {name: found for name, found in pins.items() if len(found) > 1} == {}
    if sys.version_info >= (3, 11):
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for line in [*project["dependencies"], *project["optional-dependencies"]["tools"]]:
            wanted = Requirement(line)
            assert canonical(wanted.name) in pins, f"{wanted} has no pin"
            (pin,) = pins[canonical(wanted.name)]
            assert pin.removeprefix("==") in wanted.specifier


@pytest.mark.parametrize("arguments", [(), ("tryy",)])
def test_wrong_usage_explains(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "bootstrap.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "python3 bootstrap.py try" in done.stderr


def test_install_once_per_content(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "call", lambda command: calls.append(list(command)) or 0)
    (bootstrap.ROOT / ".venv").mkdir()
    pins = bootstrap.ROOT / "pins.txt"
    for text in ("a==1\n", "a==1\n", "a==2\n"):
        pins.write_text(text, encoding="utf-8")
        bootstrap.install({"pins.txt": ("--no-deps",)})
    pip = [str(bootstrap.PYTHON), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(pins)]
    assert calls == [pip, pip]


def test_a_failed_install_is_tried_again(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "call", lambda command: 1)
    (bootstrap.ROOT / ".venv").mkdir()
    (bootstrap.ROOT / "pins.txt").write_text("a==1\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(bootstrap.SetupError, match=r"pip could not install pins\.txt"):
            bootstrap.install({"pins.txt": ()})


def test_a_foreign_environment_is_left_alone(bootstrap: ModuleType) -> None:
    mine = bootstrap.ROOT / ".venv/notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine", encoding="utf-8")
    with pytest.raises(bootstrap.SetupError, match="not of this program's making"):
        bootstrap.make_venv(sys.executable, None)
    assert mine.read_text(encoding="utf-8") == "mine"


def test_its_own_broken_environment_is_made_anew(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "call", lambda command: calls.append(list(command)) or 0)
    old = bootstrap.ROOT / ".venv/fixpack-venv.stamp"
    old.parent.mkdir()
    old.touch()
    (old.parent / "old.txt").touch()
    bootstrap.make_venv("python9", None)
    assert calls == [["python9", "-m", "venv", str(old.parent)]]
    assert sorted(path.name for path in old.parent.iterdir()) == ["fixpack-venv.stamp"]


def test_a_git_address_that_does_not_answer_is_not_reachable(bootstrap: ModuleType, tmp_path: Path) -> None:
    assert not bootstrap.reachable(f"file://{tmp_path}/nothing.git")
    subprocess.run(["git", "init", "-q", str(tmp_path / "empty")], check=True)
    (tmp_path / "empty/.git/HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    assert bootstrap.reachable(f"file://{tmp_path}/empty")


def test_ci_runs_the_same_command_and_requires_the_proofs() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert lines[-2:] == ["export FIXPACK_REQUIRE_PROOFS=1", "exec python3 bootstrap.py test"]


@pytest.mark.parametrize(
    ("uid", "mount", "tools", "install", "required"),
    [
        (0, 0, True, 9, "1"),  # what is there needs no installation
        (0, 0, False, 0, "1"),
        (0, 0, False, 9, "no"),
        (0, 0, False, None, "no"),  # not Debian
        (0, 1, True, 0, "no"),
        (1000, 0, True, 0, "no"),
    ],
)
def test_ci_requires_images_where_they_can_be_built(
    tmp_path: Path, uid: int, mount: int, tools: bool, install: int | None, required: str
) -> None:
    programs = {
        "id": f"echo {uid}",
        "unshare": f"exit {mount}",
        "python3": "echo images: ${FIXPACK_REQUIRE_IMAGE:-no} proofs: $FIXPACK_REQUIRE_PROOFS $*",
    }
    if tools:
        programs |= {"buildah": "exit 0", "debootstrap": "exit 0"}
    if install is not None:
        programs["apt-get"] = f"echo noise; exit {install}"
    for name, code in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    command = ["/bin/bash", str(ROOT / ".ci/run")]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"images: {required} proofs: 1 bootstrap.py test\n")
    assert (required == "no") == ("their tests are skipped" in done.stderr)
