#!/usr/bin/env python3
"""Draw docs/long-prefill-share.svg: the others' token rate and a long prompt's progress, stock, plain and exact.

    python benchmarks/share_picture.py [--release vllm@v0.26.0] [--check]

vLLM's real AsyncScheduler and engine loop on a device that takes virtual time (tests/harness/longprefill.py): three
streams decode, and after ten seconds a prompt of 200,000 tokens arrives.  The same picture every time; with --check
nothing is written, and the exit code is 1 if the picture that is there is another one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "docs" / "long-prefill-share.svg"
PROMPT, ARRIVES, STREAMS, BIN = 200_000, 10.0, 3, 4.0
MODES = {  # name -> share, exact, colour
    "stock: threshold only": (None, False, "#b3403a"),
    "share 0.5, plain": (0.5, False, "#c28a1d"),
    "share 0.5, exact": (0.5, True, "#2f6f9f"),
}
LEFT, TOP, WIDE, HIGH, GAP, UNTIL = 62, 44, 660, 150, 56, 240.0
Lines = dict[str, list[tuple[float, float]]]


def simulate() -> dict[str, Lines]:
    """By mode: the others' tokens per second and stream, and the part of the prompt that is computed, over time."""
    import longprefill

    found: dict[str, Lines] = {}
    for name, (share, exact, _) in MODES.items():
        engine = longprefill.Engine(share, exact)
        for index in range(STREAMS):
            engine.add(f"D{index}", 1000, 500_000)
        engine.add("L", PROMPT, 100_000, at=ARRIVES)
        engine.run(until=lambda made=engine: made.clock.now > UNTIL)
        times = sorted(time for index in range(STREAMS) for time in engine.tokens[f"D{index}"])
        rate = []
        for number in range(int(UNTIL / BIN)):
            count = sum(number * BIN <= time < (number + 1) * BIN for time in times)
            rate.append((round((number + 0.5) * BIN, 2), round(count / BIN / STREAMS, 2)))
        done, progress = 0, [(ARRIVES, 0.0)]
        for step in engine.steps:
            if "L" in step.prefills:
                done += step.tokens["L"]
                progress.append((round(step.end, 2), round(done / PROMPT, 4)))
        found[name] = {"rate": rate, "progress": progress}
    return found


def draw(found: dict[str, Lines]) -> str:
    """The picture as SVG."""
    second = TOP + HIGH + GAP
    height = second + HIGH + 52
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 18} {height}" font-family="sans-serif" '
        'font-size="12" fill="#333333">',
        f'<rect width="{LEFT + WIDE + 18}" height="{height}" fill="#ffffff"/>',
    ]
    place = LEFT
    for name, (_, _, colour) in MODES.items():
        parts.append(f'<path d="M{place} 16h22" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{place + 28}" y="20">{name}</text>')
        place += 210
    parts += [*panel(TOP, "tokens per second of each other stream", [0, 10, 20, 30], 32.0)]
    parts += [*panel(second, "part of the long prompt that is computed", [0, 0.25, 0.5, 0.75, 1], 1.0)]
    for name, (_, _, colour) in MODES.items():
        parts.append(line(found[name]["rate"], TOP, 32.0, colour))
        parts.append(line(found[name]["progress"], second, 1.0, colour))
    parts.append(f'<text x="{LEFT + WIDE / 2}" y="{height - 8}" text-anchor="middle">seconds</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(top: float, title: str, marks: Iterable[float], most: float) -> list[str]:
    """An empty diagram with its axes."""
    parts = [f'<text x="{LEFT}" y="{top - 8}">{title}</text>']
    for mark in marks:
        y = top + HIGH - HIGH * mark / most
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDE}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for second in range(0, int(UNTIL) + 1, 30):
        x = LEFT + WIDE * second / UNTIL
        parts.append(f'<text x="{x:.1f}" y="{top + HIGH + 18}" text-anchor="middle">{second}</text>')
    x = LEFT + WIDE * ARRIVES / UNTIL
    parts.append(f'<path d="M{x:.1f} {top}v{HIGH}" stroke="#999999" stroke-dasharray="3 3"/>')
    return parts


def line(points: list[tuple[float, float]], top: float, most: float, colour: str) -> str:
    """One curve."""
    shown = [(LEFT + WIDE * x / UNTIL, top + HIGH - HIGH * y / most) for x, y in points if x <= UNTIL]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="vllm@v0.26.0")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(simulate()))
        return 0
    from share_bench import run

    picture = draw(run("share_picture.py", args.release))
    if args.check:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == picture
        print(f"{TARGET.name}: {'as drawn' if same else 'another picture'}")
        return int(not same)
    TARGET.write_text(picture, encoding="utf-8")
    print(f"{TARGET.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
