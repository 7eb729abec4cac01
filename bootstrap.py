#!/usr/bin/env python3
"""Set up a checkout and run it: needs Python, nothing else.

    python3 bootstrap.py try  [arguments of `fixpack try`]     Python 3.10 or later
    python3 bootstrap.py test [arguments of pytest]            Python 3.11, about 1.6 GB of packages

Packages go into .venv/ of the checkout, pinned by requirements/ and tests/harness/requirements.txt.  A second run
installs nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
PROFILE = "gaudi2-v0.26.0"
HARNESS_PYTHON = (3, 11)

#: Requirement file -> extra options of pip.  Harness packages go in without their dependencies: those of xgrammar
#: alone would be a gigabyte that no proof needs.
TRY: Mapping[str, tuple[str, ...]] = {"requirements/try.txt": ()}
TEST: Mapping[str, tuple[str, ...]] = {
    "requirements/try.txt": (),
    "tests/harness/requirements.txt": ("--no-deps",),
    "requirements/test.txt": (),
}

#: Prints `NAME@RELEASE<tab>address` for each pinned release that is not in the cache; no address: package index.
MISSING = """
from fixpack import registry, sources
loaded = registry.load(registry.default_root())
for release in loaded.releases.values():
    if not sources.have(release):
        print(release.ref, "" if release.sdist else release.git, sep="\\t")
"""


class SetupError(Exception):
    """The set-up cannot go on; the message says what to do."""


def main(arguments: Sequence[str]) -> int:
    """Run one of the two commands; returns the exit code."""
    if not arguments or arguments[0] not in ("try", "test"):
        print(__doc__, file=sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    try:
        return (run_try if arguments[0] == "try" else run_test)(list(arguments[1:]))
    except SetupError as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run_try(arguments: list[str]) -> int:
    """`fixpack try`, by default with the profile that the project is about."""
    if sys.version_info < (3, 10):  # noqa: UP036  a user may start it with any Python
        raise SetupError(f"Python 3.10 or later is needed, this is {sys.version.split()[0]}")
    make_venv(sys.executable, None)
    install(TRY)
    if not any(each == "--profile" or each.startswith("--profile=") for each in arguments):
        arguments = ["--profile", PROFILE, *arguments]
    return call([str(PYTHON), "-m", "fixpack", "try", *arguments])


def run_test(arguments: list[str]) -> int:
    """Everything that must hold: lint, types, tests, proofs."""
    make_venv(find_python(), HARNESS_PYTHON)
    install(TEST)
    check_torch()
    fetch_sources()
    codes = [
        call([str(PYTHON), "-m", "ruff", "check", "."]),
        call([str(PYTHON), "-m", "mypy"]),
        call([str(PYTHON), "-m", "pytest", *arguments]),
    ]
    return next((code for code in codes if code), 0)


# -- the environment --------------------------------------------------------------------------------------------------


def find_python() -> str:
    """An interpreter of the version that the harness is pinned for."""
    name = ".".join(map(str, HARNESS_PYTHON))
    for candidate in (sys.executable, shutil.which(f"python{name}")):
        if candidate and version_of(candidate) == HARNESS_PYTHON:
            return candidate
    raise SetupError(f"the proofs are pinned for Python {name}, which is not on the PATH")


def version_of(python: str) -> tuple[int, ...]:
    """Major and minor version; empty if it does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return ()
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def make_venv(python: str, wanted: tuple[int, ...] | None) -> None:
    """Have .venv/; one that this program made with another Python is made anew."""
    found = version_of(str(PYTHON))
    if found >= (3, 10) and wanted in (None, found):
        return
    if VENV.exists():
        if not list(VENV.glob("fixpack-*.stamp")):
            raise SetupError(f"{VENV} is not of this program's making, and does not fit: move it away")
        print(f"bootstrap: making {VENV} anew", flush=True)
        shutil.rmtree(VENV)
    VENV.mkdir()
    (VENV / "fixpack-venv.stamp").touch()
    if call([python, "-m", "venv", str(VENV)]):
        raise SetupError(f"{python} cannot make virtual environments; Debian's package for that is python3-venv")


def install(wanted: Mapping[str, tuple[str, ...]]) -> None:
    """Install requirement files that are not installed already, as a stamp per file remembers."""
    for name, options in wanted.items():
        file = ROOT / name
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        stamp = VENV / f"fixpack-{name.replace('/', '-')}.stamp"
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
            continue
        print(f"bootstrap: installing {name} into {VENV}", flush=True)
        if call([str(PYTHON), "-m", "pip", "install", "--quiet", *options, "-r", str(file)]):
            raise SetupError(f"pip could not install {name}")
        stamp.write_text(digest, encoding="utf-8")


def check_torch() -> None:
    """The CUDA build of torch does not import without gigabytes of libraries, which the harness leaves out."""
    done = subprocess.run([str(PYTHON), "-c", "import torch"], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise SetupError(
            f"torch does not import: {last[0]}\n"
            f"install its CPU build from PyTorch's own package index into {VENV}, then run this again"
        )


def fetch_sources() -> None:
    """Fetch what can be fetched; a proof without its sources is skipped and says so."""
    done = subprocess.run([str(PYTHON), "-c", MISSING], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return  # an invalid registry: the tests will tell in full
    dead: set[str] = set()
    for line in done.stdout.splitlines():
        ref, _, address = line.partition("\t")
        command = [str(PYTHON), "-m", "fixpack", "sources", "fetch", ref]
        if (address and (address in dead or not reachable(address))) or call(command):
            dead.add(address)
            print(
                f"bootstrap: {ref} is not there, so its proofs will be skipped; to have them:\n"
                f"  {PYTHON.relative_to(ROOT)} -m fixpack sources fetch {ref} --from ANY_CLONE",
                flush=True,
            )


def reachable(address: str) -> bool:
    """Whether a git address answers soon."""
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "ls-remote", "--quiet", address, "HEAD"]
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def call(command: Sequence[str]) -> int:
    """Run a command in the checkout, its output as it comes."""
    return subprocess.call(command, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
