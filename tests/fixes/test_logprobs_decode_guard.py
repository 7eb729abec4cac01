"""logprobs-decode-guard: whatever id stands in a row of logprobs, every request's output is delivered.

The tokenizers are real ones, built in memory: a byte-level one (as GPT-2's), one with Metaspace (as Llama's), one with
byte fallback, and one whose vocabulary has gaps.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import detokenizer_utils
from vllm.tokenizers.hf import get_cached_tokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

BAD = [-1, -559038737, -(2**31), 2**31, 2**32, 2**63 - 1]


def fast(vocabulary: dict[str, int], pre: Any, decoder: Any) -> Any:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoder
    return get_cached_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def byte_level() -> Any:
    return fast({"a": 0, "b": 1, "Ġc": 2, "<unk>": 3}, pre_tokenizers.ByteLevel(add_prefix_space=False),
                decoders.ByteLevel())


def metaspace() -> Any:
    return fast({"▁a": 0, "b": 1, "▁▁c": 2, "<unk>": 3}, pre_tokenizers.Metaspace(), decoders.Metaspace())


def byte_fallback() -> Any:
    """The euro sign is three tokens, 2 to 4."""
    vocabulary = {"a": 0, "b": 1, "<0xE2>": 2, "<0x82>": 3, "<0xAC>": 4, "<unk>": 5}
    return fast(vocabulary, pre_tokenizers.Metaspace(), decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]))


def told(decode: Any, *args: Any) -> Any:
    """What it returns, or the name of what it raises."""
    try:
        return decode(*args)
    except (OverflowError, TypeError) as error:
        return type(error).__name__


def processor(tokenizer: Any, flat: bool = False, **params: Any) -> LogprobsProcessor:
    request = SimpleNamespace(sampling_params=SamplingParams(flat_logprobs=flat, **params))
    return LogprobsProcessor.from_new_request(tokenizer, request)


def row(*ids: int) -> LogprobsLists:
    count = len(ids)
    return LogprobsLists(np.array([ids]), np.zeros((1, count), np.float32), np.array([1]), None)


def text(position: Any) -> dict[int, str]:
    return {token: entry.decoded_token for token, entry in position.items()}


def test_ids_of_a_byte_level_tokenizer() -> None:
    tokenizer = byte_level()
    got = [told(detokenizer_utils.convert_ids_list_to_tokens, tokenizer, [0, bad, 2]) for bad in [*BAD, 4, 2**32 - 1]]
    assert got == [["a", "", " c"]] * 8, f"got {got}"


def test_ids_of_a_metaspace_tokenizer() -> None:
    """Here an id without an entry is enough: 4 is what a padded vocabulary has."""
    tokenizer = metaspace()
    good = detokenizer_utils.convert_ids_list_to_tokens(tokenizer, [0, 2])
    got = [told(detokenizer_utils.convert_ids_list_to_tokens, tokenizer, [0, bad, 2]) for bad in [4, 2**32 - 1, *BAD]]
    assert got == [[good[0], "", good[1]]] * 8, f"got {got}"


@pytest.mark.parametrize("make", [byte_level, metaspace, byte_fallback])
@pytest.mark.parametrize("flat", [False, True], ids=["dicts", "flat"])
def test_row_of_a_request(make: Any, flat: bool) -> None:
    own = processor(make(), flat, logprobs=1)
    own._update_sample_logprobs(row(-559038737, 1))
    own._update_sample_logprobs(row(1, 2**32))
    assert [text(position) for position in own.logprobs] == [{-559038737: "", 1: "b"}, {1: "b", 2**32: ""}]


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_prompt_rows(make: Any) -> None:
    """What never written slots of the buffer for prompts may hold."""
    own = processor(make(), prompt_logprobs=1)
    ids = torch.tensor([[1, 3], [-7, 1], [1, 2**31 - 1]], dtype=torch.int32)
    own._update_prompt_logprobs(LogprobsTensors(ids, torch.zeros(3, 2), torch.ones(3, dtype=torch.int64)))
    assert [text(position) for position in own.prompt_logprobs[1:]] == [
        {1: "b", 3: "<unk>"}, {-7: "", 1: "b"}, {1: "b", 2**31 - 1: ""}]


@pytest.mark.parametrize("flat", [False, True], ids=["dicts", "flat"])
def test_context_of_a_part_of_a_character(flat: bool) -> None:
    """A row whose sampled id is bad, then parts of a character: they are decoded with that row as context."""
    own = processor(byte_fallback(), flat, logprobs=1)
    for ids in [(0, 1), (2, 1), (3, 1), (-5, 1), (4, 1)]:
        own._update_sample_logprobs(row(*ids))
    assert [text(position) for position in own.logprobs] == [
        {0: "a", 1: "b"}, {2: "", 1: "b"}, {3: "", 1: "b"}, {-5: "", 1: "b"}, {4: "€", 1: "b"}]


def test_other_requests_get_their_output() -> None:
    """The step's outputs of all requests pass through one call; on stock it raises, and nobody gets anything."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor

    outputs = OutputProcessor(byte_level(), log_stats=False)
    for name in "AB":
        outputs.add_request(
            EngineCoreRequest(
                request_id=name, external_req_id=name, prompt_token_ids=[0, 1], mm_features=None, pooling_params=None,
                sampling_params=SamplingParams(logprobs=1, output_kind=RequestOutputKind.DELTA), arrival_time=0.0,
                lora_request=None, cache_salt=None, data_parallel_rank=None), None)
    step = [EngineCoreOutput("A", [2], new_logprobs=row(-559038737, 1)),
            EngineCoreOutput("B", [2], new_logprobs=row(2, 1))]
    delivered = {output.request_id: output.outputs[0] for output in outputs.process_outputs(step).request_outputs}
    assert [delivered[name].text for name in "AB"] == [" c", " c"]
    assert text(delivered["A"].logprobs[0]) == {-559038737: "", 1: "b"}
    assert text(delivered["B"].logprobs[0]) == {2: " c", 1: "b"}


def test_module() -> None:
    from vllm._fixpack.known_ids import decode_known, is_known, known_context, known_pieces

    tokenizer = fast({"a": 0, "b": 1, "c": 9, "<unk>": 3}, pre_tokenizers.ByteLevel(), decoders.ByteLevel())
    assert len(tokenizer) == 4
    assert [id for id in range(-2, 12) if is_known(tokenizer, id)] == [0, 1, 2, 3, 9]
    assert known_pieces(tokenizer, [0, 9]) == ["a", "c"]
    assert known_pieces(tokenizer, [0, 2, 9, 8, -1]) == ["a", None, "c", None, None]
    assert [decode_known(tokenizer, id) for id in (0, 2, 8, 9, -1)] == ["a", "", "", "c", ""]
    assert known_context(tokenizer, [9, -1, 8, 0]) == [9, 0]


# Guards: good ids, as on stock.


@pytest.mark.parametrize("make", [byte_level, metaspace, byte_fallback])
def test_good_ids(make: Any) -> None:
    tokenizer = make()
    ids = [*range(len(tokenizer)), 0, 1]
    whole = detokenizer_utils.convert_ids_list_to_tokens(tokenizer, ids)
    assert whole == [detokenizer_utils.convert_ids_list_to_tokens(tokenizer, [id])[0] for id in ids]
    assert [piece.strip() for piece in whole] == [tokenizer.decode([id]).strip() for id in ids]
    assert detokenizer_utils.convert_ids_list_to_tokens(tokenizer, []) == []


def test_ids_beyond_a_gap() -> None:
    """A vocabulary with gaps has ids beyond its length, and they have a text."""
    tokenizer = fast({"a": 0, "b": 1, "Ġc": 9, "<unk>": 3}, pre_tokenizers.ByteLevel(), decoders.ByteLevel())
    assert len(tokenizer) == 4
    assert detokenizer_utils.convert_ids_list_to_tokens(tokenizer, [9, 0]) == [" c", "a"]


def test_plain_tokenizer() -> None:
    """One without vLLM's cache around it, and with the methods of a test's stand-in only."""
    class Standin:
        def __len__(self) -> int:
            return 3

        def decode(self, ids: list[int]) -> str:
            return "xyz"[ids[0]]

    assert detokenizer_utils.convert_ids_list_to_tokens(Standin(), [2, 0]) == ["z", "x"]


def test_character_in_parts() -> None:
    own = processor(byte_fallback(), logprobs=1)
    for ids in [(0, 1), (2, 1), (3, 1), (4, 1)]:
        own._update_sample_logprobs(row(*ids))
    assert [text(position)[ids] for position, ids in zip(own.logprobs, [0, 2, 3, 4], strict=True)] == ["a", "", "", "€"]


def test_without_tokenizer() -> None:
    own = processor(None, logprobs=1)
    own._update_sample_logprobs(row(-5, 2**32))
    assert text(own.logprobs[0]) == {-5: None, 2**32: None}
