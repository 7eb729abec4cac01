"""Every file-system call of an apply and a revert of the whole real profile fails, and is the last before a kill.

The real engine on the real upstream files, opt-in fixes included, in a child process.  What counts is every
call that names something in the target or a descriptor from there.  Afterwards, at the latest after what any
next run does first, the tree is byte for byte all old or all new, and no temporary file is left.

By default at about a hundred points per test, spread over all; FIXPACK_FAULTS=every takes every point, errors
and signals taking turns; FIXPACK_FAULTS=all runs every error and every signal at every point.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import itertools
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from kit import REPO, sha

from fixpack import cli, lock
from fixpack.claim import settle
from fixpack.cli import apply_main
from fixpack.target import site_target

PROFILE = "gaudi2-v0.26.0"
CALLS = (
    *("open", "write", "read", "close", "fsync", "replace", "link", "unlink", "mkdir", "rmdir", "fchmod", "fchown"),
    *("utime", "stat", "lstat", "fstat", "scandir", "listdir", "readlink", "access"),
)
ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS)
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
#: what pending, settle and isdir ask with these answers no on an error, and the run goes on
Snapshot = dict[str, tuple[str, int]]


class Faults:
    """Patches ``os``, ``open`` and ``flock`` of this whole process; the n-th call in ``root`` does something first."""

    def __init__(self, root: Path, at: int, fault: Callable[[], None]) -> None:
        self.root, self.at, self.fault = f"{root}", at, fault
        self.numbers, self.mutex, self.last = itertools.count(1), threading.Lock(), 0
        self.ours: set[int] = set()  # descriptors from the target
        self.real_open = builtins.open

    def concerns(self, args: tuple[Any, ...]) -> bool:
        first = args[0] if args else None
        if isinstance(first, int):
            return first in self.ours
        return isinstance(first, str) and (first == self.root or first.startswith(self.root + os.sep))

    def hit(self) -> None:
        with self.mutex:
            self.last = next(self.numbers)
        if self.last == self.at:
            self.fault()

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.concerns(args):
                return real(*args, **kwargs)
            if name == "close":
                self.ours.discard(args[0])
                real(*args, **kwargs)  # Linux closes a descriptor also when it reports an error
                return self.hit()
            self.hit()
            if name == "fsync":
                return None  # durability is not what is tested, and thousands of runs take long
            result = real(*args, **kwargs)
            if name == "open":
                self.ours.add(result)
            return result

        return call

    def open_file(self, *args: Any, **kwargs: Any) -> Any:
        if self.concerns(args):
            self.hit()
        return self.real_open(*args, **kwargs)

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self.wrap(name, getattr(os, name)))
        builtins.open = self.open_file  # type: ignore[assignment]
        fcntl.flock = self.wrap("flock", fcntl.flock)  # type: ignore[assignment]


class Place:
    """The profile's files of the pinned release, as a folder of packages."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.site = folder, folder / "site"
        self.lock = lock.find(str(REPO), PROFILE)
        self.names = [(name, release["package"]) for name, release in self.lock["releases"].items()]
        stock = folder / "stock"
        for distribution, release in self.lock["releases"].items():
            tree = cache / "trees" / f"{distribution}@{release['release']}"
            if not tree.is_dir():
                pytest.skip(f"{tree.name} is not in the source cache")
            rows = []
            (stock / release["package"]).mkdir(parents=True)
            for path, entry in release["files"].items():
                if entry["base"]:
                    data = (tree / path).read_bytes()
                    (stock / path).parent.mkdir(parents=True, exist_ok=True)
                    (stock / path).write_bytes(data)
                    rows.append(f"{path},sha256=x,{len(data)}\n")
                    pyc = stock / Path(path).parent / "__pycache__" / f"{Path(path).stem}.cpython-311.pyc"
                    pyc.parent.mkdir(exist_ok=True)
                    pyc.write_bytes(b"old")
            info = stock / f"{distribution.replace('-', '_')}-{release['version']}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: {distribution}\nVersion: {release['version']}\n")
            (info / "RECORD").write_text("".join(rows))
        self.states: dict[str, Path] = {"apply": stock, "revert": folder / "fixed"}
        self.fresh("apply")
        assert self.run("apply") == 0
        shutil.copytree(self.site, self.states["revert"])
        self.old, self.new = (self.snapshot(path) for path in (stock, self.site))
        assert self.run("revert") == 0
        assert self.snapshot(self.site) == self.old

    def fresh(self, action: str) -> None:
        shutil.rmtree(self.site, ignore_errors=True)
        shutil.copytree(self.states[action], self.site)

    def run(self, action: str) -> int:
        where = ["--profile", PROFILE, "--site", str(self.site)]
        opt_in = [name for name, fix in self.lock["fixes"].items() if fix["opt_in"]]
        return apply_main.main([*where, *opt_in]) if action == "apply" else cli.main(["revert", *where])

    def snapshot(self, root: Path) -> Snapshot:
        found = {}
        for path in root.rglob("*"):
            if "__pycache__" not in path.parts:
                data = path.read_bytes() if path.is_file() else b""
                if path.name == "fixpack.json":  # an error may keep what only explains from being read
                    data = re.sub(rb'"version": "[^"]*"', b"", data)
                elif path.name == "RECORD":
                    data = re.sub(rb"fixpack.json,.*", b"", data)
                found[path.relative_to(root).as_posix()] = (sha(data), path.stat().st_mode)
        return found

    def child(self, action: str, at: int, fault: Callable[[], None]) -> tuple[int, int]:
        """Exit code (negative: the signal) and the number of calls of a run with a fault."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            quiet = os.open(os.devnull, os.O_WRONLY)
            for descriptor in (1, 2):
                os.dup2(quiet, descriptor)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            faults = Faults(self.site, at, fault)
            write, leave = os.write, os._exit
            faults.install()
            code = 99
            try:
                code = self.run(action)
            finally:
                write(writer, str(faults.last).encode())
                leave(code)
        os.close(writer)
        with open(reader, "rb") as pipe:
            count = int(pipe.read() or b"0")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), count

    def settle(self) -> None:
        settle(site_target(str(self.site), self.names), self.lock)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, real_cache: Path) -> Place:
    os.environ["SOURCE_DATE_EPOCH"] = "1700000000"
    try:
        return Place(tmp_path_factory.mktemp("faults"), real_cache)
    finally:
        del os.environ["SOURCE_DATE_EPOCH"]


@pytest.fixture(autouse=True)
def epoch(seal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def points(place: Place, action: str) -> int:
    place.fresh(action)
    code, count = place.child(action, 0, lambda: None)
    assert code == 0
    assert count > 200, "hardly any call was counted"
    return count


def raising(number: int) -> Callable[[], None]:
    def fault() -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fault


def check(place: Place, action: str, at: object) -> str:
    """The tree is all old or all new, with nothing beside; returns which."""
    found = place.snapshot(place.site)
    assert found in (place.old, place.new), (at, sorted(set(found) ^ set(place.old)))
    new = found == (place.new if action == "apply" else place.old)
    if new:
        assert not list(place.site.rglob("*.pyc")), at
    return "new" if new else "old"


HOW = os.environ.get("FIXPACK_FAULTS", "")  # read before the environment is sealed


def chosen(count: int) -> range:
    """The points to try: all, or about a hundred."""
    return range(1, count + 1, 1 if HOW else max(count // 100, 1) | 1)


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_an_error_at_every_call(place: Place, action: str, capfd: pytest.CaptureFixture[str]) -> None:
    count = points(place, action)
    seen = {"old": 0, "new": 0, "only after the next run": 0}
    for at in chosen(count):
        for number in ERRORS if HOW == "all" else (ERRORS[at % len(ERRORS)],):
            place.fresh(action)
            code, _ = place.child(action, at, raising(number))
            assert code in (0, 1, 2), (at, errno.errorcode[number], code)
            if place.snapshot(place.site) not in (place.old, place.new):
                seen["only after the next run"] += 1
                place.settle()
            state = check(place, action, (at, errno.errorcode[number]))
            assert state == "new" or code, at  # an error that keeps a folder from being seen is exit 2, never 3
            seen[state] += 1
    with capfd.disabled():
        print(f"\n{action}: {count} points, {sum(seen.values()) - seen['only after the next run']} errors: {seen}")
    assert seen["old"]
    assert seen["new"]


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_a_signal_at_every_call(place: Place, action: str, capfd: pytest.CaptureFixture[str]) -> None:
    count = points(place, action)
    seen = {"old": 0, "new": 0, "only after the next run": 0}
    for at in chosen(count):
        for number in SIGNALS if HOW == "all" or at % 4 == 0 else SIGNALS[:1]:
            place.fresh(action)
            code, _ = place.child(action, at, lambda number=number: os.kill(os.getpid(), number))
            assert code == (130 if number == signal.SIGINT else -number), (at, number, code)
            if place.snapshot(place.site) not in (place.old, place.new):
                assert number == signal.SIGKILL, (at, "a signal that can wait left something behind")
                seen["only after the next run"] += 1
                place.settle()
            seen[check(place, action, (at, number))] += 1
    with capfd.disabled():
        print(f"\n{action}: {count} points, {sum(seen.values()) - seen['only after the next run']} signals: {seen}")
    assert all(seen.values())
