"""What the apply path imports, module by module: a confirm run is paid at every server start."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from kit import APPLY_ALL, REPO, RUNNER, Kit

#: What a confirm run imports of this project: no YAML, no registry loader, no engine.
CONFIRM = {
    "fixpack",
    "fixpack.bytecode",
    "fixpack.cli",
    "fixpack.cli.apply",
    "fixpack.cli.apply_main",
    "fixpack.cli.target_options",
    "fixpack.confirm",
    "fixpack.errors",
    "fixpack.form",
    "fixpack.journal",
    "fixpack.lock",
    "fixpack.outcome",
    "fixpack.record",
    "fixpack.target",
    "fixpack.text",
}

#: What an apply imports besides: the lock's index stands in for the YAML files.
APPLY = CONFIRM | {
    "fixpack.claim",
    "fixpack.commit",
    "fixpack.compose",
    "fixpack.diagnose",
    "fixpack.disk",
    "fixpack.durable",
    "fixpack.engine",
    "fixpack.epoch",
    "fixpack.hold",
    "fixpack.index",
    "fixpack.layers",
    "fixpack.ledger",
    "fixpack.look",
    "fixpack.model",
    "fixpack.payload",
    "fixpack.receipt",
    "fixpack.recovery",
    "fixpack.scope",
    "fixpack.steps",
}

REGISTRY = {f"fixpack.registry_{part}" for part in ("files", "fix", "release")}

#: What a run that has to explain imports besides, with YAML.
EXPLAIN = APPLY | {"fixpack.crosscheck", "fixpack.nearest", "fixpack.registry", *REGISTRY, "fixpack.strictyaml"}

#: Expensive or foreign: not on a confirm run.
HEAVY = {
    *("ast", "dataclasses", "difflib", "inspect", "importlib.metadata", "pathlib"),
    *("shutil", "subprocess", "tempfile", "tokenize", "yaml"),
}

PROGRAM = """
import json, runpy, sys
before = set(sys.modules)
sys.argv = {argv!r}
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, sorted(set(sys.modules) - before)]))
"""


def imported(kit: Kit, *args: str) -> tuple[int, set[str]]:
    """Exit code and modules of a run in a fresh interpreter, apart from those that Python's start and runpy bring."""
    argv = [str(APPLY_ALL), "--registry", str(kit.registry), "--profile", "v1.0.0", "--site", str(kit.site), *args]
    command = [sys.executable, "-c", PROGRAM.format(argv=argv)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, names = json.loads(done.stdout.splitlines()[-1])
    return code, set(names)


def own(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] == "fixpack"}


def foreign(names: set[str]) -> set[str]:
    """Top-level modules that are neither this project's nor the standard library's."""
    top = {name.partition(".")[0] for name in names}
    return {name for name in top if name not in sys.stdlib_module_names and name != "fixpack"}


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def test_apply_and_confirm(kit: Kit) -> None:
    code, names = imported(kit)
    assert (code, own(names), foreign(names)) == (0, APPLY, set())
    code, names = imported(kit)
    assert (code, own(names), foreign(names)) == (0, CONFIRM, set())
    assert names & HEAVY == set()


def test_a_run_that_explains(kit: Kit) -> None:
    (kit.site / "demo_plugin/runner.py").write_text(RUNNER.replace("len(rows) - 1", "len(rows) + 1"))
    code, names = imported(kit)
    assert (code, own(names)) == (1, EXPLAIN)
    assert {name for name in foreign(names) if "cython" not in name} <= {"yaml", "_yaml"}  # the C loader's runtime


@pytest.mark.parametrize(
    "name", ["apply_all", *sorted(EXPLAIN - {"fixpack.cli"}), "fixpack.cli.__init__", "fixpack.crashlog"]
)
def test_python_310_can_read_it(name: str) -> None:
    path = REPO.joinpath(*name.split(".")).with_suffix(".py")
    if name == "fixpack":
        path = REPO / "fixpack" / "__init__.py"
    ast.parse(path.read_bytes(), str(path), feature_version=(3, 10))


OTHERS = sorted(
    found for minor in (10, 12, 13) for found in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3")
)


@pytest.mark.parametrize("python", OTHERS, ids=lambda path: path.parts[-3])
def test_other_pythons_apply_and_confirm(kit: Kit, python: Path) -> None:
    """Where the machine has them; the whole way without PyYAML, which only an explanation needs."""
    for last in ("applied", "confirmed"):
        done = kit.command("--profile", "v1.0.0", "--site", str(kit.site), python=str(python))
        assert done.code == 0, done.err
        assert f"bench-v1.0.0: {last}:" in done.out
