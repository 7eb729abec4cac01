"""A file is replaced in one step: what was there stays until then, and no planted name is followed."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from fixpack import durable
from fixpack.cli import docs

LASTING = pytest.mark.parametrize("lasting", [True, False])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@LASTING
def test_written_and_nothing_else_left(tmp_path: Path, lasting: bool) -> None:
    path = tmp_path / "a.json"
    for data in (b"one", b"two"):
        durable.replace(str(path), data, lasting=lasting)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_the_mode(tmp_path: Path, umask: int) -> None:
    """A new file's follows the umask, and never lets others write; an old file keeps its own."""
    old = os.umask(umask)
    try:
        durable.replace(str(tmp_path / "new"), b"x")
        for bits in (0o600, 0o664, 0o444):
            path = tmp_path / f"{bits:o}"
            path.write_bytes(b"old")
            path.chmod(bits)
            durable.replace(str(path), b"x")
            assert (mode(path), path.read_bytes()) == (bits, b"x")
    finally:
        os.umask(old)
    assert mode(tmp_path / "new") == 0o644 & ~umask


def test_names_that_were_planted(tmp_path: Path) -> None:
    """A link under the name that is easy to guess leads nowhere."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (".a.tmp", "a.tmp"):
        (tmp_path / name).symlink_to(victim)
    durable.replace(str(tmp_path / "a"), b"x")
    assert (victim.read_text(), (tmp_path / "a").read_text()) == ("mine", "x")
    assert not (tmp_path / "a").is_symlink()


def test_the_very_name_was_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: b"\0" * size)
    victim = tmp_path / "victim"
    (tmp_path / f".a.{'00' * 8}.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        durable.replace(str(tmp_path / "a"), b"x")
    assert not victim.exists()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    for data in (b"new", b"old"):  # dangling, then not
        durable.replace(str(tmp_path / "link"), data)
        assert (tmp_path / "there/file").read_bytes() == data
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "there") == ["file"]


@LASTING
def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkdir("folder")
    os.symlink("pipe", "link")
    os.symlink("loop", "loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    before = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    for name in (*before, "/dev/null"):
        kind = errno.EISDIR if name == "folder" else errno.EINVAL
        with pytest.raises(OSError, match="Is a directory" if name == "folder" else "not a regular file") as caught:
            durable.replace(name, b"x", lasting=lasting)
        assert (caught.value.errno, caught.value.filename) == (kind, name)
    assert {path.name: path.lstat().st_ino for path in tmp_path.iterdir()} == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("at", ["replace", "fsync", "fchmod"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()], ids=["full", "interrupt"])
def test_any_fault_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, error: BaseException
) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(os, at, fail)
    with pytest.raises(type(error)):
        durable.replace(str(path), b"new")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"a": "old"}


def test_a_long_name(tmp_path: Path) -> None:
    name = "é" * 127
    durable.replace(str(tmp_path / name), b"x")
    assert os.listdir(tmp_path) == [name]


def test_pages_are_written_that_way(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "page.md.tmp").symlink_to(victim)
    docs._write(str(tmp_path / "page.md"), "# Page\n")
    assert (tmp_path / "page.md").read_bytes() == b"# Page\n"
    assert not victim.exists()
