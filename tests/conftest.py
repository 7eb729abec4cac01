"""Seal the tests from the user: own home, own source cache, no configuration of git or Python from outside.

A test that needs the machine's real source cache takes the fixture ``real_cache``.  The proofs below
tests/fixes run in an environment of their own and are left alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # kit.py; modules are imported by path, so nothing else puts it there

#: Found before anything is sealed.
REAL_CACHE = os.environ.get("FIXPACK_SOURCES") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fixpack"
)

#: Test modules that work on the real sources throughout.
REAL = ("test_end_to_end", "test_families", "test_system", "test_real_apply", "test_try")


@pytest.fixture(scope="session")
def real_cache() -> Path:
    """The machine's own source cache; a test that takes it also sees it as FIXPACK_SOURCES."""
    return Path(REAL_CACHE)


@pytest.fixture(autouse=True)
def seal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Own home and cache, nothing from the user's environment."""
    if HERE / "fixes" in request.path.parents:
        return
    patch = request.getfixturevalue("monkeypatch")
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(("PYTHON", "GIT_", "PIP_", "FIXPACK_", "XDG_")) or name in ("SOURCE_DATE_EPOCH", "NO_COLOR"):
            patch.delenv(name)
    patch.setenv("HOME", str(home))
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        patch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    real = "real_cache" in request.fixturenames or request.path.stem in REAL
    patch.setenv("FIXPACK_SOURCES", REAL_CACHE if real else str(home / "sources"))
