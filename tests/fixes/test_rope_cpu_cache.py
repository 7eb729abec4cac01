"""rope-cpu-cache: the tables of rotary embeddings are right at every position, also where the device's sine is not.

Models are constructed with "hpu" as torch's default device.  The stand-in for it calculates as a CPU does, so
``Trigonometry`` notes where sines and cosines are taken, and can make the device's wrong for large angles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding import deepseek_scaling_rope, phi3_long_rope_scaled_rope

DIM = 32
POSITIONS = 262_144
MILLION = 1_048_576
YARN = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": POSITIONS // 4, "beta_fast": 32,
        "beta_slow": 1}
PHI3 = {"short_factor": [1.0 + 0.1 * i for i in range(DIM // 2)],
        "long_factor": [1.0 + 0.37 * i for i in range(DIM // 2)]}


class Trigonometry(TorchDispatchMode):
    """Notes device and dtype of every sine and cosine, and every 64-bit tensor on the device."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.taken: set[tuple[str, str]] = set()
        self.wide: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type == "hpu" and result.dtype is torch.float64:
            self.wide.append(str(func))
        if func in (torch.ops.aten.cos.default, torch.ops.aten.sin.default):
            angle = args[0]
            self.taken.add((angle.device.type, str(angle.dtype).removeprefix("torch.")))
            if self.fails and angle.device.type == "hpu":
                result = torch.where(angle.abs() > 150_000, torch.zeros_like(result), result)
        return result


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    """Constructors ask for the current configuration; the factory keeps what it made."""
    length = SimpleNamespace(model_config=SimpleNamespace(max_model_len=POSITIONS))
    with set_current_vllm_config(VllmConfig()), mock.patch.dict(rotary_embedding._ROPE_DICT, clear=True), \
            mock.patch.object(phi3_long_rope_scaled_rope, "get_current_vllm_config", return_value=length):
        yield


def factory(positions: int, **parameters: Any) -> Callable[..., Any]:
    def make(dtype: torch.dtype = torch.float32) -> Any:
        return rotary_embedding.get_rope(DIM, positions, True, {"rope_theta": 5e6, **parameters}, dtype)

    return make


def deepseek(kind: str) -> Callable[..., Any]:
    def make(dtype: torch.dtype = torch.float32) -> Any:
        return getattr(deepseek_scaling_rope, kind)(DIM, DIM, POSITIONS // 4, 1e4, True, 4.0, dtype, mscale=1.0,
                                                    mscale_all_dim=0.5)

    return make


def llama3() -> Callable[..., Any]:
    return factory(POSITIONS, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=8192)


def phi3(positions: int = POSITIONS) -> Callable[..., Any]:
    return factory(positions, rope_type="longrope", original_max_position_embeddings=4096, **PHI3)


MAKES = {
    "base": factory(POSITIONS),
    "llama3": llama3(),
    "linear": factory(POSITIONS // 3 + 1, rope_type="linear", factor=3.0),
    "dynamic": factory(POSITIONS, rope_type="dynamic", factor=2.0, max_trained_positions=POSITIONS // 2),
    "mrope": factory(POSITIONS // 4, mrope_section=[4, 6, 6]),
    "yarn": factory(POSITIONS // 4, rope_type="yarn", **YARN),
    "deepseek": deepseek("DeepseekScalingRotaryEmbedding"),
    "deepseek-v4": deepseek("DeepseekV4ScalingRotaryEmbedding"),
    "phi3": phi3(),
}
classes = pytest.mark.parametrize("name", MAKES)


def table(rope: Any) -> torch.Tensor:
    found = getattr(rope, "cos_sin_cache", None)
    return rope.long_short_cos_sin_cache if found is None else found


def on_device(make: Callable[..., Any], dtype: torch.dtype = torch.float32, fails: bool = False
              ) -> tuple[torch.Tensor, Trigonometry]:
    """The table of a module that is constructed as in a model, and what was noted."""
    with torch.device("hpu"), Trigonometry(fails) as noted:
        return table(make(dtype)), noted


def powers(base: float) -> np.ndarray:
    return base ** (np.arange(0, DIM, 2, dtype=np.float64) / DIM)


def true_table(name: str, rows: np.ndarray, rope: Any) -> np.ndarray:
    """The rows in float64, from the definition; what only scales frequencies is taken from the module itself."""
    scale = 1.0
    if name in ("base", "mrope"):
        frequencies = 1 / powers(5e6)
    elif name == "linear":
        frequencies = 1 / powers(5e6) / 3.0
    elif name == "phi3":
        first = rows < 4096
        factors = np.where(first[:, None], PHI3["short_factor"], PHI3["long_factor"])
        frequencies = 1 / (factors * powers(5e6))
        rows = np.where(first, rows, rows - 4096)
        scale = rope.short_mscale
    elif name == "dynamic":
        frequencies = 1 / powers(5e6 * (2.0 * 2 - 1) ** (DIM / (DIM - 2)))
    else:
        argument = rope.base if name == "llama3" else rope.scaling_factor
        frequencies = rope._compute_inv_freq(argument).double().numpy()
        scale = getattr(rope, "mscale", 1.0)
    angles = rows[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * scale


@classes
def test_where_the_trigonometry_runs(name: str) -> None:
    found, noted = on_device(MAKES[name])
    assert noted.taken == {("cpu", "float64")}, f"ran on {sorted(noted.taken)}"
    assert noted.wide == []
    assert (found.device.type, found.dtype) == ("hpu", torch.float32)


@classes
def test_values(name: str) -> None:
    """Every position, as far as the reference can be held in memory: 262,144 of them."""
    rope = MAKES[name]()
    found = table(rope)
    rows = np.arange(found.shape[0])
    assert len(rows) >= POSITIONS
    worst = max(float(np.abs(found[at:at + 32768].numpy() - true_table(name, rows[at:at + 32768], rope)).max())
                for at in range(0, len(rows), 32768))
    assert worst < 1e-6, f"{name}: off by {worst:.1e}"


@classes
def test_values_of_a_device_that_fails(name: str) -> None:
    """Row 200,000 on a device whose sine and cosine are zero beyond 150,000."""
    found = on_device(MAKES[name], fails=True)[0][200_000:200_001].cpu().numpy()
    worst = float(np.abs(found - true_table(name, np.array([200_000]), MAKES[name]())).max())
    assert worst < 1e-6, f"{name}: off by {worst:.1e}"


@pytest.mark.parametrize("name", ["base", "yarn"])
def test_million_positions(name: str) -> None:
    """1,048,576 positions: YaRN reaches them with a factor of 4."""
    make = factory(MILLION) if name == "base" else factory(
        POSITIONS, rope_type="yarn", **{**YARN, "original_max_position_embeddings": POSITIONS})
    found, noted = on_device(make, torch.bfloat16)
    assert noted.taken == {("cpu", "float64")}, f"ran on {sorted(noted.taken)}"
    assert (found.device.type, found.dtype, found.shape) == ("hpu", torch.bfloat16, (MILLION, DIM))
    rows = np.arange(0, MILLION, 1009)
    wanted = torch.from_numpy(true_table(name, rows, make())).to(torch.bfloat16)
    worst = float((found[rows].cpu() - wanted).abs().max())
    assert worst <= 2 ** -7, f"{name}: off by {worst:.1e}"


def test_module() -> None:
    from vllm._fixpack.rope_table import build_table

    def compute(dtype: torch.dtype) -> torch.Tensor:
        made = torch.arange(3).to(dtype)
        assert made.device.type == "cpu"
        return made

    with torch.device("hpu"):
        for given, wanted in [(torch.float64, torch.float32), (torch.float32, torch.float32),
                              (torch.complex64, torch.complex64), (torch.bfloat16, torch.bfloat16)]:
            made = build_table(compute, given)
            assert (made.device.type, made.dtype) == ("hpu", wanted)
        assert torch.empty(0).device.type == "hpu"
    assert build_table(compute, torch.float32).device.type == "cpu"


# Guards.


@classes
def test_buffer(name: str) -> None:
    """Device, dtype and shape of the buffer are those of the model."""
    found, noted = on_device(MAKES[name], torch.bfloat16)
    assert found.device.type == "hpu"
    assert found.dtype is (torch.float32 if name == "deepseek-v4" else torch.bfloat16)
    rows = {"phi3": POSITIONS + 4096, "linear": 3 * (POSITIONS // 3 + 1)}.get(name, POSITIONS)
    assert found.shape == (rows, DIM)
    assert noted.wide == []


def test_short_positions() -> None:
    """Where 32 bits are enough, the table is what it was, to a rounding."""
    angles = torch.arange(2048.0)[:, None] / (5e6 ** (torch.arange(0, DIM, 2).float() / DIM))
    wanted = torch.cat([angles.cos(), angles.sin()], dim=-1)
    found = on_device(factory(2048))[0].cpu()
    assert float((found - wanted).abs().max()) < 2e-4
    same = (found.bfloat16() == wanted.bfloat16()).float().mean()
    assert same > 0.99
