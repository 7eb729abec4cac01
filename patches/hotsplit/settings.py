"""The switches of hotsplit: environment variables, read once per model load, each refused with a clear error.

Their names do not begin with VLLM_: vLLM neither warns of them nor puts them into the key of its compile cache, which
is right, because what a split layer does is not part of any compiled graph.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from typing import NamedTuple

from vllm._fixpack import hotsplit_counts
from vllm._fixpack.hotsplit_order import FLOOR, GIB

PREFIX = "HOTSPLIT_"
STOCK, STOCK_TENSORS = "stock", "stock-tensors"
SWITCHES = {
    "HOTSPLIT_COUNTS": "a file of counts, or a plan, as `fixpack hotsplit` reads and writes them",
    "HOTSPLIT_WEIGHTS": 'how the phases of the counts are mixed; "decode=1,prefill=0" unless set',
    "HOTSPLIT_HOT_GIB": 'GiB of HBM for hot experts, "stock" (unless set) or "stock-tensors"',
    "HOTSPLIT_HOST_FLOOR_GIB": f"GiB of host memory that stay available; {FLOOR // GIB} unless set",
    "HOTSPLIT_DRYRUN": "1: log the plan, split nothing",
    "HOTSPLIT_LIVE_COUNTS": "a file that gets what the server counts; nothing is counted unless it is set",
    "HOTSPLIT_LIVE_SECS": "seconds between two snapshots; 600 unless set",
    "HOTSPLIT_DECODE_MAX": "a step of at most so many tokens counts as decode; 16 unless set",
}
SPLIT_ONLY = ("HOTSPLIT_WEIGHTS", "HOTSPLIT_HOT_GIB", "HOTSPLIT_HOST_FLOOR_GIB", "HOTSPLIT_DRYRUN")
LIVE_ONLY = ("HOTSPLIT_LIVE_SECS", "HOTSPLIT_DECODE_MAX")
SHORTEST, LARGEST_STEP = 60.0, 1024  # seconds: a snapshot must not meet the capture of a graph; tokens
LONGEST_NAME = 200  # bytes; file systems take 255, and a snapshot that is being written has 14 more


class Settings(NamedTuple):
    """What the environment asks for."""

    counts: str  # file; "" to split nothing, only count
    weights: dict[str, float]
    hot: str | float  # GiB, or STOCK, or STOCK_TENSORS
    hot_set: bool  # whether somebody set it
    floor: int  # bytes of host memory
    dry_run: bool
    live: str  # file; "" for no counter
    live_seconds: float
    decode_max: int  # tokens


def read(environment: Mapping[str, str] | None = None) -> Settings | None:
    """What ``environment``, or the process's own, asks for; None where it does not mention hotsplit.

    :raises ValueError: naming every variable that is unknown, useless beside the others, or has a bad value.
    """
    environment = os.environ if environment is None else environment
    given = {name: value.strip() for name, value in environment.items() if name.startswith(PREFIX)}
    if not given:
        return None
    problems = []
    for name in sorted(given.keys() - SWITCHES.keys()):
        near = difflib.get_close_matches(name, SWITCHES, 1)
        problems.append(f"{name} is unknown" + (f"; did you mean {near[0]}?" if near else f"; known: {_known()}"))
    for name in sorted(given.keys() & SWITCHES.keys()):
        if not given[name]:
            problems.append(f"{name} is empty; expected {SWITCHES[name]}")
    for needed, names in (("HOTSPLIT_COUNTS", SPLIT_ONLY), ("HOTSPLIT_LIVE_COUNTS", LIVE_ONLY)):
        for name in names:
            if name in given and needed not in given:
                problems.append(f"{name} does nothing without {needed}")

    def number(name: str, default: float, low: float, high: float) -> float:
        text = given.get(name) or str(default)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            problems.append(f"{name}={text}: expected a number from {low:g} to {high:g}, {SWITCHES[name]}")
            return default
        return value

    weights: dict[str, float] = {}
    try:
        weights = hotsplit_counts.parse_weights(given.get("HOTSPLIT_WEIGHTS") or hotsplit_counts.DEFAULT_WEIGHTS)
    except ValueError as error:
        problems.append(f"HOTSPLIT_WEIGHTS: {error}")
    hot: str | float = given.get("HOTSPLIT_HOT_GIB") or STOCK
    if hot not in (STOCK, STOCK_TENSORS):
        hot = number("HOTSPLIT_HOT_GIB", 0.0, 0.0, 1 << 20)
    floor = number("HOTSPLIT_HOST_FLOOR_GIB", FLOOR / GIB, 0.0, 1 << 20)
    seconds = number("HOTSPLIT_LIVE_SECS", 600.0, SHORTEST, 1e6)
    decode_max = number("HOTSPLIT_DECODE_MAX", 16.0, 1.0, LARGEST_STEP)
    if decode_max != int(decode_max):
        problems.append(f"HOTSPLIT_DECODE_MAX={decode_max:g}: expected whole tokens")
    dry_run = given.get("HOTSPLIT_DRYRUN") or "0"
    if dry_run not in ("0", "1"):
        problems.append(f"HOTSPLIT_DRYRUN={dry_run}: expected 0 or 1")
    live = given.get("HOTSPLIT_LIVE_COUNTS", "")
    folder = os.path.dirname(os.path.abspath(live))
    if live and not os.access(folder, os.W_OK | os.X_OK):
        problems.append(f"HOTSPLIT_LIVE_COUNTS={live}: the folder {folder} is not there or not writable")
    elif live and len(os.fsencode(os.path.basename(live))) > LONGEST_NAME:
        problems.append(f"HOTSPLIT_LIVE_COUNTS={live:.60}…: a name of more than {LONGEST_NAME} bytes")
    elif live and os.path.isdir(live):
        problems.append(f"HOTSPLIT_LIVE_COUNTS={live} is a folder; name a file")
    elif live and os.path.exists(live) and not os.path.isfile(live):  # a snapshot would take its place
        problems.append(f"HOTSPLIT_LIVE_COUNTS={live} is a device, a pipe or a socket; name a file")
    elif live and os.path.realpath(live) == os.path.realpath(given.get("HOTSPLIT_COUNTS") or os.curdir):
        problems.append(f"HOTSPLIT_LIVE_COUNTS={live} is HOTSPLIT_COUNTS too: snapshots would overwrite it")
    if problems:
        raise ValueError("hotsplit cannot start: " + "; ".join(problems))
    return Settings(
        counts=given.get("HOTSPLIT_COUNTS", ""),
        weights=weights,
        hot=hot,
        hot_set="HOTSPLIT_HOT_GIB" in given,
        floor=int(floor * GIB),
        dry_run=dry_run == "1",
        live=live,
        live_seconds=seconds,
        decode_max=int(decode_max),
    )


def _known() -> str:
    return ", ".join(SWITCHES)
