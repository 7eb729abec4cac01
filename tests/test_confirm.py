"""What a confirm says beyond "every byte": other versions around the fixed files, files of fixes that nobody named."""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit import APPLY_ALL, Kit, as_nobody, sha, state, write


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def notes(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("note: ")]


def metadata(kit: Kit, version: str) -> None:
    [path] = kit.site.glob("demo_core-*.dist-info/METADATA")
    path.write_text(f"Metadata-Version: 2.1\nName: demo-core\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.0.0", []),
        ("1.0.0+cpu", []),
        ("1.0.1.dev3+gccccccc", []),
        ("1.0.1", ["note: demo-core says that it is 1.0.1; the proofs ran with 1.0.0, commit cccccccccccc"]),
        (
            "1.0.0+gddddddd",
            ["note: demo-core says that it is 1.0.0+gddddddd; the proofs ran with 1.0.0, commit cccccccccccc"],
        ),
    ],
)
def test_another_version_is_said(kit: Kit, version: str, said: list[str]) -> None:
    metadata(kit, version)
    for _ in range(2):  # the apply and the confirm
        done = kit.apply()
        assert (done.code, notes(done.out)) == (0, said)
    assert kit.apply("--json").json["notes"] == [line.removeprefix("note: ") for line in said]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.0.0+gccccccc", []),  # fewer digits than the pin's
        (f"1.0.0+g{'c' * 40}", []),  # more
        (
            f"1.0.0+g{'c' * 8}d",
            [f"note: demo-core says that it is 1.0.0+g{'c' * 8}d; the proofs ran with 1.0.0, commit {'c' * 9}"],
        ),
    ],
)
def test_an_abbreviated_commit_is_the_same_one(kit: Kit, version: str, said: list[str]) -> None:
    archive = f"sdist: {{filename: demo_core-1.0.0.tar.gz, sha256: {'a' * 64}}}\n"
    kit.edit("anchors/demo-core/v1.0.0.yaml", f"commit: {'c' * 40}\n", f"commit: {'c' * 9}\n{archive}")
    kit.lock()
    metadata(kit, version)
    for _ in range(2):  # the apply and the confirm
        done = kit.apply()
        assert (done.code, notes(done.out)) == (0, said)


def test_a_default_fix_that_is_named_is_said(kit: Kit) -> None:
    said = ["note: order-kept is one of the profile's own fixes: all 3 go in"]
    for _ in range(2):
        done = kit.apply("order-kept")
        assert (done.code, notes(done.out)) == (0, said)


def test_files_of_an_opt_in_that_nobody_named_are_looked_at(kit: Kit) -> None:
    kit.apply("long-share")
    assert "(in place, not asked for)" in kit.apply().out
    share = kit.site / "demo_plugin/_fixpack/share.py"
    share.write_text("SHARE = 3\n")
    done = kit.apply()
    assert done.code == 1
    assert str(share) in done.err


@pytest.mark.parametrize("name", ["__pycache__/count.cpython-311.pyc", ".DS_Store"])
def test_bytecode_and_hidden_files_in_the_registry_do_not_count(kit: Kit, name: str) -> None:
    for folder in ("patches/rows-counted", "patches", "fixes", "profiles", "anchors/demo-core"):
        path = kit.registry / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\0")
    assert kit.apply().code == 0
    assert kit.apply("--check").code == 0
    assert kit.apply("--list").code == 0


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An interpreter without PyYAML."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin/python"


def test_an_interpreter_without_yaml_still_says_what_is_wrong(kit: Kit, bare: Path) -> None:
    shutil.rmtree(kit.site / "demo_plugin")
    line = [str(bare), str(APPLY_ALL), "--registry", str(kit.registry), "--profile", "v1.0.0"]
    done = subprocess.run([*line, "--site", str(kit.site)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "demo-plugin was not found" in done.stderr
    listed = subprocess.run([*line, "--list"], capture_output=True, text=True, check=False)
    assert listed.returncode == 2
    assert listed.stderr == (
        f"error: {bare} has no Python package yaml [tool_missing]\n"
        f"  next: run with the interpreter that has vLLM: it has PyYAML; or: {bare} -m pip install PyYAML\n"
    )


def without_pytest(*args: str) -> subprocess.CompletedProcess[str]:
    """A verb in the environment of `bootstrap.py try`, as far as pytest goes."""
    code = f"import sys; sys.modules['pytest'] = None; from fixpack.cli import main; sys.exit(main({args!r}))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=APPLY_ALL.parent
    )


def test_prove_without_pytest_says_what_to_do() -> None:
    done = without_pytest("prove", "--profile", "gb300")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the proofs need pytest, which this Python does not have [harness_missing]" in done.stderr
    assert "next: `python3 bootstrap.py test --collect-only` makes .venv" in done.stderr


def test_the_pages_need_no_pytest(tmp_path: Path) -> None:
    """They show the options of every verb, `prove` too."""
    done = without_pytest("docs", "--check")
    assert (done.returncode in (0, 1), done.stderr) == (True, "")  # 1: stale, which another test is about
    assert re.match(r"\d+ pages: ", done.stdout.splitlines()[-1])
    done = without_pytest("docs", "--html", str(tmp_path / "site"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site/index.html").is_file()


# -- what else lies in a target ---------------------------------------------------------------------------------------

CACHE = "demo_plugin/__pycache__/runner.cpython-311.pyc"


def test_a_fifo_for_bytecode_or_lock_does_not_hang(kit: Kit) -> None:
    kit.apply()
    (kit.site / CACHE).parent.mkdir(exist_ok=True)
    os.mkfifo(kit.site / CACHE)
    assert kit.apply().code == 0
    lock = kit.registry / "profiles/bench-v1.0.0.lock.json"
    lock.unlink()
    os.mkfifo(lock)
    done = kit.apply()
    assert (done.code, done.codes) == (2, ["lock_invalid"])


def test_a_folder_for_bytecode_is_no_bytecode(kit: Kit) -> None:
    (kit.site / CACHE).mkdir(parents=True)
    assert kit.apply().code == 0
    assert (kit.site / CACHE).is_dir()


def test_bytecode_behind_a_link_is_refused(kit: Kit, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "runner.cpython-311.pyc").write_bytes(b"theirs")
    (kit.site / "demo_plugin/__pycache__").symlink_to(outside)
    before = state(kit.site)
    done = kit.apply()
    assert (done.code, set(done.codes)) == (1, {"leaves_target"})
    assert state(kit.site) == before
    assert (outside / "runner.cpython-311.pyc").read_bytes() == b"theirs"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.parametrize("locked", [CACHE, "demo_plugin/__pycache__"])
def test_bytecode_that_this_user_cannot_read_is_none_of_his(kit: Kit, locked: str) -> None:
    kit.apply()
    py_compile.compile(str(kit.site / "demo_plugin/runner.py"), str(kit.site / CACHE))
    (kit.site / locked).chmod(0)
    for folder in (kit.folder, *kit.folder.parents):
        if str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    assert as_nobody(lambda: kit.apply().code) == 0


def test_two_dist_infos_are_refused(kit: Kit) -> None:
    write(kit.site, {"demo_plugin-0.9.0.dist-info/METADATA": "Name: demo-plugin\nVersion: 0.9.0\n"})
    before = state(kit.site)
    done = kit.apply()
    assert (done.code, done.codes) == (1, ["two_dist_infos"])
    assert "found     demo_plugin-0.9.0.dist-info, demo_plugin-1.0.0.dist-info" in done.err
    assert state(kit.site) == before


def test_a_broken_file_of_another_profile_does_not_hide_the_mismatch(kit: Kit) -> None:
    (kit.registry / "profiles/bench-v2.0.0.yaml").write_text("profile: [\n")
    runner = kit.site / "demo_plugin/runner.py"
    runner.write_bytes(runner.read_bytes() + b"\n")
    done = kit.apply()
    assert (done.code, done.codes[0]) == (1, "base_sha_unknown")


@pytest.mark.parametrize("args", [(), ("--check",)])
@pytest.mark.parametrize("path", ["demo_plugin/__init__.py", "demo_core/__init__.py", "README"])
def test_a_journal_cannot_name_what_no_fix_touches(kit: Kit, path: str, args: tuple[str, ...]) -> None:
    write(kit.site, {"README": "theirs"})
    steps = [[path, sha((kit.site / path).read_bytes()), ""]]
    body = {"schema": "fixpack.journal/2", "phase": "switching", "steps": steps, "made": []}
    write(kit.site, {".fixpack-journal": json.dumps(body)})
    before = state(kit.site)
    done = kit.apply(*args)
    assert (done.code, done.codes) == (1, ["journal_invalid"])
    assert f"it names {kit.site / path}, which is no file of this profile" in done.err
    assert state(kit.site) == before
