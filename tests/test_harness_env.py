"""The environment of a proof: sealed from the caller, made for its trees; a clear error where something is missing."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HARNESS = Path(__file__).resolve().parent / "harness"
sys.path.append(str(HARNESS))

import env  # noqa: E402

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: python3 bootstrap.py test")


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A vllm-gaudi tree with two plugins, and a vLLM tree with an egg-info."""
    gaudi, vllm = tmp_path / "gaudi", tmp_path / "vllm-tree"
    for folder in (gaudi / "vllm_gaudi", vllm / "vllm", vllm / "vllm.egg-info"):
        folder.mkdir(parents=True)
    source = "def register():\n    pass\n\n\ndef register_ops():\n    pass\n"
    (gaudi / "vllm_gaudi/__init__.py").write_text(source, encoding="utf-8")
    (vllm / "vllm/__init__.py").write_bytes(b"")
    (vllm / "vllm.egg-info/PKG-INFO").write_text("Name: vllm\nVersion: 0.26.0\n", encoding="utf-8")
    return gaudi, vllm


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler run: the device counts as built."""
    monkeypatch.setattr(env, "build_device", lambda cache: Path(cache) / "hpu_device.so")


@pytest.mark.usefixtures("built")
def test_only_what_a_proof_needs(tmp_path: Path, trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONSTARTUP", "VLLM_USE_V1", "PT_HPU_WEIGHT_SHARING", "HF_TOKEN", "PYTEST_ADDOPTS"):
        monkeypatch.setenv(name, "from outside")
    monkeypatch.setenv("KEPT", "yes")
    made = env.proof_env(*trees, tmp_path / "cache", stub_device="gaudi2")
    assert "from outside" not in made.values()
    assert made["KEPT"] == "yes"
    path = [HARNESS, HARNESS / "stubs", HARNESS / "stubs-common", *trees]
    assert made["PYTHONPATH"].split(os.pathsep) == [str(folder) for folder in path]
    assert made["VLLM_PLUGINS"] == "hpu,02.hpu_custom_ops"
    assert made["VLLM_CACHE_ROOT"] == str(tmp_path / "cache/vllm/0.26.0")
    assert made["HPU_STUB_DEVICE"] == "gaudi2"
    assert made["FIXPACK_PROOF"] == "1"


def test_vllm_alone(tmp_path: Path, trees: tuple[Path, Path]) -> None:
    """Nothing of Gaudi: no compiler is asked for, and no plugin can choose the platform."""
    made = env.proof_env("", trees[1], tmp_path / "cache")
    path = [HARNESS, HARNESS / "stubs-common", trees[1]]
    assert made["PYTHONPATH"].split(os.pathsep) == [str(folder) for folder in path]
    assert made["VLLM_PLUGINS"] == ""
    assert not [name for name in made if "HPU" in name]
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("built")
def test_a_folder_without_the_package(tmp_path: Path, trees: tuple[Path, Path]) -> None:
    with pytest.raises(env.HarnessError, match=r"empty: no vllm/ in it$"):
        env.proof_env(trees[0], tmp_path / "empty", tmp_path / "cache")


@needs_torch
def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(env.HarnessError, match=r"^g\+\+ is not installed: "):
        env.build_device(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@needs_torch
def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(env.HarnessError, match=r"could not compile hpu_device\.cpp:\nno such header"):
        env.build_device(tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
