"""logitsprocs-rows: logit_bias, min_p, min_tokens and custom logits processors act, each on its request's rows.

In every row token 0 is the most likely, then 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cpuhpu import generate, sampling
from live import Live
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)

MAX_NUM_SEQS = 8
EOS = 0


@pytest.fixture(scope="module")
def engines() -> dict[str, Live]:
    options: dict[str, Any] = {"max_num_seqs": MAX_NUM_SEQS}
    return {"sync": Live(False, **options), "async": Live(True, **options)}


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def tight(request: pytest.FixtureRequest) -> Iterator[Live]:
    """An engine with five KV blocks: room for two requests of two blocks, not of three."""
    live = Live(request.param, max_model_len=512, num_gpu_blocks_override=6)
    yield live
    live.clear()


@pytest.fixture(params=["sync", "async"])
def live(engines: dict[str, Live], request: pytest.FixtureRequest) -> Iterator[Live]:
    yield engines[request.param]
    engines[request.param].clear()


def min_tokens(minimum: int, **options: Any) -> Any:
    """Parameters that keep EOS out of the first tokens; EOS does not end the request, so that one sees it return."""
    params = sampling(min_tokens=minimum, **options)
    params.update_from_generation_config({}, EOS)
    return params


def tokens_of(live: Live, name: str, steps: int) -> list[int]:
    return [token for _ in range(steps) for token in live.step().get(name, [])]


class Counting(AdapterLogitsProcessor):
    """Forces token 10 + number of output tokens, for requests that ask for it."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        return self.force if params.extra_args and params.extra_args.get("count") else None

    @staticmethod
    def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(logits, float("-inf"))
        forced[10 + len(output_ids)] = 0.0
        return forced


# logit_bias


def test_logit_bias(live: Live) -> None:
    live.add("A", 5, sampling(logit_bias={7: 100.0}))
    got = tokens_of(live, "A", 3)
    assert got == [7, 7, 7], f"sampled {got}"


def test_each_sub_batch_its_own_bias(live: Live) -> None:
    """Two decodes and two prompts: three sampling calls, and none of their rows are the batch's."""
    live.add("D0", 5, sampling(logit_bias={3: 100.0}))
    live.add("D1", 5, sampling())
    live.step()
    live.add("A", 5, sampling(logit_bias={5: 100.0}))
    live.add("B", 5, sampling())
    got = live.step()
    assert got == {"D0": [3], "D1": [0], "A": [5], "B": [0]}, f"sampled {got}"
    got = live.step()
    assert got == {"D0": [3], "D1": [0], "A": [5], "B": [0]}, f"sampled {got}"


def test_mixed_structured_step(live: Live) -> None:
    live.add("D0", 5, sampling())
    live.add("D1", 5, sampling(logit_bias={4: 100.0}))
    live.step()
    live.add("A", 5, sampling(logit_bias={6: 100.0}))
    got = live.step(grammar=["D0", "D1", "A"])
    assert got == {"D0": [0], "D1": [4], "A": [6]}, f"sampled {got}"


def test_bias_leaves_with_its_request(live: Live) -> None:
    live.add("A", 5, sampling(logit_bias={7: 100.0}))
    live.add("B", 5, sampling())
    got = live.step()
    assert got == {"A": [7], "B": [0]}, f"sampled {got}"
    live.finish("A")
    assert live.step() == {"B": [0]}
    live.add("C", 5, sampling())
    assert live.step() == {"B": [0], "C": [0]}


# min_tokens


def test_min_tokens(live: Live) -> None:
    """Two tokens without EOS, then EOS again: asynchronously, these are tokens that the worker cannot see."""
    live.add("A", 5, min_tokens(2))
    live.add("B", 5, sampling())
    got = tokens_of(live, "A", 4)
    assert got == [1, 1, EOS, EOS], f"sampled {got}"


def test_min_tokens_of_a_chunked_prompt(live: Live) -> None:
    """Chunks that sample nothing do not count."""
    live.add("D", 5, sampling(max_tokens=20))
    live.step()
    live.add("P", 1200, min_tokens(2))
    got = tokens_of(live, "P", 6)
    assert got == [1, 1, EOS, EOS], f"sampled {got}"


def test_min_tokens_after_a_preemption(tight: Live) -> None:
    """B is thrown out in the middle and computed again: its tokens are counted as before."""
    tight.add("A", 250, sampling(max_tokens=10))
    tight.add("B", 250, min_tokens(12, max_tokens=16))
    b = tight.scheduler.requests["B"]
    got = []
    while tight.scheduler.has_requests() and len(got) < 16:
        got += tight.step().get("B", [])
    assert b.num_preemptions == 1
    assert got == [1] * 12 + [EOS] * 4, f"sampled {got}"


def test_min_tokens_in_the_engine(live: Live) -> None:
    """The same through the engine's own loop, with a stop token that ends the request."""
    got = generate(live.llm, [[5, 6, 7], [8, 9, 10]], [
        sampling(min_tokens=2, stop_token_ids=[EOS]), sampling(max_tokens=3)])
    assert got == [[1, 1, EOS], [0, 0, 0]], f"sampled {got}"


# min_p


def test_min_p(live: Live) -> None:
    """The second token has nine tenths of the first one's probability: 0.99 leaves only the first."""
    torch.manual_seed(0)
    live.add("A", 5, sampling(temperature=1.0, min_p=0.99))
    live.add("B", 5, sampling())
    got = tokens_of(live, "A", 5)
    assert got == [0] * 5, f"sampled {got}"


def test_min_p_in_a_bucket_beyond_max_num_seqs(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's buffer has max_num_seqs rows; a decode bucket of the user's may have more."""
    torch.manual_seed(0)
    manager = live.runner.bucketing_manager
    find = manager.find_decode_bucket

    def padded(*args: Any, **named: Any) -> Any:
        _, *rest = find(*args, **named)
        return (MAX_NUM_SEQS + 4, *rest)

    monkeypatch.setattr(manager, "find_decode_bucket", padded)
    live.add("A", 5, sampling(temperature=1.0))
    live.add("B", 5, sampling(temperature=1.0, min_p=0.99))
    got = tokens_of(live, "B", 5)
    assert got == [0] * 5, f"sampled {got}"


# custom processors


def test_custom_processor(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of its requests, and of as many output tokens as there are."""
    batch = live.runner.input_batch
    builtin = list(batch.logitsprocs.all)
    custom = Counting(live.runner.vllm_config, live.runner.device, False)
    monkeypatch.setattr(batch, "logitsprocs", LogitsProcessors([*builtin, custom]))
    live.add("A", 5, sampling())
    live.add("B", 5, sampling(extra_args={"count": True}))
    steps = [live.step() for _ in range(3)]
    assert [step["A"] for step in steps] == [[0], [0], [0]]
    got = [step["B"] for step in steps]
    assert got == [[10], [11], [12]], f"sampled {got}"


# Guards: stock does these right.


def test_nothing_set_nothing_fed(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request uses any of the parameters: no processor is touched, in any kind of step."""
    live.add("D", 5, sampling(temperature=0.5, top_k=1))
    live.step()  # clears what an earlier request may have left
    told: list[Any] = []
    for processor in live.runner.input_batch.logitsprocs.all:
        monkeypatch.setattr(processor, "update_state", told.append)
    live.add("A", 5, sampling())
    assert live.step() == {"D": [0], "A": [0]}
    assert live.step(grammar=["D"]) == {"D": [0], "A": [0]}
    assert told == []


def test_request_after_a_processed_one(live: Live) -> None:
    """What a finished request set does not outlive it."""
    live.add("A", 5, sampling(logit_bias={7: 100.0}, min_tokens=3, min_p=0.5, temperature=0.5, top_k=1))
    live.step()
    live.finish("A")
    live.add("B", 5, sampling())
    assert tokens_of(live, "B", 3) == [0, 0, 0]


# The module alone.


def processors(*custom: Any, size: int = MAX_NUM_SEQS) -> LogitsProcessors:
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=size))
    device = torch.device("cpu")
    builtin = [kind(config, device, False) for kind in (
        MinPLogitsProcessor, LogitBiasLogitsProcessor, MinTokensLogitsProcessor)]
    return LogitsProcessors([*builtin, *custom])


def states(**params: Any) -> dict[str, Any]:
    return {name: SimpleNamespace(sampling_params=own, prompt_token_ids=[1], output_token_ids=[])
            for name, own in params.items()}


def apply(procs: LogitsProcessors, rows: int) -> torch.Tensor:
    logits = torch.zeros(rows, 16)
    logits[:, 0] = 3.0
    for processor in [*procs.non_argmax_invariant, *procs.argmax_invariant]:  # the sampler's order
        logits = processor.apply(logits)
    return logits


def test_module_feeds_rows_and_not_padding() -> None:
    from vllm_gaudi._fixpack.logits_rows import feed

    procs = processors()
    requests = states(a=sampling(logit_bias={5: 10.0}), b=sampling())
    assert feed(procs, [("b", []), ("a", []), ("b", []), ("b", [])], requests)
    assert apply(procs, 4).argmax(-1).tolist() == [0, 5, 0, 0]
    assert feed(procs, [("a", []), ("b", []), ("a", []), ("a", [])], requests)
    assert apply(procs, 4).argmax(-1).tolist() == [5, 0, 0, 0]


def test_module_clears_what_it_fed_once() -> None:
    from vllm_gaudi._fixpack.logits_rows import feed

    procs = processors()
    requests = states(a=sampling(logit_bias={5: 10.0}, min_p=0.9, min_tokens=2, stop_token_ids=[0], temperature=1.0),
                      b=sampling())
    assert not feed(procs, [("b", [])], requests)
    assert feed(procs, [("b", []), ("a", [])], requests)
    assert apply(procs, 2)[1].isfinite().sum() == 1
    assert feed(procs, [("b", [])], requests)
    assert torch.equal(apply(procs, 2), apply(processors(), 2))
    assert not feed(procs, [("b", [])], requests)


def test_module_min_p_covers_every_row() -> None:
    from vllm_gaudi._fixpack.logits_rows import feed

    procs = processors(size=2)
    requests = states(a=sampling(temperature=1.0), b=sampling(temperature=1.0, min_p=0.9))
    assert feed(procs, [("a", []), ("b", []), *[("a", [])] * 3], requests)
    assert apply(procs, 5).isfinite().sum(-1).tolist() == [16, 1, 16, 16, 16]


def test_module_with_more_requests_than_max_num_seqs() -> None:
    """Warm-up makes such a batch; a custom processor makes it fed."""
    from vllm_gaudi._fixpack.logits_rows import feed

    custom = Counting(None, torch.device("cpu"), False)
    procs = processors(custom, size=2)
    requests = states(**{name: sampling() for name in "abcd"})
    assert feed(procs, [(name, []) for name in "abcd"], requests)
    assert apply(procs, 4).isfinite().all()


def test_module_counts_tokens_that_the_worker_does_not_know() -> None:
    from vllm_gaudi._fixpack.logits_rows import output_tokens

    [state] = states(a=sampling(min_tokens=2)).values()
    assert output_tokens(state, exact=False) is state.output_token_ids  # its first step: nothing counted yet
    state.num_sampled_tokens = 3
    assert output_tokens(state, exact=False) == [-1, -1]  # enough for min_tokens
    assert output_tokens(state, exact=True) == [-1, -1, -1]
    state.output_token_ids = [5]
    assert output_tokens(state, exact=True) == [5, -1, -1]
    assert state.output_token_ids == [5]
    state.output_token_ids = [5, 6, 7]
    assert output_tokens(state, exact=True) is state.output_token_ids
