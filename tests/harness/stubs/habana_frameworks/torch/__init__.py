"""CPU stand-in: every HPU op runs as plain PyTorch on the CPU; see _cpu_device for device "hpu"."""
import torch  # noqa: F401  (vllm_gaudi does `from habana_frameworks.torch import torch`)

from . import (  # noqa: F401
    _cpu_device,  # first: makes device "hpu" usable
    _cpu_ops,
    _hccl,
    core,
    hpex,
    hpu,
    internal,
    utils,
)
