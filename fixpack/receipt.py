"""What an apply leaves behind in each distribution: a record for people and tools, never the source of truth.

It lies in the distribution's dist-info and has a row in RECORD, so that removing the package removes it
too.  It keeps the base bytes of changed files.  Those are used only if their own sha256 is the pinned
one; nothing else in it decides anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fixpack import __version__
from fixpack.epoch import epoch
from fixpack.errors import Problem
from fixpack.form import misfit
from fixpack.lock import Lock, dump, sha256
from fixpack.target import Located, read_file

SCHEMA = "fixpack.receipt/1"
NAME = "fixpack.json"
MAX_BYTES = 64 << 20

_FORM: dict[str, Any] = {
    "schema": str,
    "tool": {"version": str, "sha256": str},
    "time": str,
    "profile": str,
    "lock_sha256": str,
    "distribution": {"name": str, "release": str, "version": str, "commit": str},
    "location": {"root": str, "how": str, "direct_url": dict | None},
    "record": str,
    "fixes": [{"id": str, "revision": int, "opt_in": bool}],
    "files": {"*": {"base_sha256": str | None, "result_sha256": str, "mode": str, "base": str | None}},
}


class Kept(NamedTuple):
    """One file of a distribution as the receipt records it."""

    base: bytes | None  # None for an added file
    result: bytes
    mode: int


class Receipt(NamedTuple):
    """What was read; only ``kept_base`` is ever believed, because the pin's hash proves it."""

    path: str
    state: str  # "none", "read", or why it cannot be used
    body: dict[str, Any]

    def kept_base(self, path: str, pinned: str) -> bytes | None:
        """The base bytes of a file, None unless their sha256 is ``pinned``."""
        entry = self.body.get("files", {}).get(path)
        if not entry or not entry["base"]:
            return None
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(b64decode(entry["base"], validate=True), MAX_BYTES)
        except (ValueError, zlib.error):
            return None
        return data if sha256(data) == pinned else None


def path_in(located: Located) -> str:
    """Where the receipt of a distribution lies: in its dist-info, else beside the package."""
    if located.dist_info:
        return os.path.join(located.dist_info, NAME)
    return os.path.join(located.root, f".fixpack.{located.distribution}.json")


def read(located: Located) -> Receipt:
    """The receipt of a distribution; a damaged, foreign or missing one is a state, never a failure."""
    path = path_in(located)
    data = read_file(path)
    if data is None:
        return Receipt(path, "none", {})
    if isinstance(data, Problem):
        return Receipt(path, data.message, {})
    if len(data) > MAX_BYTES:
        return Receipt(path, f"has {len(data)} bytes", {})
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        return Receipt(path, f"is damaged: {str(error)[:100]}", {})
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        return Receipt(path, f"is not a {SCHEMA}", {})
    wrong = misfit(body, _FORM)
    if wrong:
        return Receipt(path, f"is not a {SCHEMA}: {wrong}", {})
    if body["distribution"]["name"] != located.distribution:
        return Receipt(path, f"is another distribution's: {body['distribution']['name']!r:.100}", {})
    return Receipt(path, "read", body)


def make(lock: Lock, located: Located, fixes: Iterable[str], files: Mapping[str, Kept], *, record: str) -> bytes:
    """The bytes of a new receipt.

    :param fixes: the fixes that are in the distribution after this run, in the profile's order.
    :param files: every file that carries a fix after this run.
    :param record: what was done with RECORD: "added-rows", "updated-rows" or "none".
    """
    release = lock["releases"][located.distribution]
    body = {
        "schema": SCHEMA,
        "tool": {"version": __version__, "sha256": _tool_sha256()},
        "time": _now(),
        "profile": lock["profile"],
        "lock_sha256": sha256(dump(lock)),
        "distribution": {
            "name": located.distribution,
            "release": release["release"],
            "version": located.version,
            "commit": release["commit"],
        },
        "location": {"root": located.root, "how": located.how, "direct_url": _direct_url(located)},
        "record": record,
        "fixes": [
            {"id": name, "revision": lock["fixes"][name]["revision"], "opt_in": lock["fixes"][name]["opt_in"]}
            for name in fixes
        ],
        "files": {
            path: {
                "base_sha256": None if kept.base is None else sha256(kept.base),
                "result_sha256": sha256(kept.result),
                "mode": f"{kept.mode:04o}",
                "base": None if kept.base is None else b64encode(zlib.compress(kept.base, 2)).decode(),
            }
            for path, kept in sorted(files.items())
        },
    }
    return (json.dumps(body, indent=1, ensure_ascii=True) + "\n").encode()


def _tool_sha256() -> str:
    """The hash of the engine's own code: name and content of every module."""
    package = os.path.dirname(os.path.abspath(__file__))
    digest = hashlib.sha256()
    for folder in (package, os.path.join(package, "cli")):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as file:
                    digest.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def _now() -> str:
    when = epoch()
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() if when is None else when))


def _direct_url(located: Located) -> dict[str, Any] | None:
    """Where the distribution was installed from (PEP 610), as it says itself."""
    data = read_file(os.path.join(located.dist_info, "direct_url.json")) if located.dist_info else None
    try:
        body = json.loads(data) if isinstance(data, bytes) and len(data) < 65536 else None
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
