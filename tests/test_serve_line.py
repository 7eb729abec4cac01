"""Command lines are read as vLLM's own parser reads them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixpack import cache, registry, serve_options, sources
from fixpack.errors import UsageError
from fixpack.serve_line import MODULES, Served, read, split
from fixpack.serve_options import table
from fixpack.serve_values import ValueProblem, size

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests" / "harness"))

import serve_options as harness  # noqa: E402

RELEASES = serve_options.releases()
NEWEST = table(RELEASES[-1])

#: arguments of `vllm serve` that vLLM takes
TAKEN = [
    ["m"],
    ["m", "--max-model-len", "262144"],
    ["m", "--max-model-len=128k"],
    ["m", "--max_model_len", "128K"],
    ["m", "--max-model-len", "25.6k"],
    ["m", "--max-model-len", "1M", "--max-num-batched-tokens", "8k"],
    ["m", "--max-model-len", "auto"],
    ["m", "--max-model-len", "-1"],
    ["--max-model-len", "4096", "m"],
    ["--model", "m", "--max-num-seqs", "8"],
    ["--max-num-seqs", "8", "--model=m"],
    ["m", "-tp", "8"],
    ["m", "-tp=8"],
    ["m", "--tensor-parallel", "8"],  # argparse completes a unique beginning
    ["m", "--tensor_parallel_size=8", "-pp", "2", "-q", "fp8"],
    ["m", "--cpu-offload-params", "a.w13_weight", "a.w2_weight", "--max-num-seqs", "8"],
    ["m", "--cpu_offload_params", "a.w13_weight"],
    ["m", "--served-model-name", "one", "two", "--port", "9000"],
    ["--served-model-name", "one", "two", "--model", "m"],
    ["m", "--enable-prefix-caching"],
    ["m", "--no-enable-prefix-caching"],
    ["m", "--enable-prefix-caching", "--no-enable-prefix-caching"],
    ["m", "--no_enable_prefix_caching"],
    ["m", "--trust-remote-code", "--enable-auto-tool-choice", "--tool-call-parser", "mimo"],
    ["m", "--gpu-memory-utilization", ".96", "--cpu-offload-gb", "3.2e2"],
    ["m", "--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY"}'],
    ["m", "--compilation-config.cudagraph_mode", "FULL_DECODE_ONLY"],
    ["m", "-cc.cudagraph_mode=FULL_DECODE_ONLY"],
    ["m", "--override-generation-config", '{"temperature": 1.0, "top_p": 0.95}'],
    ["m", "--override-generation-config.temperature", "1.0", "--override-generation-config.top_p=0.95"],
    ["m", "--override-generation-config.a.b", "1k", "--override-generation-config.a.c", "x"],
    ["m", "--override-generation-config.a+", "x", "--override-generation-config.a+=y,z"],
    ["m", "--override_generation_config.a_b", "1"],
    ["m", "--hf-overrides", '{"num_hidden_layers": 16}'],
    ["m", "--hf-overrides.num_hidden_layers", "16"],
    ["m", "--hf-token"],
    ["m", "--hf-token", "secret"],
    ["m", "--moe-backend", "MARLIN"],
    ["m", "--load-format", "runai_streamer_sharded"],
    ["m", "--seed", "-5"],
    ["m", "-O3"],
    ["m", "-O", "2"],
    ["m", "-O=1"],
    ["m", "--max-num-seqs", "8", "--max-num-seqs", "16"],
    ["m", "--quantization", "None"],
    ["m", "--middleware", "a.b", "--middleware", "c.d"],
    ["it's a $(model) \n name", "--max-num-seqs", "8"],
    ["m", "--chat-template", "a.jinja", "--generation-config", "vllm"],
]

#: and those that it refuses
REFUSED = [
    ["m", "--max-model-len", "1.5M"],
    ["m", "--max-model-len", "long"],
    ["m", "--max-model-len"],
    ["m", "--max-num-seqs", "many"],
    ["m", "--gpu-memory-utilization", "most"],
    ["m", "--no-such-option"],
    ["m", "--no-such-option", "8"],
    ["m", "--max-model-lenght", "8"],
    ["m", "--enable-prefix-caching=yes"],
    ["m", "--offload-backend", "disk"],
    ["m", "--override-generation-config", "{temperature: 1}"],
    ["m", "--cpu-offload-params"],
    ["m", "--max", "8"],  # several options begin so
    ["m", "another"],
    ["m", "--model", "another"],
    ["m", "--load-format.x"],
    ["m", "--config", "missing.yaml"],
    ["m", "--config", "file.json"],
    ["m", "--config"],
]


def configured(folder: Path) -> list[list[str]]:
    """Lines with a configuration file."""
    file = folder / "serve.yaml"
    file.write_text(
        "tensor-parallel-size: 4\nenable-prefix-caching: true\nserved-model-name: [one, two]\n"
        "override-generation-config: {temperature: 0.5, deep: {top_p: 1}}\nmax_model_len: 128k\n"
    )
    model = folder / "model.yml"
    model.write_text("model: from-file\nport: 9000\n")
    return [
        ["m", "--config", str(file)],
        ["m", "--config", str(file), "-tp", "8"],
        ["m", "-tp", "8", "--config", str(file)],
        ["--config", str(model)],
        ["--port", "9001", "--config", str(model)],
        ["m", "--config", str(model)],
    ]


def values_of(served: Served) -> dict[str, str]:
    return {name: repr(value) for name, value in served.values.items()}


@pytest.fixture(scope="module", params=RELEASES)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Any]:
    """A release's own answers: its options, and what it makes of every line; the lines of this test."""
    release = registry.load_releases(str(REPO))[f"vllm@{request.param}"]
    if not sources.have(release):
        pytest.skip(f"needs upstream sources: {sources.fetch_command(release)}")
    folder = tmp_path_factory.mktemp("config")
    lines = [*TAKEN, *configured(folder), *REFUSED]
    modules = [["--model", "m", "--max-num-seqs", "8"], ["m", "--max-num-seqs", "8"]]
    store = Path(cache.cache_dir()) / "serve-options"
    store.mkdir(exist_ok=True)
    body = harness.ask(sources.tree(release), store, [*(["serve", *line] for line in lines), *modules])
    return request.param, body, lines


def test_the_data_are_the_releases(real: tuple[str, dict[str, Any], Any]) -> None:
    release, body, _ = real
    data = json.loads(harness.DATA.read_text(encoding="utf-8"))
    assert release in data["releases"]
    found = {
        name: {key: value for key, value in form.items() if key != "in"}
        for name, forms in data["options"].items()
        for form in forms
        if form["in"] == "all" or release in form["in"]
    }
    assert found == body["options"]
    assert table(release).variables == set(body["variables"])
    assert table(release).keeps_false == body["keeps_false"]


def test_every_line_is_read_as_vllm_reads_it(real: tuple[str, dict[str, Any], Any]) -> None:
    release, body, lines = real
    options = table(release)
    wrong = []
    for line, theirs in zip(lines, body["parsed"], strict=False):
        ours = read(["vllm", "serve", *line], options)
        errors = [each.message for each in ours.findings if each.level == "error"]
        if not isinstance(theirs, dict):
            if not errors:
                wrong.append((line, "refused by vLLM", theirs))
            continue
        theirs = dict(theirs)
        model = theirs.pop("model_tag", theirs.get("model", ""))
        theirs.pop("subparser")
        if errors:
            wrong.append((line, errors, theirs))
        if repr(ours.model) != model:
            wrong.append((line, ours.model, model))
        for name, value in theirs.items():
            mine = ours.values.get(name)
            option = options.options[name]
            if option.kind == "config" and isinstance(mine, dict):
                continue  # an object there
            if name == "model" or (name == "cpu_offload_params" and set(mine or ()) == set(eval(value))):
                continue
            if repr(mine) != value and not (option.kind == "size-or-auto" and mine is None and value == "-1"):
                wrong.append((line, name, mine, value))
        for name in ours.values.keys() - theirs.keys() - {"model", "config"}:
            if ours.values[name] not in (options.options[name].default, None):
                wrong.append((line, name, ours.values[name], "not with vLLM"))
    assert wrong == []


def test_the_module_takes_no_model_in_front(real: tuple[str, dict[str, Any], Any]) -> None:
    release, body, lines = real
    named, in_front = body["parsed"][len(lines) :]
    assert named["model"] == "'m'"
    assert "model" not in in_front  # vLLM would serve its default
    words = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert read([*words, "--model", "m"], table(release)).model == "m"
    found = read([*words, "m"], table(release))
    assert [each.rule for each in found.findings] == ["model-ignored", "no-model"]


@pytest.mark.parametrize(
    ("words", "program", "module", "arguments"),
    [
        (["vllm", "serve", "m"], "vllm", "", ["m"]),
        (["/opt/venv/bin/vllm", "serve"], "/opt/venv/bin/vllm", "", []),
        (["env", "A=1", "B=x=y", "vllm", "serve", "m"], "vllm", "", ["m"]),
        (["A=1", "vllm", "serve", "m"], "vllm", "", ["m"]),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], "python", "", ["--model", "m"]),
        (
            ["/usr/bin/python3.12", "-uB", "-X", "dev", "-m", "vllm.entrypoints.openai.api_server"],
            "/usr/bin/python3.12",
            "",
            [],
        ),
    ],
)
def test_the_command_is_found(words: list[str], program: str, module: str, arguments: list[str]) -> None:
    command = split(words)
    assert (command.program, command.arguments) == (program, arguments)
    assert command.variables == dict(each.split("=", 1) for each in words if each[:2] in ("A=", "B="))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["vllm"],
        ["vllm", "bench"],
        ["bash", "-c", "vllm serve m"],
        ["python", "-m", "vllm"],
        ["python", "-m"],
        ["python", "serve.py"],
        ["env", "-i", "vllm", "serve", "m"],
        ["not-vllm", "serve"],
        ["serve", "m"],
    ],
)
def test_other_commands_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        split(words)
    assert [problem.code for problem in caught.value.problems] == ["not_a_server"]


def rules(words: list[str], release: str = RELEASES[-1]) -> list[tuple[str, str]]:
    return [(each.level, each.rule) for each in read(words, table(release)).findings]


def test_what_vllm_takes_and_does_not_mean(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("enable-prefix-caching: false\n")
    server = ["vllm", "serve", "m"]
    module = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
    assert rules([*server, "--config", str(file)]) == [("warning", "false-dropped")]
    assert rules([*module, "--config", str(file)], "v0.26.0") == [("warning", "false-dropped")]
    assert rules([*module, "--config", str(file)]) == []
    assert read([*module, "--config", str(file)], NEWEST).values["enable_prefix_caching"] is False
    assert rules([*server, f"--config={file}"]) == [("error", "config-ignored")]
    assert rules([*server, "--max-num-seqs", "8", "--max_num_seqs=9"]) == [("warning", "given-twice")]
    assert rules([*server, "--hf-overrides.a", "1", "--hf-overrides.a", "2"]) == [("warning", "given-twice")]
    assert rules(["vllm", "serve"]) == [("error", "no-model")]
    assert rules([*server, "--help"]) == [("note", "help")]


def test_an_unknown_option_gets_a_suggestion() -> None:
    found = read(["vllm", "serve", "m", "--max-model-lenght", "8", "--tensor-paralel-size=2"], NEWEST).findings
    assert [each.subject for each in found] == ["--max-model-lenght", "--tensor-paralel-size"]
    assert found[0].remedy.startswith("did you mean '--max-model-len'")
    assert found[1].remedy.startswith("did you mean '--tensor-parallel-size'")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n",
        "a: [\n",
        "1: 2\n",
        "&a [*a]\n",
        "!!python/object/apply:os.system [true]\n",
        "\x00",
        "just text",
        "a: &a [x]\n" + "".join(f"b{n}: [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n" for n in range(9)),
        "[" * 5000,
        "a: " + "x" * (1 << 21),
        "hf-overrides: {a: 2026-11-29}\n",
        "hf-overrides: {a: !!binary aGVsbG8=}\n",
        "hf-overrides: {a: !!set {x, y}}\n",
        "hf-overrides: &a {b: *a}\n",
        "hf-overrides: {a: &b [*b]}\n",
        "max-model-len: 0x" + "f" * 5000,
        "a: !!bool maybe\n",
        "a: !!int ''\n",
        "a: !!timestamp noon\n",
        "hf-overrides: " + "{a: " * 200 + "1" + "}" * 200,
    ],
    ids=range(21),
)
def test_a_bad_configuration_file_is_one_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    found = read(["vllm", "serve", "m", "--config", str(file)], NEWEST).findings
    assert [(each.level, each.rule) for each in found] == [("error", "refused")]
    assert str(file) in found[0].message or "nests more than 50 levels deep" in found[0].message


def test_a_configuration_file_that_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")  # nobody writes: opening it would wait for ever
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml"):
        found = read(["vllm", "serve", "m", "--config", str(tmp_path / name)], NEWEST).findings
        assert [(each.level, each.rule) for each in found] == [("error", "refused")]
        assert "is not an ordinary file" in found[0].message


@pytest.mark.parametrize(
    "words",
    [
        *(["--max-model-len", digits] for digits in ("9" * 21, "9" * 5000, "9" * 400 + "k", "9" * 4299 + "T")),
        ["--max-model-len", "0." + "0" * 30 + "1k"],
        ["--max-num-seqs", "9" * 5000],
        ["--compilation-config", '{"a": ' + "9" * 4299 + "T}"],
        ["--hf-overrides" + ".a" * 51, "1"],
        ["--hf-overrides" + ".a" * 3000, "1"],
        ["--hf-overrides.a", "[" * 300 + "]" * 300],
        ["--hf-overrides" + ".a" * 30, "[" * 30 + "]" * 30],
        ["--hf-overrides", '{"a":' * 900 + "1" + "}" * 900],
        ["--hf-overrides", '{"a":' * 90000 + "1" + "}" * 90000],
    ],
    ids=range(13),
)
def test_values_without_bounds_are_one_error(words: list[str]) -> None:
    found = read(["vllm", "serve", "m", *words], NEWEST).findings
    assert [(each.level, each.rule) for each in found] == [("error", "refused")]
    assert "digits; at most 20" in found[0].message or "deep" in found[0].message
    assert len(found[0].message) < 250


def test_values_at_the_bounds_are_read() -> None:
    words = ["--max-model-len", "9" * 20, "--hf-overrides" + ".a" * 50, "1"]
    served = read(["vllm", "serve", "m", *words], NEWEST)
    assert served.findings == ()
    assert served.values["max_model_len"] == 10**20 - 1


@pytest.mark.parametrize(
    ("text", "value"), [("1k", 1000), ("1K", 1024), ("2.5m", 2500000), (" 7 ", 7), ("1_000", 1000)]
)
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5K", "1.5", "1kk", "0x10", "1e3", "¼k"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueProblem):
        size(text)


PIECES = st.one_of(
    st.sampled_from([*NEWEST.spellings, "--", "-", "-O", "-O=", "--config", "--model", "--a.b", "--hf-overrides.a+=b"]),
    st.sampled_from(
        ["--max_model_len=1k", "-cc.x", "-1.5", "1", "m", "{", "[]", "", "--no-", "--=", "--.=", "-tp=", "@f"]
    ),
    st.text(max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=8), st.sampled_from([["vllm", "serve"], ["python3", "-m", MODULES[0]]]))
def test_any_words_are_read_or_refused(words: list[str], start: list[str]) -> None:
    served = read([*start, *words], NEWEST)
    assert served.values.keys() <= NEWEST.options.keys()
    assert all(each.message and each.level in ("error", "warning", "note") for each in served.findings)
    assert served.model or any(each.level == "error" for each in served.findings)


def test_a_release_without_data() -> None:
    with pytest.raises(UsageError, match="not known"):
        table("v0.1.0")
