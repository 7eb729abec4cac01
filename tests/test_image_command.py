"""``fixpack image``: the builder's command line, what it refuses, and how a build checks its arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from imagekit import make_checkout
from kit import Done, Kit, sha, write

from fixpack import cli, image

REPO = Path(__file__).resolve().parent.parent
DIGEST = "sha256:" + "5" * 64
BASE = f"registry.example:5000/vllm/stock:v1.0@{DIGEST}"
ME = (os.getuid(), os.getgid())


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """The invented registry as a git checkout."""
    made = Kit(tmp_path)
    for role in ("AUTHOR", "COMMITTER"):
        for name, value in (("NAME", "a"), ("EMAIL", "a@b"), ("DATE", "1700000000 +0000")):
            monkeypatch.setenv(f"GIT_{role}_{name}", value)
    write(made.registry, {"Dockerfile": "FROM scratch\n", "notes.txt": "none of an image's business\n"})
    git(made, "init", "--quiet")
    git(made, "add", "--all")
    git(made, "commit", "--quiet", "--message", "all")
    monkeypatch.setattr("fixpack.cli.target_options.registry_root", lambda args: str(made.registry))
    return made


def git(kit: Kit, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=kit.registry, capture_output=True, text=True, check=True).stdout.strip()


def fixpack(capsys: pytest.CaptureFixture[str], *words: str) -> Done:
    code = cli.main(["image", *words])
    return Done(code, *capsys.readouterr())


def command(capsys: pytest.CaptureFixture[str], *words: str) -> Done:
    return fixpack(capsys, "--profile", "v1.0.0", "--base", BASE, *words)


def given(kit: Kit, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The arguments that a build gets, as a shell reads them."""
    text = command(capsys, *words).out.replace("docker build", "printf '%s\\n'")
    lines = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split("=", 1) for before, line in pairwise(lines) if before == "--build-arg")


def test_command(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    done = command(capsys, "--builder", "buildah", "--tag", "mine:1", "--user", "1000", "wide-log", "long-share")
    lock = (kit.registry / "profiles/bench-v1.0.0.lock.json").read_bytes()
    assert (done.code, done.err) == (0, "")
    assert (
        done.out
        == f"""\
buildah build \\
  --timestamp 1700000000 \\
  --build-arg BASE=registry.example:5000/vllm/stock@{DIGEST} \\
  --build-arg BASE_NAME=registry.example:5000/vllm/stock:v1.0 \\
  --build-arg BASE_DIGEST={DIGEST} \\
  --build-arg BASE_USER=1000 \\
  --build-arg PROFILE=bench-v1.0.0 \\
  --build-arg 'FIXES=long-share wide-log' \\
  --build-arg 'FIX_REVISIONS=rows-counted@1 order-kept@1 core-guard@1 long-share@1 wide-log@1' \\
  --build-arg LOCK_SHA256={sha(lock)} \\
  --build-arg FIXPACK_REVISION={git(kit, "rev-parse", "HEAD")} \\
  --build-arg PYTHON=python3 \\
  --build-arg SOURCE_DATE_EPOCH=1700000000 \\
  --tag mine:1 \\
  {kit.registry}
"""
    )


def test_docker_is_the_default(kit: Kit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
    done = command(capsys)
    assert done.out.startswith("docker build \\\n  --build-arg BASE=")
    assert done.out.endswith(f"--build-arg SOURCE_DATE_EPOCH=5 \\\n  {kit.registry}\n")
    assert "--tag" not in done.out


def test_run(kit: Kit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It becomes the builder; one that is not there is said."""
    builder = tmp_path / "bin/buildah"
    write(tmp_path, {"bin/buildah": '#!/bin/sh\nprintf "%s\\n" "$@" > "$0.args"\nexit 7\n'})
    builder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{builder.parent}:{os.environ['PATH']}")
    child = os.fork()
    if child == 0:
        command(capsys, "--builder", "buildah", "--run")
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert "FIXES=\n" in (tmp_path / "bin/buildah.args").read_text()
    builder.chmod(0o644)
    (tmp_path / "bin/git").symlink_to("/usr/bin/git")
    monkeypatch.setenv("PATH", str(builder.parent))
    done = command(capsys, "--builder", "buildah", "--run")
    assert done.code == 2
    assert "buildah cannot be run" in done.err


@pytest.mark.parametrize(
    "base", ["stock", "stock:v1", "@" + DIGEST, "stock@sha256:55", f"stock@{DIGEST}0", f"stock@{DIGEST.upper()}"]
)
def test_a_base_without_a_digest_is_refused(kit: Kit, capsys: pytest.CaptureFixture[str], base: str) -> None:
    done = fixpack(capsys, "--profile", "v1.0.0", "--base", base)
    assert done.code == 2
    assert f"--base needs NAME[:TAG]@sha256:…, not {base!r}" in done.err


def test_what_is_not_committed_is_refused(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what a build reads; anything else may lie around."""
    write(kit.registry, {"notes.txt": "changed\n", "more.txt": "new\n"})
    assert command(capsys).code == 0
    write(kit.registry, {"fixpack/new.py": ""})
    done = command(capsys)
    assert done.code == 2
    assert "fixpack/new.py: the checkout is not what is committed" in done.err


def test_what_git_ignores_counts_if_a_build_would_copy_it(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    write(kit.registry, {".git/info/exclude": "*.so\n__pycache__/\n.cache/\n"})
    write(kit.registry, {"fixpack/__pycache__/a.so": "", "patches/.cache/b": "", "fixpack/cli/__pycache__/c.pyc": ""})
    write(kit.registry, {"patches/long-share/.share.py.swp": ""})
    assert command(capsys).code == 0
    write(kit.registry, {"fixpack/fast.so": ""})
    done = command(capsys)
    assert done.code == 2
    assert "fixpack/fast.so: the checkout is not what is committed" in done.err


def test_a_folder_without_git_is_refused(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    (kit.registry / ".git").rename(kit.folder / "elsewhere")
    done = command(capsys)
    assert done.code == 2
    assert "git says: fatal: not a git repository" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--base", BASE), "--profile is required"),
        (("--profile", "v1.0.0"), "--base is required"),
        (("--profile", "v1.0.1", "--base", BASE), "there is no profile 'v1.0.1'"),
        (("--profile", "v1.0.0", "--base", BASE, "wide-lok"), "has no fix 'wide-lok'"),
        (("--profile", "v1.0.0", "--base", BASE, "wide-log"), "wide-log requires long-share"),
    ],
)
def test_wrong_usage(kit: Kit, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str) -> None:
    done = fixpack(capsys, *words)
    assert done.code == 2
    assert message in done.err


def test_a_stale_registry_is_refused(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    kit.edit("patches/long-share/share.py", "return []", "return [0]")
    git(kit, "commit", "--quiet", "--all", "--message", "more")
    done = command(capsys)
    assert done.code == 2
    assert "this is not what the lock was made from" in done.err


def test_needs_git_and_python_and_nothing_else(tmp_path: Path) -> None:
    """In a real checkout, by a Python without packages; it leaves nothing behind that a second call would refuse."""
    checkout = make_checkout(tmp_path / "checkout", REPO)
    command = [sys.executable, "-S", "-m", "fixpack", "image", "--profile", "gaudi2-v0.26.0", "--base", BASE]
    for _ in range(2):
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("docker build \\\n")
    assert list((checkout / "fixpack/__pycache__").glob("image.*.pyc"))


# -- inside a build


def test_a_build_with_these_arguments_is_right(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = given(kit, capsys, "long-share", "--user", f"{ME[0]}:{ME[1]}")
    assert image.check(str(kit.registry), arguments, ME) == []


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("LOCK_SHA256", "0" * 64, "wrong_argument"),
        ("FIX_REVISIONS", "rows-counted@1", "wrong_argument"),
        ("PROFILE", "v1.0.0", "wrong_argument"),  # an alias, which can mean another profile tomorrow
        ("FIXES", "", "wrong_argument"),
        ("BASE", "registry.example:5000/vllm/stock:v1.0", "wrong_argument"),
        ("BASE", f"registry.example:5000/other@{DIGEST}", "wrong_argument"),
        ("BASE_NAME", "ubuntu24.04", "wrong_argument"),  # as an ENV of the base image would have it
        ("BASE_DIGEST", "sha256:" + "6" * 64, "wrong_argument"),
        ("FIXPACK_REVISION", "main", "bad_usage"),
        ("FIXPACK_REVISION", "", "bad_usage"),
        ("BASE_USER", "nobody-of-that-name", "wrong_user"),
        ("BASE_USER", f"{ME[0] + 1}:{ME[1]}", "wrong_user"),
        ("BASE_USER", f"{ME[0]}:{ME[1] + 1}", "wrong_user"),
    ],
)
def test_an_argument_that_is_not_true_is_found(
    kit: Kit, capsys: pytest.CaptureFixture[str], name: str, value: str, code: str
) -> None:
    arguments = {**given(kit, capsys, "long-share", "--user", f"{ME[0]}:{ME[1]}"), name: value}
    problems = image.check(str(kit.registry), arguments, ME)
    assert {problem.code for problem in problems} == {code}
    assert all(problem.hint for problem in problems)


def test_the_user_without_a_group(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    """As builders take it: the group of the entry in passwd, 0 without an entry."""
    arguments = given(kit, capsys, "--user", "4242")
    assert image.check(str(kit.registry), arguments, (4242, 0)) == []
    (problem,) = image.check(str(kit.registry), arguments, (4242, 4242))
    assert (problem.expected, problem.found) == ("uid 4242, gid 4242", "uid 4242, gid 0 (4242)")
    arguments["BASE_USER"] = "nobody"
    assert image.check(str(kit.registry), arguments, (65534, 65534)) == []


def test_a_build_without_arguments(
    kit: Kit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BASE", "PROFILE", *image.LABELS):
        monkeypatch.delenv(name, raising=False)
    done = fixpack(capsys, "--arguments")
    assert done.code == 2
    assert f"the build lacks the arguments BASE, PROFILE, {', '.join(image.LABELS)}" in done.err


# -- the files


def test_the_ignore_file_lets_the_context_through() -> None:
    lines = (REPO / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let = {line[1:] for line in lines if line.startswith("!")}
    assert let == set(image.CONTEXT) - {".dockerignore", "Dockerfile"}
    assert all((REPO / name).exists() for name in image.CONTEXT)


def test_the_dockerfile_takes_every_argument(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (REPO / "Dockerfile").read_text(encoding="utf-8").splitlines()
    declared = [line.split()[1].partition("=")[0] for line in lines if line.startswith("ARG ")]
    assert sorted(set(declared)) == sorted(given(kit, capsys))
    page = (REPO / "docs/image.md").read_text(encoding="utf-8")
    assert [name for name in declared if f"| `{name}` |" not in page] == []
