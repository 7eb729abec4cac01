"""``fixpack hotsplit``: whole outputs, files that it writes, and every bad input."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hotsplit_kit import CONFIG, MIB, exact_place, hotsplit, rows, shape_a, shape_b, shape_c, write
from kit import REPO, Done

from fixpack.hotsplit import inputs
from fixpack.hotsplit.payload import counts, plan

CELL = 18 * MIB


class Bench:
    """A folder with a model's configuration and files of counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = write(folder / "config.json", CONFIG)

    def file(self, name: str, document: Any) -> Path:
        return write(self.folder / name, document)

    def run(self, verb: str, *args: str | Path) -> Done:
        return hotsplit(verb, *args, "--config", self.config)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_plan_says_and_writes(bench: Bench) -> None:
    """Golden: 12 of 32 cells, by the definition; the file is what a server would read."""
    path = bench.file("counts.json", shape_a(rows(1), model_revision="r1"))
    output = bench.folder / "plan.json"
    done = bench.run("plan", path, "--budget-gib", "0.2200", "-o", output, "--seed", "5")
    assert (done.code, done.err) == (0, f"written: {output}\n")
    table = rows(1)
    hot = exact_place(table, 12)
    covered = sum(table[layer][expert] for layer in hot for expert in hot[layer]) / sum(map(sum, table.values()))
    sizes = [len(chosen) for chosen in hot.values()]
    lines = done.out.splitlines()
    assert lines[:5] == [
        "hotsplit plan: 4 layers, budget 0.2 GiB (stock HBM experts 0.0 GiB), hot cells 12/32",
        f"  counts    {path}: decode x 1",
        f"  hot       {min(sizes)} to {max(sizes)} of 8 experts per layer, 0.21 GiB; cold 0.35 GiB",
        "  stock     0.00 GiB in whole layers in HBM, 0.00 GiB tensor by tensor",
        f"  covers    {100 * covered:.1f} % of the tokens that it was made from; whole layers "
        f"{100 * sum(table[4]) / sum(map(sum, table.values())):.1f} %",
    ]
    assert lines[6:] == [
        "            by thinning: every token goes to one side by a coin",
        "            intervals of 95 %: tokens are drawn again, as if independent: conversations differ by more than "
        "this interval shows",
    ]
    kept = plan.parse_plan(counts.read_json(str(output)), "p")
    assert (kept.hot, kept.experts) == (hot, 8)
    assert kept.meta["model_revision"] == "r1"
    assert kept.meta["cells"] == 12
    assert kept.meta["weights"] == {"decode": 1.0}
    assert [each["name"] for each in kept.meta["counts"]] == ["counts.json"]
    first = output.read_bytes()
    assert bench.run("plan", path, "--budget-gib", "0.2200", "-o", output, "--seed", "6").code == 0
    assert output.read_bytes() == first  # the seed is the evaluation's, not the plan's
    assert len(first.splitlines()) == 4 + 4 + 2 + len(json.dumps(kept.meta, indent=1).splitlines()) - 2 - 3


def test_plan_as_json(bench: Bench) -> None:
    path = bench.file("counts.json.gz", shape_b(rows(2)))
    done = bench.run("plan", path, "--stock-equal", "--offload-gib", "0.3", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    # 0.3 GiB takes two layers and the w13 of the third: 0.1875 GiB are left, 10 cells and two thirds
    assert found["stock_hbm_bytes"] == found["budget_bytes"] == 8 * CELL + 8 * 6 * MIB
    assert found["stock_hbm_bytes_by_w13"] == 8 * CELL
    assert (found["schema_version"], found["cells"], found["hot_bytes"]) == (1, 10, 10 * CELL)
    assert found["hot_per_layer"] == {str(layer): len(row) for layer, row in exact_place(rows(2), 10).items()}
    assert found["plan"]["hot"] == {str(layer): row for layer, row in exact_place(rows(2), 10).items()}
    assert found["held_out"]["how"] == "thinning"
    assert found["plan"]["meta"]["weights"] == {"mixed": 1.0}


def test_recordings_are_added_and_weighted(bench: Bench) -> None:
    one = bench.file("one.json", shape_a(rows(1), rows(2)))
    two = bench.file("two.json", shape_a(rows(3), rows(4)))
    done = bench.run("plan", one, two, "--budget-gib", "0.3", "--json", "--weights", "decode=0,prefill=1")
    table = {layer: [a + b for a, b in zip(rows(2)[layer], rows(4)[layer], strict=True)] for layer in rows(2)}
    found = json.loads(done.out)
    assert found["plan"]["hot"] == {str(layer): row for layer, row in exact_place(table, 17).items()}
    assert (found["held_out"]["how"], found["held_out"]["unit"]) == ("files", "tokens")


def test_coverage_over_budgets(bench: Bench) -> None:
    path = bench.file("counts.json", shape_a(rows(1), holdout=rows(2)))
    done = bench.run("coverage", path, "--budget-gib", "0.1", "--budget-gib", "0.3", "--json")
    found = json.loads(done.out)["budgets"]
    for each, cells in zip(found, (5, 17), strict=True):
        hot = exact_place(rows(1), cells)
        test = sum(rows(2)[layer][expert] for layer in hot for expert in hot[layer]) / sum(map(sum, rows(2).values()))
        assert (each["cells"], each["held_out"]["how"]) == (cells, "holdout")
        assert each["held_out"]["plan"]["value"] == pytest.approx(test)
    text = bench.run("coverage", path).out.splitlines()
    assert text[0] == str(path)
    assert text[1].split("  ")[-1].strip() == "whole layers"
    assert text[-2] == "held out: held-out part of the files"
    assert len(text) == 2 + 6 + 2


def test_coverage_of_a_plan_on_other_traffic(bench: Bench) -> None:
    """What a list that was made last week serves today, layer by layer."""
    old = bench.file("old.json", shape_a(rows(1), model_revision="r"))
    new = bench.file("new.json", shape_c(rows(2), model_revision="r"))
    kept = bench.folder / "plan.json"
    assert bench.run("plan", old, "--budget-gib", "0.3", "-o", kept).code == 0
    found = json.loads(bench.run("coverage", new, "--plan", kept, "--json").out)
    hot = exact_place(rows(1), 17)
    served = {layer: sum(rows(2)[layer][expert] for expert in hot[layer]) for layer in hot}
    assert found["plan"]["value"] == pytest.approx(sum(served.values()) / sum(map(sum, rows(2).values())))
    assert found["by_layer"] == {str(layer): pytest.approx(served[layer] / sum(rows(2)[layer])) for layer in served}
    text = bench.run("coverage", new, "--plan", kept).out
    assert text.startswith("the plan's 17 hot cells (0.30 GiB) serve ")
    assert "points more\n" in text
    other = bench.file("other.json", shape_c(rows(2), model_revision="s"))
    done = bench.run("coverage", other, "--plan", kept)
    assert (done.code, "was counted on revision s, the model is r" in done.err) == (2, True)
    assert bench.run("coverage", new, "--plan", kept, "--holdout", old).code == 2


def live(tokens: int, seed: int = 2) -> dict[int, list[int]]:
    """Live counts of exactly ``tokens`` tokens, two experts each, in every layer."""
    found = {}
    for layer, row in rows(seed).items():
        whole = sum(row)
        scaled = [number * 2 * tokens // whole for number in row]
        scaled[-1] += 2 * tokens - sum(scaled)
        found[layer] = scaled
    return found


def test_rerank(bench: Bench) -> None:
    """Golden: shares of both sides, added; the result is read again as counts."""
    recorded = bench.file("live.json", shape_c(live(50_000), model_revision="r"))
    offline = bench.file("offline.json", shape_a(rows(1), rows(5), model_revision="r"))
    output = bench.folder / "mixed.json"
    done = bench.run("rerank", recorded, offline, "--budget-gib", "0.3", "-o", output, "--json", "--live-weight", "0.5")
    assert (done.code, done.err) == (0, f"written: {output}\n")
    found = json.loads(done.out)
    assert (found["live_tokens_per_layer"], found["needed_tokens_per_layer"], found["cells"]) == (50_000, 50_000, 17)
    kept = json.loads(output.read_text())
    for layer, row in kept["train"]["decode"].items():
        old, new = rows(1)[int(layer)], live(50_000)[int(layer)]
        expected = [1e6 * (a / sum(old) + 0.5 * b / sum(new)) for a, b in zip(old, new, strict=True)]
        assert row == pytest.approx(expected, rel=1e-12)
    assert kept["meta"]["live_weight"] == 0.5
    assert kept["meta"]["live_tokens_per_layer"] == 50_000
    assert kept["meta"]["model_revision"] == "r"
    assert kept["meta"]["live"]["since"] == "t0"
    assert kept["meta"]["offline"]["name"] == "offline.json"
    before, after = exact_place(rows(1), 17), exact_place({int(k): v for k, v in kept["train"]["decode"].items()}, 17)
    both = sum(len(set(before[layer]) & set(after[layer])) for layer in before)
    assert found["jaccard"] == both / (34 - both)
    assert found["live_coverage"]["old"] <= found["live_coverage"]["new"] <= found["live_coverage"]["oracle"]
    text = bench.run("rerank", recorded, offline, "--budget-gib", "0.3").out.splitlines()
    assert text[0] == "re-ranked: 50,000 live decode tokens per layer at least, 50,000 needed"
    planned = bench.run("plan", output, "--budget-gib", "0.3", "--json")
    assert json.loads(planned.out)["held_out"]["how"] == "in-sample"
    assert "cannot be said: the counts are shares" in bench.run("plan", output, "--budget-gib", "0.3").out
    assert bench.run("rerank", recorded, output).code == 0  # and the next time


def test_a_rerank_is_refused_below_50_000_tokens(bench: Bench) -> None:
    few = live(50_000)
    few[3] = live(49_999)[3]
    recorded = bench.file("live.json", shape_c(few, model_revision="r"))
    offline = bench.file("offline.json", shape_a(rows(1), model_revision="r"))
    output = bench.folder / "mixed.json"
    done = bench.run("rerank", recorded, offline, "-o", output)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"error: {recorded}: too little was counted to rank by; the old list stays [too_few_tokens]\n"
        "  expected  at least 50,000 decode tokens in every layer\n"
        "  found     49,999 in layer 3\n"
        "  next: let the server count on\n"
        "1 problem\n"
    )
    assert not output.exists()
    refused = json.loads(bench.run("rerank", recorded, offline, "--json").out)
    assert (refused["exit_code"], refused["problems"][0]["code"]) == (1, "too_few_tokens")


@pytest.mark.parametrize(
    ("of_live", "of_offline", "given", "code", "message"),
    [
        ("r", "r", "", 0, ""),
        ("r", "s", "", 2, "the counts are of different model revisions"),
        ("", "r", "", 2, "live.json: does not say which model it was counted on"),
        ("r", "", "", 2, "offline.json: does not say which model it was counted on"),
        ("", "", "r", 0, ""),
        ("r", "", "r", 0, ""),
        ("r", "", "s", 2, "the counts are of different model revisions"),
        ("r", "r", "s", 2, "the counts are of different model revisions"),
    ],
)
def test_a_rerank_needs_one_revision(
    bench: Bench, of_live: str, of_offline: str, given: str, code: int, message: str
) -> None:
    said = [{"model_revision": each} if each else {} for each in (of_live, of_offline)]
    recorded = bench.file("live.json", shape_c(live(60_000), **said[0]))
    offline = bench.file("offline.json", shape_a(rows(1), **said[1]))
    done = bench.run("rerank", recorded, offline, *(["--model-revision", given] if given else []))
    assert (done.code, message in done.err) == (code, True), done.err


def test_live_and_offline_are_not_to_be_confused(bench: Bench) -> None:
    recorded = bench.file("live.json", shape_c(live(60_000), model_revision="r"))
    offline = bench.file("offline.json", shape_a(rows(1), model_revision="r"))
    done = bench.run("rerank", offline, recorded)
    assert (done.code, 'offline.json: no live counts: it has no "live"' in done.err) == (2, True)
    assert bench.run("rerank", offline, offline).code == 2
    more = shape_c(live(60_000), model_revision="r", top_k=8, experts=8, layers=4)
    done = bench.run("rerank", bench.file("more.json", more), offline)
    assert (done.code, "counted 8 experts per token, the model takes 2 (at /meta/top_k)" in done.err) == (2, True)
    zero = live(60_000)
    zero[2] = [0] * 8
    done = bench.run("rerank", bench.file("zero.json", shape_c(zero, model_revision="r")), offline)
    assert (done.code, "found     0 in layer 2" in done.err) == (1, True)


def test_memory_of_the_real_model() -> None:
    done = hotsplit("memory", "--hot-gib", "152.8", "--context", "262144")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == (
        "MiMo-V2.6-Pro-RL: 69 layers of 384 experts; 26,496 cells of 18 MiB (w13 12, w2 6), 465.75 GiB, "
        "and 29.11 GiB of scales"
    )
    assert lines[4].endswith(
        "321.75 GiB with the mixed ones; pinned exactly, 321.75 GiB; rounded up to powers of two, 572.00 GiB"
    )
    assert lines[5] == "  mixed           layer 48: w13 in host memory, w2 in HBM"
    assert lines[6].endswith("layers 49 to 69: 144.00 GiB with the mixed ones' w2, 141.75 GiB without")
    assert lines[9].split()[:6] == ["152.79", "8,692", "32.8", "%", "312.96", "414.00"]
    assert lines[-1].startswith("    yes  does a context of 262,144 tokens fit?")
    assert lines[-7].startswith(" (note)  stock vLLM would not load, with power-of-two pinning ")
    assert not [line for line in lines[-7:] if line.startswith("     no")]
    roomy = hotsplit("memory", "--hot-gib", "152.8", "--host-gib", "900").out.splitlines()
    assert roomy[-6].startswith(" (note)  stock vLLM would load, with power-of-two pinning ")


OTHERS = {
    "OLMoE-1B-7B": {"num_hidden_layers": 16, "num_experts": 64, "hidden_size": 2048, "intermediate_size": 1024},
    "gpt-oss-20b": {"num_hidden_layers": 24, "num_local_experts": 32, "hidden_size": 2880, "intermediate_size": 2880},
    "Qwen3-30B-A3B": {
        "num_hidden_layers": 48,
        "num_experts": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_memory_of_a_smaller_model(bench: Bench, name: str) -> None:
    """Less than the 320 GiB that stock offloads unless told otherwise: budgets are fifths of the model itself."""
    config = bench.file("config.json", {**OTHERS[name], "num_experts_per_tok": 8})
    found = json.loads(hotsplit("memory", "--config", config, "--json").out)
    model = found["model"]
    hot = [each["hot"] for each in found["budgets"]]
    assert hot == [model["cells"] * fifth // 5 * model["cell"] for fifth in range(1, 6)]
    assert hot[-1] == model["total"] == found["stock"]["host"]
    done = hotsplit("memory", "--config", config)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "one --hot-gib, or --plan, for every question in turn"
    assert hotsplit("memory", "--config", config, "--hot-gib", "1").code == 0


LIMITS = [
    ("num_hidden_layers", 10_001, "10,000"),
    ("num_hidden_layers", 10**18, "10,000"),
    ("n_routed_experts", 65_537, "65,536"),
    ("num_experts_per_tok", 65_537, "65,536"),
    ("hidden_size", (1 << 24) + 1, "16,777,216"),
    ("moe_intermediate_size", 10**400, "16,777,216"),
    ("max_position_embeddings", 1 << 25, "16,777,216"),
    ("hidden_size", 1.5, "16,777,216"),
    ("first_k_dense_replace", None, "10,000"),
    ("first_k_dense_replace", -1, "10,000"),
    ("first_k_dense_replace", 10**18, "10,000"),
    ("first_k_dense_replace", "1", "10,000"),
]


@pytest.mark.parametrize(("field", "value", "limit"), LIMITS, ids=[f"{each[0]}-{each[1]!r:.12}" for each in LIMITS])
def test_a_configuration_beyond_all_models(bench: Bench, field: str, value: Any, limit: str) -> None:
    config = bench.file("odd.json", {**CONFIG, "moe_layer_freq": 1, field: value})
    low = 0 if field.startswith("first") else 1
    for args in (["memory"], ["memory", "--hot-gib", "1"]):
        done = hotsplit(*args, "--config", config)
        assert (done.code, done.out) == (2, "")
        assert f"{field} is {value!r:.40}, not a number from {low} to {limit}" in done.err
        assert "[bad_config]" in done.err


def test_the_largest_configuration(bench: Bench) -> None:
    """Every field at its limit is arithmetic, not a crash."""
    config = bench.file(
        "large.json",
        {
            "num_hidden_layers": 10_000,
            "num_experts": 65_536,
            "hidden_size": 1 << 24,
            "intermediate_size": 1 << 24,
            "num_experts_per_tok": 65_536,
        },
    )
    done = hotsplit("memory", "--config", config)
    assert (done.code, done.err) == (1, "")


def test_pipes_are_refused_and_not_waited_for(bench: Bench) -> None:
    pipe = bench.folder / "pipe"
    os.mkfifo(pipe)
    good = bench.file("good.json", shape_a(rows(1)))
    for args in (
        ["plan", pipe, "--stock-equal"],
        ["plan", good, "--stock-equal", "--holdout", pipe],
        ["coverage", good, "--plan", pipe],
        ["rerank", pipe, good],
        ["rerank", good, pipe],
        ["memory", "--plan", pipe],
        ["memory", "--hot-gib", "1", "--config", pipe],
    ):
        done = hotsplit(*args, *([] if "--config" in args else ["--config", bench.config]))
        assert (done.code, done.out) == (2, "")
        assert "pipe: is not a regular file [bad_counts]" in done.err
        assert "save it as a file first" in done.err


def test_no_number_that_json_does_not_have() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        inputs.as_bytes({"hot": {"1": [math.inf]}})


def test_an_output_that_is_no_file(bench: Bench) -> None:
    good = bench.file("good.json", shape_a(rows(1)))
    os.mkfifo(bench.folder / "pipe")
    for output in (bench.folder / "pipe", "/dev/null"):
        done = bench.run("plan", good, "--budget-gib", "0.3", "-o", output)
        assert (done.code, done.out) == (2, "")
        assert f"{output}: cannot be written: it is a device, a pipe" in done.err


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([], 0),
        (["--context", "1048576"], 0),  # beside one of the budgets
        (["--context", "1048576", "--hot-gib", "110"], 0),
        (["--context", "1048576", "--hot-gib", "144"], 1),
        (["--context", "1048576", "--hot-gib", "110", "--hot-gib", "144"], 1),
        (["--context", "9999999"], 1),
        (["--hot-gib", "144", "--host-gib", "300"], 1),
        (["--hot-gib", "240"], 1),
    ],
)
def test_memory_s_exit_code_is_the_answer(args: list[str], code: int) -> None:
    assert hotsplit("memory", *args).code == code
    found = json.loads(hotsplit("memory", *args, "--json").out)
    assert (found["stock"]["host"], found["stock"]["pinned_power_of_two"]) == (345_476_431_872, 572 << 30)
    fits = [each["fits"] for each in found["budgets"]]
    assert (all(fits) if "--hot-gib" in args else any(fits)) == (code == 0)


def test_memory_of_a_plan(bench: Bench) -> None:
    path = bench.file("counts.json", shape_a(rows(1)))
    kept = bench.folder / "plan.json"
    assert bench.run("plan", path, "--budget-gib", "0.3", "-o", kept).code == 0
    found = json.loads(bench.run("memory", "--plan", kept, "--json").out)["budgets"][0]
    most = max(map(len, exact_place(rows(1), 17).values()))
    assert (found["hot"], found["cold"]) == (17 * CELL, 15 * CELL)
    assert found["split_margin"] == (4 << 30) + most * CELL + 8 * 1_179_648


#: arguments behind the verb, with {name} for files -> what stderr must say
BAD: dict[str, tuple[list[str], str]] = {
    "no budget": (["plan", "{good}"], "one of the arguments --budget-gib --stock-equal is required"),
    "two budgets": (["plan", "{good}", "--budget-gib", "1", "--stock-equal"], "not allowed with argument"),
    "a word for a budget": (["plan", "{good}", "--budget-gib", "much"], "'much' is no amount of GiB, such as 152.8"),
    "below zero": (["plan", "{good}", "--budget-gib=-1"], "'-1' is no amount of GiB"),
    "an endless budget": (["plan", "{good}", "--budget-gib", "1e999999999"], "is no amount of GiB"),
    "no verb": ([], "the following arguments are required: WHAT"),
    "an unknown verb": (["paln"], "invalid choice: 'paln'"),
    "no counts": (["plan", "--stock-equal"], "the following arguments are required: COUNTS"),
    "a missing file": (["plan", "{folder}/no.json", "--stock-equal"], "no.json: cannot be read: No such file"),
    "a folder": (["plan", "{folder}", "--stock-equal"], "cannot be read: Is a directory"),
    "not JSON": (
        ["plan", "{broken}", "--stock-equal"],
        "broken.json:2: not JSON: Expecting value, column 1 [bad_counts]",
    ),
    "the same file twice": (["plan", "{good}", "{good}", "--stock-equal"], "given twice: its tokens would count twice"),
    "another model's": (["plan", "{other}", "--stock-equal"], "other.json: lacks layers 4"),
    "another revision's": (
        ["plan", "{good}", "--stock-equal", "--model-revision", "s"],
        "counted on revision r, the model is s",
    ),
    "an idle layer": (["plan", "{idle}", "--stock-equal"], "idle.json: layer 2 has no decode tokens at all"),
    "a missing phase": (["plan", "{good}", "--stock-equal", "--weights", "prefill=1"], "has no counts of prefill"),
    "bad weights": (
        ["plan", "{good}", "--stock-equal", "--weights", "decode:1"],
        "--weights: 'decode:1' is not PHASE=WEIGHT",
    ),
    "a bad part": (["plan", "{good}", "--stock-equal", "--test-part", "1.5"], "'1.5' is no part between 0 and 1"),
    "no draws": (["plan", "{good}", "--stock-equal", "--resamples", "0"], "'0' is no number from 1 to"),
    "writing over the input": (
        ["plan", "{good}", "--stock-equal", "-o", "{good}"],
        "is an input; write to another file",
    ),
    "writing to a folder": (["plan", "{good}", "--stock-equal", "-o", "{folder}"], "cannot be written: Is a directory"),
    "writing to nowhere": (
        ["plan", "{good}", "--stock-equal", "-o", "{folder}/no/p.json"],
        "cannot be written: No such file",
    ),
    "one file for both": (
        ["plan", "{good}", "--stock-equal", "-o", "{folder}/p.svg", "--picture", "{folder}/p.svg"],
        "is named twice; the plan and its picture need a file each",
    ),
    "a picture of another kind": (
        ["plan", "{good}", "--stock-equal", "--picture", "p.gif"],
        "a picture is .png or .svg",
    ),
    "two kinds of output": (
        ["plan", "{good}", "--stock-equal", "--show", "--json"],
        "--show and --json exclude each other",
    ),
    "counts for a plan": (["coverage", "{good}", "--plan", "{good}"], "good.json: no plan of version 1"),
    "a plan for counts": (["plan", "{plan}", "--stock-equal"], "plan.json: is a plan, not counts"),
    "another model's plan": (
        ["coverage", "{good}", "--plan", "{plan}"],
        "the plan has 1 layers of 2 experts, not those of",
    ),
    "held out of another model": (
        ["plan", "{good}", "--stock-equal", "--holdout", "{other}"],
        "other.json: lacks layers 4",
    ),
    "endless weights": (
        ["plan", "{good}", "--stock-equal", "--weights", "decode=1e308,prefill=1e308"],
        "--weights: '1e308' is not a weight from 0 to 1e+06",
    ),
    "no context": (["memory", "--context", "-5"], "'-5' is no number from 1 to"),
    "all of the HBM and more": (["memory", "--gpu-memory-utilization", "1.2"], "'1.2' is no part between 0 and 1"),
    "no configuration": (["memory", "--config", "{folder}/no.json"], "no.json: cannot be read"),
    "a dense model": (["memory", "--config", "{dense}"], "n_routed_experts or num_experts or num_local_experts is 0"),
    "odd layers": (["memory", "--config", "{odd}"], "moe_layer_freq is [0, 2, 1, 1, 1], not 0 or 1 per layer"),
    "no expert layers": (["memory", "--config", "{none}"], "no layer has experts"),
    "a list for a configuration": (["memory", "--config", "{list}"], "list.json: expected an object"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_input_is_one_clear_error(bench: Bench, case: str) -> None:
    args, message = BAD[case]
    idle = rows(1)
    idle[2] = [0] * 8
    files = {
        "good": bench.file("good.json", shape_a(rows(1), model_revision="r")),
        "other": bench.file("other.json", shape_a(rows(1, layers=(1, 2, 3)))),
        "idle": bench.file("idle.json", shape_a(idle)),
        "plan": bench.file("plan.json", {"hotsplit_plan": 1, "experts": 2, "hot": {"1": [0]}, "meta": {}}),
        "dense": bench.file("dense.json", {"num_hidden_layers": 5, "hidden_size": 8}),
        "odd": bench.file("odd.json", {**CONFIG, "moe_layer_freq": [0, 2, 1, 1, 1]}),
        "none": bench.file("none.json", {**CONFIG, "moe_layer_freq": [0] * 5}),
        "list": bench.file("list.json", [1]),
        "broken": bench.folder / "broken.json",
        "folder": bench.folder,
    }
    files["broken"].write_text('{"1":\n}')
    before = {path.name: path.read_bytes() for path in bench.folder.iterdir() if path.is_file()}
    words = [each.format(**files) for each in args]
    done = hotsplit(
        *words, *([] if "--config" in words or not words or words[0] == "paln" else ["--config", bench.config])
    )
    assert done.code == 2
    assert done.out == "" or json.loads(done.out)["action"] == "refused"
    assert message in done.err
    assert "Traceback" not in done.err
    assert {path.name: path.read_bytes() for path in bench.folder.iterdir() if path.is_file()} == before


def test_all_faulty_files_are_named(bench: Bench) -> None:
    one = bench.file("one.json", {"x": 1})
    two = bench.file("two.json", [])
    done = bench.run("plan", one, two, "--stock-equal")
    assert (done.code, done.err.count("error: ")) == (2, 2)
    assert done.err.endswith("2 problems\n")


def test_a_configuration_in_other_words(bench: Bench) -> None:
    """Nested, with the field names of other model families; the first layers dense."""
    inner = {
        "hidden_size": 6144,
        "moe_intermediate_size": 2048,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 5,
        "first_k_dense_replace": 1,
    }
    config = bench.file("other.json", {"text_config": inner, "_name_or_path": "some/model"})
    found = json.loads(hotsplit("memory", "--config", config, "--json", "--offload-gib", "0").out)["model"]
    assert (found["layers"], found["experts"], found["cell"]) == ([1, 2, 3, 4], 8, CELL)
    assert (found["name"], found["top_k"]) == ("some/model", 2)


def test_writing_replaces_with_a_new_file(bench: Bench) -> None:
    """A reader of the old one keeps it; a link's target stays; nothing else is left in the folder."""
    path = bench.file("counts.json", shape_a(rows(1)))
    output = bench.folder / "out" / "plan.json"
    output.parent.mkdir()
    output.write_text("old")
    os.link(output, bench.folder / "kept")
    assert bench.run("plan", path, "--budget-gib", "0.3", "-o", output).code == 0
    assert (bench.folder / "kept").read_text() == "old"
    assert os.listdir(output.parent) == ["plan.json"]
    assert not stat.S_IMODE(output.stat().st_mode) & 0o111


def test_plain_output_in_a_process_of_its_own(bench: Bench) -> None:
    """As people run it: no import of anything heavy, text that does not depend on a terminal."""
    path = bench.file("counts.json", shape_a(rows(1)))
    code = (
        "import sys; from fixpack import cli\n"
        f"counted, config = {str(path)!r}, {str(bench.config)!r}\n"
        "code = cli.main(['hotsplit', 'plan', counted, '--budget-gib', '0.3', '--config', config])\n"
        "assert code == 0\n"
        "heavy = {'torch', 'numpy', 'rich', 'matplotlib', 'vllm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == bench.run("plan", path, "--budget-gib", "0.3").out


def test_the_registry_inside_a_wheel(bench: Bench) -> None:
    """Installed, the registry lies in the package; the planner is run from there, and leaves no bytecode in it."""
    site = bench.folder / "site"
    shutil.copytree(REPO / "fixpack", site / "fixpack", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("fixes", "anchors", "patches", "profiles"):
        shutil.copytree(REPO / name, site / "fixpack/_registry" / name, ignore=shutil.ignore_patterns("__pycache__"))
    marker = site / "fixpack/_registry/patches/hotsplit/plan.py"
    marker.write_text(marker.read_text().replace("MIN_LIVE_TOKENS = 50_000", "MIN_LIVE_TOKENS = 7"))
    code = "from fixpack.hotsplit.payload import plan; print(plan.MIN_LIVE_TOKENS, plan.__file__)"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=bench.folder, check=False
    )
    assert (done.stdout, done.stderr) == (f"7 {marker}\n", "")
    assert not (marker.parent / "__pycache__").exists()
    marker.unlink()
    args = [sys.executable, "-m", "fixpack", "hotsplit", "plan", "x", "--stock-equal"]
    done = subprocess.run(args, capture_output=True, text=True, env=env, cwd=bench.folder, check=False)
    assert (done.returncode, "the planner's file cannot be read: No such file" in done.stderr) == (2, True)
