"""Source archives: a real index on the loopback interface, real archives, some of them hostile."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fixpack import cache, pkgindex, sdist, sources
from fixpack.errors import SourceError
from fixpack.model import Release, Sdist, SourceFile

NAME = "demo-2.tar.gz"
BLOCK = 1 << 14
FILES = {
    "demo-2/PKG-INFO": b"Metadata-Version: 2.1\nName: demo\nVersion: 2\n",
    "demo-2/setup.py": b"raise SystemExit('never run')\n",
    "demo-2/demo/__init__.py": b"",
    "demo-2/demo/core.py": bytes(os.urandom(1 << 20)),  # larger than a block, and does not compress
    "demo-2/demo.egg-info/PKG-INFO": b"Metadata-Version: 2.1\n",
    "demo-2/other/x.py": b"",
}
KEPT = {path[7:]: data for path, data in FILES.items() if "setup" not in path and "other" not in path}


def archive(*members: tuple[tarfile.TarInfo, bytes], files: dict[str, bytes] = FILES) -> bytes:
    """A gzipped tar of the files, then of the members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, data in files.items():
            tar.addfile(member(path, len(data)), io.BytesIO(data))
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def member(path: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.size, info.type, info.linkname = size, kind, link
    return info


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Index:
    """A package index with one project, and knobs for what goes wrong."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.listed_sha256 = sha256(data)
        self.ranges = True
        self.break_after: list[int] = []  # one entry per reply: send so many bytes, then hang up
        self.asked: list[str] = []  # "path range"
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                index.asked.append(f"{self.path} {self.headers.get('Range', '')}".strip())
                if self.path == "/simple/demo/":
                    fragment = f"#sha256={index.listed_sha256}" if index.listed_sha256 else ""
                    page = f'<html><body><a href="../../files/{NAME}{fragment}">{NAME}</a></body></html>'.encode()
                    self.reply(200, page, {"Content-Type": "text/html"})
                elif self.path == f"/files/{NAME}":
                    self.file()
                else:
                    self.reply(404, b"", {})

            def file(self) -> None:
                asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                start = int(asked[1]) if asked and index.ranges else 0
                headers = {}
                if start:
                    headers = {"Content-Range": f"bytes {start}-{len(index.data) - 1}/{len(index.data)}"}
                if start >= len(index.data):
                    self.reply(416, b"", {})
                else:
                    self.reply(206 if start else 200, index.data[start:], headers)

            def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                stop = index.break_after.pop(0) if index.break_after and self.path.startswith("/files") else len(body)
                self.wfile.write(body[:stop])
                self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple/"

    def downloads(self) -> list[str]:
        """The ranges that the file was asked for, "" for all of it."""
        return [asked.partition(" ")[2] for asked in self.asked if asked.startswith("/files")]


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index(archive())
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Index) -> Path:
    """A cache of its own, and pip configured for the loopback index only."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FIXPACK_SOURCES", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    return tmp_path / "cache"


def release_of(data: bytes) -> Release:
    return Release("demo", "v2", "2", "demo", "1" * 40, (), "", Sdist(NAME, sha256(data)), {}, "anchors/demo/v2.yaml")


def contents(tree: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(tree)): path.read_bytes()
        for path in Path(tree).rglob("*")
        if path.is_file() and path.name != cache.RECORD
    }


def kept(folder: Path) -> list[str]:
    """Every file of the cache but its lock."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def test_by_name(index: Index, own_machine: Path) -> None:
    release = release_of(index.data)
    done = sources.obtain(release)
    assert contents(done.path) == KEPT
    assert done.record._replace(files={}) == cache.Record("sdist", "", sha256(index.data), index.url, {})
    assert done.record.files == {path: sha256(data) for path, data in KEPT.items()}
    assert sources.verify(release) == []
    assert index.downloads() == [""]
    assert os.listdir(own_machine / "sdists") == [NAME]


def test_damage_is_told_and_repaired_without_the_index(index: Index) -> None:
    release = release_of(index.data)
    tree = Path(sources.fetch(release))
    (tree / "demo/core.py").write_bytes(b"x")
    (tree / "demo/__init__.py").unlink()
    (tree / "demo/link.py").symlink_to("core.py")
    assert {
        os.path.relpath(problem.file, tree): problem.message.split(": ")[1] for problem in sources.verify(release)
    } == {
        "demo/core.py": "changed since it was fetched",
        "demo/__init__.py": "the file is gone",
        "demo/link.py": "a file that upstream does not have",
    }
    assert sources.obtain(release).action == "rebuilt"
    assert (contents(str(tree)), index.downloads()) == (KEPT, [""])


def test_pinned_files_are_compared(index: Index) -> None:
    good = SourceFile("demo/core.py", sha256(FILES["demo-2/demo/core.py"]), {})
    release = release_of(index.data)._replace(files={good.path: good})
    sources.fetch(release)
    assert sources.verify(release) == []
    gone = SourceFile("demo/gone.py", "0" * 64, {})
    wrong = release._replace(files={good.path: good._replace(sha256="0" * 64), gone.path: gone})
    assert [(problem.code, problem.found) for problem in sources.verify(wrong)] == [
        ("pin_differs", f"sha256 {good.sha256}"),
        ("pin_differs", "no such file"),
    ]


def test_broken_connection_is_taken_up(index: Index) -> None:
    index.break_after = [25 * BLOCK, 10 * BLOCK + 1]
    assert contents(sources.fetch(release_of(index.data))) == KEPT
    assert index.downloads() == ["", f"bytes={25 * BLOCK}-", f"bytes={35 * BLOCK}-"]


def test_next_run_takes_up_what_is_kept(index: Index, own_machine: Path) -> None:
    index.break_after = [25 * BLOCK, 0, 0]
    release = release_of(index.data)
    with pytest.raises(SourceError) as caught:
        sources.fetch(release)
    [problem] = caught.value.problems
    assert problem.message == f"the download of demo@v2 broke off; {25 * BLOCK} bytes are kept for the next run"
    assert problem.hint == "fixpack sources fetch demo@v2"
    assert kept(own_machine) == [f"sdists/{NAME}.{sha256(index.data)[:12]}.part"]
    index.asked.clear()
    assert contents(sources.fetch(release)) == KEPT
    assert index.downloads() == [f"bytes={25 * BLOCK}-"]


def test_server_without_ranges_starts_again(index: Index) -> None:
    index.ranges = False
    index.break_after = [25 * BLOCK]
    assert contents(sources.fetch(release_of(index.data))) == KEPT
    assert index.downloads() == ["", f"bytes={25 * BLOCK}-"]


@pytest.mark.parametrize("left", [b"not of this file" * 1000, archive() + b"too long"])
def test_part_that_does_not_belong_starts_again(index: Index, own_machine: Path, left: bytes) -> None:
    (own_machine / "sdists").mkdir(parents=True)
    (own_machine / f"sdists/{NAME}.{sha256(index.data)[:12]}.part").write_bytes(left)
    assert contents(sources.fetch(release_of(index.data))) == KEPT
    assert index.downloads() == [f"bytes={len(left)}-", ""]
    assert os.listdir(own_machine / "sdists") == [NAME]


def test_wrong_content_keeps_nothing(index: Index, own_machine: Path) -> None:
    release = release_of(index.data)
    index.data = archive(files={"demo-2/demo/evil.py": b"x"})
    with pytest.raises(SourceError) as caught:
        sources.fetch(release)
    [problem] = caught.value.problems
    assert (problem.code, problem.expected, problem.found) == (
        "sdist_hash",
        f"sha256 {release.sdist.sha256 if release.sdist else ''}",
        f"sha256 {sha256(index.data)}",
    )
    assert kept(own_machine) == []
    assert not sources.have(release)


def test_index_that_lists_another_hash_is_not_asked_for_the_file(index: Index, own_machine: Path) -> None:
    index.listed_sha256 = "0" * 64
    with pytest.raises(SourceError) as caught:
        sources.fetch(release_of(index.data))
    [problem] = caught.value.problems
    assert (problem.code, problem.found) == ("sdist_hash", f"sha256 {'0' * 64}")
    assert (index.downloads(), kept(own_machine)) == ([], [])


def test_index_that_lists_no_hash(index: Index) -> None:
    index.listed_sha256 = ""
    assert contents(sources.fetch(release_of(index.data))) == KEPT


def test_nobody_has_it(index: Index, own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://user:secret@127.0.0.1:9/ {index.url}nothing/")
    release = release_of(index.data)._replace(sdist=Sdist("demo-3.tar.gz", "0" * 64))
    with pytest.raises(SourceError) as caught:
        sources.fetch(release)
    [problem] = caught.value.problems
    assert problem.code == "sdist_missing"
    first, second, third = problem.found.split("; ")
    assert first == f"{index.url}: does not list demo-3.tar.gz"
    assert second.startswith("http://127.0.0.1:9/: ")
    assert "secret" not in problem.found
    assert third == f"{index.url}nothing/: does not know demo"
    assert "fixpack sources fetch demo@v2 --from PATH_OR_URL" in problem.hint
    assert kept(own_machine) == []


def test_listed_but_gone(index: Index, own_machine: Path) -> None:
    index.data, release = b"", release_of(index.data)
    with pytest.raises(SourceError) as caught:
        sources.fetch(release)
    assert [problem.code for problem in caught.value.problems] == ["download_broken"]
    assert kept(own_machine) == []


def test_local_indexes(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip takes folders as index and as find-links; so do we."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / NAME).write_bytes(index.data)
    (tmp_path / "simple/demo").mkdir(parents=True)
    (tmp_path / "simple/demo/index.html").write_text(f'<a href="../../files/{NAME}">{NAME}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    release = release_of(index.data)
    assert contents(sources.fetch(release)) == KEPT
    monkeypatch.setenv("FIXPACK_SOURCES", str(tmp_path / "other"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "files"))
    assert contents(sources.fetch(release)) == KEPT
    assert index.asked == []


@pytest.mark.parametrize("kind", ["path", "address"])
def test_named_origin(index: Index, tmp_path: Path, kind: str) -> None:
    copy = tmp_path / "renamed.tar.gz"
    copy.write_bytes(index.data)
    origin = str(copy) if kind == "path" else index.url.replace("simple/", f"files/{NAME}")
    release = release_of(index.data)
    assert contents(sources.fetch(release, origin)) == KEPT
    assert sources.verify(release) == []
    assert copy.exists()


def test_named_origin_of_another_content(index: Index, tmp_path: Path, own_machine: Path) -> None:
    copy = tmp_path / NAME
    copy.write_bytes(archive(files={"demo-2/demo/evil.py": b"x"}))
    with pytest.raises(SourceError) as caught:
        sources.fetch(release_of(index.data), str(copy))
    assert [problem.code for problem in caught.value.problems] == ["sdist_hash"]
    assert (kept(own_machine), copy.exists()) == ([], True)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (member("demo-2/demo/../../../evil"), "holds the path 'demo-2/demo/../../../evil'"),
        (member("/etc/evil"), "holds the path '/etc/evil'"),
        (member("../evil"), "holds the path '../evil'"),
        (member("demo-2/demo/link", 0, tarfile.SYMTYPE, "/etc"), "holds something that is no plain file"),
        (member("demo-2/demo/hard", 0, tarfile.LNKTYPE, "demo-2/demo/core.py"), "holds something that is no plain"),
        (member("demo-2/demo/pipe", 0, tarfile.FIFOTYPE), "holds something that is no plain file"),
        (member("demo-2/demo/__init__.py"), "holds the same path twice"),
    ],
)
def test_hostile_archive(index: Index, tmp_path: Path, own_machine: Path, info: tarfile.TarInfo, message: str) -> None:
    index.data = archive((info, b""))
    index.listed_sha256 = sha256(index.data)
    release = release_of(index.data)
    with pytest.raises(SourceError) as caught:
        sources.fetch(release)
    [problem] = caught.value.problems
    assert problem.code == "hostile_path"
    assert message in problem.message
    assert not sources.have(release)
    assert kept(own_machine) == [f"sdists/{NAME}"]
    assert not list(tmp_path.rglob("evil"))


def test_archive_that_is_none(index: Index) -> None:
    for data in (b"plain text", archive()[:5000], archive(files={"demo-2/PKG-INFO": b""})):
        index.data = data
        index.listed_sha256 = sha256(data)
        with pytest.raises(SourceError) as caught:
            sources.fetch(release_of(data))
        assert [problem.code for problem in caught.value.problems] == ["sdist_damaged"]


def test_modes_are_sane(index: Index) -> None:
    info = member("demo-2/demo/run.sh", 1)
    info.mode = 0o6777
    index.data = archive((info, b"x"))
    index.listed_sha256 = sha256(index.data)
    tree = sources.fetch(release_of(index.data))
    assert oct(os.stat(os.path.join(tree, "demo/run.sh")).st_mode & 0o7777) == "0o755"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("https://file/simple", "https://more/simple")),
        ({"PIP_INDEX_URL": "https://env/simple"}, ("https://env/simple", "https://more/simple")),
        ({"UV_INDEX_URL": "https://uv/simple"}, ("https://uv/simple", "https://more/simple")),
        ({"UV_DEFAULT_INDEX": "https://uv", "PIP_INDEX_URL": "https://env"}, ("https://env", "https://more/simple")),
        (
            {"UV_INDEX": "a=https://a https://b"},
            ("https://file/simple", "https://more/simple", "https://a", "https://b"),
        ),
        ({"PIP_EXTRA_INDEX_URL": "https://x\nhttps://y"}, ("https://file/simple", "https://x", "https://y")),
        ({"PIP_NO_INDEX": "1"}, ()),
        ({"PIP_NO_INDEX": "0"}, ("https://file/simple", "https://more/simple")),
    ],
)
def test_configuration(tmp_path: Path, environ: dict[str, str], expected: tuple[str, ...]) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://file/simple\ncert = /a.pem\ntimeout = 7\n"
        "[download]\nextra-index-url = https://more/simple\n[install]\ncert = /b.pem\n"
    )
    sealed = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(config)}
    found = pkgindex.configuration({**sealed, **environ})
    assert (found.indexes, found.cert, found.timeout) == (expected, "/a.pem", 7.0)


def test_configuration_of_a_bare_machine(tmp_path: Path) -> None:
    sealed = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    assert pkgindex.configuration(sealed) == pkgindex.IndexConfig(indexes=("",))


def test_file_sha256(tmp_path: Path) -> None:
    data = os.urandom(600_000)
    (tmp_path / "x").write_bytes(data)
    assert sdist.file_sha256(str(tmp_path / "x")) == sha256(data)
