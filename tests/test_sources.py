"""Git sources: real repositories, fetched into a cache of their own."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixpack import cache, gittree, sources
from fixpack.cli import sources as cli
from fixpack.errors import FixpackError, Problem, RegistryError, SourceError, UsageError
from fixpack.model import Release, SourceFile

REPO = Path(__file__).resolve().parent.parent
ATTRIBUTES = "* text=auto\nhidden.txt export-ignore\npkg/version.py export-subst ident\n*.py filter=upper\n"
FILES = {
    ".gitattributes": ATTRIBUTES.encode(),
    "pkg/__init__.py": b"",
    "pkg/crlf.py": b"a = 1\r\nb = 2\r\n",
    "pkg/version.py": b'COMMIT = "$Format:%H$"  # $Id$\n',
    "pkg/name with ä.bin": bytes(range(256)),
    "hidden.txt": b"left out of archives\n",
    "tool.sh": b"#!/bin/sh\n",
}


def run_git(folder: Path, *args: str, data: bytes | None = None) -> str:
    """One git command, sealed; out: its output."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        **{f"GIT_{who}_{what}": "fixpack@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    done = subprocess.run(["git", "-C", str(folder), *args], input=data, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    monkeypatch.setenv("FIXPACK_SOURCES", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A clone with two commits, v1 and v2, whose attributes would change what a checkout or archive writes."""
    repo = tmp_path / "upstream"
    repo.mkdir()
    run_git(repo, "init", "-q", "-b", "main")
    run_git(repo, "config", "core.autocrlf", "false")
    for release in ("v1", "v2"):
        blobs = []
        for path, content in FILES.items():
            data = content + (b"" if path.startswith(".") else f"# {release}\n".encode())
            blob = run_git(repo, "hash-object", "-w", "--stdin", "--no-filters", data=data)
            blobs.append(f"{'100755' if path == 'tool.sh' else '100644'} {blob}\t{path}\n")
        link = run_git(repo, "hash-object", "-w", "--stdin", data=b"pkg/crlf.py")
        blobs.append(f"120000 {link}\tlink\n")
        run_git(repo, "update-index", "--add", "--index-info", data=os.fsencode("".join(blobs)))
        run_git(repo, "commit", "-q", "-m", release)
        run_git(repo, "tag", "-a", release, "-m", release)
    return repo


def release_of(repo: Path, name: str = "v2", **changes: object) -> Release:
    """The release that a tag of the repository names."""
    made = Release(
        distribution="demo-pkg", name=name, version=name[1:], package="pkg",
        commit=run_git(repo, "rev-parse", f"{name}^{{commit}}"),
        also_commits=(), git="", sdist=None, files={}, where=f"anchors/demo-pkg/{name}.yaml",
    )  # fmt: skip
    return made._replace(**changes)


def contents(tree: str) -> dict[str, bytes]:
    """Every file of a tree but its record; links as their target."""
    found = {}
    for path in Path(tree).rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(tree))] = b"-> " + os.fsencode(os.readlink(path))
        elif path.is_file() and path.name != cache.RECORD:
            found[str(path.relative_to(tree))] = path.read_bytes()
    return found


def expected(name: str) -> dict[str, bytes]:
    """What the tree of a release holds."""
    tail = f"# {name}\n".encode()
    files = {path: data + (b"" if path.startswith(".") else tail) for path, data in FILES.items()}
    return files | {"link": b"-> pkg/crlf.py"}


def test_tree_holds_the_committed_bytes(upstream: Path) -> None:
    release = release_of(upstream)
    done = sources.obtain(release, str(upstream))
    assert contents(done.path) == expected("v2")
    assert (Path(done.path, "tool.sh").stat().st_mode & 0o777, Path(done.path, "link").is_symlink()) == (0o755, True)
    assert done == sources.Obtained(
        cache.tree_dir(release), "fetched", cache.Record("git", release.commit, "", str(upstream), {})
    )
    assert sources.verify(release) == []
    assert sources.tree(release) == done.path
    assert sources.obtain(release).action == "kept"


def test_history_comes_along_as_own_files(upstream: Path) -> None:
    release = release_of(upstream)
    sources.fetch(release, str(upstream))
    repo = Path(cache.git_dir(release))
    assert run_git(repo, "tag").split() == ["v1", "v2"]
    assert run_git(repo, "rev-list", "--count", "main") == "2"
    assert not (repo / "objects/info/alternates").exists()
    assert {path.stat().st_nlink for path in (repo / "objects").rglob("*") if path.is_file()} == {1}
    shutil.rmtree(upstream)
    assert contents(sources.fetch(release_of(repo, "v1"))) == expected("v1")


def bare_without_config(upstream: Path, made: Path) -> None:
    run_git(upstream.parent, "clone", "-q", "--mirror", str(upstream), str(made))
    (made / "config").unlink()


def shallow(upstream: Path, made: Path) -> None:
    run_git(upstream.parent, "clone", "-q", "--depth=1", upstream.as_uri(), str(made))


def detached(upstream: Path, made: Path) -> None:
    """Only the commit: no branch and no tag names it."""
    run_git(upstream.parent, "clone", "-q", "--no-tags", str(upstream), str(made))
    run_git(made, "checkout", "-q", "--detach")
    run_git(made, "commit", "-q", "--allow-empty", "-m", "on top")
    run_git(made, "branch", "-q", "-D", "main")
    run_git(made, "remote", "remove", "origin")


def worktree(upstream: Path, made: Path) -> None:
    run_git(upstream, "worktree", "add", "-q", "--detach", str(made))


def bundle(upstream: Path, made: Path) -> None:
    run_git(upstream, "bundle", "create", "-q", str(made), "--all")


@pytest.mark.parametrize("kind", [bare_without_config, shallow, detached, worktree, bundle])
def test_kinds_of_origin(upstream: Path, tmp_path: Path, kind: object) -> None:
    made = tmp_path / "origin"
    kind(upstream, made)  # type: ignore[operator]
    assert contents(sources.fetch(release_of(upstream), str(made))) == expected("v2")
    assert sources.verify(release_of(upstream)) == []


@pytest.mark.parametrize("first", ["partial", "shallow"])
def test_incomplete_origin_then_a_whole_one(upstream: Path, tmp_path: Path, first: str) -> None:
    made = tmp_path / "origin"
    if first == "partial":
        shutil.copytree(upstream, made, symlinks=True)
        lost = run_git(upstream, "rev-parse", "v1:hidden.txt")
        (made / ".git/objects" / lost[:2] / lost[2:]).unlink()
    else:
        shallow(upstream, made)
    release, older = release_of(upstream), release_of(upstream, "v1")
    assert contents(sources.fetch(release, str(made))) == expected("v2")
    repo = Path(cache.git_dir(release))
    assert not (repo / "shallow").exists()
    if first == "partial":  # its history is there, but for what it lacks
        assert run_git(repo, "rev-list", "--count", "v2") == "2"
    with pytest.raises(SourceError) as caught:
        sources.fetch(older, str(made))
    assert [problem.code for problem in caught.value.problems] == ["commit_missing"]
    assert not sources.have(older)
    assert contents(sources.fetch(older, str(upstream))) == expected("v1")
    assert run_git(repo, "rev-list", "--count", "main") == "2"


def test_settings_of_the_user_stay_outside(upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(
        "[core]\n autocrlf = true\n[filter \"upper\"]\n smudge = tr a-z A-Z\n required = true\n"
        f"[url \"/nonexistent/\"]\n insteadOf = {tmp_path}/\n[transfer]\n fsckObjects = maybe\n"
    )  # fmt: skip
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_DIR": "/nonexistent",
        "GIT_OBJECT_DIRECTORY": "/nonexistent",
        "GIT_WORK_TREE": "/nonexistent",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.repositoryFormatVersion",
        "GIT_CONFIG_VALUE_0": "99",
    }.items():
        monkeypatch.setenv(name, value)
    assert contents(sources.fetch(release_of(upstream), str(upstream))) == expected("v2")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_origin_of_another_user(upstream: Path) -> None:
    release = release_of(upstream)
    for path in [upstream, *upstream.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    assert contents(sources.fetch(release, str(upstream))) == expected("v2")


def test_origin_without_the_commit(upstream: Path, tmp_path: Path) -> None:
    release = release_of(upstream)._replace(commit="1" * 40, also_commits=("2" * 40,))
    with pytest.raises(SourceError) as caught:
        sources.fetch(release, str(upstream))
    tag = run_git(upstream, "rev-parse", "v2^{commit}")
    wanted = Problem(
        "commit_missing",
        f"{upstream} does not give the commit that demo-pkg@v2 pins",
        file="anchors/demo-pkg/v2.yaml",
        expected=f"commit {'1' * 40} (or {'2' * 40}), tag v2",
        found=f"its tag v2 is {tag}",
        hint="name a clone or mirror that has it: fixpack sources fetch demo-pkg@v2 --from PATH_OR_URL",
    )
    assert caught.value.problems == (wanted,)
    assert (sources.have(release), os.listdir(tmp_path / "cache/tmp")) == (False, [])
    (tmp_path / "plain").mkdir()
    with pytest.raises(SourceError) as caught:
        sources.fetch(release, str(tmp_path / "plain"))
    assert [problem._replace(file="", hint="", expected="") for problem in caught.value.problems] == [
        Problem(
            "commit_missing",
            f"{tmp_path}/plain does not give the commit that demo-pkg@v2 pins",
            found=f"fatal: '{tmp_path}/plain' does not appear to be a git repository",
        )
    ]


def test_address_that_cannot_be_reached(upstream: Path) -> None:
    release = release_of(upstream, git="http://user:secret@127.0.0.1:9/demo")
    with pytest.raises(SourceError) as caught:
        sources.fetch(release)
    [problem] = caught.value.problems
    assert problem.message == "http://127.0.0.1:9/demo cannot be reached for the commit that demo-pkg@v2 pins"
    assert problem.found.startswith("fatal: unable to access 'http://127.0.0.1:9/demo/'")
    assert problem.hint.endswith("fixpack sources fetch demo-pkg@v2 --from PATH_OR_URL")


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (None, "no address of demo-pkg@v2 is known"),
        ("no/such", "no/such: no such file or folder, and no address"),
        ("--upload-pack=touch x", "--upload-pack=touch x: no such file or folder, and no address"),
        ("https://example.org/demo-2.tar.gz", "demo-pkg@v2 pins no source archive, only a git commit"),
    ],
)
def test_useless_origin(upstream: Path, origin: str | None, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        sources.fetch(release_of(upstream), origin)
    assert [problem.message for problem in caught.value.problems] == [message]
    assert "fixpack sources fetch demo-pkg@v2 --from PATH_OR_URL" in caught.value.problems[0].hint


def test_other_commit_counts_if_the_touched_files_agree(upstream: Path) -> None:
    other = run_git(upstream, "rev-parse", "v1^{commit}")
    release = release_of(upstream)._replace(commit="1" * 40, also_commits=(other,))
    good = SourceFile("pkg/__init__.py", hashlib.sha256(b"# v2\n").hexdigest(), {})
    with pytest.raises(SourceError) as caught:
        sources.fetch(release._replace(files={good.path: good}), str(upstream))
    assert [problem.code for problem in caught.value.problems] == ["pin_differs"]
    assert not sources.have(release)
    good = good._replace(sha256=hashlib.sha256(b"# v1\n").hexdigest())
    done = sources.obtain(release._replace(files={good.path: good}), str(upstream))
    assert (done.record.commit, contents(done.path)) == (other, expected("v1"))


def test_verify_names_every_change_and_fetch_repairs(upstream: Path) -> None:
    release = release_of(upstream)
    tree = Path(sources.fetch(release, str(upstream)))
    shutil.rmtree(upstream)
    (tree / "pkg/crlf.py").write_bytes(b"a = 1\nb = 2\n# v2\n")
    (tree / "pkg/__init__.py").unlink()
    (tree / "pkg/__pycache__").mkdir()
    (tree / "pkg/__pycache__/x.pyc").write_bytes(b"")
    (tree / "tool.sh").chmod(0o644)
    (tree / "link").unlink()
    (tree / "link").symlink_to("/etc")
    found = sources.verify(release)
    assert {os.path.relpath(problem.file, tree): problem.message.split(": ")[1] for problem in found} == {
        "pkg/crlf.py": "changed since it was fetched",
        "pkg/__init__.py": "the file is gone",
        "pkg/__pycache__/x.pyc": "a file that upstream does not have",
        "tool.sh": "changed since it was fetched",
        "link": "changed since it was fetched",
    }
    assert {problem.hint for problem in found} == {"fixpack sources fetch demo-pkg@v2"}
    done = sources.obtain(release)
    assert (done.action, contents(done.path)) == ("rebuilt", expected("v2"))
    assert sources.verify(release) == []
    assert [p.message for p in sources.verify(release._replace(commit="1" * 40))] == [
        "demo-pkg@v2: the tree was made of another commit"
    ]


def test_lost_object_is_fetched_again(upstream: Path) -> None:
    release = release_of(upstream)
    sources.fetch(release, str(upstream))
    repo = Path(cache.git_dir(release))
    shutil.rmtree(repo / "objects")
    assert [problem.code for problem in sources.verify(release)] == ["git_damaged"]
    assert sources.obtain(release, str(upstream)).action == "rebuilt"
    assert sources.verify(release) == []


@pytest.mark.parametrize(
    ("mode", "name", "content", "message"),
    [
        ("120000", "link", b"../../outside", "the link link leaves the tree: ../../outside"),
        ("120000", "link", b"/etc/passwd", "the link link leaves the tree: /etc/passwd"),
        ("100644", "..", b"x", "commit {commit} holds the path '..'"),
        ("100644", ".GIT", b"x", "commit {commit} holds the path '.GIT'"),
    ],
)
def test_hostile_commit(upstream: Path, mode: str, name: str, content: bytes, message: str) -> None:
    blob = run_git(upstream, "hash-object", "-w", "--stdin", data=content)
    entry = f"{mode} {name}\0".encode() + bytes.fromhex(blob)
    tree = run_git(upstream, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", data=entry)
    commit = run_git(upstream, "commit-tree", tree, "-m", "hostile")
    run_git(upstream, "tag", "v3", commit)
    release = release_of(upstream, "v3")
    with pytest.raises(SourceError) as caught:
        sources.fetch(release, str(upstream))
    assert [problem.message for problem in caught.value.problems] == [message.format(commit=commit)]
    assert not sources.have(release)


def test_absent_tree_says_what_to_type(upstream: Path) -> None:
    release = release_of(upstream)
    with pytest.raises(SourceError) as caught:
        sources.tree(release)
    assert caught.value.problems[0].hint == "fixpack sources fetch demo-pkg@v2 --from PATH_OR_URL"
    with pytest.raises(SourceError) as caught:
        sources.tree(release._replace(git="https://example.org/x"))
    assert caught.value.problems[0].hint == "fixpack sources fetch demo-pkg@v2"


def test_cache_that_cannot_be_written(upstream: Path, own_cache: Path) -> None:
    own_cache.write_text("in the way")
    with pytest.raises(SourceError) as caught:
        sources.fetch(release_of(upstream), str(upstream))
    assert [problem.code for problem in caught.value.problems] == ["cache_read_only"]
    assert "FIXPACK_SOURCES" in caught.value.problems[0].hint


def test_leftovers_of_a_killed_run_go(upstream: Path, own_cache: Path) -> None:
    (own_cache / "tmp/tree/pkg").mkdir(parents=True)
    (own_cache / "tmp/tree/pkg/x.py").write_text("half")
    assert contents(sources.fetch(release_of(upstream), str(upstream))) == expected("v2")
    assert os.listdir(own_cache / "tmp") == []


def test_two_at_once(upstream: Path) -> None:
    code = (
        "import sys; from fixpack import sources; from fixpack.model import Release\n"
        "release = Release('demo-pkg', 'v2', '2', 'pkg', sys.argv[1], (), '', None, {}, '')\n"
        "print(sources.obtain(release, sys.argv[2]).action)"
    )
    command = [sys.executable, "-c", code, release_of(upstream).commit, str(upstream)]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = sorted(process.communicate()[0].strip() for process in running)
    assert (said, [process.returncode for process in running]) == (["fetched", "kept", "kept"], [0, 0, 0])
    assert sources.verify(release_of(upstream)) == []


def damage_pack(repo: Path, spec: str) -> None:
    """Overwrite one object in the repository's only pack."""
    wanted = run_git(repo, "rev-parse", spec)
    run_git(repo, "repack", "-adq")
    [pack] = (repo / "objects/pack").glob("*.pack")
    rows = [line.split() for line in run_git(repo, "verify-pack", "-v", str(pack)).splitlines()]
    [(size, offset)] = [(int(row[3]), int(row[4])) for row in rows if row[0] == wanted]
    data = bytearray(pack.read_bytes())
    data[offset : offset + size] = b"\xff" * size
    pack.chmod(0o644)
    pack.write_bytes(data)


@pytest.mark.parametrize("spec", ["v2^{commit}", "v2^{tree}", "v2:pkg", "v2:pkg/crlf.py"])
@pytest.mark.parametrize("named", [True, False])
def test_damaged_repository_is_replaced(
    upstream: Path, capfd: pytest.CaptureFixture[str], spec: str, named: bool
) -> None:
    release = release_of(upstream, git="" if named else upstream.as_uri())
    tree = sources.fetch(release, str(upstream))
    repo = Path(cache.git_dir(release))
    damage_pack(repo, spec)
    shutil.rmtree(tree)
    capfd.readouterr()
    done = sources.obtain(release, str(upstream) if named else None)
    assert (done.action, contents(done.path)) == ("fetched", expected("v2"))
    said = capfd.readouterr().err.splitlines()
    assert (said[0], said[-1]) == (f"checking the cached repository {repo}", f"replaced {repo}")
    assert said[1].startswith("it is damaged (error: ")
    run_git(repo, "fsck", "--full")
    assert sources.verify(release) == []
    assert os.listdir(Path(cache.cache_dir(), "tmp")) == []


def test_damaged_repository_without_a_good_origin(upstream: Path, tmp_path: Path) -> None:
    release = release_of(upstream)
    tree = sources.fetch(release, str(upstream))
    repo = Path(cache.git_dir(release))
    damage_pack(repo, "v2:pkg/crlf.py")
    shutil.rmtree(tree)
    before = contents(str(repo))
    with pytest.raises(SourceError) as caught:
        sources.fetch(release)
    assert [problem.code for problem in caught.value.problems] == ["git_damaged"]
    assert "fixpack sources fetch demo-pkg@v2 --from PATH_OR_URL" in caught.value.problems[0].hint
    (tmp_path / "plain").mkdir()
    with pytest.raises(SourceError) as caught:
        sources.fetch(release, str(tmp_path / "plain"))
    assert [problem.code for problem in caught.value.problems] == ["git_damaged", "commit_missing"]
    assert caught.value.problems[0].file == str(repo)
    assert contents(str(repo)) == before


def test_what_a_killed_git_left_does_not_matter(upstream: Path) -> None:
    release = release_of(upstream, "v1")
    repo = Path(cache.git_dir(release))
    sources.fetch(release, str(upstream))
    (repo / "packed-refs.lock").touch()
    (repo / "objects/pack/tmp_pack_x").write_text("half")
    run_git(upstream, "commit", "-q", "--allow-empty", "-m", "v3")
    run_git(upstream, "tag", "v3")
    run_git(upstream, "tag", "-d", "v1")
    newer = release_of(upstream, "v3")
    assert contents(sources.fetch(newer, str(upstream))) == expected("v2")
    assert not [path.name for path in repo.rglob("*") if path.name.endswith(".lock") or path.name.startswith("tmp_")]


def test_file_in_place_of_the_repository_is_replaced(upstream: Path) -> None:
    release = release_of(upstream)
    repo = Path(cache.git_dir(release))
    repo.parent.mkdir(parents=True)
    repo.write_text("no repository")
    assert contents(sources.fetch(release, str(upstream))) == expected("v2")


def test_origin_without_the_commit_is_blamed_alone(upstream: Path, tmp_path: Path) -> None:
    """The cached repository is whole, so the origin it is, and nothing is fetched twice."""
    release = release_of(upstream)
    sources.fetch(release, str(upstream))
    made = tmp_path / "other"
    run_git(tmp_path, "init", "-q", str(made))
    with pytest.raises(SourceError) as caught:
        sources.fetch(release._replace(commit="1" * 40), str(made))
    assert [problem.code for problem in caught.value.problems] == ["commit_missing"]


def test_pipe_in_place_of_a_file(upstream: Path) -> None:
    release = release_of(upstream)
    tree = Path(sources.fetch(release, str(upstream)))
    pinned = {"pkg/crlf.py": SourceFile("pkg/crlf.py", "0" * 64, {})}
    for name in ("pkg/crlf.py", cache.RECORD):
        (tree / name).unlink()
        os.mkfifo(tree / name)
        found = sources.verify(release._replace(files=pinned if name != cache.RECORD else {}))
        assert [problem.code for problem in found] == (
            ["source_damaged", "pin_differs"] if name != cache.RECORD else ["source_damaged"]
        )
    done = sources.obtain(release)
    assert (done.action, contents(done.path)) == ("rebuilt", expected("v2"))


# The command line


@pytest.fixture
def registry_root(tmp_path: Path, upstream: Path) -> Path:
    """A registry that pins both releases and has no fix."""
    root = tmp_path / "registry"
    for folder in ("fixes", "patches", "profiles", "anchors/demo-pkg"):
        (root / folder).mkdir(parents=True)
    for name in ("v1", "v2"):
        release = release_of(upstream, name)
        (root / f"anchors/demo-pkg/{name}.yaml").write_text(
            f'distribution: demo-pkg\nrelease: {name}\nversion: "{name[1:]}"\npackage: pkg\n'
            f"commit: {release.commit}\nfiles: {{}}\n"
        )
    return root


def sources_verb(root: Path, *words: str) -> int:
    """Run the verb as main() would."""
    parser = argparse.ArgumentParser()
    cli.configure(parser)
    return cli.run(parser.parse_args([*words, "--registry", str(root)]))


def test_commands(registry_root: Path, upstream: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    v1, v2 = (run_git(upstream, "rev-parse", f"{name}^{{commit}}") for name in ("v1", "v2"))
    assert sources_verb(registry_root, "list") == 0
    assert capsys.readouterr().out == (
        f"cache: {own_cache}\n"
        f"demo-pkg@v1  absent  commit {v1[:12]}…\n"
        f"demo-pkg@v2  absent  commit {v2[:12]}…\n"
        "to get it: fixpack sources fetch demo-pkg@v1 --from PATH_OR_URL\n"
        "to get it: fixpack sources fetch demo-pkg@v2 --from PATH_OR_URL\n"
    )
    assert (
        sources_verb(registry_root, "fetch", "demo-pkg@2", "demo-pkg@v2", "demo-pkg@v1", "--from", str(upstream)) == 0
    )
    assert capsys.readouterr().out == (
        f"demo-pkg@v2: fetched, commit {v2[:12]} from {upstream}\n  {own_cache}/trees/demo-pkg@v2\n"
        f"demo-pkg@v1: fetched, commit {v1[:12]} from the cached repository\n  {own_cache}/trees/demo-pkg@v1\n"
    )
    assert sources_verb(registry_root, "path", "demo-pkg@1") == 0
    assert capsys.readouterr().out == f"{own_cache}/trees/demo-pkg@v1\n"
    assert sources_verb(registry_root, "verify") == 0
    assert capsys.readouterr().out == "demo-pkg@v1: intact\ndemo-pkg@v2: intact\n"
    (own_cache / "trees/demo-pkg@v1/tool.sh").write_text("x")
    with pytest.raises(SourceError) as caught:
        sources_verb(registry_root, "verify")
    assert [problem.file for problem in caught.value.problems] == [f"{own_cache}/trees/demo-pkg@v1/tool.sh"]
    assert capsys.readouterr().out == "demo-pkg@v1: 1 problem\ndemo-pkg@v2: intact\n"
    (registry_root / "anchors/demo-pkg/v1.yaml").unlink()
    assert sources_verb(registry_root, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema_version": 1,
        "cache": str(own_cache),
        "sources": [
            {"release": "demo-pkg@v2", "state": "cached", "commit": v2, "sdist_sha256": "",
             "path": f"{own_cache}/trees/demo-pkg@v2"},
            {"release": "demo-pkg@v1", "state": "unpinned", "commit": "", "sdist_sha256": "",
             "path": f"{own_cache}/trees/demo-pkg@v1"},
        ],
    }  # fmt: skip


def test_unfinished_fix_does_not_matter(registry_root: Path, upstream: Path) -> None:
    (registry_root / "fixes/new-fix.yaml").write_text("id: [")
    (registry_root / "profiles/new.yaml").write_text("profile: new\n")
    assert sources_verb(registry_root, "fetch", "demo-pkg@v2", "--from", str(upstream)) == 0
    assert sources_verb(registry_root, "path", "demo-pkg@v2") == 0
    assert sources_verb(registry_root, "verify") == 0
    (registry_root / "anchors/demo-pkg/v1.yaml").write_text("release: v1\n")
    with pytest.raises(RegistryError) as caught:
        sources_verb(registry_root, "list")
    assert {problem.file for problem in caught.value.problems} == {"anchors/demo-pkg/v1.yaml"}


def test_every_failed_fetch_is_told(registry_root: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(SourceError) as caught:
        sources_verb(registry_root, "fetch", "demo-pkg@v1", "demo-pkg@v2", "--from", str(tmp_path / "plain"))
    assert [problem.file for problem in caught.value.problems] == [
        "anchors/demo-pkg/v1.yaml",
        "anchors/demo-pkg/v2.yaml",
    ]


def test_verify_of_nothing_is_an_error(registry_root: Path) -> None:
    with pytest.raises(SourceError):
        sources_verb(registry_root, "verify")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("demo-pkg@v3", "no pinned release 'demo-pkg@v3'", "did you mean 'demo-pkg@v2' or 'demo-pkg@v1'?"),
        ("x", "'x' is no NAME@RELEASE", "pinned are: demo-pkg@v1, demo-pkg@v2"),
    ],
)
def test_unknown_release(upstream: Path, name: str, message: str, hint: str) -> None:
    pinned = {release.ref: release for release in (release_of(upstream, "v1"), release_of(upstream))}
    with pytest.raises(UsageError) as caught:
        sources.find(pinned, name)
    assert caught.value.problems == (Problem("unknown_release", message, hint=hint),)


def test_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, upstream: Path) -> None:
    monkeypatch.setitem(sys.modules, "git", None)
    with pytest.raises(FixpackError) as caught:
        sources.fetch(release_of(upstream), str(upstream))
    assert [problem.code for problem in caught.value.problems] == ["tool_missing"]


def test_missing_git_is_named(monkeypatch: pytest.MonkeyPatch, upstream: Path, tmp_path: Path) -> None:
    release = release_of(upstream)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError) as caught:
        sources.fetch(release, str(upstream))
    assert [problem.code for problem in caught.value.problems] == ["git_missing"]


def test_blob_id_is_gits(upstream: Path) -> None:
    assert gittree.blob_id(b"# v2\n") == run_git(upstream, "rev-parse", "v2:pkg/__init__.py")


def abbreviated(upstream: Path, **changes: object) -> Release:
    """v2 as its archive names it: nine digits of its commit."""
    whole = release_of(upstream)
    return whole._replace(commit=whole.commit[:9], **changes)


@pytest.mark.parametrize("kind", ["clone", "shallow", "no tag"])
def test_abbreviated_commit(upstream: Path, tmp_path: Path, kind: str) -> None:
    """It is resolved, and the whole id recorded."""
    release, full = abbreviated(upstream), release_of(upstream).commit
    origin = upstream
    if kind == "shallow":
        origin = tmp_path / "shallow"
        run_git(tmp_path, "clone", "-q", "--depth=1", "--branch=v2", upstream.as_uri(), str(origin))
    elif kind == "no tag":
        run_git(upstream, "tag", "-d", "v1", "v2")
    done = sources.obtain(release, str(origin))
    assert contents(done.path) == expected("v2")
    assert done.record == cache.Record("git", full, "", str(origin), {})
    assert sources.verify(release) == []
    assert sources.obtain(release).action == "kept"
    shutil.rmtree(done.path)
    assert sources.obtain(release).record.origin == "the cached repository"


def test_abbreviated_commit_that_the_tag_does_not_have(upstream: Path, tmp_path: Path) -> None:
    """The id must start with the digits, whatever the tag says."""
    release = abbreviated(upstream, name="v1")
    run_git(tmp_path, "clone", "-q", "--bare", "--depth=1", "--branch=v1", upstream.as_uri(), "only-v1")
    with pytest.raises(SourceError) as caught:
        sources.fetch(release, str(tmp_path / "only-v1"))
    problem = caught.value.problems[0]
    assert (problem.code, problem.expected) == ("commit_missing", f"commit {release.commit}, tag v1")
    assert problem.found == f"its tag v1 is {release_of(upstream, 'v1').commit}"


def test_abbreviated_commit_needs_the_pinned_bytes(upstream: Path) -> None:
    """A few digits can be had on purpose: the touched files must be the pinned ones too."""
    file = SourceFile("pkg/crlf.py", "0" * 64, {})
    with pytest.raises(SourceError) as caught:
        sources.fetch(abbreviated(upstream, files={file.path: file}), str(upstream))
    assert caught.value.problems[0].code == "pin_differs"


def test_tree_of_another_commit_than_the_abbreviated_one(upstream: Path) -> None:
    first = release_of(upstream, "v1")
    sources.fetch(first, str(upstream))
    second = abbreviated(upstream, name="v1")
    problem = sources.verify(second)[0]
    assert (problem.code, problem.found) == ("source_damaged", f"commit {first.commit}")


def test_what_is_said_of_an_abbreviated_commit(
    registry_root: Path, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole id, and no word of another commit that would stand in for it."""
    full = release_of(upstream).commit
    anchors = registry_root / "anchors/demo-pkg/v2.yaml"
    text = anchors.read_text().replace(full, full[:9])
    sdist = f"sdist: {{filename: demo_pkg-2.tar.gz, sha256: {'f' * 64}}}\n"
    anchors.write_text(text + sdist)
    assert sources_verb(registry_root, "fetch", "demo-pkg@v2", "--from", str(upstream)) == 0
    assert capsys.readouterr().out.startswith(f"demo-pkg@v2: fetched, commit {full[:12]} from {upstream}\n")
    anchors.write_text(text)  # no archive is pinned: then the id must be whole
    with pytest.raises(RegistryError, match="'commit'"):
        sources_verb(registry_root, "list")


def test_a_commit_that_no_release_pins(
    registry_root: Path, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A nightly: git proves it by its id, and it lies beside the releases under that name."""
    (upstream / "later.py").write_text("later = 1\n")
    run_git(upstream, "add", "later.py")
    run_git(upstream, "commit", "-q", "-m", "a nightly")
    commit = run_git(upstream, "rev-parse", "HEAD")
    name = f"demo-pkg@{commit}"
    assert sources_verb(registry_root, "fetch", name, "--from", str(upstream)) == 0
    assert capsys.readouterr().out.startswith(f"{name}: fetched, commit {commit[:12]} from {upstream}\n")
    assert sources_verb(registry_root, "path", name) == 0
    path = Path(capsys.readouterr().out.strip())
    assert (path / "later.py").read_text() == "later = 1\n"
    assert sources_verb(registry_root, "verify", name) == 0
    assert sources_verb(registry_root, "list") == 0
    assert any(line.startswith(name) and " by commit " in line for line in capsys.readouterr().out.splitlines())
    (path / "later.py").write_text("later = 2\n")
    with pytest.raises(SourceError, match="changed since it was fetched"):
        sources_verb(registry_root, "verify", name)


@pytest.mark.parametrize("digits", [8, 39])
def test_a_commit_by_some_of_its_digits_is_refused(upstream: Path, digits: int) -> None:
    release = release_of(upstream)
    with pytest.raises(UsageError) as caught:
        sources.find({release.ref: release}, f"demo-pkg@{'d05da62e9ccdf8e342b15bf6785d83224cc165af'[:digits]}")
    assert caught.value.problems[0].hint == "give all 40 digits of the commit's id"


def test_a_commit_that_the_origin_lacks(upstream: Path) -> None:
    pinned = release_of(upstream)
    release = sources.find({pinned.ref: pinned}, f"demo-pkg@{'d' * 40}")
    with pytest.raises(SourceError) as caught:
        sources.fetch(release, str(upstream))
    assert caught.value.problems[0].code == "commit_missing"
