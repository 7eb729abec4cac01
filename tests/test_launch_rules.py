"""Every rule of every profile: a command that breaks it, and one that does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from fixpack import launch_case, launch_check, launch_render, registry, serve_line, serve_options
from fixpack.launch_case import Case
from fixpack.model import Profile

REGISTRY = registry.load(str(Path(__file__).resolve().parent.parent))
MODELS = {
    "": "some/other-model",
    "mimo-pro": "XiaomiMiMo/MiMo-V2.6-Pro-RL",
    "mimo-flash": "XiaomiMiMo/MiMo-V2.6-Flash-RL",
    "mimo-four-chunks": "XiaomiMiMo/MiMo-V2.5",
}


class Broken(NamedTuple):
    """What breaks a rule when it is added to a right command."""

    options: Sequence[str] = ()
    variables: Mapping[str, str | None] = {}
    out: Sequence[str] = ()  # options to take out of the right command
    model: str = "mimo-pro"
    fixes: Sequence[str] = ()
    name: str = ""  # what the command calls the model


HOTSPLIT, SHARE = ("hotsplit",), ("vllm-long-prefill-share",)

BROKEN: dict[str, Broken] = {
    # gaudi2
    "compile-mode": Broken(variables={"PT_HPU_LAZY_MODE": "1"}),
    "static-shapes": Broken(variables={"VLLM_T_COMPILE_DYNAMIC_SHAPES": "true"}),
    "lazy-collectives": Broken(variables={"PT_HPU_ENABLE_LAZY_COLLECTIVES": None}),
    "warm-up": Broken(variables={"VLLM_SKIP_WARMUP": "true"}, model=""),
    "experts-mxfp4": Broken(variables={"MIMO_EXPERT_DTYPE": "fp8"}),
    "packed-expert-kernels": Broken(variables={"MIMO_MXK": "0"}),
    "packed-experts-compiled": Broken(variables={"PT_HPU_LAZY_MODE": "1"}),
    "window-kv": Broken(variables={"MIMO_SWA_KV_GROUPS": None}),
    "window-kv-eight-cards": Broken(["--tensor-parallel-size", "4"]),
    "window-kv-without-prefix-caching": Broken(["--no-enable-prefix-caching"]),
    "window-kv-no-speculation": Broken(["--speculative-config", '{"method": "mtp"}'], model="mimo-flash"),
    "window-kv-no-speculation-by-method": Broken(["--spec-method", "ngram"]),
    "window-kv-no-lazy-graphs": Broken(variables={"PT_HPU_LAZY_MODE": "1"}),
    "global-tiles": Broken(variables={"MIMO_GA_TILE": "0"}),
    "moe-chunk": Broken(variables={"VLLM_MOE_CHUNK": "64"}),
    "moe-token-boundary": Broken(variables={"VLLM_MOE_TOKEN_BOUNDARY": None}),
    "execute-timeout": Broken(variables={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "300"}),
    "iteration-timeout-unread": Broken(variables={"VLLM_ENGINE_ITERATION_TIMEOUT_S": "3600"}),
    "rpc-timeout-unread": Broken(variables={"VLLM_RPC_TIMEOUT": "3600000"}, model="mimo-flash"),
    "recipe-cache": Broken(variables={"PT_HPU_RECIPE_CACHE_CONFIG": "/tmp"}),
    "eight-cards": Broken(["-tp", "4"]),
    "context-pro": Broken(["--max-model-len", "262145"]),
    "context-flash": Broken(["--max-model-len", "1M"], model="mimo-flash"),
    "kv-pool-pro": Broken(["--max-num-seqs", "9"]),
    "sequences-pro": Broken(["--max-num-seqs", "9"]),
    "sequences-flash": Broken(out=["--max-num-seqs"], model="mimo-flash"),
    "prefill-chunk": Broken(["--long-prefill-token-threshold", "4096"]),
    "block-size": Broken(["--block-size", "64"]),
    "prompt-token-details": Broken(out=["--enable-prompt-tokens-details"]),
    "generation-defaults": Broken(["--override-generation-config.temperature", "0.5"]),
    # both
    "batched-tokens": Broken(["--max-num-batched-tokens", "16k"]),
    "memory-fraction": Broken(["--gpu-memory-utilization", "0.98"]),
    "remote-code": Broken(["--no-trust-remote-code"]),
    "generation-config": Broken(["--generation-config", "elsewhere"]),
    "reasoning-parser": Broken(["--reasoning-parser", "qwen3"]),
    "tool-choice": Broken(["--no-enable-auto-tool-choice"]),
    "tool-parser": Broken(out=["--tool-call-parser"]),
    "tool-choice-needs-parser": Broken(["--enable-auto-tool-choice"], model=""),
    # gb300
    "offload-backend": Broken(["--offload-backend", "auto"]),
    "offload-budget": Broken(["--cpu-offload-gb", "299"]),
    "offload-budget-measured": Broken(["--cpu-offload-gb", "310"]),
    "offload-names": Broken(["--cpu-offload-params", "experts.w13_weight", "experts.w2_weight"]),
    "offload-names-legacy": Broken(
        ["--cpu-offload-params", "experts.w13_weight", "experts.w2_weight"], fixes=("offload-naming-legacy",)
    ),
    "hbm-stock": Broken(["--cpu-offload-gb", "300", "--max-model-len", "490466"]),
    "exact-pinning": Broken(variables={"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "0"}),
    "uva-on": Broken(variables={"VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": "1"}),
    "marlin": Broken(["--moe-backend", "auto"]),
    "no-deep-gemm": Broken(variables={"VLLM_USE_DEEP_GEMM": "1"}),
    "streamer-guard": Broken(["--load-format", "runai_streamer"]),
    "streamer-guard-object-store": Broken(name="s3://bucket/MiMo-V2.6-Pro-RL"),
    "streamer-allowed": Broken(variables={"FIXPACK_ALLOW_STREAMER": "1"}),
    "no-streamer": Broken(["--load-format", "runai_streamer_sharded"]),
    "no-streamer-advised": Broken(["--load-format", "fastsafetensors"]),
    "no-object-store": Broken(name="s3://bucket/MiMo-V2.6-Pro-RL"),
    "one-gpu": Broken(["--data-parallel-size", "2"]),
    "no-expert-parallel": Broken(["--enable-expert-parallel"]),
    "no-eplb": Broken(["--enable-eplb"]),
    "no-speculation": Broken(["--speculative-config.method", "mtp"]),
    "no-speculation-by-method": Broken(["--spec-method", "ngram"]),
    "decode-graphs": Broken(["-cc.cudagraph_mode", "PIECEWISE"]),
    "sequences": Broken(["--max-num-seqs", "256"]),
    "share-chunk": Broken(out=["--long-prefill-token-threshold"], fixes=SHARE),
    "context-stock": Broken(["--max-model-len", "1M"]),
    "all-layers": Broken(["--hf-overrides.num_hidden_layers", "16"]),
    "router-float32": Broken(["--hf-overrides", '{"moe_router_dtype": "bfloat16"}']),
    "four-chunk-models": Broken(model="mimo-four-chunks"),
    # hotsplit
    "hotsplit-needs-fix": Broken(variables={"HOTSPLIT_COUNTS": "counts.json"}),
    "hotsplit-counts": Broken(variables={"HOTSPLIT_COUNTS": None}, fixes=HOTSPLIT),
    "hotsplit-unknown": Broken(variables={"HOTSPLIT_HOT_GB": "110"}, fixes=HOTSPLIT),
    "hotsplit-counts-empty": Broken(variables={"HOTSPLIT_COUNTS": ""}, fixes=HOTSPLIT),
    "hotsplit-live-counts-empty": Broken(variables={"HOTSPLIT_LIVE_COUNTS": " "}, fixes=HOTSPLIT),
    "hotsplit-weights-alone": Broken(
        variables={"HOTSPLIT_COUNTS": None, "HOTSPLIT_WEIGHTS": "decode=1"}, fixes=HOTSPLIT
    ),
    "hotsplit-hot-alone": Broken(variables={"HOTSPLIT_COUNTS": None, "HOTSPLIT_HOT_GIB": "stock"}, fixes=HOTSPLIT),
    "hotsplit-floor-alone": Broken(
        variables={"HOTSPLIT_COUNTS": None, "HOTSPLIT_HOST_FLOOR_GIB": "24"}, fixes=HOTSPLIT
    ),
    "hotsplit-dry-run-alone": Broken(variables={"HOTSPLIT_COUNTS": None, "HOTSPLIT_DRYRUN": "0"}, fixes=HOTSPLIT),
    "hotsplit-live-seconds-alone": Broken(variables={"HOTSPLIT_LIVE_SECS": "600"}, fixes=HOTSPLIT),
    "hotsplit-decode-max-alone": Broken(variables={"HOTSPLIT_DECODE_MAX": "16"}, fixes=HOTSPLIT),
    "hotsplit-hot-value": Broken(variables={"HOTSPLIT_HOT_GIB": "all"}, fixes=HOTSPLIT),
    "hotsplit-floor-value": Broken(variables={"HOTSPLIT_HOST_FLOOR_GIB": "-1"}, fixes=HOTSPLIT),
    "hotsplit-dry-run-value": Broken(variables={"HOTSPLIT_DRYRUN": "yes"}, fixes=HOTSPLIT),
    "hotsplit-live-seconds-value": Broken(
        variables={"HOTSPLIT_LIVE_SECS": "59", "HOTSPLIT_LIVE_COUNTS": "live.json"}, fixes=HOTSPLIT
    ),
    "hotsplit-decode-max-value": Broken(
        variables={"HOTSPLIT_DECODE_MAX": "16.5", "HOTSPLIT_LIVE_COUNTS": "live.json"}, fixes=HOTSPLIT
    ),
    "hotsplit-weights-value": Broken(variables={"HOTSPLIT_WEIGHTS": "decode"}, fixes=HOTSPLIT),
    "hotsplit-weights": Broken(variables={"HOTSPLIT_WEIGHTS": "decode=1,prefill=1"}, fixes=HOTSPLIT),
    "hotsplit-hot-cells": Broken(variables={"HOTSPLIT_HOT_GIB": "160"}, fixes=HOTSPLIT),
    "hotsplit-context": Broken(out=["--max-model-len"], fixes=HOTSPLIT),
    "hotsplit-context-budget": Broken(["--max-model-len", "1M"], {"HOTSPLIT_HOT_GIB": "152.8"}, fixes=HOTSPLIT),
    "hotsplit-context-stock-budget": Broken(
        ["--max-model-len", "513613"], {"HOTSPLIT_HOT_GIB": "stock"}, fixes=HOTSPLIT
    ),
    "hotsplit-context-own-budget": Broken(
        ["--max-model-len", "1048576"], {"HOTSPLIT_COUNTS": "p110.json"}, fixes=HOTSPLIT
    ),
    "hotsplit-live-elsewhere": Broken(
        variables={"HOTSPLIT_COUNTS": "counts.json", "HOTSPLIT_LIVE_COUNTS": "counts.json"}, fixes=HOTSPLIT
    ),
    "hotsplit-context-stock-tensors": Broken(
        ["--max-model-len", "510000"], {"HOTSPLIT_HOT_GIB": "stock-tensors"}, fixes=HOTSPLIT
    ),
    "hotsplit-context-unsplit": Broken(["--max-model-len", "490467"], {"HOTSPLIT_COUNTS": None}, fixes=HOTSPLIT),
    "hotsplit-hbm": Broken(variables={"HOTSPLIT_HOT_GIB": "200"}, fixes=HOTSPLIT),
    "hotsplit-host-floor": Broken(variables={"HOTSPLIT_HOST_FLOOR_GIB": "8"}, fixes=HOTSPLIT),
    "hotsplit-decode-max": Broken(
        ["--max-num-seqs", "8"], {"HOTSPLIT_DECODE_MAX": "4", "HOTSPLIT_LIVE_COUNTS": "live.json"}, fixes=HOTSPLIT
    ),
    "hotsplit-decode-padded": Broken(
        ["--max-num-seqs", "7"], {"HOTSPLIT_DECODE_MAX": "7", "HOTSPLIT_LIVE_COUNTS": "live.json"}, fixes=HOTSPLIT
    ),
    "hotsplit-one-gpu": Broken(["-dcp", "2"], model="", fixes=HOTSPLIT),
    "hotsplit-no-expert-parallel": Broken(["--enable-expert-parallel"], fixes=HOTSPLIT),
    "hotsplit-no-eplb": Broken(["--enable-eplb"], fixes=HOTSPLIT),
    "hotsplit-no-elastic": Broken(["--enable-elastic-ep"], fixes=HOTSPLIT),
    "hotsplit-no-dbo": Broken(["--enable-dbo"], fixes=HOTSPLIT),
    "hotsplit-no-speculation": Broken(["--speculative-config.method", "mtp"], fixes=HOTSPLIT),
    "hotsplit-no-speculation-by-method": Broken(["--spec-method", "ngram"], fixes=HOTSPLIT),
    "hotsplit-no-weight-transfer": Broken(["--weight-transfer-config", '{"backend": "nccl"}'], fixes=HOTSPLIT),
    "hotsplit-loader": Broken(["--load-format", "tensorizer"], fixes=HOTSPLIT),
    "hotsplit-no-prefetch": Broken(["--offload-group-size", "4"], fixes=HOTSPLIT),
    "hotsplit-uva-on": Broken(["--cpu-offload-gb", "0"], {"VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": "1"}, fixes=HOTSPLIT),
    "hotsplit-marlin": Broken(["--moe-backend", "auto"], model="", fixes=HOTSPLIT),
    "hotsplit-no-deep-gemm": Broken(variables={"VLLM_USE_DEEP_GEMM": "1"}, fixes=HOTSPLIT),
    "hotsplit-uva": Broken(["--offload-backend", "prefetch"], fixes=HOTSPLIT),
    "hotsplit-no-lora": Broken(["--enable-lora"], fixes=HOTSPLIT),
    "hotsplit-no-sleep": Broken(["--enable-sleep-mode"], fixes=HOTSPLIT),
    # long-prefill-share
    "share-needs-fix": Broken(variables={"VLLM_LONG_PREFILL_SHARE": "0.5"}),
    "share": Broken(variables={"VLLM_LONG_PREFILL_SHARE": "0"}, fixes=SHARE),
    "share-value": Broken(variables={"VLLM_LONG_PREFILL_SHARE": "1.5"}, fixes=SHARE),
    "share-async-value": Broken(variables={"VLLM_LONG_PREFILL_SHARE_ASYNC": "yes"}, fixes=SHARE),
    "share-async": Broken(variables={"VLLM_LONG_PREFILL_SHARE_ASYNC": "0"}, fixes=SHARE),
    "share-min-tokens": Broken(variables={"VLLM_LONG_PREFILL_MIN_TOKENS": "0"}, fixes=SHARE),
    "share-chunks": Broken(["--long-prefill-token-threshold", "0"], fixes=SHARE),
    "share-chunked-prefill": Broken(["--no-enable-chunked-prefill"], fixes=SHARE),
    "share-chunk-in-budget": Broken(
        ["--long-prefill-token-threshold", "8192", "--max-num-batched-tokens", "8192"], fixes=SHARE
    ),
    "share-one-engine": Broken(["-dp", "2"], fixes=SHARE),
}


def cases() -> list[tuple[str, str]]:
    """Each rule with each profile in which it can apply."""
    found = []
    for profile in REGISTRY.profiles.values():
        for file in REGISTRY.rule_files(profile):
            for rule in file.rules:
                default = not set(rule.without) & set(profile.fixes)
                pinned = not rule.releases or profile.releases["vllm"] in rule.releases
                if default and pinned and set(rule.fixes) <= {*profile.fixes, *profile.opt_in}:
                    found.append((profile.name, rule.id))
    return found


def case(profile: Profile, words: Sequence[str], variables: Mapping[str, str], broken: Broken) -> Case:
    files = REGISTRY.rule_files(profile)
    table = serve_options.table(profile.releases["vllm"])
    served = serve_line.read(["vllm", "serve", *words], table)
    key = launch_case.model_key(files, broken.model, served.model)
    return Case(files, table, served, dict(variables), frozenset((*profile.fixes, *broken.fixes)), key)


def without(words: list[str], option: str) -> list[str]:
    """Words without an option and its values."""
    if option not in words:
        return words
    at = words.index(option)
    end = next((index for index in range(at + 1, len(words)) if words[index].startswith("-")), len(words))
    return without([*words[:at], *words[end:]], option)


@pytest.mark.parametrize(("name", "rule"), cases())
def test_a_command_that_breaks_it_and_one_that_does_not(name: str, rule: str) -> None:
    profile = REGISTRY.profiles[name]
    broken = BROKEN[rule]
    model = MODELS[broken.model]
    if rule == "four-chunk-models":  # nothing helps that model
        right = case(profile, [MODELS["mimo-pro"]], {}, broken._replace(model="mimo-pro"))
    else:
        right = case(profile, [model], {}, broken)
    right, words, variables = launch_render.complete(right, ["vllm", "serve", right.served.model])
    assert rule not in {each.rule for each in launch_check.check(right)}
    words = words[2:]
    for option in broken.out:
        words = without(words, option)
    for option in broken.options:
        words = without(words, option) if option.startswith("--") else words
    words = [broken.name or model, *words[1:], *broken.options]
    changed = {**variables, **broken.variables}
    environment = {key: value for key, value in changed.items() if value is not None}
    found = [each for each in launch_check.check(case(profile, words, environment, broken)) if each.rule == rule]
    assert len(found) == 1
    wanted = next(each for file in REGISTRY.rule_files(profile) for each in file.rules if each.id == rule)
    subject = next(iter(broken.variables)) if wanted.subject.endswith("*") else wanted.subject
    assert (found[0].level, found[0].subject, found[0].reason) == (wanted.level, subject, wanted.reason)
    assert found[0].message
    assert found[0].remedy
    assert found[0].source in launch_case.sources(REGISTRY.rule_files(profile))


def test_every_rule_has_a_command_that_breaks_it() -> None:
    rules = {rule.id for file in REGISTRY.launch.values() for rule in file.rules}
    assert rules == set(BROKEN)


@pytest.mark.parametrize("name", [each.name for each in REGISTRY.profiles.values() if each.launch])
@pytest.mark.parametrize("model", ["", "mimo-pro", "mimo-flash"])
def test_the_right_command_has_nothing_wrong(name: str, model: str) -> None:
    profile = REGISTRY.profiles[name]
    if model and model not in launch_case.models(REGISTRY.rule_files(profile)):
        pytest.skip("not a model of this hardware")
    start = case(profile, [MODELS[model]], {}, Broken(model=model))
    done, _, _ = launch_render.complete(start, ["vllm", "serve", MODELS[model]])
    found = launch_check.check(done)
    assert [each.rule for each in found] == ([] if model else ["model-unknown"])
