"""The bench of share_cost.py and share_picture.py: a vLLM with vllm-long-prefill-share, and scripts that run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fixpack import registry  # noqa: E402
from fixpack.errors import UsageError  # noqa: E402
from fixpack.proof_trees import clone  # noqa: E402
from fixpack.prove_lab import real_lab  # noqa: E402

FIX = "vllm-long-prefill-share"


def run(script: str, release: str, arguments: Sequence[str] = ()) -> Any:
    """What a script of this folder prints as JSON, in a fresh interpreter on the fixed release (``vllm@v0.26.0``).

    Raises FixpackError if there is no such release, or its source is not in the cache.
    """
    loaded = registry.load(registry.default_root())
    if release not in loaded.releases:
        raise UsageError(registry.unknown("release", release, loaded.releases))
    pinned = loaded.releases[release]
    lab = real_lab(loaded)
    source = lab.tree(pinned)
    if not source:
        raise SystemExit(f"the source is missing: {lab.fetch(pinned)}")
    os.makedirs(lab.scratch, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=lab.scratch) as folder:
        trees = {pinned.distribution: os.path.join(folder, "tree")}
        clone(source, trees[pinned.distribution])
        lab.apply([pinned], [FIX], trees)
        env = {**lab.env(trees), "PYTHONPYCACHEPREFIX": os.path.join(folder, "pycache")}
        command = [sys.executable, str(ROOT / "benchmarks" / script), "--inside", *arguments]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])
