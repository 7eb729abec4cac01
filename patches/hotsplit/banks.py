"""The two banks of a split layer: how they are built from its weights, and how a step runs through them.

A bank is a layer of its own for the kernel: compact weights, and a map from the model's expert numbers to its rows, -1
for the experts of the other bank.  A token's output is a sum over its experts, so the layer's output is the sum of both
banks' outputs, each of which skips what it does not hold.  Where one bank is empty, the other one holds all experts in
their order, needs no map, and gives the very bits of the unsplit layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from vllm._fixpack.hotsplit_counter import Counter
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import make_mxfp4_moe_kernel
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

ROWS = 16  # experts copied at once: 192 MiB of the largest tensor in flight
WEIGHTS = ("w13_weight", "w2_weight")
SCALES = ("w13_weight_scale", "w2_weight_scale")

Allocate = Callable[[Sequence[int], torch.dtype], torch.Tensor]


class Bank(NamedTuple):
    """Some experts of a layer, ready for the kernel."""

    kernel: Any
    w13: torch.Tensor
    w2: torch.Tensor
    expert_map: torch.Tensor | None  # None: it holds all of them


class Split:
    """What a layer's forward uses instead of the layer's own weights; without banks, it only counts."""

    def __init__(self, banks: Sequence[Bank] = (), counter: Counter | None = None, row: int = 0) -> None:
        self.banks = tuple(banks)
        self.counter, self.row = counter, row

    def forward(
        self,
        layer: RoutedExperts,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """The layer's output for the tokens ``x``.

        :raises RuntimeError: for shared experts, or if a kernel leaves the sum over a token's experts to somebody else.
        """
        if self.counter is not None:
            self.counter.count(self.row, topk_ids)
        if not self.banks:
            return layer.quant_method.apply(
                layer=layer,
                x=x,
                topk_weights=topk_weights,
                topk_ids=topk_ids,
                shared_experts=shared_experts,
                shared_experts_input=shared_experts_input,
            )
        if shared_experts is not None:
            raise RuntimeError(f"hotsplit: {layer.layer_name} is given shared experts, which no split layer runs")
        output: torch.Tensor | None = None
        for bank in self.banks:
            part = bank.kernel.apply(
                hidden_states=x,
                w1=bank.w13,
                w2=bank.w2,
                topk_weights=topk_weights,
                topk_ids=topk_ids,
                activation=layer.activation,
                global_num_experts=layer.global_num_experts,
                apply_router_weight_on_input=layer.apply_router_weight_on_input,
                expert_map=bank.expert_map,
            )
            if not isinstance(part, torch.Tensor):
                raise RuntimeError(f"hotsplit: the kernel of {layer.layer_name} gave a {type(part).__name__}, no sum")
            # Each call returns a tensor of its own, and is done with the shared workspace when it returns.
            output = part if output is None else output.add_(part)
        assert output is not None
        return output


def build(layer: RoutedExperts, hot: Sequence[int], cold: Sequence[int], hbm: Allocate, host: Allocate) -> list[Bank]:
    """The banks of a layer whose own tensors are still there; empty ones are left out.

    :raises ValueError: if an expert is in both lists or in none.
    """
    experts = layer.global_num_experts
    if sorted((*hot, *cold)) != list(range(experts)):
        raise ValueError(f"hotsplit: the banks of {layer.layer_name} do not hold each of its {experts} experts once")
    return [_bank(layer, chosen, allocate) for chosen, allocate in ((hot, hbm), (cold, host)) if chosen]


def _bank(layer: RoutedExperts, chosen: Sequence[int], allocate: Allocate) -> Bank:
    method = layer.quant_method
    device = layer.w13_weight.device
    rows = torch.tensor(list(chosen), dtype=torch.int64, device=device)
    w13, w2 = (_take(getattr(layer, name).data, rows, allocate) for name in WEIGHTS)
    scales = [getattr(layer, name).data.index_select(0, rows) for name in SCALES]
    config = method.moe_quant_config
    # Everything but the scales is the layer's own configuration.
    config = dataclasses.replace(
        config,
        _w1=dataclasses.replace(config._w1, scale=scales[0]),
        _w2=dataclasses.replace(config._w2, scale=scales[1]),
    )
    kernel = make_mxfp4_moe_kernel(
        moe_quant_config=config,
        moe_config=method.moe,
        mxfp4_backend=method.mxfp4_backend,
        experts_cls=method.experts_cls,
        routing_tables=layer._expert_routing_tables(),
    )
    expert_map = None
    if len(chosen) < layer.global_num_experts:
        expert_map = torch.full((layer.global_num_experts,), -1, dtype=torch.int32, device=device)
        expert_map[rows] = torch.arange(len(chosen), dtype=torch.int32, device=device)
    return Bank(kernel, w13, w2, expert_map)


def _take(source: torch.Tensor, rows: torch.Tensor, allocate: Allocate) -> torch.Tensor:
    taken = allocate((len(rows), *source.shape[1:]), source.dtype)
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        taken[start : start + len(some)].copy_(source.index_select(0, some))
    return taken


def publish(layer: RoutedExperts, split: Split) -> None:
    """Let the layer's forward use ``split``, and drop the tensors that it replaces.

    The kernel object of the layer stays: its runner asks it what kind of output it makes.
    """
    layer._hotsplit = split

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            f"hotsplit: weights of {layer.layer_name} cannot be loaded again, it is split; restart the server"
        )

    for name in (*WEIGHTS, *SCALES):
        parameter = getattr(layer, name)
        parameter.data = parameter.data.new_empty((0, *parameter.shape[1:]))
        parameter._vllm_is_uva_offloaded = False
        parameter.weight_loader = refuse
    layer.weight_loader = refuse
