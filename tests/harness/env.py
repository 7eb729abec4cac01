"""The environment in which upstream's real code runs on a CPU: search path, switches, and the compiled "hpu" device.

``proof_env(gaudi_tree, vllm_tree, cache)`` returns the environment of one fresh interpreter.  Whatever the caller's own
environment says about Python, vLLM or Gaudi is left out, so that a run depends on the trees only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEVICE_SOURCE = HERE / "hpudev" / "hpu_device.cpp"
SEALED = re.compile(r"^(PYTHON|PYTEST|VLLM|HPU|PT_HPU|HABANA|HF_|TRANSFORMERS_|TORCH|CUDA|OMP_|GLOO|FIXPACK_PROOF)")


class HarnessError(Exception):
    """The harness cannot run here; the message says what is missing."""


def build_device(cache: Path | str) -> Path:
    """The shared library with the "hpu" device, compiled once per torch version and source.

    In: the cache folder; the library goes to ``<cache>/hpudev/<torch version>-<source hash>/``.
    Raises HarnessError where torch or g++ is missing, or where the compiler fails.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise HarnessError(f"torch is not installed in {sys.executable}: see tests/harness/requirements.txt")
    torch = Path(spec.origin).parent
    digest = hashlib.sha256(DEVICE_SOURCE.read_bytes()).hexdigest()[:12]
    library = Path(cache) / "hpudev" / f"{version('torch')}-{digest}" / "hpu_device.so"
    if library.is_file():
        return library
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise HarnessError("g++ is not installed: the proofs compile a small C++ file, the \"hpu\" device, once")
    library.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    command = [compiler, "-O1", "-std=c++20", "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    command += [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", str(DEVICE_SOURCE), "-o", scratch]
    command += [f"-L{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        Path(scratch).unlink()
        raise HarnessError(f"{compiler} could not compile {DEVICE_SOURCE.name}:\n{done.stderr[-4000:]}")
    Path(scratch).replace(library)  # another process may have built it meanwhile: the same bytes
    return library


def vllm_version(vllm_tree: Path | str) -> str:
    """The version in the tree's egg-info or dist-info; "unknown" where there is none."""
    for info in sorted(Path(vllm_tree).glob("vllm*-info")):
        for name in ("PKG-INFO", "METADATA"):
            if (info / name).is_file():
                found = re.search(r"^Version: (\S+)$", (info / name).read_text(encoding="utf-8"), re.M)
                if found:
                    return found.group(1)
    return "unknown"


def plugins(gaudi_tree: Path | str) -> str:
    """The plugins that this release of vllm-gaudi has; the stand-in's entry points name those of every release."""
    source = (Path(gaudi_tree) / "vllm_gaudi" / "__init__.py").read_text(encoding="utf-8")
    known = {
        "01.hpu_custom_utils": "register_utils",
        "02.hpu_custom_ops": "register_ops",
        "03.hpu_custom_models": "register_models",
        "04.hpu_tool_parsers": "register_tool_parsers",
    }
    return ",".join(["hpu", *(name for name, function in known.items() if f"def {function}(" in source)])


def proof_env(
    gaudi_tree: Path | str, vllm_tree: Path | str, cache: Path | str, *, stub_device: str = "gaudi3"
) -> dict[str, str]:
    """The environment for one interpreter that runs upstream's real code on the stand-ins.

    In: the folders that hold ``vllm_gaudi/`` ("" for vLLM alone) and ``vllm/``, a cache folder (compiled device,
    bytecode, model weights, vLLM's own cache), and which Gaudi the code shall believe in ("gaudi2", "gaudi3", "cpu").
    Out: a whole environment, for ``subprocess.run(env=...)``.  Raises HarnessError.
    """
    cache = Path(cache).resolve()
    trees = [(Path(tree), package) for tree, package in ((gaudi_tree, "vllm_gaudi"), (vllm_tree, "vllm")) if str(tree)]
    for tree, package in trees:
        if not (tree / package / "__init__.py").is_file():
            raise HarnessError(f"{tree}: no {package}/ in it")
    env = {name: value for name, value in os.environ.items() if not SEALED.match(name)}
    stubs = [HERE / "stubs", HERE / "stubs-common"] if gaudi_tree else [HERE / "stubs-common"]
    path = [HERE, *stubs, *(tree.resolve() for tree, _ in trees)]
    env.update(
        PYTHONPATH=os.pathsep.join(dict.fromkeys(map(str, path))),
        PYTHONPYCACHEPREFIX=str(cache / "pycache"),
        PYTHONNOUSERSITE="1",
        FIXPACK_PROOF="1",
        FIXPACK_HARNESS_CACHE=str(cache / "harness"),
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        OMP_NUM_THREADS="1",  # the tensors are tiny: two threads wait for each other, 3 times slower beside other work
        GLOO_SOCKET_IFNAME="lo",
        VLLM_HOST_IP="127.0.0.1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process, so that a test can reach inside
        VLLM_NO_USAGE_STATS="1",
        VLLM_DO_NOT_TRACK="1",
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_PLUGINS="",  # none: what else is installed beside must not choose the platform
        VLLM_CACHE_ROOT=str(cache / "vllm" / vllm_version(vllm_tree)),  # what vLLM learns of a model class: 8 s each
    )
    if gaudi_tree:
        env.update(
            HPU_STUB_DEVICE_SO=str(build_device(cache)),
            HPU_STUB_DEVICE=stub_device,
            PT_HPU_LAZY_MODE="1",
            VLLM_USE_FAKE_HPU="0",
            VLLM_SKIP_WARMUP="true",
            VLLM_CONTIGUOUS_PA="false",  # prefix caching, vllm-gaudi's default, wants it off
            VLLM_PLUGINS=plugins(gaudi_tree),
        )
    return env
