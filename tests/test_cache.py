"""The source cache: where it is, and what it does when the system does not let it write."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pwd
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixpack import cache, cli, sdist, sources
from fixpack.errors import SourceError, UsageError
from fixpack.model import Release, Sdist

SIZES = range(4, 164, 8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    monkeypatch.setenv("FIXPACK_SOURCES", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def upstream(tmp_path: Path) -> Release:
    """A release in a git repository, with a file that does not compress."""
    repo = tmp_path / "upstream"
    (repo / "pkg").mkdir(parents=True)
    (repo / "pkg/__init__.py").write_text("")
    (repo / "pkg/data.py").write_text(os.urandom(24 << 10).hex())
    git = ["git", "-C", str(repo), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "v1"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    return Release("demo-pkg", "v1", "1", "pkg", commit, (), repo.as_uri(), None, {}, "anchors/demo-pkg/v1.yaml")


@pytest.fixture
def archived(tmp_path: Path) -> tuple[Release, Path]:
    """A release in a source archive."""
    made = tmp_path / "demo-1.tar.gz"
    with tarfile.open(made, "w:gz") as tar:
        for name, data in {"demo-1/pkg/__init__.py": b"", "demo-1/pkg/data.py": os.urandom(48 << 10)}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    pinned = Sdist(made.name, hashlib.sha256(made.read_bytes()).hexdigest())
    return Release("demo", "v1", "1", "pkg", "1" * 40, (), "", pinned, {}, "anchors/demo/v1.yaml"), made


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[None]:
    """A file system of that size; skips where nobody can mount one."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fetched(release: Release, origin: str | None) -> list[str]:
    """The reason codes of a fetch that failed; [] when it did not, and then the tree is whole."""
    try:
        sources.fetch(release, origin)
    except SourceError as error:
        return [problem.code for problem in error.problems]
    assert sources.verify(release) == []
    return []


@pytest.mark.parametrize("kilobytes", SIZES)
def test_full_disk_under_git(upstream: Release, own_cache: Path, kilobytes: int) -> None:
    with small_disk(own_cache, kilobytes):
        codes = fetched(upstream, None)
        assert codes in ([], ["disk_full"], ["cache_read_only"])
        assert sources.have(upstream) == (codes == [])
        subprocess.run(["mount", "-o", "remount,size=4m", str(own_cache)], check=True)
        assert fetched(upstream, None) == []


@pytest.mark.parametrize("kilobytes", SIZES)
def test_full_disk_under_an_archive(archived: tuple[Release, Path], own_cache: Path, kilobytes: int) -> None:
    release, origin = archived
    with small_disk(own_cache, kilobytes):
        codes = fetched(release, str(origin))
        assert codes in ([], ["disk_full"], ["cache_read_only"])
        assert sources.have(release) == (codes == [])
        subprocess.run(["mount", "-o", "remount,size=4m", str(own_cache)], check=True)
        assert fetched(release, str(origin)) == []


def test_folder_in_place_of_the_archive(archived: tuple[Release, Path], own_cache: Path) -> None:
    release, origin = archived
    folder = own_cache / "sdists" / origin.name
    folder.mkdir(parents=True)
    with pytest.raises(SourceError) as caught:
        sources.fetch(release, str(origin))
    [problem] = caught.value.problems
    assert (problem.code, problem.file, problem.hint) == (
        "not_a_file",
        str(folder),
        "remove it, and run this again",
    )
    folder.rmdir()
    os.mkfifo(folder)
    with pytest.raises(SourceError):
        sources.fetch(release, str(origin))
    folder.unlink()
    assert sdist.is_pinned(cache.sdist_file(release), Sdist("", "")) is False
    assert sources.obtain(release, str(origin)).action == "fetched"


RECORD = {"kind": "git", "commit": "1" * 40, "sdist_sha256": "", "origin": "x", "files": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "null",
        "[" * 100_000,
        '{"kind": ' + "[" * 900 + "]" * 900 + "}",
        json.dumps({**RECORD, "commit": 7}),
        json.dumps({**RECORD, "commit": None}),
        json.dumps({**RECORD, "files": []}),
        json.dumps({**RECORD, "files": {"x": 1}}),
        json.dumps({**RECORD, "more": ""}),
        "\xff",
    ],
)
def test_note_that_is_none_is_healed(upstream: Release, text: str) -> None:
    note = Path(sources.fetch(upstream), cache.RECORD)
    good = note.read_bytes()
    note.write_bytes(text.encode("latin-1"))
    assert cache.read_record(str(note.parent)) is None
    assert [problem.code for problem in sources.verify(upstream)] == ["source_damaged"]
    assert sources.obtain(upstream).action == "rebuilt"
    assert json.loads(note.read_bytes()) == {**json.loads(good), "origin": "the cached repository"}


def test_link_in_place_of_the_work_folder_is_refused(upstream: Release, own_cache: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis").write_text("years of work")
    own_cache.mkdir()
    (own_cache / "tmp").symlink_to(mine)
    with pytest.raises(SourceError) as caught:
        sources.fetch(upstream)
    assert [(problem.code, problem.found) for problem in caught.value.problems] == [("cache_link", str(mine))]
    assert (mine / "thesis").read_text() == "years of work"


def test_user_without_a_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("FIXPACK_SOURCES", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        cache.cache_dir()
    assert caught.value.problems[0].hint == "set FIXPACK_SOURCES to a folder for it"
    assert cli.main(["sources", "list"]) == 2
    assert "no home folder" in capfd.readouterr().err
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache.cache_dir() == "/var/cache/fixpack"
