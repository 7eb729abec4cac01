"""What the payloads of hotsplit and streamer-guard refuse at the start, ``launch check`` reports as an error before it.

Each case is given to the payload's own code and to the check.  The payloads run as they are; what they import of vLLM
is a stand-in, and their guards see a configuration made of the values that the check reads from the command.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fixpack import launch_case, launch_check, launch_render, registry, serve_line, serve_options
from fixpack.finding import ERROR
from fixpack.launch_case import Case

REPO = Path(__file__).resolve().parent.parent
REGISTRY = registry.load(str(REPO))
PROFILES = [each.name for each in REGISTRY.profiles.values() if "hotsplit" in each.opt_in and each.launch]
MODEL = "XiaomiMiMo/MiMo-V2.6-Pro-RL"
HOTSPLIT = ("hotsplit",)
COUNTS = {"HOTSPLIT_COUNTS": "/var/lib/hotsplit/counts.json"}
LIVE = {"HOTSPLIT_LIVE_COUNTS": "/tmp/live.json"}


class BaseModelLoader:
    def load_model(self) -> None:
        raise NotImplementedError


class OwnLoader(BaseModelLoader):
    def load_model(self) -> None:
        raise NotImplementedError


class Pairing:
    def load_weights(self) -> str:
        return "_pending_fp8_qkv_proj"


@pytest.fixture
def payload(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The payloads' modules by file name."""

    def put(name: str, **content: Any) -> Any:
        module = ModuleType(name)
        module.__dict__.update(content, __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
        return module

    def real(name: str, path: str) -> Any:
        spec = importlib.util.spec_from_file_location(name, REPO / "patches" / path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        setattr(sys.modules["vllm._fixpack"], name.rpartition(".")[2], module)
        spec.loader.exec_module(module)
        return module

    envs = put("vllm.envs", VLLM_WEIGHT_OFFLOADING_DISABLE_UVA=False, VLLM_USE_DEEP_GEMM=False)
    for name in (
        "model_executor",
        "model_executor.layers",
        "model_executor.layers.fused_moe",
        "model_executor.model_loader",
        "model_executor.models",
        "_fixpack",
    ):
        put(f"vllm.{name}")
    put("vllm", envs=envs)
    put("vllm.logger", init_logger=lambda _name: SimpleNamespace(warning=lambda *_args: None))
    put("vllm.model_executor.layers.fused_moe.routed_experts", RoutedExperts=object)
    put("vllm.model_executor.utils", is_weights_pre_processed=lambda: False)
    put("vllm.platforms", current_platform=SimpleNamespace(is_cuda=lambda: True, device_name="cuda"))
    put("vllm.model_executor.model_loader.base_loader", BaseModelLoader=BaseModelLoader)
    put("vllm.model_executor.models.mimo_v2", MiMoV2Model=Pairing)
    real("vllm._fixpack.hotsplit_counts", "hotsplit/counts.py")
    real("vllm._fixpack.hotsplit_order", "hotsplit/order.py")
    return {
        "envs": envs,
        "settings": real("vllm._fixpack.hotsplit_settings", "hotsplit/settings.py"),
        "guards": real("vllm._fixpack.hotsplit_guards", "hotsplit/guards.py"),
        "share": real("vllm._fixpack.long_prefill_settings", "vllm-long-prefill-share/long_prefill_settings.py"),
        "streamer": real("vllm._fixpack.streamer_guard", "streamer-guard/streamer_guard.py"),
    }


def right(
    name: str, options: Sequence[str], variables: Mapping[str, str], fixes: Sequence[str], model: str = MODEL
) -> Case:
    """A command with these options and variables, completed by the rules."""
    profile = REGISTRY.profiles[name]
    files = REGISTRY.rule_files(profile)
    table = serve_options.table(profile.releases["vllm"])
    words = ["vllm", "serve", model, *options]
    served = serve_line.read(words, table)
    key = launch_case.model_key(files, "mimo-pro", served.model)
    case = Case(files, table, served, dict(variables), frozenset((*profile.fixes, *fixes)), key)
    return launch_render.complete(case, words)[0]


def errors(case: Case) -> list[str]:
    return [each.rule for each in launch_check.check(case) if each.level == ERROR]


SETTINGS: list[dict[str, str]] = [
    *({name: text} for name in ("HOTSPLIT_COUNTS", "HOTSPLIT_LIVE_COUNTS") for text in ("", " ")),
    {"HOTSPLIT_COUNT": "counts.json"},
    {**COUNTS, "HOTSPLIT_HOT_GB": "110"},
    {**COUNTS, "HOTSPLIT_ANYTHING": "1"},
    {"HOTSPLIT_WEIGHTS": "decode=1"},
    {"HOTSPLIT_HOT_GIB": "stock"},
    {"HOTSPLIT_HOT_GIB": "110"},
    {"HOTSPLIT_HOST_FLOOR_GIB": "24"},
    {"HOTSPLIT_DRYRUN": "1"},
    {**COUNTS, "HOTSPLIT_LIVE_SECS": "600"},
    {**COUNTS, "HOTSPLIT_DECODE_MAX": "16"},
    *(
        {**COUNTS, "HOTSPLIT_WEIGHTS": text}
        for text in ("", "decode", "decode=", "decode=x", "decode=-1", "decode=0", "decode=0,prefill=0.0", "all=1",
                     "decode=1,decode=2", "decode=1,", "decode=inf", "decode=nan", "decode=1;prefill=0")
    ),
    *({**COUNTS, "HOTSPLIT_HOT_GIB": text} for text in ("", "all", "-1", "nan", "inf", "2000000", "110GiB")),
    *({**COUNTS, "HOTSPLIT_HOST_FLOOR_GIB": text} for text in ("", "much", "-1", "nan", "inf")),
    *({**COUNTS, "HOTSPLIT_DRYRUN": text} for text in ("", "yes", "2", "true")),
    *({**LIVE, "HOTSPLIT_LIVE_SECS": text} for text in ("", "59", "soon", "1e7", "nan")),
    *({**LIVE, "HOTSPLIT_DECODE_MAX": text} for text in ("", "0", "16.5", "1025", "many")),
]  # fmt: skip


@pytest.mark.parametrize("variables", SETTINGS, ids=str)
def test_settings_that_are_refused(payload: dict[str, Any], variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="hotsplit cannot start"):
        payload["settings"].read(variables)
    case = right(PROFILES[0], [], {}, HOTSPLIT)
    given = {name: text for name, text in case.variables.items() if not name.startswith("HOTSPLIT_")}
    found = errors(case._replace(variables={**given, **variables}))
    assert found
    assert all(rule.startswith("hotsplit-") for rule in found)


@pytest.mark.parametrize(
    "variables",
    [
        COUNTS,
        LIVE,
        {**LIVE, "HOTSPLIT_LIVE_SECS": "60", "HOTSPLIT_DECODE_MAX": "8"},
        {**COUNTS, "HOTSPLIT_HOT_GIB": "stock-tensors", "HOTSPLIT_HOST_FLOOR_GIB": "0", "HOTSPLIT_DRYRUN": "1"},
        *(
            {**COUNTS, "HOTSPLIT_WEIGHTS": text}
            for text in ("decode=1,prefill=0", "decode=.5, prefill=2e0", "mixed=1", "prefill=0,decode=0.01")
        ),
    ],
    ids=str,
)
def test_settings_that_are_taken(payload: dict[str, Any], variables: dict[str, str]) -> None:
    payload["settings"].read(variables)
    case = right(PROFILES[0], [], {}, HOTSPLIT)
    given = {name: text for name, text in case.variables.items() if not name.startswith("HOTSPLIT_")}
    case = case._replace(variables={**given, **variables})
    assert errors(case) == []
    assert "unknown-variable" not in {each.rule for each in launch_check.check(case)}


def test_every_setting_is_a_variable_of_the_rules(payload: dict[str, Any]) -> None:
    assert set(REGISTRY.launch["hotsplit"].variables) == set(payload["settings"].SWITCHES)


def test_a_plan_has_its_own_budget() -> None:
    """Its context is nothing that this check could judge; only counts with a budget that is named are."""

    def found(variables: Mapping[str, str]) -> dict[str, str]:
        case = right(PROFILES[0], ["--max-model-len", "1048576"], variables, HOTSPLIT)
        if "HOTSPLIT_COUNTS" not in variables:  # the rules add it
            given = {name: text for name, text in case.variables.items() if name != "HOTSPLIT_COUNTS"}
            case = case._replace(variables=given)
        return {each.rule: each.level for each in launch_check.check(case) if "context" in each.rule}

    assert found({"HOTSPLIT_COUNTS": "p110.json"}) == {"hotsplit-context-own-budget": "note"}
    assert found({"HOTSPLIT_COUNTS": "c.json", "HOTSPLIT_HOT_GIB": "stock"}) == {
        "hotsplit-context-stock-budget": "error"
    }
    assert found({"HOTSPLIT_COUNTS": "c.json", "HOTSPLIT_HOT_GIB": "110"}) == {}
    assert found(LIVE) == {"hotsplit-context-unsplit": "error"}  # counting alone splits nothing


SHARE, EXACT, MIN_TOKENS = (f"VLLM_LONG_PREFILL_{name}" for name in ("SHARE", "SHARE_ASYNC", "MIN_TOKENS"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            (SHARE, text)
            for text in ("", " ", "0", "0.0", "0.5", " .5 ", "0.99", "1", "1.5", "-0.1", "nan", "inf", "half")
        ),
        *((EXACT, text) for text in ("", " ", "0", "1", " 1 ", "2", "yes", "true", "1.0", "01")),
        *((MIN_TOKENS, text) for text in ("", " ", "1", "65536", " 9 ", "007", "0", "-1", "1.5", "1e5", "64k", "many")),
    ],
)
def test_settings_of_the_share(payload: dict[str, Any], name: str, text: str) -> None:
    case = right(PROFILES[0], [], {SHARE: "0.5"}, ("vllm-long-prefill-share",))
    case = case._replace(variables={**case.variables, name: text})
    try:
        payload["share"].read(case.variables)
    except ValueError:
        assert len(errors(case)) == 1
    else:
        assert errors(case) == []


def test_every_setting_of_the_share_is_a_variable_of_the_rules() -> None:
    assert set(REGISTRY.launch["long-prefill-share"].variables) == {SHARE, EXACT, MIN_TOKENS}


def test_an_empty_share_needs_no_fix() -> None:
    case = right(PROFILES[0], [], {}, ())
    for text, wrong in (("", []), (" ", []), ("0", []), ("0.5", ["share-needs-fix"])):
        assert errors(case._replace(variables={**case.variables, SHARE: text})) == wrong


def configuration(case: Case) -> Any:
    """vLLM's configuration, as far as the guards look, from what the command says."""
    options = case.table.options

    def value(name: str) -> Any:
        return launch_check.option_value(options[name], case.served.values)

    parallel = (
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size"),
        *("decode_context_parallel_size", "enable_expert_parallel", "enable_eplb", "enable_elastic_ep", "enable_dbo"),
    )
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{name: value(name) for name in parallel}),
        lora_config=value("enable_lora") or None,
        speculative_config=value("speculative_config") or value("spec_method"),
        weight_transfer_config=value("weight_transfer_config"),
        offload_config=SimpleNamespace(
            offload_backend=value("offload_backend"),
            prefetch=SimpleNamespace(offload_group_size=value("offload_group_size")),
        ),
        kernel_config=SimpleNamespace(moe_backend=value("moe_backend")),
        scheduler_config=SimpleNamespace(max_num_seqs=value("max_num_seqs")),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[1, 2, 4, 8, 16]),
        enable_sleep_mode=value("enable_sleep_mode"),
    )


GUARDS: list[tuple[list[str], dict[str, str]]] = [
    *(([option, "2"], COUNTS) for option in ("-tp", "-pp", "-dp", "-pcp", "-dcp")),
    *(
        ([f"--enable-{name}"], COUNTS)
        for name in ("expert-parallel", "eplb", "elastic-ep", "dbo", "lora", "sleep-mode")
    ),
    (["--speculative-config.method", "mtp"], COUNTS),
    (["--spec-method", "ngram"], COUNTS),
    (["--weight-transfer-config", '{"backend": "nccl"}'], COUNTS),
    (["--offload-backend", "prefetch"], LIVE),
    (["--offload-group-size", "4"], LIVE),
    (["--moe-backend", "auto"], LIVE),
    (["--moe-backend", "triton"], COUNTS),
    ([], {**COUNTS, "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": "1"}),
    (["--cpu-offload-gb", "0"], {**COUNTS, "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": "1"}),
    ([], {**COUNTS, "VLLM_USE_DEEP_GEMM": "1"}),
    (["--max-num-seqs", "8"], {**LIVE, "HOTSPLIT_DECODE_MAX": "4"}),
]


@pytest.mark.parametrize("name", PROFILES)
def test_configurations_that_are_refused(payload: dict[str, Any], name: str) -> None:
    def refuse(case: Case) -> None:
        settings = payload["settings"].read(case.variables)
        for variable in ("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", "VLLM_USE_DEEP_GEMM"):
            setattr(payload["envs"], variable, case.variables.get(variable, "0") != "0")
        found = configuration(case)
        payload["guards"].refuse_config(found, found, settings)

    refuse(right(name, [], COUNTS, HOTSPLIT))  # a right command is taken by both
    assert errors(right(name, [], COUNTS, HOTSPLIT)) == []
    for options, variables in GUARDS:
        case = right(name, options, variables, HOTSPLIT)
        with pytest.raises(ValueError, match="hotsplit cannot serve this configuration"):
            refuse(case)
        assert errors(case), (options, variables)


@pytest.mark.parametrize("format_", ["tensorizer", "modelexpress", "ipc_cache"])
def test_loaders_that_are_refused(payload: dict[str, Any], format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSPLIT_COUNTS", COUNTS["HOTSPLIT_COUNTS"])
    payload["guards"].refuse_loader(BaseModelLoader)
    with pytest.raises(ValueError, match="has its own way to finish"):
        payload["guards"].refuse_loader(OwnLoader)
    assert "hotsplit-loader" in errors(right(PROFILES[0], ["--load-format", format_], COUNTS, HOTSPLIT))


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("value", [None, "", "0", "1", "yes"])
@pytest.mark.parametrize(
    ("options", "model"),
    [
        (["--load-format", "runai_streamer"], MODEL),
        (["--load-format", "RUNAI_STREAMER"], MODEL),
        ([], "s3://bucket/MiMo-V2.6-Pro-RL"),
        ([], "gs://bucket/MiMo-V2.6-Pro-RL"),
        (["--load-format", "runai_streamer"], "az://bucket/MiMo-V2.6-Pro-RL"),
    ],
)
def test_the_streamer(
    payload: dict[str, Any],
    name: str,
    value: str | None,
    options: list[str],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FIXPACK_ALLOW_STREAMER", raising=False)
    variables = {} if value is None else {"FIXPACK_ALLOW_STREAMER": value}
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    config = SimpleNamespace(architectures=["MiMoV2ForCausalLM"], quantization_config={"quant_method": "fp8"})
    try:
        payload["streamer"].guard(SimpleNamespace(hf_config=config))
        refused = False
    except ValueError:
        refused = True
    assert refused is (value != "1")
    found = errors(right(name, options, variables, (), model))
    assert bool(found) is refused, found
    if not refused:  # it is told, though
        case = right(name, options, variables, (), model)
        assert "streamer-allowed" in {each.rule for each in launch_check.check(case)}
