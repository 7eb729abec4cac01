"""Pictures of a plan: what they show, that they are the same for the same plan, and what happens without matplotlib."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hotsplit_kit import CONFIG, LAYERS, exact_place, hotsplit, rows, shape_a, write

pytest.importorskip("matplotlib")

from rich.console import Console

from fixpack.hotsplit import inputs, planning, terminal
from fixpack.hotsplit.scene import scene


@pytest.fixture
def made(tmp_path: Path) -> planning.Planned:
    model = inputs.read_model(str(write(tmp_path / "config.json", CONFIG)))
    several = inputs.read_counts([str(write(tmp_path / "counts.json", shape_a(rows(1), holdout=rows(2))))], model)
    return planning.make(model, several, [], 17 * model.cell, {"decode": 1.0}, planning.Judging(resamples=50))


def test_the_scene(made: planning.Planned) -> None:
    shown = scene(made)
    hot = exact_place(rows(1), 17)
    assert [row.layer for row in shown.rows] == list(LAYERS)
    for row in shown.rows:
        counted = sorted(rows(1)[row.layer], reverse=True)
        assert row.times == pytest.approx([8 * number / sum(counted) for number in counted])
        assert sum(row.hot) == len(hot[row.layer])
        assert list(row.hot) == sorted(row.hot, reverse=True)  # the busiest are the hot ones
    at = shown.planned.cells.index(17)
    assert shown.planned.covered[at] == pytest.approx(made.held_out.plan.value)
    assert shown.best.covered[at] == pytest.approx(made.held_out.oracle.value)
    assert shown.headline.startswith(f"{100 * made.held_out.plan.value:.1f} % of held-out traffic stays in HBM")


@pytest.mark.parametrize("suffix", ["png", "svg", "SVG"])
def test_a_picture(tmp_path: Path, suffix: str) -> None:
    config = write(tmp_path / "config.json", CONFIG)
    counted = write(tmp_path / "counts.json", shape_a(rows(1)))
    args = ("plan", counted, "--budget-gib", "0.3", "--config", config, "--picture")
    first, second = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    assert hotsplit(*args, first).code == hotsplit(*args, second).code == 0
    data = first.read_bytes()
    assert data == second.read_bytes()
    if suffix == "png":
        from PIL import Image

        image = Image.open(io.BytesIO(data)).convert("RGB")
        assert image.size == (2100, 1176)
        colours = image.getcolors(1 << 24)
        assert colours is not None
        assert len(colours) > 50
        return
    root = ElementTree.fromstring(data)
    said = " ".join("".join(each.itertext()) for each in root.iter() if each.tag.endswith("text"))
    for words in (
        "traffic stays in HBM",
        "17 of 32 experts hot",
        "best possible",
        "whole layers",
        "GiB of experts in HBM",
    ):
        assert words in said


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is read or written, with the line that helps."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    picture = tmp_path / "p.png"
    done = hotsplit("plan", tmp_path / "no.json", "--stock-equal", "--picture", picture)
    assert (done.code, done.out) == (2, "")
    assert "a picture needs matplotlib [missing_library]" in done.err
    assert "next: pip install matplotlib (the extra `plot`); without it, --show draws in the terminal" in done.err
    assert not picture.exists()


def drawn(made: planning.Planned, width: int, **how: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, legacy_windows=False, **how)  # type: ignore[arg-type]
    terminal.show(made, console)
    return out.getvalue()


def test_a_terminal_without_colours(made: planning.Planned) -> None:
    text = drawn(made, 60)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].startswith(scene(made).headline[:40])
    map_lines = lines[lines.index(next(line for line in lines if line.startswith(" layer"))) + 1 :][:4]
    for line, (layer, chosen) in zip(map_lines, exact_place(rows(1), 17).items(), strict=True):
        assert re.match(rf" +{layer} ", line)
        assert len(chosen) == int(line.rstrip(" █▏▎▍▌▋▊▉").split()[-1])
        assert line.count("|") == (len(chosen) < 8)
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_with_colours(made: planning.Planned, width: int) -> None:
    text = drawn(made, width, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in text
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    assert max(map(len, plain)) <= width
    assert sum("▀" * 8 in line for line in plain) >= 2  # two layers to a line
    assert f"plan {100 * made.held_out.plan.value:.1f} %" in plain[-1]


def test_no_color_is_honoured(made: planning.Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = drawn(made, 80, force_terminal=True, color_system="truecolor")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)
    assert "|" in text


def test_many_layers_are_thinned_out(tmp_path: Path) -> None:
    """A thousand layers fit on a screen, and the picture says that some are left out."""
    layers = tuple(range(200))
    config = {**CONFIG, "num_hidden_layers": 200, "moe_layer_freq": [1] * 200}
    model = inputs.read_model(str(write(tmp_path / "config.json", config)))
    counted = write(tmp_path / "counts.json", shape_a(rows(1, layers=layers)))
    several = inputs.read_counts([str(counted)], model)
    wide = planning.make(model, several, [], 500 * model.cell, {"decode": 1.0}, planning.Judging(resamples=5))
    text = drawn(wide, 80)
    assert len(text.splitlines()) <= 60
    assert "one of 5 layers is shown" in text


def test_bars() -> None:
    assert [terminal.bar(part, 2) for part in (0.0, 1 / 16, 0.5, 1.0)] == ["", "▏", "█", "██"]


def test_the_verb_shows(tmp_path: Path) -> None:
    config = write(tmp_path / "config.json", CONFIG)
    counted = write(tmp_path / "counts.json", shape_a(rows(1)))
    done = hotsplit("plan", counted, "--budget-gib", "0.3", "--config", config, "--show")
    assert done.code == 0
    assert done.out.startswith("hotsplit plan: 4 layers")
    assert "whole layers would keep" in done.out
