"""The command line: help, versions, usage, and that both fronts of apply are one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import REPO, Done, Kit

from fixpack import __version__


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def fixpack(*args: str, cwd: Path = REPO) -> Done:
    """``python -m fixpack``."""
    env = {**os.environ, "PYTHONPATH": str(REPO), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "fixpack", *args], capture_output=True, text=True, env=env, cwd=cwd, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


HELP = """\
usage: apply_all.py [-h] [--profile P] [--site DIR] [--root DIR] [--source NAME=DIR]
                    [--registry DIR] [--check | --dry-run | --list] [--strict] [--update-record]
                    [--json]
                    [FIX ...]

bring a profile's fixes in, all or nothing

positional arguments:
  FIX                opt-in fixes to add to the profile's own

options:
  -h, --help         show this help message and exit
  --profile P        the profile, by name or alias
  --registry DIR     use this registry (default: the one beside the engine)
  --check            only verify: exit 1 unless every fix is in place
  --dry-run          compute and check everything, write nothing
  --list             list profiles with releases and fixes, or only --profile
  --strict           exit 1 if another layer changed a fixed file at all
  --update-record    rewrite RECORD's rows of changed files too
  --json             report as JSON on stdout

what to look at (default: what the running Python would import):
  --site DIR         a folder that holds the packages and their dist-info
  --root DIR         an image's unpacked root
  --source NAME=DIR  a source tree; repeatable

exit codes: 0 applied or confirmed; 1 the target does not match, nothing was changed;
2 usage or invalid registry; 3 internal error; 130 interrupted
"""


def test_help(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = kit.run("--help")
    assert (done.code, done.out) == (0, HELP)
    assert fixpack("apply", "--help").out.split("\n", 1)[1].endswith(HELP.split("\n\n", 1)[1])


def test_both_fronts_are_one(kit: Kit) -> None:
    args = ("--registry", str(kit.registry), "--profile", "v1.0.0", "--site", str(kit.site))
    for extra in (["--dry-run"], ["zzz"], ["--check", "--json"], []):
        assert kit.command(*args[2:], *extra) == fixpack("apply", *args, *extra) or not extra
    assert fixpack("apply", *args, "--check").code == 0


def test_verbs(tmp_path: Path) -> None:
    assert fixpack("--version") == (0, f"fixpack {__version__}\n", "")
    done = fixpack()
    assert (done.code, done.out) == (2, "")
    assert "the following arguments are required: VERB" in done.err
    done = fixpack("aply")
    assert (done.code, done.out) == (2, "")
    verbs = ("apply", "verify", "status", "show", "diff", "revert", "doctor", "try", "list", "lint", "lock", "sources")
    for verb in (*verbs, "prove", "schema", "sbom"):
        assert fixpack(verb, "--help", cwd=tmp_path).code == 0


def test_lint_lock_and_list_on_a_small_registry(kit: Kit) -> None:
    registry = ("--registry", str(kit.registry))
    done = fixpack("list", *registry, "--profile", "v2.0.0")
    assert (done.code, done.out.splitlines()[0]) == (0, "bench-v2.0.0 (also v2.0.0)  a test bench")
    done = fixpack("lint", *registry)
    assert (done.code, done.out.splitlines()[-1]) == (
        0,
        "clean: 5 fixes, 2 profiles, 3 releases, 13 anchors; 0 releases checked against cached sources",
    )
    assert sum(line.startswith("skipped: ") for line in done.out.splitlines()) == 3
    done = fixpack("lock", *registry)
    assert (done.code, done.out) == (1, "")
    assert "[source_missing]" in done.err
    kit.edit("fixes/core-guard.yaml", "revision: 1", "revision: 0")
    for verb in ("list", "lint", "lock"):
        done = fixpack(verb, *registry)
        assert (done.code, done.codes) == (2, ["registry_invalid"])


def test_a_reader_that_goes_away(kit: Kit) -> None:
    """``| head``: no traceback."""
    command = f"{sys.executable} {REPO / 'apply_all.py'} --registry {kit.registry} --list --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{", "")
