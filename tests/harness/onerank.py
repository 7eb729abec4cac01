"""The one process that vLLM's layers are made in: groups of one rank, and the workspaces of the kernels.

Proof files run after one another in one interpreter, in any order.  So whoever needs groups or a workspace takes them
here, and afterwards everything is as it was before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def one_rank() -> Iterator[Any]:
    """Inside, vLLM has its groups and an own, empty workspace on the CPU; out: the configuration they were made with.

    Groups that are there are used and left alone, so that one ``one_rank`` may lie in another.
    """
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel, parallel_state
    from vllm.v1.worker import workspace

    config = VllmConfig(device_config=DeviceConfig("cpu"))
    world, groups = torch.distributed.is_initialized(), parallel_state.model_parallel_is_initialized()
    before = workspace._manager
    with tempfile.TemporaryDirectory(prefix="one-rank-") as folder:
        try:
            if not groups:
                with set_current_vllm_config(config):
                    init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
                    initialize_model_parallel(1, 1)
            workspace.reset_workspace_manager()  # or the next call would say that there is one
            workspace.init_workspace_manager(torch.device("cpu"))
            yield config
        finally:
            workspace._manager = before
            if not groups:
                parallel_state.destroy_model_parallel()
            if not world:
                parallel_state.destroy_distributed_environment()
