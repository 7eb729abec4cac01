"""benchmarks/gpu/hotsplit_h200.py as far as a CPU gets: help, refusals, and the arithmetic of its verdicts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu" / "hotsplit_h200.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hotsplit_h200", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_help() -> None:
    done = run("--help")
    assert done.returncode == 0
    for check in ("repack", "pins", "banks", "release", "serve"):
        assert f"\n{check} " in done.stdout


def test_bad_options() -> None:
    assert run("--experts", "8").returncode == 2
    done = run("--only", "everything")
    assert done.returncode == 2
    assert "invalid choice" in done.stderr


def test_refused_without_a_gpu(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "hotsplit_h200: torch sees no CUDA device\n"


def test_verdict(script: ModuleType) -> None:
    good = {"repack": {"ok": True}, "serve": {"skipped": "needs --model"}}
    document, code = script.verdict(good)
    assert (document["ok"], document["failed"], code) == (True, [], 0)
    document, code = script.verdict({**good, "pins": {"ok": False}, "banks": {"error": "x"}})
    assert (document["ok"], document["failed"], code) == (False, ["banks", "pins"], 1)
    document, code = script.verdict({"serve": {"skipped": "needs --model"}})
    assert (document["ok"], code) == (False, 1)
    json.dumps(document)


def test_slope(script: ModuleType) -> None:
    assert script.slope([5.0, 5.0, 5.0]) == 0
    assert script.slope([10.0, 7.0, 4.0, 1.0]) == pytest.approx(-3)


def test_available_memory(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  100 kB\nMemAvailable:   7 kB\n")
    assert script.host_available(str(file)) == 7168
    file.write_text("MemTotal:  100 kB\n")
    with pytest.raises(ValueError, match="has no MemAvailable"):
        script.host_available(str(file))


def test_cells(script: ModuleType) -> None:
    assert script.CELL == 18 << 20
