"""The books of a machine with a GPU: what is pinned at which size, what is given back, and what a view takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parent / "harness"))

import uva  # noqa: E402

GIB = 1 << 30


@pytest.fixture
def books() -> Iterator[Any]:
    """Without vLLM, whose platform ``machine()`` also stands in for."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), uva.Machine() as found, uva._Bindings():
        yield found


def weight(device: str = "cuda") -> Any:
    return torch.empty(384, 4096, 3072, dtype=torch.uint8, device=device)  # 4.5 GiB


def view(tensor: Any) -> Any:
    return torch.ops._C.get_cuda_view_from_cpu_tensor(tensor)


def test_places(books: Any) -> None:
    held = [weight(), weight("cpu"), weight("cpu").pin_memory()]
    assert (books.hbm, books.pageable, books.pinned, books.exact) == (4.5 * GIB, 4.5 * GIB, 8 * GIB, 0)
    assert books.reserved == 12.5 * GIB
    assert [books.on_host(tensor) for tensor in held] == [False, True, True]
    assert [tensor.is_pinned() for tensor in held[1:]] == [False, True]
    assert books.pin_calls == 1


def test_the_allocator_keeps_its_blocks(books: Any) -> None:
    first = torch.empty_like(weight("cpu"), pin_memory=True)
    del first
    assert books.pinned == 8 * GIB
    second = weight("cpu").pin_memory()
    assert books.pinned == 8 * GIB
    third = weight("cpu").pin_memory()
    assert books.pinned == 16 * GIB
    assert second.is_pinned()
    assert third.is_pinned()


def test_view_of_a_pinned_tensor(books: Any) -> None:
    seen = view(weight("cpu").pin_memory())
    assert (seen.device.type, books.on_host(seen)) == ("cuda", True)
    assert (books.hbm, books.pinned, books.exact) == (0, 8 * GIB, 0)


def test_view_of_another_tensor(books: Any) -> None:
    seen = view(weight("cpu"))
    assert (books.hbm, books.pageable, books.exact, books.on_host(seen)) == (0, 0, 4.5 * GIB, True)
    assert books.peak_host == 9 * GIB  # for the time of the copy
    part = seen[1:, ..., :3]
    assert books.on_host(part)
    del seen, part
    assert books.reserved == 0


def test_bindings(books: Any) -> None:
    """What Python's methods would refuse without a CUDA build; shapes as torch's, and what was copied to the host."""
    held = weight()
    real = torch.empty(4, 4096, 3072, dtype=torch.uint8, device="meta")[:, [2, 0], None, 5:100:3].shape
    assert held[:4, [2, 0], None, 5:100:3].shape == real
    assert held[3].view(torch.int32).T.contiguous().shape == (768, 4096)
    target = view(weight("cpu"))
    target.copy_(held)
    target[0] = held[1]
    target[1, 2] = 3
    target[[0, 1]] = held[[2, 3]]
    assert books.written == held.nbytes + held[0].nbytes
    moved = weight("cpu").to("cuda")
    assert not books.on_host(moved)
    parameter = torch.nn.Parameter(held, requires_grad=False)
    parameter.data = weight("cpu")
    assert (parameter.device.type, books.on_host(parameter)) == ("cpu", True)
