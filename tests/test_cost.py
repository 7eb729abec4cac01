"""What benchmarks/cost.py runs and what it says of the figures; the figures themselves are no test's business."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from kit import REPO

from fixpack import registry


@pytest.fixture(scope="module")
def cost() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cost", REPO / "benchmarks" / "cost.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names(cost: ModuleType) -> None:
    """Every fix that is named exists, and so does every workload."""
    assert cost.ACTIVE.keys() <= registry.load(str(REPO)).fixes.keys()
    tree = ast.parse(cost.STEPS.read_text(encoding="utf-8"))
    function = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "workloads")
    made = next(each.value for each in function.body if isinstance(each, ast.Return))
    assert isinstance(made, ast.Dict)
    names = {key.value for key in made.keys if isinstance(key, ast.Constant)}
    assert {cost.INACTIVE, *cost.ACTIVE.values(), *cost.APART} <= names
    mark = next(each for each in tree.body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "MARK")
    assert ast.literal_eval(mark.value) == cost.MARK


def test_plan(cost: ModuleType) -> None:
    loaded = registry.load(str(REPO))
    profile = registry.find_profile(loaded, "gaudi2-v0.26.0")
    trees = cost.plan(loaded, profile, ["sink-once", "bad-words-index", "async-inputs"], Path("/x"), True)
    assert [(each.name, each.fixes, each.workloads) for each in trees[:-1]] == [
        ("stock", (), ("decode", "window", "bad-words", "skips")),
        ("stock again", (), ("decode", "window", "bad-words", "skips")),
        ("sink-once", ("sink-once",), ("decode", "window")),
        ("bad-words-index", ("structured-output-rows", "bad-words-index"), ("decode", "bad-words")),
        ("async-inputs", ("async-inputs",), ("decode", "skips")),
    ]
    assert trees[-1].name == "all"
    assert set(trees[-1].fixes) == set(profile.fixes)
    assert trees[-1].workloads == trees[0].workloads
    assert trees[0].at == trees[1].at == {"vllm-gaudi": "/x/0/vllm-gaudi", "vllm": "/x/0/vllm"}
    assert len({each.at["vllm"] for each in trees}) == len(trees) - 1
    assert {each.workloads for each in cost.plan(loaded, profile, ["sink-once"], Path("/x"), False)} == {("decode",)}


def test_table(cost: ModuleType) -> None:
    """A ratio that stock reaches against itself, or that is on both sides of 1, is called not measurable."""
    figures = {
        "stock": {"decode": [0.010, 0.020, 0.010], "window": [0.1, 0.1, 0.1]},
        "stock again": {"decode": [0.0101, 0.0196, 0.0101], "window": [0.1, 0.1, 0.1]},
        "near": {"decode": [0.0101, 0.0204, 0.0099]},
        "far": {"decode": [0.0110, 0.0210, 0.0120], "window": [0.09, 0.09, 0.09]},
    }
    figures["both sides"] = {"decode": [0.0090, 0.0220, 0.0120]}
    trees = [cost.Tree(name, (), tuple(each), {}) for name, each in figures.items()]
    assert cost.table(figures, trees) == (
        "                         inactive (decode)                      active\n"
        "stock again              1.010 (0.980-1.010)                    window: 1.000 (1.000-1.000)\n"
        "near                     1.010 (0.990-1.020) not measurable     -\n"
        "far                      1.100 (1.050-1.200)                    window: 0.900 (0.900-0.900)\n"
        "both sides               1.100 (0.900-1.200) not measurable     -\n"
        "stock, CPU ms per step: decode 10.00, window 100.00"
    )
    once = {tree: {name: each[:1] for name, each in known.items()} for tree, known in figures.items()}
    assert cost.cell(once, "far", "window") == "0.900 (0.900-0.900) not measurable"
