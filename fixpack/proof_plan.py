"""Which proofs run on which trees."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fixpack.compose import touched
from fixpack.crosscheck import closure
from fixpack.model import Profile, Registry

STOCK = "stock"
ALL = "all"


class Run(NamedTuple):
    """One interpreter: which fixes its trees have, and whose proofs run on them."""

    name: str  # "stock", "alone:<fix>", "all", "all+<opt-in>…"
    fixes: tuple[str, ...]
    proofs: tuple[str, ...]


def plan(registry: Registry, profile: Profile, selected: Sequence[str]) -> tuple[Run, ...]:
    """The runs that prove ``selected``: stock, each alone, the defaults, each opt-in and each pair on top of them, all.

    With the defaults and with everything, each proof runs.  With one opt-in fix, those of itself, of what it requires
    and of every fix that edits one of its files; with a pair, those of the pair: their number grows with the square.
    What upstream has runs on stock, and with everything applied.
    """
    runs = [Run(STOCK, (), tuple(selected))]
    superseded = tuple(fix for fix in selected if fix not in (*profile.fixes, *profile.opt_in))
    selected = [fix for fix in selected if fix not in superseded]
    runs += [Run(f"alone:{fix}", closure(registry, (fix,), profile.releases), (fix,)) for fix in selected]
    combinations: list[tuple[str, ...]] = [()]
    if not profile.experimental:  # an experimental one is proven without opt-in fixes, and with all of them
        combinations += [(fix,) for fix in profile.opt_in]
        combinations += itertools.combinations(profile.opt_in, 2)
    if profile.opt_in and profile.opt_in not in combinations:
        combinations.append(profile.opt_in)
    for extra in combinations:
        applied = closure(registry, (*profile.fixes, *extra), profile.releases)
        near: Collection[str] = applied
        if extra and extra != profile.opt_in:
            near = closure(registry, extra, profile.releases) if len(extra) == 1 else extra
        if len(extra) == 1:
            files = _files(registry, profile, extra[0])
            near = {*near, *(fix for fix in applied if files & _files(registry, profile, fix))}
        proofs = tuple(fix for fix in selected if fix in applied and fix in near)
        if not extra:
            proofs += superseded
        if proofs and (not extra or set(extra) & set(selected)):
            runs.append(Run("+".join((ALL, *extra)), applied, proofs))
    return tuple(runs)


def _files(registry: Registry, profile: Profile, fix: str) -> set[str]:
    """The files that a fix touches in a profile's releases."""
    return {
        path for release in registry.profile_releases(profile) for path in touched(release, [registry.fixes[fix]])
    }
