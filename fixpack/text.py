"""Small helpers for what people read: suggestions, counts, short hashes."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "did you mean …?" for the nearest known words, "" when none is near."""
    import difflib  # only a failing run pays for it

    near = difflib.get_close_matches(word, sorted(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def plural(count: int, noun: str) -> str:
    """ "1 fix", "2 fixes"; regular English plurals only."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}es" if noun.endswith(("s", "x", "ch")) else f"{count} {noun}s"


def short(sha256: str) -> str:
    """The first twelve digits of a hash, as messages print it."""
    return sha256[:12] + "…" if len(sha256) > 12 else sha256
