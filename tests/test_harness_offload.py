"""The books of host memory: what is rounded, what is kept, what goes back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent / "harness"))

torch = pytest.importorskip("torch", reason="needs torch: python3 bootstrap.py test")

import offload  # noqa: E402

MIB = 2**20


def tensor() -> torch.Tensor:
    """Some storage to hold an entry; its size does not matter to the books."""
    return torch.empty(1)


@pytest.mark.parametrize(("asked", "taken"), [(1, 1), (3, 4), (4 * MIB, 4 * MIB), (4 * MIB + 1, 8 * MIB)])
def test_pinned_memory_is_rounded_up_to_a_power_of_two(asked: int, taken: int) -> None:
    host, holder = offload.Host(), tensor()
    host.allocate("pinned", asked, holder)
    assert (host.reserved(), host.pins) == (taken, 1)


def test_a_freed_pinned_block_is_kept_and_used_again() -> None:
    host, first = offload.Host(), tensor()
    host.allocate("pinned", 3 * MIB, first)
    del first
    assert host.reserved() == 4 * MIB
    second, third = tensor(), tensor()
    host.allocate("pinned", 4 * MIB, second)
    assert host.reserved() == 4 * MIB
    host.allocate("pinned", 4 * MIB, third)
    assert host.reserved() == 8 * MIB


@pytest.mark.parametrize("kind", ["exact", "pageable"])
def test_other_memory_is_exact_and_goes_back(kind: str) -> None:
    host, holder = offload.Host(), tensor()
    host.allocate(kind, 3 * MIB, holder)
    assert (host.reserved(), host.reserved(kind), host.reserved("pinned"), host.pins) == (3 * MIB, 3 * MIB, 0, 0)
    view = holder[:0]  # another tensor of the same storage
    del holder
    assert host.reserved() == 3 * MIB
    assert host.on_host(view)
    del view
    assert host.reserved() == 0


def test_one_storage_is_one_entry_and_the_peak_stays() -> None:
    host, first, second = offload.Host(), tensor(), tensor()
    host.allocate("exact", MIB, first)
    host.allocate("pageable", MIB, first)
    assert host.reserved() == MIB
    host.allocate("exact", MIB, second)
    del first, second
    assert (host.reserved(), host.peak) == (0, 2 * MIB)
    assert not host.on_host(tensor())
