"""The log of an unexpected failure."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

from fixpack import __version__


def write_log() -> str:
    """Write the current traceback and the versions to a new file; returns its path, or why there is none."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="fixpack-", suffix=".log")
    except OSError as error:  # a container without a place to write: then it has to be said here
        traceback.print_exc()
        return f"none could be written ({error.strerror or error})"
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"fixpack {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
        file.write(f"command: {sys.argv}\n\n{traceback.format_exc()}")
    return path
