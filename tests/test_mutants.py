"""A small run of the mutation campaign; ``benchmarks/mutants.py`` runs the whole of it, beside other tools."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from kit import REPO

from fixpack.errors import FixpackError


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", REPO / "benchmarks/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def test_no_mutant_is_fixed_or_confirmed_wrongly(mutants: ModuleType, real_cache: Path) -> None:
    try:
        tallies = {each.name: each for each in mutants.campaign("gaudi2-v0.26.0", 150, 0, 7)}
    except FixpackError as error:
        pytest.skip(f"the source cache lacks a release: {error}")
    engine = tallies["fixpack"]
    assert (engine.refused + engine.right, engine.wrong) == (150, 0)
    assert engine.right < 5  # where the changes cancel out, the mutant is the pinned file
    assert tallies["confirm"].wrong == 0
    assert tallies["confirm"].right > 20
    assert tallies["confirm"].refused > 20
    assert tallies["anchors alone"].right > 50  # so the campaign can tell right from wrong
    assert tallies["anchors alone"].wrong <= 7


def test_the_campaign_knows_right_from_wrong(mutants: ModuleType, real_cache: Path) -> None:
    """Without a mutation everything is right; a block put elsewhere is wrong."""
    try:
        [subject, *_] = mutants.subjects("gaudi2-v0.26.0")
    except FixpackError as error:
        pytest.skip(f"the source cache lacks a release: {error}")
    lines = mutants.as_lines(subject.base)
    assert mutants.truth(subject, lines) == subject.fixed == mutants.engine(subject, subject.base)
    assert mutants.by_the_book(subject, subject.base) == mutants.anchors_alone(subject, subject.base) == subject.fixed
    assert mutants.confirmed(subject, subject.fixed)
    assert mutants.intact(subject, mutants.as_lines(subject.fixed))
    assert mutants.intact_by_name(subject, subject.fixed)
    start, end = subject.anchors[0]
    for gone in ([*lines[:start], *lines[end:]], [*lines[:start], mutants.Line(-1, b"x"), *lines[end:]]):
        assert mutants.truth(subject, gone) is None
        assert mutants.engine(subject, mutants.as_bytes(gone)) is None
    fixed = mutants.as_lines(subject.fixed)
    inside = subject.guarded[0][0] + 1
    changed = mutants.as_bytes([*fixed[:inside], mutants.Line(-1, b"        port()"), *fixed[inside:]])
    assert not mutants.confirmed(subject, changed)
    assert not mutants.intact_by_name(subject, changed)


def test_the_same_seed_makes_the_same_mutants(mutants: ModuleType) -> None:
    lines = mutants.as_lines(b"\n".join(b"    line %d = value(%d)" % (each, each) for each in range(300)))
    runs = [[mutants.mutate(lines, [7, 50], random.Random(seed)) for seed in range(40)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert sum(mutants.as_bytes(each) != mutants.as_bytes(lines) for each in runs[0]) > 35
