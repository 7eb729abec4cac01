"""What a long prompt owes to the streams beside it, in seconds: when its next chunk has to wait.

The share ``s`` is the part of their undisturbed speed that the other streams keep while a long prompt is prefilled. A
step that holds a chunk of it takes ``T`` seconds and advances the others by one token, which alone would have taken
``t`` seconds, the time of a step of decodes only.  So that after ``D`` seconds without a chunk they have come
``s * (T + D)`` seconds' worth of tokens far, the chunk must be followed by

    D = (s * T - t) / (1 - s)

seconds of other steps.  The ledger adds that up as a debt, and takes off what other steps last.

Durations are differences of completion times: with several steps in flight, the time between two calls of the
scheduler is that of an earlier step.  Exact mode foresees what the steps in flight will cost and pay.  Plain mode knows
only chunks that are done: with asynchronous scheduling a second chunk then follows before the first one is
accounted for, and one of the two is never paid.

No I/O, no clock and no import beyond the standard library; times are seconds of any monotonic clock.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

#: Weight of the newest duration in the smoothed one of a step of decodes.
NEWEST = 0.25


class Kind(enum.Enum):
    """What a step holds."""

    CHUNK = "chunk"  # a chunk of a long prompt, beside whatever else
    DECODE = "decode"  # decodes only
    MIXED = "mixed"  # a prefill, but not of a long prompt
    EMPTY = "empty"  # nothing


class Step(NamedTuple):
    """A step that was scheduled."""

    key: object
    kind: Kind
    others: bool  # whether anything but long prompts runs in it
    began: float
    note: Any  # the caller's own


class Charge(NamedTuple):
    """A step that is done, and how long it took."""

    kind: Kind
    seconds: float
    note: Any


class Counters(NamedTuple):
    """What was counted since the start."""

    chunk_steps: int = 0
    other_steps: int = 0  # steps with something, but no chunk of a long prompt
    empty_steps: int = 0
    shared_steps: int = 0  # steps that advanced the others, chunk or not
    deferred_steps: int = 0  # steps from which a long prompt was left out
    forced_steps: int = 0  # steps that could not defer, because a deferral had just led to an empty step
    resets: int = 0  # debts that were dropped because nobody was left to profit
    chunk_seconds: float = 0.0
    other_seconds: float = 0.0
    empty_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of all steps; idle time is not in it."""
        return self.chunk_seconds + self.other_seconds + self.empty_seconds

    def since(self, start: Counters) -> Counters:
        """The difference to an earlier state."""
        return Counters._make(now - then for now, then in zip(self, start, strict=True))


class Ledger:
    """The debt of the long prompts, and the durations that it is computed from.

    In: the share (0 < share < 1), and whether the steps in flight count.  Raises ValueError for another share.
    """

    def __init__(self, share: float, exact: bool) -> None:
        if not 0.0 < share < 1.0:
            raise ValueError(f"a share lies between 0 and 1, both excluded; found {share}")
        self.share = share
        self.exact = exact
        self.debt = 0.0  # seconds; at least minus one step of decodes, so that a quiet time buys no burst of chunks
        self.chunk_seconds: float | None = None  # the newest chunk step's; None before the first one is done
        self.decode_seconds = 0.0  # a step of decodes, smoothed; 0 before the first one is done
        self._flight: deque[Step] = deque()
        self._chunks_in_flight = 0
        self._completed = float("-inf")
        self._force = False
        self._count: list[float] = [*Counters()]

    def counters(self) -> Counters:
        """What was counted so far."""
        return Counters._make(self._count)

    @property
    def due(self) -> bool:
        """Whether ``defers`` has anything to decide; if not, it is False."""
        return self._force or self.debt > 0.0 or (self.exact and self._chunks_in_flight > 0)

    def defers(self, others: Callable[[], bool]) -> bool:
        """Whether the step that is being scheduled must leave long prompts out.

        ``others`` tells whether anything else can run in this step; it is asked only if the answer matters.
        """
        if self._force:
            self._force = False
            self._add(forced_steps=1)
            return False
        if not self.due:
            return False
        if not others():
            if self.debt > 0.0:
                self._add(resets=1)
            self.debt = 0.0
            return False
        if not self.exact:
            return True
        if self.chunk_seconds is None:
            return True  # a chunk is in flight, and nobody knows yet what it costs
        owed = self.debt
        for step in self._flight:
            if step.kind is Kind.CHUNK:
                owed += self._cost(self.chunk_seconds, step.others)
            elif step.kind is not Kind.EMPTY:
                owed -= self.decode_seconds
        return owed > 0.0

    def begin(self, key: object, kind: Kind, others: bool, deferred: bool, now: float, note: Any = None) -> None:
        """A step was scheduled; ``deferred`` says whether a long prompt was left out of it."""
        self._flight.append(Step(key, kind, others, now, note))
        self._chunks_in_flight += kind is Kind.CHUNK
        if deferred:
            self._add(deferred_steps=1)
            self._force = kind is Kind.EMPTY  # whoever was to profit did not run: never twice in a row

    def end(self, key: object, now: float) -> Charge | None:
        """A step is done: charge what it took.  Steps end in the order in which they began.

        Returns None for a step that is not known.  Steps before it are forgotten: nobody will report them any more.
        """
        place = next((place for place, step in enumerate(self._flight) if step.key is key), None)
        if place is None:
            return None
        for _ in range(place + 1):
            step = self._flight.popleft()
            self._chunks_in_flight -= step.kind is Kind.CHUNK
        seconds = now - max(self._completed, step.began)
        self._completed = now
        if step.kind is Kind.CHUNK:
            self.chunk_seconds = seconds
            if self.exact:
                self.debt = max(self.debt + self._cost(seconds, step.others), -self.decode_seconds)
            else:
                self.debt = max(0.0, seconds - self.decode_seconds) * self.share / (1.0 - self.share)
            self._add(chunk_steps=1, shared_steps=step.others, chunk_seconds=seconds)
        else:
            if step.kind is Kind.DECODE:
                before = self.decode_seconds or seconds
                self.decode_seconds = before + NEWEST * (seconds - before)
            self.debt = max(self.debt - seconds, -self.decode_seconds)
            if step.kind is Kind.EMPTY:
                self._add(empty_steps=1, empty_seconds=seconds)
            else:
                self._add(other_steps=1, shared_steps=1, other_seconds=seconds)
        return Charge(step.kind, seconds, step.note)

    def _cost(self, seconds: float, others: bool) -> float:
        """The time without chunks that a chunk step is to be followed by."""
        return (self.share * seconds - (self.decode_seconds if others else 0.0)) / (1.0 - self.share)

    def _add(self, **counts: float) -> None:
        for name, count in counts.items():
            self._count[_PLACE[name]] += count


_PLACE = {name: place for place, name in enumerate(Counters._fields)}
