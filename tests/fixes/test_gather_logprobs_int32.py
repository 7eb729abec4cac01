"""gather-logprobs-int32: no 64-bit concatenation lies between the sampler and the token ids of a logprobs answer.

A CPU concatenates 64-bit integers correctly, so the tests look at what reaches ``aten.cat``, and let a device that
does not get it right show what a user would read.  In every row token 0 is the most likely, then 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cpuhpu import sampling
from live import Live
from torch.utils._python_dispatch import TorchDispatchMode

INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64}
PROMPT = [5, 6, 7, 300, 9]


@pytest.fixture(scope="module")
def engines() -> dict[str, Live]:
    return {"sync": Live(False), "async": Live(True)}


@pytest.fixture(params=["sync", "async"])
def live(engines: dict[str, Live], request: pytest.FixtureRequest) -> Iterator[Live]:
    yield engines[request.param]
    engines[request.param].clear()


class Concat(TorchDispatchMode):
    """Notes the dtypes of every concatenation of token ids, and may spoil those of 64-bit integers."""

    def __init__(self, packs_words: bool = False) -> None:
        super().__init__()
        self.packs_words = packs_words
        self.seen: list[list[torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.cat.default and result.dim() == 2 and result.dtype in INTEGERS:
            self.seen.append([part.dtype for part in args[0]])
            if self.packs_words and result.dtype is torch.int64:
                result = packed(result)
        return result


def packed(ids: torch.Tensor) -> torch.Tensor:
    """What is read back where values were written as 32-bit words and are read with a stride of 64 bits."""
    words = ids.flatten()
    return torch.cat([words[::2], words[1::2]]).view(ids.shape)


def names(seen: list[list[torch.dtype]]) -> list[list[str]]:
    return [[str(dtype).removeprefix("torch.") for dtype in parts] for parts in seen]


def gathers() -> dict[str, Callable[[torch.Tensor, int, torch.Tensor], Any]]:
    """The two functions, as the sampler and the runner reach them."""
    from vllm.v1.sample.sampler import Sampler
    from vllm_gaudi import patches
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner

    patches._patch_gather_logprobs()
    assert Sampler.gather_logprobs is patches._hpu_gather_logprobs, "not the function that runs on Gaudi"
    runner = object.__new__(HPUModelRunner)
    return {"sampled": Sampler.gather_logprobs, "prompt": runner._gather_prompt_logprobs_hpu}


@pytest.mark.parametrize("which", ["sampled", "prompt"])
def test_gather(which: str) -> None:
    logprobs = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    tokens = torch.tensor([4, 0, 49, 12, 12, 3])
    with Concat() as concat:
        got = gathers()[which](logprobs, 5, tokens)
    assert names(concat.seen) == [["int32", "int32"]], f"concatenated {names(concat.seen)}"
    top, ids = logprobs.topk(5)
    assert got.logprob_token_ids.dtype is torch.int32
    assert torch.equal(got.logprob_token_ids, torch.cat([tokens[:, None], ids], dim=1).int())
    own = logprobs[torch.arange(6), tokens]
    assert torch.equal(got.logprobs, torch.cat([own[:, None], top], dim=1))
    assert got.selected_token_ranks.tolist() == (logprobs >= own[:, None]).sum(-1).tolist()


@pytest.mark.parametrize("which", ["sampled", "prompt"])
def test_device_with_packed_words(which: str) -> None:
    logprobs = torch.arange(50.0).flip(0).repeat(2, 1).log_softmax(-1)
    with Concat(packs_words=True):
        got = gathers()[which](logprobs, 3, torch.tensor([7, 8])).logprob_token_ids.tolist()
    assert got == [[7, 0, 1, 2], [8, 0, 1, 2]], f"read {got}"


@pytest.mark.parametrize("which", ["sampled", "prompt"])
def test_largest_ids(which: str) -> None:
    """Guard: the highest id of a large vocabulary, and no top tokens at all."""
    logprobs = torch.zeros(1, 300_000)
    logprobs[0, 299_999] = 1.0
    gather = gathers()[which]
    assert gather(logprobs, 1, torch.tensor([299_998])).logprob_token_ids.tolist() == [[299_998, 299_999]]
    assert gather(logprobs, 0, torch.tensor([299_999])).logprob_token_ids.tolist() == [[299_999]]


# The same in a live engine.


def test_logprobs_of_a_request(live: Live) -> None:
    """Two decodes and a prompt: each sampling call gathers its own rows."""
    live.add("A", 5, sampling(logprobs=3))
    live.add("B", 5, sampling())
    live.step()
    live.add("C", 5, sampling(logprobs=5))
    with Concat(packs_words=True) as concat:
        output = live.run()[1]
    ids = {name: output.logprobs.logprob_token_ids[row].tolist() for name, row in output.req_id_to_index.items()}
    assert [ids["A"][:4], ids["C"][:6]] == [[0, 0, 1, 2], [0, 0, 1, 2, 3, 4]], f"read {ids}"
    assert not any(torch.int64 in parts for parts in concat.seen), f"concatenated {names(concat.seen)}"


def test_prompt_logprobs_of_a_request(live: Live) -> None:
    live.add("A", PROMPT, sampling(prompt_logprobs=2))
    with Concat(packs_words=True):
        output = live.run()[1]
    got = output.prompt_logprobs_dict["A"].logprob_token_ids.tolist()
    assert got == [[token, 0, 1] for token in PROMPT[1:]], f"read {got}"


def test_no_logprobs_no_concatenation(live: Live) -> None:
    """Guard: a step in which nobody asks for logprobs gathers nothing."""
    live.add("A", 5, sampling())
    with Concat() as concat:
        assert live.step() == {"A": [0]}
        assert live.step() == {"A": [0]}
    assert not [parts for parts in concat.seen if len(parts) == 2]
