"""The picture of a plan in a terminal: the heat map, the hot experts of each layer, the coverage curve."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fixpack.hotsplit.evaluate import Curve
from fixpack.hotsplit.planning import Planned
from fixpack.hotsplit.scene import Row, Scene, scene

#: from little traffic to much; the first one also for none
WARM = ("#78350f", "#9a3412", "#c2410c", "#ea580c", "#f97316", "#fb923c", "#fdba74", "#fef3c7")
COOL = ("#0f172a", "#172554", "#1e3a8a", "#1d4ed8", "#2563eb", "#3b82f6", "#60a5fa", "#93c5fd")
SHADES = " ░▒▓█"  # without colour
LIMITS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0)  # multiples of an equal share between the steps
MOST_LINES = 40
CURVE_LINES = 11


def show(made: Planned, console: Console | None = None) -> None:
    """Draw a plan; without colours where there are none."""
    console = console or Console(highlight=False)
    shown = scene(made)
    console.print(Text(shown.headline, style="bold"))
    console.print(Text(shown.facts, style="dim"), no_wrap=True, overflow="ellipsis")
    colour = bool(console.color_system) and not console.no_color
    width = max(20, min(console.width - 22, 128, shown.experts))
    console.print()
    for line in heat_map(shown, width, colour=colour):
        console.print(line, no_wrap=True, crop=True)
    console.print()
    for line in coverage(shown, made, max(20, min(console.width - 12, 100)), colour=colour):
        console.print(line, no_wrap=True, crop=True)


def _columns(row: Row, width: int) -> list[tuple[float, bool]]:
    """A layer as ``width`` columns: mean multiple of an equal share, and whether most of it is hot."""
    columns = []
    for column in range(width):
        start = column * len(row.times) // width
        stop = max((column + 1) * len(row.times) // width, start + 1)
        part = row.times[start:stop]
        hot = row.hot[start:stop]
        columns.append((sum(part) / len(part), 2 * sum(hot) >= len(hot)))
    return columns


def heat_map(shown: Scene, width: int, *, colour: bool) -> list[Text]:
    """One line per layer, or per group of layers where there are many: busiest experts left."""
    group = -(-len(shown.rows) // (MOST_LINES * (2 if colour else 1)))
    rows = [shown.rows[number] for number in range(0, len(shown.rows), group)]
    most = max(sum(row.hot) for row in rows)
    lines = [
        Text(f"{'layer':>6} {'busiest experts left; warm: hot, in HBM' if colour else 'hot | cold':<{width}}   hot")
    ]
    for number in range(0, len(rows), 2 if colour else 1):
        pair = rows[number : number + 2] if colour else rows[number : number + 1]
        line = Text(f"{pair[0].layer:>6} ")
        if colour:
            upper, lower = _columns(pair[0], width), _columns(pair[-1], width)
            for top, bottom in zip(upper, lower, strict=True):
                style = f"{_colour(*top)} on {_colour(*bottom)}" if len(pair) == 2 else _colour(*top)
                line.append("▀", style)
        else:
            last = True
            for times, hot in _columns(pair[0], width):
                line.append("|" if last and not hot else SHADES[min(len(SHADES) - 1, _step(times) * 5 // 8)])
                last = hot
        mean = sum(sum(row.hot) for row in pair) / len(pair)
        line.append(f"  {mean:>5.0f} ")
        line.append(bar(mean / most if most else 0.0, 6), WARM[4] if colour else "")
        lines.append(line)
    if group > 1:
        lines.append(Text(f"       one of {group} layers is shown", style="dim"))
    return lines


def bar(part: float, width: int) -> str:
    """A bar of up to ``width`` characters, to an eighth of one."""
    eighths = round(8 * part * width)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _step(times: float) -> int:
    return sum(times >= limit for limit in LIMITS)


def _colour(times: float, hot: bool) -> str:
    return (WARM if hot else COOL)[_step(times)]


def coverage(shown: Scene, made: Planned, width: int, *, colour: bool) -> list[Text]:
    """The coverage curve: best possible, plan, whole layers, over GiB of experts in HBM."""
    whole = shown.of_cells * shown.cell_gib
    at = round((width - 1) * made.cells / shown.of_cells)
    marks: dict[tuple[int, int], tuple[str, str]] = {}
    for column in range(width):
        for level in range(CURVE_LINES):
            if column == at:
                marks[column, level] = ("┊", "dim")
    straight = Curve((0, shown.of_cells), (0.0, 1.0))
    for curve, signs, style in ((straight, "──", COOL[5]), (shown.best, "··", "dim"), (shown.planned, "▄▀", WARM[4])):
        for column in range(width):
            value = _at(curve, shown.of_cells * column / (width - 1))
            half = round(value * (2 * CURVE_LINES - 2)) + 1  # two halves to a line, 0 % in the upper half of the lowest
            marks[column, half // 2] = (signs[half % 2], style if colour or style == "dim" else "")
    lines = []
    for level in reversed(range(CURVE_LINES)):
        line = Text(f"{100 * level // (CURVE_LINES - 1):>4} % ")
        for column in range(width):
            line.append(*marks.get((column, level), (" ", "")))
        lines.append(line)
    axis = [" "] * width
    for part in range(0, 5):
        text = f"{whole * part / 4:.0f}"
        start = min(round((width - 1) * part / 4), width - len(text))
        axis[start : start + len(text)] = text
    lines.append(Text("       " + "".join(axis) + " GiB"))
    lines.append(Text("       " + " " * at + f"┊ {made.cells * shown.cell_gib:,.1f} GiB", style="dim"))
    found = made.held_out
    legend = Text("       ")
    parts: Sequence[tuple[str, str, str]] = (
        ("▀ plan", f" {100 * found.plan.value:.1f} %  ", WARM[4]),
        ("· best possible", f" {100 * found.oracle.value:.1f} %  ", "dim"),
        ("─ whole layers", f" {100 * found.stock.value:.1f} %", COOL[5]),
    )
    for sign, number, style in parts:
        legend.append(sign, style if colour or style == "dim" else "")
        legend.append(number)
    return [*lines, legend]


def _at(curve: Curve, cells: float) -> float:
    """The curve's value between two of its points."""
    for right in range(1, len(curve.cells)):
        if curve.cells[right] >= cells:
            left = right - 1
            part = (cells - curve.cells[left]) / (curve.cells[right] - curve.cells[left])
            return curve.covered[left] + part * (curve.covered[right] - curve.covered[left])
    return curve.covered[-1]
