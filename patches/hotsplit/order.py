"""In which order the layers are split, so that neither HBM nor the host runs out in between.

Pure arithmetic on bytes, with no torch in it: what decides beside the machine is what a dry run and the tests replay.

To split a layer, its hot bank (HBM) and its cold bank (host) are built first, and only then its old tensors are freed.
A layer in host memory thus takes HBM and gives host memory; a layer in HBM gives HBM and takes host memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

GIB = 1 << 30
FLOOR = 24 * GIB  # host memory that stays available, unless HOTSPLIT_HOST_FLOOR_GIB says otherwise
RESERVE = 4 * GIB  # HBM that stays free at every moment: fragmentation, chunks under way, other processes


class Part(NamedTuple):
    """One layer, in bytes."""

    layer: int
    hot: int  # of its hot experts
    cold: int  # of its cold experts
    scales: int  # always in HBM; both banks' are made before the old ones go
    hbm: int  # of its two weight tensors as loaded, in HBM ...
    host: int  # ... and in host memory; a layer may have one tensor here and one there

    @property
    def transient(self) -> int:
        """HBM that building its banks takes before anything is freed."""
        return self.hot + self.scales


class Stop(NamedTuple):
    """Why no further layer is split."""

    kind: str  # "host" or "hbm"
    layer: int
    free: int
    needed: int

    def text(self, floor: int) -> str:
        """One line for people."""
        if self.kind == "host":
            return (
                f"hotsplit host floor hit before layer {self.layer}: host avail {self.free / GIB:.1f} GiB, cold bank "
                f"{self.needed / GIB:.1f} GiB, floor {floor / GIB:.1f} GiB"
            )
        return (
            f"hotsplit HBM reserve hit before layer {self.layer}: HBM free {self.free / GIB:.1f} GiB, hot bank and "
            f"scales {self.needed / GIB:.1f} GiB, reserve {RESERVE / GIB:.1f} GiB"
        )


class Replay(NamedTuple):
    """What would happen, if nothing but the split used memory."""

    order: tuple[int, ...]
    stop: Stop | None
    lowest_hbm: int  # free, at the worst moment
    lowest_host: int  # available, at the worst moment
    last_hbm: int  # free, at the end
    last_host: int


def to_split(parts: Iterable[Part]) -> list[Part]:
    """Those that need banks: a layer that already lies as planned does not."""
    return [part for part in parts if (part.cold or part.host) and (part.hot or part.hbm)]


def margin(parts: Iterable[Part]) -> int:
    """HBM that must stay free after a layer that takes some, so that any layer can come next.

    The reserve and the largest hot bank with its scales: at the worst moment of a split, the reserve is what is left.
    """
    return RESERVE + max((part.transient for part in parts), default=0)


def choose(parts: Sequence[Part], hbm_free: int, host_free: int, margin: int, floor: int) -> Part | Stop:
    """The layer to split next, of ``parts`` that are left, or why none can be.

    Layers that give HBM are kept for when it is short: first those that take HBM as long as ``margin`` stays free,
    then one that gives; when none gives any more, the others.  Ties by layer number.
    """
    takes = [part for part in parts if part.hot > part.hbm]
    gives = [part for part in parts if part.hot <= part.hbm]
    if takes and (not gives or hbm_free - takes[0].hot > margin):
        part = takes[0]
    else:
        part = gives[0]
    if hbm_free - part.transient < RESERVE:
        part = min(gives or takes, key=lambda each: (each.transient, each.layer))
        if hbm_free - part.transient < RESERVE:
            return Stop("hbm", part.layer, hbm_free, part.transient)
    if host_free - part.cold < floor:
        return Stop("host", part.layer, host_free, part.cold)
    return part


def replay(parts: Sequence[Part], hbm_free: int, host_free: int, floor: int, returned: float = 1.0) -> Replay:
    """Split all ``parts`` on paper; ``returned`` is the part of freed host memory that comes back (1: all)."""
    left, order = list(parts), []
    limit = margin(parts)
    lowest_hbm, lowest_host = hbm_free, host_free
    stop = None
    while left:
        found = choose(left, hbm_free, host_free, limit, floor)
        if isinstance(found, Stop):
            stop = found
            break
        lowest_hbm = min(lowest_hbm, hbm_free - found.transient)
        lowest_host = min(lowest_host, host_free - found.cold)
        hbm_free += found.hbm - found.hot
        host_free += int(found.host * returned) - found.cold
        lowest_hbm, lowest_host = min(lowest_hbm, hbm_free), min(lowest_host, host_free)
        order.append(found.layer)
        left.remove(found)
    return Replay(tuple(order), stop, lowest_hbm, lowest_host, hbm_free, host_free)


def returns(part: Part, before: int, after: int) -> str:
    """Whether host memory came back after the first layer that had some: "" if so, else what was seen.

    At least half of what was freed must have arrived: other processes move the figure too, but a driver that keeps
    registered or cached blocks returns nothing.
    """
    expected, seen = part.host - part.cold, after - before
    if seen >= expected - part.host // 2:
        return ""
    return (
        f"after layer {part.layer} the available host memory changed by {seen / GIB:+.2f} GiB, expected "
        f"{expected / GIB:+.2f} GiB: freed weights do not go back to the host"
    )
