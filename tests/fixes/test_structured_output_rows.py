"""structured-output-rows: a structured step samples each request with its own parameters.

The combined sampling call has the rows [decodes, prompts].  Requests are set up so that no batch row is ever
swapped: what is seen here comes from the request list of that call alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cpuhpu import sampling
from live import Live, ladder

OPTIONS: dict[str, Any] = {"max_num_seqs": 8, "long_prefill_token_threshold": 256}


@pytest.fixture(scope="module")
def engines() -> dict[str, Live]:
    return {"sync": Live(False, **OPTIONS), "async": Live(True, **OPTIONS)}


@pytest.fixture(params=["sync", "async"])
def live(engines: dict[str, Live], request: pytest.FixtureRequest) -> Iterator[Live]:
    yield engines[request.param]
    engines[request.param].clear()


@pytest.fixture
def sync(engines: dict[str, Live]) -> Iterator[Live]:
    yield engines["sync"]
    engines["sync"].clear()


def decodes(live: Live, params: dict[str, Any]) -> None:
    """Requests of these names and parameters, prefilled in one step: the next step decodes them."""
    for name, own in params.items():
        live.add(name, 5, own)
    live.step()
    assert live.rows == list(params)


def metadata_of(live: Live, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Filled with the sampling metadata of each sampling call from now on."""
    calls: list[Any] = []
    prepare = live.runner._prepare_sampling

    def spy(*args: Any, **named: Any) -> Any:
        calls.append(prepare(*args, **named))
        return calls[-1]

    monkeypatch.setattr(live.runner, "_prepare_sampling", spy)
    return calls


def test_parameters_of_a_mixed_step(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three decodes and a new prompt: every per-row parameter, in the order of the logits."""
    own = {
        name: {"temperature": t, "top_p": p, "top_k": k, "presence_penalty": pres, "frequency_penalty": freq,
               "repetition_penalty": rep, "seed": seed}
        for name, t, p, k, pres, freq, rep, seed in [
            ("D0", 0.1, 0.91, 11, 0.01, 0.21, 1.1, 1), ("D1", 0.2, 0.92, 12, 0.02, 0.22, 1.2, None),
            ("D2", 0.3, 0.93, 13, 0.03, 0.23, 1.3, 3), ("A", 0.9, 0.99, 19, 0.09, 0.29, 1.9, 9)]
    }
    decodes(live, {name: sampling(**own[name]) for name in ("D0", "D1", "D2")})
    live.add("A", 5, sampling(**own["A"]))
    calls = metadata_of(live, monkeypatch)
    live.step(grammar=["D0", "D1", "D2", "A"])

    [call] = calls  # one combined call
    columns = {"temperature": call.temperature, "top_p": call.top_p, "top_k": call.top_k,
               "presence_penalty": call.presence_penalties, "frequency_penalty": call.frequency_penalties,
               "repetition_penalty": call.repetition_penalties}
    for name, column in columns.items():
        want = [own[request][name] for request in live.rows]
        got = [round(value, 4) for value in column.tolist()]
        assert got == want, f"{live.rows} were sampled with {name} {got}, theirs are {want}"
    prompts = [live.runner.requests[request].prompt_token_ids for request in live.rows]
    assert [row[:5] for row in call.prompt_token_ids.tolist()] == prompts
    seeds = {row: generator.initial_seed() for row, generator in call.generators.items()}
    assert seeds == {0: 1, 2: 3, 3: 9}


def test_tokens_of_a_mixed_step(live: Live) -> None:
    """Each request may only say its own token."""
    decodes(live, {"D0": sampling(allowed_token_ids=[10]), "D1": sampling(allowed_token_ids=[11])})
    live.add("A", 5, sampling(allowed_token_ids=[20]))
    live.add("B", 5, sampling(allowed_token_ids=[21]))
    got = live.step(grammar=["D0", "D1", "A", "B"])
    assert got == {"D0": [10], "D1": [11], "A": [20], "B": [21]}, f"sampled {got}"


def test_one_grammar_request_is_enough(live: Live) -> None:
    """The rest of the batch is sampled in the same call, also without a grammar of its own."""
    decodes(live, {"D0": sampling(allowed_token_ids=[10]), "D1": sampling(allowed_token_ids=[11])})
    live.add("A", 5, sampling(allowed_token_ids=[20]))
    got = live.step(grammar=["D1"])
    assert got == {"D0": [10], "D1": [11], "A": [20]}, f"sampled {got}"


def test_prompt_without_logits(sync: Live) -> None:
    """Synchronous: a chunk that does not end its prompt has no logits in the first structured step."""
    decodes(sync, {"D0": sampling(temperature=0.1, top_k=1), "D1": sampling(temperature=0.2, top_k=1)})
    sync.add("P", 700, sampling(temperature=0.9))
    got = sync.step(grammar=["D0", "D1"])
    assert got == {"D0": [0], "D1": [0], "P": []}


def test_logprobs_beside_a_prompt_without_logits(sync: Live) -> None:
    """Synchronous: the prompt without logits lies between two requests that want logprobs."""
    decodes(sync, {"D": sampling(logprobs=1, max_tokens=9)})
    sync.add("P", 700, sampling())
    sync.add("A", 5, sampling(logprobs=1))
    best: list[int] = []  # the prompts run first, A last; then the decodes

    def favourite(rows: int, vocab: int, device: Any) -> torch.Tensor:
        logits = ladder(rows, vocab, device)
        if rows:
            best.append(10 + len(best))
            logits[:, best[-1]] = 5.0
        return logits

    sync.make_logits = favourite
    tokens, output = sync.run(grammar=["D"])
    assert tokens == {"D": [best[-1]], "P": [], "A": [best[-2]]}
    assert sync.rows == ["D", "P", "A"]
    sampled = output.logprobs.logprob_token_ids[:, 0].tolist()  # the first column is the sampled token
    assert (sampled[0], sampled[2]) == (best[-1], best[-2])


# Guards: stock does these right.


def test_logprobs_of_a_mixed_step(live: Live) -> None:
    decodes(live, {"D0": sampling(logprobs=1), "D1": sampling(logprobs=1)})
    live.add("A", 5, sampling(logprobs=1))
    best = iter([20, 10])

    def favourite(rows: int, vocab: int, device: Any) -> torch.Tensor:
        logits = ladder(rows, vocab, device)
        logits[:, next(best)] = 5.0
        return logits

    live.make_logits = favourite
    tokens, output = live.run(grammar=["D0"])
    assert tokens == {"D0": [10], "D1": [10], "A": [20]}
    assert output.logprobs.logprob_token_ids[:, 0].tolist() == [10, 10, 20]


def test_structured_step_of_decodes_only(live: Live) -> None:
    decodes(live, {"D0": sampling(allowed_token_ids=[10]), "D1": sampling(allowed_token_ids=[11])})
    assert live.step(grammar=["D0"]) == {"D0": [10], "D1": [11]}


def test_structured_step_of_prompts_only(live: Live) -> None:
    live.add("A", 5, sampling(allowed_token_ids=[20]))
    live.add("B", 5, sampling(allowed_token_ids=[21]))
    assert live.step(grammar=["B"]) == {"A": [20], "B": [21]}


def test_mixed_step_without_a_grammar(live: Live) -> None:
    decodes(live, {"D0": sampling(allowed_token_ids=[10]), "D1": sampling(allowed_token_ids=[11])})
    live.add("A", 5, sampling(allowed_token_ids=[20]))
    assert live.step() == {"D0": [10], "D1": [11], "A": [20]}


def test_greedy_prompt_without_logits(sync: Live) -> None:
    """All greedy: no parameter has a row, so nothing can be mismatched."""
    decodes(sync, {"D0": sampling(), "D1": sampling()})
    sync.add("P", 700, sampling())
    assert sync.step(grammar=["D0", "D1"]) == {"D0": [0], "D1": [0], "P": []}
