"""The transaction: every file-system call fails once and is once the last before a kill; the tree is never mixed."""

from __future__ import annotations

import builtins
import errno
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixpack import commit as commit_module
from fixpack import disk, durable, hold, recovery, steps
from fixpack.commit import commit
from fixpack.hold import locked
from fixpack.journal import JOURNAL
from fixpack.recovery import recover
from fixpack.steps import Change, WriteError

CALLS = (
    *("open", "write", "close", "replace", "link", "unlink", "mkdir", "rmdir", "fsync", "fchmod", "fchown", "utime"),
    *("stat", "fstat", "scandir"),
)

OLD: dict[str, bytes] = {"pkg/a.py": b"a = 1\n", "pkg/sub/b.py": b"b = 1\n", "pkg/gone.py": b"gone = 1\n"}
NEW: dict[str, bytes] = {"pkg/a.py": b"a = 2\n", "pkg/sub/b.py": b"b = 2\n", "pkg/new/c.py": b"c = 2\n"}


class Stop(BaseException):
    """Ends the counting of calls."""


class FaultyOs:
    """``os`` in which the n-th file-system call does something else first."""

    def __init__(self, at: int, fault: Callable[[str], None]) -> None:
        self.at, self.fault, self.count = at, fault, 0

    def hit(self, name: str) -> None:
        self.count += 1
        if self.count == self.at:
            self.fault(name)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "close":
                real(*args, **kwargs)  # Linux closes a descriptor also when it reports an error
            self.hit(name)
            if name in ("close", "fsync"):
                return None  # what is synced is not what is tested here, and hundreds of runs take long
            return real(*args, **kwargs)

        return call

    def open_file(self, *args: Any, **kwargs: Any) -> Any:
        self.hit("open")
        return builtins.open(*args, **kwargs)


def lay(root: Path) -> None:
    for path, data in OLD.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / "pkg/a.py").chmod(0o754)
    cache = root / "pkg/__pycache__"
    cache.mkdir()
    (cache / "a.cpython-311.pyc").write_bytes(b"stale")


def changes(root: Path) -> list[Change]:
    root = root.resolve()
    paths = sorted({*OLD, *NEW})
    return [Change(str(root / path), OLD.get(path), NEW.get(path)) for path in paths]


def known(root: Path) -> set[str]:
    return {change.path for change in changes(root)}


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def install(monkeypatch: pytest.MonkeyPatch, faulty: FaultyOs) -> None:
    for module in (commit_module, disk, durable, hold, recovery, steps):
        monkeypatch.setattr(module, "os", faulty)
    monkeypatch.setattr(disk, "open", faulty.open_file, raising=False)


def run(root: Path) -> None:
    with locked(str(root)):
        recover(str(root), known(root))
        commit(changes(root), str(root))


def test_commit_writes_all_and_leaves_nothing_else(tmp_path: Path) -> None:
    lay(tmp_path)
    os.link(tmp_path / "pkg/a.py", tmp_path / "store")
    run(tmp_path)
    assert tree(tmp_path) == {**NEW, "store": OLD["pkg/a.py"]}
    assert stat.S_IMODE((tmp_path / "pkg/a.py").stat().st_mode) == 0o754
    assert not list((tmp_path / "pkg/__pycache__").iterdir())


def count_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    root = tmp_path / "count"
    root.mkdir()
    lay(root)
    faulty = FaultyOs(-1, lambda name: None)
    with monkeypatch.context() as patch:
        install(patch, faulty)
        run(root)
    return faulty.count


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_an_error_at_any_call_leaves_the_old_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    points = count_calls(tmp_path, monkeypatch)

    def fail(name: str) -> None:
        raise OSError(error, os.strerror(error))

    undone = 0
    for at in range(1, points + 1):
        root = tmp_path / f"at-{at}"
        root.mkdir()
        lay(root)
        before = {path: os.stat(root / path).st_ino for path in OLD}
        with monkeypatch.context() as patch:
            install(patch, FaultyOs(at, fail))
            try:
                run(root)
            except (WriteError, OSError):
                undone += 1
        with locked(str(root)):  # what the next run does first
            recover(str(root), known(root))
        found = tree(root)
        leftovers = [name for name in found if ".fixpack-" in name]
        assert not leftovers or at < points, (at, leftovers)
        found = {path: data for path, data in found.items() if path not in leftovers}
        assert found in (OLD, NEW), (at, found)
        if found == OLD:
            assert {path: os.stat(root / path).st_ino for path in OLD} == before, at
            run(root)
        assert tree(root) == NEW, at
    print(f"{points} points with {errno.errorcode[error]}, {undone} undone")
    assert undone > points // 2  # the last calls fail after all files are new, and some failures are harmless


def test_a_kill_at_any_call_is_finished_or_undone_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = count_calls(tmp_path, monkeypatch)
    seen = {"old": 0, "new": 0, "recovered": 0}
    for at in range(1, points + 1):
        root = tmp_path / f"at-{at}"
        root.mkdir()
        lay(root)
        child = os.fork()
        if child == 0:
            install(monkeypatch, FaultyOs(at, lambda name: os.kill(os.getpid(), signal.SIGKILL)))
            run(root)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, at
        with locked(str(root)):
            seen["recovered"] += bool(recover(str(root), known(root)))
        found = {path: data for path, data in tree(root).items() if ".fixpack-" not in path}
        assert found in (OLD, NEW), (at, found)
        seen["old" if found == OLD else "new"] += 1
        if found == OLD:
            run(root)
        assert tree(root) == NEW, at
    print(f"{points} points with SIGKILL: {seen}")
    assert all(seen.values())


def test_a_kill_during_the_undo_is_put_right_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first fault starts the undo; a kill at every later call leaves something that recover can finish."""
    points = count_calls(tmp_path, monkeypatch)
    switches = 0
    for extra in range(1, 40):
        root = tmp_path / f"extra-{extra}"
        root.mkdir()
        lay(root)
        child = os.fork()
        if child == 0:
            faulty = FaultyOs(-1, lambda name: None)

            def fault(name: str, faulty: FaultyOs = faulty, extra: int = extra) -> None:
                faulty.at = faulty.count + extra
                faulty.fault = lambda name: os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(errno.EIO, "injected")

            faulty.at, faulty.fault = points - 12, fault
            install(monkeypatch, faulty)
            try:
                run(root)
            except (WriteError, OSError):
                os._exit(0)
            os._exit(1)
        os.waitpid(child, 0)
        with locked(str(root)):
            switches += bool(recover(str(root), known(root)))
        found = {path: data for path, data in tree(root).items() if ".fixpack-" not in path}
        assert found in (OLD, NEW), (extra, found)
        if found == OLD:
            run(root)
        assert tree(root) == NEW, extra
    assert switches


def test_a_file_that_changed_meanwhile_stops_the_run(tmp_path: Path) -> None:
    lay(tmp_path)
    planned = changes(tmp_path)
    (tmp_path / "pkg/sub/b.py").write_bytes(b"b = 3\n")
    with pytest.raises(WriteError) as caught, locked(str(tmp_path)):
        commit(planned, str(tmp_path))
    assert caught.value.problems[0].message == "cannot write: it changed while the fixes were being computed"
    assert tree(tmp_path) == {**OLD, "pkg/sub/b.py": b"b = 3\n"}


def test_a_journal_whose_file_was_changed_since_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path)
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(commit_module, "switch", lambda step: os.kill(os.getpid(), signal.SIGKILL))
        run(tmp_path)
    os.waitpid(child, 0)
    (tmp_path / "pkg/a.py").write_bytes(b"a = 'mine'\n")
    before = tree(tmp_path)
    with pytest.raises(WriteError) as caught, locked(str(tmp_path)):
        recover(str(tmp_path), known(tmp_path))
    problem = caught.value.problems[0]
    assert (problem.code, problem.file) == ("journal_conflict", str(tmp_path.resolve() / "pkg/a.py"))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"schema": "other"}', b'{"schema": "fixpack.journal/2"}'])
def test_a_journal_that_cannot_be_read_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / JOURNAL).write_bytes(text)
    with pytest.raises(WriteError) as caught, locked(str(tmp_path)):
        recover(str(tmp_path), known(tmp_path))
    assert caught.value.problems[0].code == "journal_invalid"


def test_the_order_of_syncs_and_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power loss may leave: nothing is renamed before all of it is on the disk, the journal goes after that."""
    lay(tmp_path)
    root = str(tmp_path.resolve())
    log: list[tuple[str, str]] = []
    names: dict[int, str] = {}
    real = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink")}

    def opened(path: str, *args: Any, **kwargs: Any) -> int:
        descriptor: int = real["open"](path, *args, **kwargs)
        names[descriptor] = path
        return descriptor

    def synced(descriptor: int) -> None:
        log.append(("sync", names[descriptor]))
        real["fsync"](descriptor)

    def replaced(source: str, target: str) -> None:
        log.append(("rename", target))
        real["replace"](source, target)

    def unlinked(path: str) -> None:
        log.append(("unlink", path))
        real["unlink"](path)

    for name, fake in (("open", opened), ("fsync", synced), ("replace", replaced), ("unlink", unlinked)):
        monkeypatch.setattr(os, name, fake)
    run(tmp_path)
    monkeypatch.undo()
    journal = os.path.join(root, JOURNAL)
    targets = {os.path.join(root, path) for path in NEW}
    first = min(log.index(("rename", path)) for path in targets)
    last = max(log.index(("rename", path)) for path in targets)
    before = {path for kind, path in log[:first] if kind == "sync"}
    for path in targets:
        folder, name = os.path.split(path)
        assert {f"{folder}/.fixpack-new-{name}", folder} <= before, path
    for path in OLD:
        folder, name = os.path.split(os.path.join(root, path))
        assert f"{folder}/.fixpack-old-{name}" in before, path
    renamed = max(index for index, each in enumerate(log[:first]) if each == ("rename", journal))
    assert ("sync", root) in log[renamed:first]  # the journal itself
    assert ("sync", os.path.join(root, ".fixpack-new-journal")) in log[:renamed]
    dropped = max(index for index, each in enumerate(log) if each == ("unlink", journal))
    after = {path for kind, path in log[last:dropped] if kind == "sync"}
    assert {os.path.dirname(path) for path in targets} <= after
    assert not os.path.exists(journal)
