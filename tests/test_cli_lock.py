"""``fixpack lock`` writes a lock with one rename, or says in one line why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit import Kit

from fixpack import cli, lint, registry, sources

NAME = "profiles/bench-v1.0.0.lock.json"


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """The invented world, with its trees as the cache, and one lock that has to be written."""
    made = Kit(tmp_path)
    monkeypatch.setattr(sources, "have", lambda release: (made.trees / release.ref).is_dir())
    monkeypatch.setattr(sources, "tree", lambda release: str(made.trees / release.ref))
    (made.registry / NAME).write_text("{}")
    return made


def lock(kit: Kit, *words: str) -> int:
    return cli.main(["lock", "bench-v1.0.0", *words, "--registry", str(kit.registry)])


def test_written_then_unchanged(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(os.listdir(kit.registry / "profiles"))
    assert [lock(kit, "--check"), lock(kit), lock(kit), lock(kit, "--check")] == [1, 0, 0, 0]
    assert capsys.readouterr().out.split() == [
        word for state in ("stale", "written", "unchanged", "unchanged") for word in ("bench-v1.0.0:", state)
    ]
    assert sorted(os.listdir(kit.registry / "profiles")) == names
    (kit.registry / NAME).unlink()
    assert lock(kit) == 0
    assert sorted(os.listdir(kit.registry / "profiles")) == names


def test_killed_before_the_rename(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves is nobody's business: the registry is valid, and the next run goes on."""

    class Killed(BaseException):
        pass

    def killed(*args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr(os, "unlink", killed)  # nor does it clean up
        with pytest.raises(Killed):
            lock(kit)
    assert (kit.registry / NAME).read_text() == "{}"
    [left] = (kit.registry / "profiles").glob(".bench-v1.0.0.lock.json.*.tmp")
    found = lint.lint(registry.load(str(kit.registry)))
    assert {problem.file for problem in found.problems if problem.code.startswith(("lock", "orphan"))} == {NAME}
    assert lock(kit) == 0
    assert [name for name in os.listdir(kit.registry / "profiles") if name.startswith(".")] == [left.name]


def test_registry_that_cannot_be_written(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*args: object) -> None:
        raise OSError(30, "Read-only file system", args[0])

    monkeypatch.setattr(os, "replace", refused)
    assert lock(kit) == 2
    path = kit.registry / NAME
    assert capsys.readouterr().err == (
        f"error: {path}: the lock of bench-v1.0.0 cannot be written: Read-only file system [lock_not_written]\n"
        "1 problem\n"
    )
    assert path.read_text() == "{}"
    assert not [name for name in os.listdir(kit.registry / "profiles") if name.startswith(".")]


def test_something_else_in_its_place(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    path = kit.registry / NAME
    path.unlink()
    os.mkfifo(path)
    assert lock(kit) == 2
    assert "is not an ordinary file" in capsys.readouterr().err
