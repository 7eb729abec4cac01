"""What a machine can hold of a model: experts in HBM and in pinned host memory, KV cache, context length.

Pure arithmetic on exact byte counts.  Figures that were measured on a GB300 (250 GiB of HBM, 494 GiB of host memory,
MiMo-V2.6-Pro-RL, a vLLM nightly of September 2026) are named as such; they are defaults, to be replaced by one's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from fixpack.hotsplit.payload import order

GIB = 1 << 30

#: measured: KV tokens at 141.75 GiB of hot experts, and what a GiB more of KV cache holds (two boots at 256K context)
KV_TOKENS, KV_AT_HOT = 513_612, 141.75 * GIB
KV_PER_GIB = 19_117
KV_SPREAD = 0.1  # of the slope; a boot at 110 GiB and 1M context had 8 % more tokens than the line says


class Model(NamedTuple):
    """The expert weights of a model, in MXFP4: four bits a weight, one scale byte for 32 weights."""

    name: str
    layers: tuple[int, ...]  # the MoE layers' numbers
    experts: int  # per layer
    hidden: int
    intermediate: int  # of one expert
    top_k: int
    context: int = 0  # the longest one that the model's configuration allows; 0 if unknown

    @property
    def w13(self) -> int:
        """Bytes of one expert's gate and up projection: 2 x intermediate rows of hidden weights."""
        return 2 * self.intermediate * self.hidden // 2

    @property
    def w2(self) -> int:
        """Bytes of one expert's down projection."""
        return self.hidden * self.intermediate // 2

    @property
    def cell(self) -> int:
        """Bytes of one expert of one layer, without scales."""
        return self.w13 + self.w2

    @property
    def scales(self) -> int:
        """Bytes of all scales; they stay in HBM."""
        return len(self.layers) * self.layer_scales

    @property
    def layer_scales(self) -> int:
        """Bytes of one layer's scales."""
        return self.experts * 3 * self.hidden * self.intermediate // 32

    @property
    def cells(self) -> int:
        """Experts of all layers."""
        return len(self.layers) * self.experts

    @property
    def total(self) -> int:
        """Bytes of all experts, without scales."""
        return self.cells * self.cell


#: 70 layers, of which the first is dense
MIMO = Model("MiMo-V2.6-Pro-RL", tuple(range(1, 70)), 384, 6144, 2048, 8)


class Machine(NamedTuple):
    """What there is, and what everything but experts and KV cache takes of it; bytes."""

    hbm: int = 250 * GIB
    host: int = 494 * GIB
    utilization: Fraction = Fraction(96, 100)  # --gpu-memory-utilization
    dense: int = int(32.3 * GIB)  # measured: 214.2 GiB of model, less 152.8 of hot experts and 29.1 of scales
    host_other: int = 59 * GIB  # measured: 122 GiB were available beside 312.96 of pinned experts


class Tensor(NamedTuple):
    """One layer's w13 or w2, all experts."""

    layer: int
    name: str
    bytes: int
    host: bool


class Stock(NamedTuple):
    """Where vLLM's own offload puts the experts."""

    tensors: tuple[Tensor, ...]

    @property
    def host(self) -> int:
        """Bytes that are offloaded."""
        return sum(each.bytes for each in self.tensors if each.host)

    @property
    def hbm(self) -> int:
        """Bytes that stay in HBM, w13 and w2 each by its own place."""
        return sum(each.bytes for each in self.tensors if not each.host)

    @property
    def hbm_by_w13(self) -> int:
        """Bytes of the layers whose w13 is in HBM: a smaller figure, which leaves a split layer's w2 out."""
        inside = self.layers("hbm")
        return sum(each.bytes for each in self.tensors if each.layer in inside)

    def layers(self, place: str) -> tuple[int, ...]:
        """The layers that are in ``"host"`` or ``"hbm"`` as a whole, or ``"mixed"``."""
        where: dict[int, set[bool]] = {}
        for each in self.tensors:
            where.setdefault(each.layer, set()).add(each.host)
        wanted = {"host": {True}, "hbm": {False}, "mixed": {True, False}}[place]
        return tuple(layer for layer, places in where.items() if places == wanted)

    def pinned(self, *, exact: bool) -> int:
        """Host bytes that are pinned: as they are, or each rounded up to a power of two, as torch's allocator does."""
        return sum(each.bytes if exact else power_of_two(each.bytes) for each in self.tensors if each.host)


def power_of_two(size: int) -> int:
    """The next power of two that is not less; 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


def stock(model: Model, offload: int) -> Stock:
    """vLLM's placement for ``--cpu-offload-gb`` = ``offload`` bytes, with both weight tensors named.

    It goes through the parameters in order and asks before each whether the limit is reached; so it may end between a
    layer's w13 and its w2, and overshoots by up to one tensor.
    """
    tensors, done = [], 0
    for layer in model.layers:
        for name, size in (("w13", model.w13 * model.experts), ("w2", model.w2 * model.experts)):
            out = done < offload
            tensors.append(Tensor(layer, name, size, out))
            done += size if out else 0
    return Stock(tuple(tensors))


def pinned_banks(model: Model, cold: Sequence[int], *, exact: bool) -> int:
    """Host bytes of the cold banks after the split, given each layer's number of cold experts."""
    if exact:
        return sum(number * model.cell for number in cold)
    return sum(power_of_two(number * model.w13) + power_of_two(number * model.w2) for number in cold)


def spread(model: Model, budget: int) -> list[int]:
    """Hot experts of each layer if a budget were shared out evenly: what can be said before there is a plan."""
    cells = min(budget // model.cell, model.cells)
    mean, more = divmod(cells, len(model.layers))
    return [mean + (number < more) for number in range(len(model.layers))]


class Tokens(NamedTuple):
    """KV tokens: as the measured line gives them, and with its slope a tenth off either way."""

    expected: int
    low: int
    high: int


def kv_tokens(model: Model, machine: Machine, hot: int) -> Tokens:
    """KV tokens beside ``hot`` bytes of experts in HBM; 0 where nothing is left.

    A GiB that experts do not take is a GiB of KV cache.  The line goes through a measured boot, from which it moves
    with the budget, and with another machine's or model's HBM.
    """
    measured = float(Machine().hbm * Machine().utilization) - Machine().dense - MIMO.scales - KV_AT_HOT
    here = float(machine.hbm * machine.utilization) - machine.dense - model.scales - hot
    more = (here - measured) / GIB * KV_PER_GIB
    found = sorted(max(0, int(KV_TOKENS + more * factor)) for factor in (1, 1 - KV_SPREAD, 1 + KV_SPREAD))
    return Tokens(max(0, int(KV_TOKENS + more)), found[0], found[-1])


def most_hot(model: Model, machine: Machine, context: int) -> int:
    """The most bytes of hot experts, in whole cells, beside which ``context`` tokens surely fit; -1 if none do."""
    low, high = -1, model.cells
    while low < high:  # kv_tokens falls as hot rises
        middle = (low + high + 1) // 2
        if kv_tokens(model, machine, middle * model.cell).low >= context:
            low = middle
        else:
            high = middle - 1
    return low * model.cell if low >= 0 else -1


class Answer(NamedTuple):
    """One question of the puzzle."""

    code: str
    question: str
    verdict: str  # "yes", "no", or "perhaps": within the spread of what was measured
    why: str


class Puzzle(NamedTuple):
    """What a budget of hot experts means on a machine; bytes unless said otherwise."""

    hot: int
    cold: int
    cold_rounded: int  # what the cold banks would pin if each were rounded up to a power of two
    hbm_free: int  # of the share that vLLM may use, for KV cache, activations and graphs
    host_free: int  # after the split, with exact pinning
    split_hbm_free: int  # before the first layer is split, of all HBM
    split_margin: int  # what the split wants of that: its reserve, and the largest hot bank with its scales
    split_host_free: int  # at the worst moment of the split: a cold bank beside the layer that it is made from
    tokens: Tokens
    answers: tuple[Answer, ...]

    @property
    def fits(self) -> bool:
        """Whether everything surely fits with exact pinning; what stock would do does not count."""
        return all(each.verdict == "yes" for each in self.answers if each.code != "stock_pin")


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f} GiB"


def _parts(model: Model, placed: Stock, hot_experts: Sequence[int]) -> list[order.Part]:
    """The layers as the installed split sees them."""
    inside, outside = dict.fromkeys(model.layers, 0), dict.fromkeys(model.layers, 0)
    for each in placed.tensors:
        (outside if each.host else inside)[each.layer] += each.bytes
    whole, scales = model.experts * model.cell, model.layer_scales
    sizes = {layer: number * model.cell for layer, number in zip(model.layers, hot_experts, strict=True)}
    return [order.Part(each, hot, whole - hot, scales, inside[each], outside[each]) for each, hot in sizes.items()]


def solve(model: Model, machine: Machine, placed: Stock, hot_experts: Sequence[int], *, context: int = 0) -> Puzzle:
    """Put the pieces together.

    :param hot_experts: how many of each layer's experts are hot.
    :param context: ``--max-model-len``; 0 asks nothing.
    """
    hot = sum(hot_experts) * model.cell
    banks = [model.experts - number for number in hot_experts]
    cold = pinned_banks(model, banks, exact=True)
    rest = machine.dense + model.scales
    allowed = int(machine.hbm * machine.utilization)
    hbm_free = allowed - rest - hot
    host_free = machine.host - machine.host_other - cold
    split_hbm = machine.hbm - rest - placed.hbm
    load_host = machine.host - machine.host_other - placed.pinned(exact=True)
    parts = order.to_split(_parts(model, placed, hot_experts))
    margin = order.margin(parts)
    split = order.replay(parts, split_hbm, load_host, order.FLOOR)
    stop = split.stop
    split_host = min(split.lowest_host, stop.free - stop.needed if stop and stop.kind == "host" else load_host)
    rounded = placed.pinned(exact=False)
    tokens = kv_tokens(model, machine, hot)
    other = machine.host - machine.host_other
    answers = [
        _answer("stock_pin", "does stock vLLM load, with power-of-two pinning", rounded <= other,
                f"it pins {_gib(rounded)} for {_gib(placed.host)}; the host has {_gib(other)} for it"),
        _answer("load_host", "does it load with exact pinning", load_host >= 0,
                f"{_gib(placed.host)} pinned, {_gib(load_host)} of host memory left"),
        _answer("load_hbm", "does the rest fit in HBM while it loads", split_hbm >= 0,
                f"{_gib(placed.hbm)} of experts, {_gib(rest)} of everything else, {_gib(split_hbm)} left"),
        _answer("split_hbm", "is there HBM to split a layer in", not (stop and stop.kind == "hbm"),
                f"{_gib(split_hbm)} free, {_gib(margin)} needed" if not (stop and stop.kind == "hbm")
                else stop.text(order.FLOOR).removeprefix("hotsplit ")),
        _answer("split_host", "does the host keep its floor while layers are split", split_host >= order.FLOOR,
                f"{_gib(split_host)} free in the worst moment, floor {_gib(order.FLOOR)}"),
        _answer("hot", "do the hot experts fit in HBM", hbm_free > 0,
                f"{_gib(hot)} hot leave {_gib(hbm_free)} for KV cache, activations and graphs"),
    ]  # fmt: skip
    if context:
        verdict = "yes" if tokens.low >= context else "perhaps" if tokens.high >= context else "no"
        limit = most_hot(model, machine, context)
        most = f"; surely up to {_gib(limit)} hot" if limit >= 0 else "; not even without hot experts"
        why = f"{tokens.low:,} to {tokens.high:,} KV tokens{most}"
        answers.append(Answer("context", f"does a context of {context:,} tokens fit", verdict, why))
    rounded_banks = pinned_banks(model, banks, exact=False)
    return Puzzle(hot, cold, rounded_banks, hbm_free, host_free, split_hbm, margin, split_host, tokens, tuple(answers))


def _answer(code: str, question: str, good: bool, why: str) -> Answer:
    return Answer(code, question, "yes" if good else "no", why)


def usual_budgets(model: Model, placed: Stock) -> list[int]:
    """Budgets worth looking at, ascending: stock's two figures, and those that were measured, or fifths of the model.

    Never none, and none larger than the model.
    """
    around = {placed.hbm, placed.hbm_by_w13}
    if model == MIMO:
        around |= {int(amount * GIB) for amount in (96, 110, 123, 152.8, 165)}
    else:
        around |= {model.cells * fifth // 5 * model.cell for fifth in range(1, 6)}
    return sorted(budget for budget in around if 0 < budget <= model.total)
