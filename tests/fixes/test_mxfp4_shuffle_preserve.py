"""mxfp4-shuffle-preserve: what a kernel makes of an offloaded expert weight ends up in the memory that was offloaded.

One layer of MiMo-V2.6-Pro (384 experts, 6.75 GiB) takes the release's own offloader, MXFP4 method, conversion and
loading context.  Stand-ins: the packing operator of Marlin (the shape is vLLM's own), and two functions of FlashInfer.
The first test has sizes and places, but no bytes; the others have bytes, on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import uva
from torch import nn

REPACK = "gptq_marlin_repack"
if not hasattr(torch.ops._C, REPACK):  # vLLM has its shape, but registers it only beside the operator
    LATE = "vllm._custom_ops" in sys.modules  # another proof file came first: vLLM looked, and there was none
    uva.OPERATORS.define(f"{REPACK}(Tensor q, SymInt size_k, SymInt size_n, int num_bits, bool is_a_8bit) -> Tensor")
    if LATE:

        @torch.library.register_fake(f"_C::{REPACK}")
        def shape(q: torch.Tensor, size_k: int, size_n: int, num_bits: int, is_a_8bit: bool) -> torch.Tensor:
            return torch.empty((size_k // 16, size_n * (num_bits // 2)), dtype=q.dtype, device=q.device)

from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # noqa: E402
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import Mxfp4MoeBackend  # noqa: E402
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase  # noqa: E402
from vllm.model_executor.layers.quantization.mxfp4 import Mxfp4MoEMethod  # noqa: E402
from vllm.model_executor.layers.quantization.online import fp8, moe_base  # noqa: E402, F401  (asks for operators on a GPU)
from vllm.model_executor.model_loader import utils as loading  # noqa: E402
from vllm.model_executor.offloader.uva import UVAOffloader  # noqa: E402
from vllm.model_executor.utils import replace_parameter  # noqa: E402

EXPERTS, HIDDEN, INTERMEDIATE = 384, 6144, 2048
WEIGHTS = ("w13_weight", "w2_weight")
MARK = "_vllm_is_uva_offloaded"


def pack(q: torch.Tensor, size_k: int, size_n: int, num_bits: int, is_a_8bit: bool) -> torch.Tensor:
    """Some reordering in Marlin's shape; which one does not matter here."""
    return q.flatten().flip(0).reshape(size_k // 16, size_n * 2).contiguous()


uva.OPERATORS.impl(REPACK, pack, "CPU")


@pytest.fixture(autouse=True)
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two functions that the TRT-LLM format takes from FlashInfer: a permutation of rows, and one of scales."""

    def permute_indices(_cache: object, rows: torch.Tensor, _tile: int, num_elts_per_sf: int = 0) -> torch.Tensor:
        return torch.arange(rows.shape[0] - 1, -1, -1)

    names = ("flashinfer", "flashinfer.fp4_quantization", "flashinfer.fused_moe", "flashinfer.fused_moe.core")
    modules = {name: ModuleType(name) for name in names}
    modules["flashinfer.fp4_quantization"].nvfp4_block_scale_interleave = torch.clone  # type: ignore[attr-defined]
    modules["flashinfer.fused_moe.core"].get_w2_permute_indices_with_cache = permute_indices  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def experts(backend: Mxfp4MoeBackend, count: int, hidden: int, intermediate: int) -> nn.Module:
    """A layer as vLLM makes it, and the real method; only the kernel behind the weights is not made."""
    method = Mxfp4MoEMethod.__new__(Mxfp4MoEMethod)
    method.moe = SimpleNamespace(w13_num_shards=2, has_bias=False, activation=MoEActivation.SILU,
                                 use_mxfp4_w4a4_dsv4=False)
    method.mxfp4_backend, method.experts_cls = backend, None
    method.moe_kernel, method._cache_permute_indices = None, {}
    method.activation_key = None
    method.is_k3_situ_aiter = method.is_k3_situ_int4_gfx942 = False
    layer = nn.Module()
    layer.activation = MoEActivation.SILU
    method.create_weights(layer, count, hidden, intermediate, torch.bfloat16, weight_loader=load)
    layer.quant_method = method
    return layer


def load(*_args: Any, **_named: Any) -> None:
    """A weight loader that is only looked for."""


class Pads(QuantizeMethodBase):
    """A method whose kernel wants 512 rows more: no layout that fits into the old place."""

    def create_weights(self, layer: nn.Module, *_args: Any, **_named: Any) -> None:
        raise NotImplementedError

    def apply(self, layer: nn.Module, *_args: Any, **_named: Any) -> torch.Tensor:
        raise NotImplementedError

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        for name in WEIGHTS:
            old = getattr(layer, name).data
            replace_parameter(layer, name, torch.zeros(old.shape[0], old.shape[1] + 512, old.shape[2],
                                                       dtype=old.dtype, device=old.device))


class Model(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.experts = nn.Module()
        self.experts.routed_experts = layer


class Cost(NamedTuple):
    """What the conversion of one layer takes beyond what the layer had, in GiB, and where w13 and w2 are then."""

    host: float  # at most, on the way
    hbm: float  # for good
    places: str
    marks: str  # where their marks say that they are
    same: bool  # whether both are in the memory that they had
    copied: float  # into views of host memory

    def __str__(self) -> str:
        where = f"in {'the same' if self.same else 'other'} memory of {self.places}, marked {self.marks}"
        return f"host +{self.host:.2f}, HBM +{self.hbm:.2f}, {where}"


def names(values: Iterator[bool]) -> str:
    return "+".join("host" if value else "HBM" for value in values)


def convert(make: Callable[[], nn.Module]) -> Cost:
    """Offload one layer, then have vLLM convert it as it does after loading."""
    with uva.machine() as books:
        with torch.device("cuda"):
            layer = make()
        offloader = UVAOffloader(320 * uva.GIB, {f"routed_experts.{name}" for name in WEIGHTS})
        model = offloader.wrap_modules(iter([Model(layer)]))[0]
        before = {name: uva.key(getattr(layer, name)) for name in WEIGHTS}
        assert all(books.on_host(getattr(layer, name)) for name in WEIGHTS), "the offloader left them in HBM"
        host, hbm = books.reserved, books.hbm
        books.peak_host = host
        config = SimpleNamespace(quantization=None, dtype=torch.bfloat16)
        loading.process_weights_after_loading(model, config, torch.device("cuda"))
        after = {name: getattr(layer, name) for name in WEIGHTS}
        return Cost(
            round((books.peak_host - host) / uva.GIB, 4),  # an index of Marlin's scales takes 512 bytes
            round((books.hbm - hbm) / uva.GIB, 4),
            names(books.on_host(weight) for weight in after.values()),
            names(getattr(weight, MARK, False) for weight in after.values()),
            before == {name: uva.key(weight) for name, weight in after.items()},
            books.written / uva.GIB,
        )


@pytest.fixture(params=["rounded", "exact"])
def pinning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How offloaded weights are pinned: in blocks of torch's allocator (default), or each with its own size."""
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY", str(int(request.param == "exact")))
    return str(request.param)


@pytest.fixture(autouse=True)
def no_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is one layer: there are no embeddings to tie."""
    monkeypatch.setattr(loading, "maybe_retie_word_embeddings", lambda *_: None)


SHUFFLED = Cost(0.0, 0.0, "host+host", "host+host", True, 6.75)
KEPT = SHUFFLED._replace(copied=0.0)
BACKENDS = {
    "Marlin": Mxfp4MoeBackend.MARLIN,  # 32-bit words of another shape
    "TRT-LLM": Mxfp4MoeBackend.FLASHINFER_TRTLLM_MXFP4_MXFP8,  # the same shape, shuffled
    "B12X": Mxfp4MoeBackend.B12X_MXFP4_MXFP8,  # as loaded: the very same memory
}


def whole_layer(backend: Mxfp4MoeBackend) -> nn.Module:
    return experts(backend, EXPERTS, HIDDEN, INTERMEDIATE)


def padded_layer() -> nn.Module:
    layer = whole_layer(Mxfp4MoeBackend.MARLIN)
    layer.quant_method = Pads()
    return layer


def test_memory(pinning: str) -> None:
    found = {name: convert(partial(whole_layer, backend)) for name, backend in BACKENDS.items()}
    found["padded"] = convert(padded_layer)
    told = "; ".join(f"{name}: {cost}" for name, cost in found.items())
    padded = found.pop("padded")
    assert found == {"Marlin": SHUFFLED, "TRT-LLM": SHUFFLED, "B12X": KEPT}, told
    assert padded == Cost(padded.host, 0.0, "host+host", "host+host", False, 0.0), told  # does not fit: elsewhere


# With bytes, on a CPU: the marked layer beside one that was never offloaded.


def filled(backend: Mxfp4MoeBackend, marked: bool) -> nn.Module:
    layer = experts(backend, 3, 256, 128)
    bits = torch.Generator().manual_seed(7)
    for name in WEIGHTS:
        weight = getattr(layer, name)
        weight.data.copy_(torch.randint(0, 256, weight.shape, dtype=torch.uint8, generator=bits))
        getattr(layer, f"{name}_scale").data.fill_(127)  # 1.0
        if marked:
            setattr(weight, MARK, True)
    return layer


def finish(layer: nn.Module) -> dict[str, Any]:
    layer.quant_method.process_weights_after_loading(layer)
    return {name: getattr(layer, name) for name in WEIGHTS}


def test_bytes_and_addresses() -> None:
    moved = []
    for name, backend in BACKENDS.items():
        layer = filled(backend, marked=True)
        was = {weight: getattr(layer, weight).data_ptr() for weight in WEIGHTS}
        objects = {weight: getattr(layer, weight) for weight in WEIGHTS}
        wanted = finish(filled(backend, marked=False))
        for weight, found in finish(layer).items():
            assert (found.dtype, found.shape, found.stride()) == (
                wanted[weight].dtype, wanted[weight].shape, wanted[weight].stride())
            assert found.equal(wanted[weight]), f"{name}: other bytes in {weight}"
            assert found.weight_loader is load
            if found.data_ptr() != was[weight] or found is not objects[weight] or not getattr(found, MARK, False):
                moved.append(f"{name}: {weight} has another address, object or no mark")
    assert not moved, "; ".join(moved)


def marked(*shape: int, dtype: torch.dtype = torch.uint8) -> nn.Parameter:
    made = nn.Parameter(torch.arange(64).to(torch.uint8).view(dtype).reshape(*shape), requires_grad=False)
    setattr(made, MARK, True)
    return made


def test_what_fits() -> None:
    from vllm._fixpack.host_weights import take

    def refused(old: nn.Parameter, new: torch.Tensor) -> bool:
        was, data = old.data_ptr(), old.data.clone()
        done = take(old, new, {"set": True})
        kept = old.data_ptr() == was and old.dtype == data.dtype and old.data.equal(data) and not hasattr(old, "set")
        return not done and kept

    old = marked(4, 16)
    words = torch.arange(64, 128).to(torch.uint8).view(torch.int32).reshape(2, 8)
    address = old.data_ptr()
    assert take(old, words, {"is_shuffled": True})
    assert old.data_ptr() == address
    assert old.equal(words)
    assert old.is_shuffled

    old = marked(4, 16)  # the same memory, seen otherwise: nothing to copy
    seen = old.data.view(-1).view(torch.int32)
    assert take(old, seen, {})
    assert old.data_ptr() == seen.data_ptr()
    assert old.equal(torch.arange(64).to(torch.uint8).view(torch.int32))

    whole = torch.arange(128).to(torch.uint8)
    part = nn.Parameter(whole[:64], requires_grad=False)
    setattr(part, MARK, True)
    assert refused(part, whole[32:96])  # the same memory at another place: copying would read what it writes
    assert refused(marked(4, 16), torch.zeros(4, 17, dtype=torch.uint8))
    assert refused(marked(4, 16), torch.zeros(16, 4, dtype=torch.uint8).T)
    assert refused(marked(4, 16), torch.zeros(4, 16, dtype=torch.uint8, device="meta"))
    assert refused(nn.Parameter(torch.zeros(4, 16, dtype=torch.uint8), requires_grad=False),
                   torch.ones(4, 16, dtype=torch.uint8))
    source = marked(4, 16)
    source.requantization_source = True
    assert refused(source, torch.zeros(4, 16, dtype=torch.uint8))
    assert not take(None, torch.zeros(4), {})
    nothing = nn.Parameter(torch.empty(0, dtype=torch.uint8), requires_grad=False)
    setattr(nothing, MARK, True)
    assert refused(nothing, torch.empty(0, dtype=torch.uint8))


def test_mark_of_what_moves() -> None:
    from vllm._fixpack.host_weights import moves

    old = marked(4, 16)
    moves(old, old.data.T)  # another view of the same memory: still there
    assert getattr(old, MARK)
    moves(old, torch.zeros(5))
    assert not hasattr(old, MARK)
    moves(old, torch.zeros(5))


# Guards.


def test_not_offloaded() -> None:
    """A layer in HBM goes through as before."""
    for backend in BACKENDS.values():
        layer = filled(backend, marked=False)
        raw = {name: getattr(layer, name).data.clone() for name in WEIGHTS}
        for name, found in finish(layer).items():
            assert not hasattr(found, MARK)
            assert found.nbytes == raw[name].nbytes
            same = found.data.view(-1).view(torch.uint8).equal(raw[name].view(-1))
            assert same == (backend is BACKENDS["B12X"]), "the stand-ins reorder what they should not, or do not"


def test_attributes_of_the_new_tensor() -> None:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.zeros(4, 16), requires_grad=False)
    layer.weight.weight_loader = load
    new = torch.ones(16, 4)
    new.is_shuffled = True  # type: ignore[attr-defined]
    replace_parameter(layer, "weight", new)
    assert layer.weight.equal(new)
    assert layer.weight.is_shuffled
    assert layer.weight.weight_loader is load
    replace_parameter(layer, "weight", None)
    assert layer.weight is None


def test_offloaded_without_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """With UVA disabled weights are plain CPU tensors: brought in, converted, and put back."""
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", "1")
    found = convert(partial(experts, BACKENDS["TRT-LLM"], 16, 256, 128))
    assert (found.hbm, found.places, found.marks) == (0.0, "host+host", "HBM+HBM")
