"""One proof run: pytest in a fresh interpreter on prepared trees, and what it reported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: Settings that would change what a proof run does, whoever made them.
_FOREIGN = ("PYTEST_", "COV_CORE_", "COVERAGE_PROCESS_", "SOURCE_DATE_EPOCH", "PYTHONPYCACHEPREFIX", "PYTHONOPTIMIZE")

_TAIL = 2000  # characters of output that a crash report keeps


class TestOutcome(NamedTuple):
    """One test of a run."""

    nodeid: str
    path: str  # real path of the proof file
    function: str  # without parameters
    outcome: str  # passed, failed, error (set-up or tear-down), skipped, xfail, not-run
    text: str  # the exception and pytest's E lines; the reason of a skip
    longrepr: str
    duration: float


class Trouble(NamedTuple):
    """Something that makes a run worthless: a collection error, a crash, a time-out."""

    path: str  # real path of the proof file that it concerns, "" if all
    text: str


class PytestReport(NamedTuple):
    """What one interpreter reported."""

    tests: tuple[TestOutcome, ...]
    troubles: tuple[Trouble, ...]
    duration: float


class Children:
    """The running interpreters, so that an interrupted prover leaves none behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], env: Mapping[str, str], cwd: str, timeout: float) -> tuple[int, str]:
        """The exit code and output; 124 after ``timeout`` seconds, -15 or so when stopped."""
        with self._lock:
            if self._stopped:
                return -signal.SIGTERM, "stopped"
            process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, _ = process.communicate(timeout=timeout)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            _kill(process)
            output, _ = process.communicate()
            return 124, output
        finally:
            # A test's own child processes share the session; none may outlive the run.
            _kill(process)
            process.wait()  # an interrupted prover, too, ends after what it started
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        """Kill everything that runs and start nothing more."""
        with self._lock:
            self._stopped = True
            running = tuple(self._running)
        for process in running:
            _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def inner_env(proof_env: Mapping[str, str], report: str) -> dict[str, str]:
    """The environment of the fresh interpreter: ``proof_env``, and what the prover's own plugin needs.

    Bytecode goes into the throw-away trees, so that the engine's clean-up of stale bytecode is part of the test.
    """
    from fixpack import proof_plugin  # it imports pytest, which the pages' reference does without

    env = {name: value for name, value in proof_env.items() if not name.startswith(_FOREIGN)}
    package = os.path.dirname(os.path.dirname(os.path.abspath(proof_plugin.__file__)))
    env["PYTHONPATH"] = os.pathsep.join(part for part in (env.get("PYTHONPATH", ""), package) if part)
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    env["FIXPACK_PROOF"] = "1"
    env[proof_plugin.REPORT] = report
    return env


def run_pytest(
    files: Sequence[str],
    proof_env: Mapping[str, str],
    root: str,
    folder: str,
    timeout: float,
    children: Children,
) -> PytestReport:
    """Run the proof ``files`` in one fresh interpreter; ``folder`` is a scratch folder of this run alone."""
    work = os.path.join(folder, "work")
    os.makedirs(work)
    ini = os.path.join(folder, "pytest.ini")
    with open(ini, "w", encoding="utf-8") as handle:
        handle.write("[pytest]\n")
    report = os.path.join(folder, "report.jsonl")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-c", ini, "--rootdir", root]
    command += ["--confcutdir", os.path.join(root, "tests", "fixes"), "--import-mode=importlib"]
    command += ["--continue-on-collection-errors"]
    command += ["-p", "fixpack.proof_plugin", "-p", "no:cacheprovider", "--basetemp", os.path.join(folder, "tmp")]
    started = time.monotonic()
    code, output = children.run([*command, *files], inner_env(proof_env, report), work, timeout)
    records = []
    if os.path.exists(report):
        with open(report, encoding="utf-8") as handle:
            # A killed interpreter may leave half a line.
            records = [json.loads(line) for line in handle if line.endswith("\n")]
    tests, troubles = fold(records, root)
    tail = output.strip()[-_TAIL:]
    if code == 124:
        troubles.append(Trouble("", f"no end after {timeout:g} s{_last_started(records)}: {tail}"))
    elif not any(record["event"] == "finish" for record in records):
        troubles.append(Trouble("", f"the interpreter ended with {code}{_last_started(records)}: {tail}"))
    elif code not in (0, 1) and tests and not troubles:
        troubles.append(Trouble("", f"pytest ended with {code}: {tail}"))
    return PytestReport(tuple(tests), tuple(troubles), round(time.monotonic() - started, 2))


def fold(records: Sequence[Mapping[str, Any]], root: str) -> tuple[list[TestOutcome], list[Trouble]]:
    """The plugin's lines as one outcome per test, and the collection problems."""
    troubles = []
    items: dict[str, Mapping[str, Any]] = {}
    phases: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["event"] == "collect":
            file = record["nodeid"].partition("::")[0]
            path = os.path.realpath(os.path.join(root, file)) if file.endswith(".py") else ""
            troubles.append(Trouble(path, f"collection {record['outcome']}: {record['text'].strip()}"))
        elif record["event"] == "item":
            items[record["nodeid"]] = record
        elif record["event"] == "phase":
            phases.setdefault(record["nodeid"], []).append(record)
    return [_outcome(item, phases.get(nodeid, [])) for nodeid, item in items.items()], troubles


def _outcome(item: Mapping[str, Any], phases: Sequence[Mapping[str, Any]]) -> TestOutcome:
    outcome, told = "not-run", None
    for phase in phases:
        if item["xfail"] or phase["xfail"]:
            outcome, told = "xfail", phase
        elif phase["outcome"] == "failed":
            if outcome != "failed" or phase["when"] != "call":
                outcome, told = ("failed" if phase["when"] == "call" else "error"), phase
        elif phase["outcome"] == "skipped":
            outcome, told = "skipped", phase
        elif phase["when"] == "call":
            outcome = "passed"
    return TestOutcome(
        nodeid=item["nodeid"],
        path=os.path.realpath(item["path"]),
        function=item["function"],
        outcome=outcome,
        text=told["text"] if told else "",
        longrepr=told["longrepr"] if told else "",
        duration=round(sum(phase["duration"] for phase in phases), 3),
    )


def _last_started(records: Sequence[Mapping[str, Any]]) -> str:
    started = [record["nodeid"] for record in records if record["event"] == "start"]
    return f" in {started[-1]}" if started else ""
