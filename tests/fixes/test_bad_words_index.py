"""bad-words-index: bad words filter the logits of the request that asked for them, and no others.

In every row token 0 is the most likely, then 1, 2, ...: a request that may not say 0 says 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cpuhpu import sampling
from live import Live


@pytest.fixture(scope="module")
def engines() -> dict[str, Live]:
    options: dict[str, Any] = {"max_num_seqs": 8}
    return {"sync": Live(False, **options), "async": Live(True, **options)}


@pytest.fixture(params=["sync", "async"])
def live(engines: dict[str, Live], request: pytest.FixtureRequest) -> Iterator[Live]:
    yield engines[request.param]
    engines[request.param].clear()


@pytest.fixture
def sync(engines: dict[str, Live]) -> Iterator[Live]:
    yield engines["sync"]
    engines["sync"].clear()


def without(*words: list[int], **options: Any) -> Any:
    """Parameters with these bad words; the tokenizer, which there is none of here, would make them from text."""
    params = sampling(**options)
    params._bad_words_token_ids = list(words)
    assert params.bad_words_token_ids == list(words)
    return params


def test_second_arrival(live: Live) -> None:
    """Two prompts of one step: the first one's call has one row, and the second one's words are keyed 1."""
    live.add("A", 5, sampling())
    live.add("B", 5, without([0]))
    assert live.step() == {"A": [0], "B": [1]}
    assert live.step() == {"A": [0], "B": [1]}


def test_arrival_beside_a_decode(live: Live) -> None:
    live.add("D", 5, sampling())
    live.step()
    live.add("B", 5, without([0]))
    assert live.step() == {"D": [0], "B": [1]}


def test_prompt_behind_the_decodes(live: Live) -> None:
    """A chunked prompt with bad words, not sampled yet, lies behind the rows of the decodes' call."""
    live.add("D", 5, sampling())
    live.step()
    live.add("P", 700, without([0]))
    got = live.step()
    assert got["D"] == [0]
    assert live.step() == {"D": [0], "P": [1]}


def test_words_of_another_request(live: Live) -> None:
    """A decode in row 0 has bad words; the new prompt's call has a row 0 as well."""
    live.add("D", 5, without([0]))
    live.step()
    live.add("A", 5, sampling())
    got = live.step()
    assert got == {"D": [1], "A": [0]}, f"sampled {got}"


def test_each_request_its_own_words(live: Live) -> None:
    live.add("D0", 5, without([0]))
    assert live.step() == {"D0": [1]}
    live.add("A", 5, without([1]))
    live.add("B", 5, without([0], [1]))
    live.add("C", 5, without([0], [1], [2]))
    got = live.step()
    assert got == {"D0": [1], "A": [0], "B": [2], "C": [3]}, f"sampled {got}"


def test_words_of_two_tokens(sync: Live) -> None:
    """Synchronous: [0, 0] is banned, so B alternates."""
    sync.add("A", 5, sampling())
    sync.add("B", 5, without([0, 0]))
    steps = [sync.step() for _ in range(4)]
    assert [step["A"] for step in steps] == [[0], [0], [0], [0]]
    assert [step["B"] for step in steps] == [[0], [1], [0], [1]]


# Guards: stock does these right, and each fix must keep them.


def test_structured_step(live: Live) -> None:
    """In the combined call batch rows are logits rows: right on stock, wrong with this fix and another row order."""
    live.add("D0", 5, sampling())
    live.add("D1", 5, sampling())
    live.step()
    live.add("A", 5, without([0]))
    assert live.step(grammar=["D0", "D1", "A"]) == {"D0": [0], "D1": [0], "A": [1]}


def test_structured_step_with_words_in_the_decodes(live: Live) -> None:
    live.add("D0", 5, without([0]))
    live.step()
    live.add("A", 5, sampling())
    live.add("B", 5, sampling())
    assert live.step(grammar=["D0", "A", "B"]) == {"D0": [1], "A": [0], "B": [0]}


def test_padded_decodes(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three decodes in a bucket of six: the right rows, and no words for padding rows beyond the requests."""
    calls: list[tuple[int, dict[int, Any]]] = []
    manager = live.runner.bucketing_manager
    find = manager.find_decode_bucket

    def padded(*args: Any, **named: Any) -> Any:
        _, *rest = find(*args, **named)
        return (6, *rest)

    for name in ("D0", "D1", "D2"):
        live.add(name, 5, sampling())
    live.step()
    live.runner.input_batch.bad_words_token_ids = {0: [[0]], 2: [[0], [1]]}
    run = live.runner._run_sampling

    def spy(*args: Any, **named: Any) -> Any:
        output, metadata = run(*args, **named)
        calls.append((output.sampled_token_ids.shape[0], metadata.bad_words_token_ids))
        return output, metadata

    monkeypatch.setattr(manager, "find_decode_bucket", padded)
    monkeypatch.setattr(live.runner, "_run_sampling", spy)
    assert live.step() == {"D0": [1], "D1": [0], "D2": [2]}
    assert calls == [(6, {0: [[0]], 2: [[0], [1]]})]
    live.runner.input_batch.bad_words_token_ids.clear()


def test_single_request(live: Live) -> None:
    live.add("A", 5, without([0], [1]))
    assert [live.step() for _ in range(3)] == [{"A": [2]}] * 3


def test_no_words(live: Live) -> None:
    live.add("A", 5, sampling())
    live.step()
    live.add("B", 5, sampling())
    assert live.step() == {"A": [0], "B": [0]}
