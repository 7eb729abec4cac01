"""From the command line and from pytest: the whole way of a proof, with a small invented upstream.

A checkout is imitated: the real package and the real conftest, a registry with one fix, a harness of a few lines, and
git repositories that play the two upstream projects.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STOCK = "def count(items):\n    found = len(items) - 1\n    return found\n"
HARNESS = """
import os
class HarnessError(Exception):
    pass
def proof_env(gaudi_tree, vllm_tree, cache):
    if "NO_HARNESS" in os.environ:
        raise HarnessError("no compiler")
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join((gaudi_tree, vllm_tree))}
"""
PROOF = """
import vllm
from vllm_gaudi.rows import count
def test_count():
    assert count([5, 5]) == 2, f"a row was lost: {count([5, 5])}"
def test_empty():
    assert vllm.EMPTY == []
"""
FIX = """
id: rows
revision: 1
title: count every row
symptom: a row is lost
cause: an index is off by one
origin: {kind: own}
upstream: {status: not-reported}
retires-when: upstream counts every row
edits:
  vllm-gaudi:
    - {anchor: found, op: replace, code: found.py}
proof:
  test: tests/fixes/test_rows.py
  stock: {test_count: "a row was lost: 1"}
"""
PROFILE = "profile: demo\nhardware: none\nreleases: {vllm-gaudi: v1, vllm: v1}\nfixes: [rows]\n"
ANCHORS = """
distribution: %s
release: v1
version: "1.0"
package: %s
commit: %s
files: %s
"""


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


class Checkout:
    """The imitated checkout and its cache."""

    def __init__(self, root: Path) -> None:
        self.root = root / "checkout"
        self.cache = root / "cache"
        self.home = root / "home"

    def build(self) -> None:
        root = self.root.parent
        write(self.root / "tests/harness/env.py", HARNESS)
        write(self.root / "tests/fixes/test_rows.py", PROOF)
        shutil.copy(ROOT / "tests/fixes/conftest.py", self.root / "tests/fixes/conftest.py")
        (self.root / "fixpack").symlink_to(ROOT / "fixpack")
        write(self.root / "fixes/rows.yaml", FIX)
        write(self.root / "patches/rows/found.py", "found = len(items)\n")
        write(self.root / "profiles/demo.yaml", PROFILE)
        rows = f"\n  vllm_gaudi/rows.py:\n    sha256: {hashlib.sha256(STOCK.encode()).hexdigest()}\n"
        rows += "    anchors: {found: {within: count, text: found = len(items) - 1}}"
        self._upstream(root / "vllm-gaudi", "vllm_gaudi", {"__init__.py": "", "rows.py": STOCK}, rows)
        self._upstream(root / "vllm", "vllm", {"__init__.py": "EMPTY = []\n"}, "{}")

    def _upstream(self, folder: Path, package: str, files: dict[str, str], pinned: str) -> None:
        for name, text in files.items():
            write(folder / package / name, text)
        git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@example.org"]
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "release"]):
            subprocess.run([*git, *command], check=True, env=self.env())
        done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, env=self.env(), capture_output=True, text=True)
        text = ANCHORS % (folder.name, package, done.stdout.strip(), pinned)
        write(self.root / "anchors" / folder.name / "v1.yaml", text)

    def env(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PYTHONDONTWRITEBYTECODE": "1",
            "FIXPACK_SOURCES": str(self.cache),
            **more,
        }

    def fetch(self) -> None:
        for name in ("vllm-gaudi", "vllm"):
            done = self.run("fixpack", "sources", "fetch", f"{name}@v1", "--from", str(self.root.parent / name))
            assert done.returncode == 0, done.stderr

    def run(self, module: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, cwd=self.root, env=self.env(**env), capture_output=True, text=True, check=False)

    def pytest(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        options = ("-q", "-rA", "-p", "no:cacheprovider", "--rootdir", ".", "tests/fixes")
        return self.run("pytest", *options, *arguments, **env)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = Checkout(tmp_path_factory.mktemp("template"))
    made.home.mkdir()
    made.build()
    made.fetch()
    return made


@pytest.fixture
def fetched(template: Checkout, tmp_path: Path) -> Checkout:
    shutil.copytree(template.root.parent, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Checkout(tmp_path)


@pytest.fixture
def checkout(fetched: Checkout) -> Checkout:
    """One without sources."""
    shutil.rmtree(fetched.cache)
    return fetched


def test_prove_prints_a_table_and_records(fetched: Checkout) -> None:
    done = fetched.run("fixpack", "prove", "--profile", "demo", "--json", "record.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("demo: vllm-gaudi@v1 (")
    assert lines[1].split("  ")[0] == "fix"
    assert "  test seconds  result" in lines[1]
    assert lines[2].split()[:5] == ["rows", "1/1", "1/1", "2/2", "2/2"]
    assert lines[2].endswith("proven")
    assert lines[3:] == ["1 proven, 0 skipped, 0 failed"]
    assert [line.split(" (")[0].strip() for line in done.stderr.splitlines()] == [
        "stock: 1 failed, 1 passed",
        *sorted(("alone:rows: 2 passed", "all: 2 passed"), key=done.stderr.index),
    ]
    record = json.loads((fetched.root / "record.json").read_text(encoding="utf-8"))
    assert record["counts"] == {"proven": 1, "skipped": 0, "failed": 0}
    stock, alone, together = (run["trees"] for run in record["profiles"][0]["runs"])
    assert stock["vllm@v1"] == alone["vllm@v1"]
    assert stock["vllm-gaudi@v1"] != alone["vllm-gaudi@v1"] == together["vllm-gaudi@v1"]
    assert fetched.run("fixpack", "sources", "verify").returncode == 0


def test_prove_fails_with_the_reason(fetched: Checkout) -> None:
    write(fetched.root / "fixes/rows.yaml", FIX.replace("lost: 1", "lost: 7"))
    done = fetched.run("fixpack", "prove", "--json", "-")
    assert done.returncode == 1
    assert json.loads(done.stdout)["counts"] == {"proven": 0, "skipped": 0, "failed": 1}
    assert done.stderr.splitlines()[-3:] == [
        "rows:",
        "  - stock: test_rows.py::test_count fails for another reason than 'a row was lost: 7': "
        "AssertionError: a row was lost: 1",
        "0 proven, 0 skipped, 1 failed",
    ]


def test_prove_without_sources_skips_and_says_how_to_get_them(checkout: Checkout) -> None:
    done = checkout.run("fixpack", "prove")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "skipped, because upstream sources are not in the cache; fetch them with",
        "  fixpack sources fetch vllm-gaudi@v1 --from PATH_OR_URL",
        "  fixpack sources fetch vllm@v1 --from PATH_OR_URL",
        "0 proven, 1 skipped, 0 failed",
    ]


def test_prove_outside_of_a_checkout_says_so(fetched: Checkout) -> None:
    (fetched.root / "tests/harness/env.py").unlink()
    done = fetched.run("fixpack", "prove")
    assert done.returncode == 2
    assert "proofs need a checkout" in done.stderr


def test_prove_without_a_working_harness_says_so(fetched: Checkout) -> None:
    done = fetched.run("fixpack", "prove", NO_HARNESS="1")
    assert done.returncode == 2
    assert "no compiler" in done.stderr


def test_prove_opens_the_record_s_file_first(fetched: Checkout) -> None:
    for place in ("no/dir/record.json", "tests"):
        done = fetched.run("fixpack", "prove", "--json", place)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {place}: --json: the record cannot be written: ")
        assert "stock:" not in done.stderr
    file = fetched.root / "record.json"
    assert fetched.run("fixpack", "prove", "--json", "record.json", NO_HARNESS="1").returncode == 2
    assert not file.exists()
    write(file, '{"an": "older record, longer than nothing"}')
    assert fetched.run("fixpack", "prove", "--json", "record.json", NO_HARNESS="1").returncode == 2
    assert json.loads(file.read_text(encoding="utf-8")) == {"an": "older record, longer than nothing"}
    assert fetched.run("fixpack", "prove", "--json", "record.json").returncode == 0
    [verdict] = json.loads(file.read_text(encoding="utf-8"))["profiles"][0]["fixes"]
    assert verdict["test_seconds"] >= 0
    assert "duration" not in verdict
    assert fetched.run("fixpack", "prove", "--json", os.devnull).returncode == 0
    with open(fetched.root / "out", "w+", encoding="utf-8") as out:
        out.write("before\n")
        out.flush()
        command = [sys.executable, "-m", "fixpack", "prove", "--json", "-"]
        subprocess.run(command, cwd=fetched.root, env=fetched.env(), stdout=out, stderr=subprocess.DEVNULL, check=True)
        out.seek(0)
        assert out.readline() == "before\n"
        assert json.load(out)["counts"]["proven"] == 1


def test_an_interrupted_prove_leaves_nothing_behind(fetched: Checkout) -> None:
    pid_file = fetched.root / "pid"
    endless = f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    write(fetched.root / "tests/fixes/test_rows.py", endless + PROOF)
    command = [sys.executable, "-m", "fixpack", "prove"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if this run is in the background
    try:
        prover = subprocess.Popen(command, cwd=fetched.root, env=fetched.env(), stderr=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGINT, before)
    with prover:
        while not (pid_file.exists() and pid_file.read_text(encoding="utf-8")):
            assert prover.poll() is None
            time.sleep(0.02)
        prover.send_signal(signal.SIGINT)
        assert prover.wait() == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text(encoding="utf-8")), 0)
    assert list((fetched.cache / "prove").iterdir()) == []


def test_what_a_killed_prove_left_goes_with_the_next(fetched: Checkout) -> None:
    dead = fetched.cache / "prove/prove-dead"
    write(dead / "lock", "")
    write(dead / "stock/vllm/__init__.py", "")
    assert fetched.run("fixpack", "prove").returncode == 0
    assert list((fetched.cache / "prove").iterdir()) == []


def test_prove_refuses_a_cached_tree_that_is_not_the_pinned_one(fetched: Checkout) -> None:
    file = fetched.cache / "trees/vllm@v1/vllm/__init__.py"
    file.write_text("EMPTY = [1]\n", encoding="utf-8")
    done = fetched.run("fixpack", "prove")
    assert done.returncode == 1
    assert "vllm@v1" in done.stderr
    assert "__init__.py" in done.stderr


def test_pytest_goes_the_prover_s_way(fetched: Checkout) -> None:
    done = fetched.pytest(FIXPACK_REQUIRE_PROOFS="1")
    assert done.returncode == 0, done.stdout
    assert "PASSED tests/fixes/test_rows.py::rows[demo]" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "fixes: 1 proven, 0 skipped, 0 failed"
    told = [line.split(" (")[0] for line in done.stdout.splitlines() if line.startswith("  demo ")]
    assert told[0] == "  demo stock: 1 failed, 1 passed"
    assert sorted(told[1:]) == ["  demo all: 2 passed", "  demo alone:rows: 2 passed"]


def test_pytest_fails_with_the_prover_s_reasons(fetched: Checkout) -> None:
    write(fetched.root / "patches/rows/found.py", "found = len(items) + 1\n")
    done = fetched.pytest()
    assert done.returncode == 1
    assert "alone:rows: test_rows.py::test_count failed: AssertionError: a row was lost: 3" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "fixes: 0 proven, 0 skipped, 1 failed"


def test_pytest_skips_without_sources(checkout: Checkout) -> None:
    done = checkout.pytest(FIXPACK_REQUIRE_PROOFS="1")
    assert done.returncode == 0, done.stdout
    assert "fixpack sources fetch vllm-gaudi@v1 --from PATH_OR_URL" in done.stdout
    assert done.stdout.splitlines()[-1] == "fixes: 0 proven, 1 skipped, 0 failed"


def test_a_required_proof_that_did_not_run_fails_the_run(fetched: Checkout) -> None:
    assert fetched.pytest("-k", "nothing").returncode == 5
    done = fetched.pytest("-k", "nothing", FIXPACK_REQUIRE_PROOFS="1")
    assert done.returncode == 1
    assert "required proof: rows[demo] did not run" in done.stdout.splitlines()


def test_a_proof_file_without_a_fix_is_an_error(fetched: Checkout) -> None:
    write(fetched.root / "tests/fixes/test_other.py", "def test_other():\n    pass\n")
    done = fetched.pytest()
    assert done.returncode == 2
    assert "tests/fixes/test_other.py is the proof of no fix" in done.stdout
