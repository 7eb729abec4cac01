"""The memory of the machine as hotsplit sees it: how much there is, and tensors in HBM and in pinned host memory."""

from __future__ import annotations

from collections.abc import Sequence

import psutil
import torch

from vllm.utils import torch_utils

CGROUP = "/sys/fs/cgroup"


class Machine:
    """One GPU and its host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def hbm_free(self) -> int:
        """Bytes that can be allocated, with what torch's allocator holds unused."""
        free, _ = torch.cuda.mem_get_info(self.device)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(free + unused)

    def host_available(self) -> int:
        """MemAvailable, or less where a container has its own limit."""
        return min(psutil.virtual_memory().available, _container_room())

    def in_hbm(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in HBM."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def in_host(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A GPU's view of pinned host memory of exactly this size, which goes back to the host with the view.

        vLLM's view of a tensor that is not pinned allocates its own bytes. The tensor given to it is never written, so
        that its pages take no memory of their own.
        """
        return torch_utils.get_accelerator_view_from_cpu_tensor(torch.empty(tuple(shape), dtype=dtype, device="cpu"))

    def wait(self) -> None:
        """Until all copies are done."""
        torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Give unused HBM back to the driver: old tensors leave whole segments, which the next bank must not cut up."""
        torch.cuda.empty_cache()


def _container_room() -> int:
    """Bytes up to the control group's limit, counting its file cache as free; practically endless without a limit."""
    try:
        with open(f"{CGROUP}/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
        if limit == "max":
            return 1 << 62
        with open(f"{CGROUP}/memory.current", encoding="ascii") as file:
            used = int(file.read())
        with open(f"{CGROUP}/memory.stat", encoding="ascii") as file:
            cached = next((int(line.split()[1]) for line in file if line.startswith("inactive_file ")), 0)
    except FileNotFoundError:  # no control groups of version 2
        return 1 << 62
    return max(int(limit) - used + cached, 0)
