"""The picture of a plan, as PNG or SVG: a heat map of every expert, and how coverage grows with HBM.

Needs matplotlib.  The same plan gives the same bytes with the same matplotlib.
"""

from __future__ import annotations

import io
import math
import os
from typing import Any

from fixpack.errors import Problem, UsageError
from fixpack.hotsplit.memory import GIB
from fixpack.hotsplit.planning import Planned
from fixpack.hotsplit.scene import Scene, scene

HOT, COLD, BEST, INK, FAINT = "#c2410c", "#1d4ed8", "#6b7280", "#111827", "#e5e7eb"
LEAST, MOST = -3.0, 4.0  # of the colour scale: powers of two of an equal share


def check(path: str) -> None:
    """Refuse before any work what could not be drawn in the end.

    :raises UsageError: for another suffix, or without matplotlib.
    """
    if os.path.splitext(path)[1].lower() not in (".png", ".svg"):
        raise UsageError(Problem("bad_usage", "a picture is .png or .svg", file=path))
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        hint = "pip install matplotlib (the extra `plot`); without it, --show draws in the terminal"
        raise UsageError(Problem("missing_library", f"a picture needs {error.name}", hint=hint)) from error


def draw(made: Planned, path: str) -> bytes:
    """The picture's bytes, in the format of the path's suffix."""
    import matplotlib
    from matplotlib.figure import Figure

    shown = scene(made)
    style: dict[Any, Any] = {
        "font.size": 10.0,
        "axes.edgecolor": BEST,
        "axes.labelcolor": INK,
        "xtick.color": BEST,
        "ytick.color": BEST,
        "svg.hashsalt": "fixpack",
        "svg.fonttype": "none",
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **style}):
        figure = Figure(figsize=(15, 8.4), facecolor="white")
        grid = figure.add_gridspec(
            2, 3, width_ratios=(9, 1.5, 6.5), height_ratios=(30, 1.5), wspace=0.04, hspace=0.2,
            left=0.045, right=0.975, top=0.86, bottom=0.075,
        )  # fmt: skip
        figure.text(0.045, 0.945, shown.headline, fontsize=19, fontweight="bold", color=INK)
        figure.text(0.045, 0.905, shown.facts, fontsize=11.5, color=BEST)
        heat = figure.add_subplot(grid[0, 0])
        _heat_map(heat, shown)
        _hot_counts(figure.add_subplot(grid[0, 1]), shown)
        _legend(figure.add_subplot(grid[1, 0]))
        right = grid[:, 2].subgridspec(1, 2, width_ratios=(1, 12))
        _coverage(figure.add_subplot(right[0, 1]), shown, made)
        out = io.BytesIO()
        kind = os.path.splitext(path)[1][1:].lower()
        figure.savefig(out, format=kind, dpi=140, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return out.getvalue()


def _colours() -> tuple[Any, Any]:
    from matplotlib.colors import LinearSegmentedColormap

    warm = LinearSegmentedColormap.from_list("warm", ["#fef3c7", "#fdba74", "#ea580c", "#9a1b0b", "#450a0a"])
    cool = LinearSegmentedColormap.from_list("cool", ["#f8fafc", "#d3e2f5", "#82ace2", "#2f6bc2", "#1e3a8a"])
    return warm, cool


def _strength(times: float) -> float:
    """Where a multiple of an equal share lies on the colour scale, 0 to 1."""
    if times <= 0:
        return 0.0
    return min(max((math.log2(times) - LEAST) / (MOST - LEAST), 0.0), 1.0)


def _heat_map(axes: Any, shown: Scene) -> None:
    warm, cool = _colours()
    warm_table, cool_table = ([palette(step / 255)[:3] for step in range(256)] for palette in (warm, cool))
    pixels = [
        [
            (warm_table if hot else cool_table)[round(_strength(times) * 255)]
            for times, hot in zip(row.times, row.hot, strict=True)
        ]
        for row in shown.rows
    ]
    axes.imshow(pixels, aspect="auto", interpolation="nearest", extent=(0, shown.experts, len(shown.rows) - 0.5, -0.5))
    edges = [sum(row.hot) for row in shown.rows]
    axes.stairs(
        edges, [number - 0.5 for number in range(len(edges) + 1)], orientation="horizontal", color=INK, linewidth=1.1
    )
    _layers(axes, shown)
    axes.set_xlabel("experts of each layer, busiest first")
    axes.set_ylabel("layer")
    axes.set_title("Every expert: warm in HBM, cool in host memory", loc="left", fontsize=11.5, color=INK)


def _layers(axes: Any, shown: Scene) -> None:
    step = max(1, round(len(shown.rows) / 12))
    places = list(range(0, len(shown.rows), step))
    axes.set_yticks(places, [str(shown.rows[place].layer) for place in places])
    axes.set_ylim(len(shown.rows) - 0.5, -0.5)
    axes.tick_params(length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _hot_counts(axes: Any, shown: Scene) -> None:
    numbers = [sum(row.hot) for row in shown.rows]
    axes.barh(range(len(numbers)), numbers, height=1.0, color=HOT, alpha=0.85, linewidth=0)
    mean = shown.cells / len(numbers)
    axes.axvline(mean, color=INK, linewidth=0.8)
    _layers(axes, shown)
    axes.set_yticklabels([])
    axes.set_xlim(0, max([*numbers, 1]) * 1.05)
    axes.set_xlabel(f"hot, mean {mean:.0f}")
    axes.set_title("Hot per layer", loc="left", fontsize=11.5, color=INK)


def _legend(axes: Any) -> None:
    warm, cool = _colours()
    ramp = [step / 255 for step in range(256)]
    axes.imshow(
        [[warm(step) for step in ramp], [cool(step) for step in ramp]],
        aspect="auto",
        extent=(LEAST, MOST, 0, 1),
    )
    ticks = range(int(LEAST), int(MOST) + 1)
    axes.set_xticks(list(ticks), [f"{2.0**tick:g}x" if tick else "equal share" for tick in ticks])
    axes.set_yticks([0.25, 0.75], ["cold", "hot"])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _coverage(axes: Any, shown: Scene, made: Planned) -> None:
    found = made.held_out

    def line(cells: Any, covered: Any, **look: Any) -> None:
        axes.plot([each * shown.cell_gib for each in cells], [100 * each for each in covered], **look)

    whole = shown.of_cells * shown.cell_gib
    line(shown.best.cells, shown.best.covered, color=BEST, linewidth=1.2, linestyle=(0, (4, 2)))
    line(shown.planned.cells, shown.planned.covered, color=HOT, linewidth=2.4)
    line((0, shown.of_cells), (0, 1), color=COLD, linewidth=1.6)
    at = made.cells * made.model.cell / GIB
    axes.axvline(at, color=FAINT, linewidth=6, zorder=0)
    for part, colour in ((found.plan, HOT), (found.stock, COLD)):
        axes.plot([at], [100 * part.value], "o", color=colour, markersize=8, markeredgecolor="white", zorder=5)
    for part, text, colour, weight, down in (
        (found.plan, "plan", HOT, "bold", -6),
        (found.plan, f"best possible {100 * found.oracle.value:.1f} %", BEST, "normal", -24),
        (found.stock, "whole layers", COLD, "normal", -6),
    ):
        axes.annotate(
            text if colour == BEST else f"{text} {100 * part.value:.1f} %",
            (at, 100 * part.value),
            xytext=(14, down), textcoords="offset points", va="top", color=colour, fontsize=12, weight=weight,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    axes.annotate(f"{at:,.1f} GiB", (at, 1.5), xytext=(8, 0), textcoords="offset points", color=BEST, fontsize=11)
    axes.set_xlim(0, whole)
    axes.set_ylim(0, 102)
    axes.set_yticks(range(0, 101, 20), [f"{tick} %" for tick in range(0, 101, 20)])
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("GiB of experts in HBM")
    what = "held-out traffic" if shown.held_out else "the traffic that the plan was made from"
    axes.set_title(f"Part of {what} that HBM serves", loc="left", fontsize=11.5, color=INK)
