"""The pytest plugin of a proof run: writes what happened as one JSON object per line.

It runs inside the fresh interpreter, so it imports nothing of fixpack.  Lines are flushed one by
one: when the interpreter dies, the file still says in which test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from typing import Any

import pytest

#: Environment variable with the path of the file to write.
REPORT = "FIXPACK_PROOF_REPORT"


def _write(**record: Any) -> None:
    with open(os.environ[REPORT], "a", encoding="utf-8") as handle:
        handle.write(json.dumps(record) + "\n")


def _failure_text(excinfo: pytest.ExceptionInfo[BaseException] | None, longrepr: str) -> str:
    """The exception and pytest's ``E`` lines; never source lines, which say what a test hopes for."""
    lines = [excinfo.exconly()] if excinfo is not None else []
    lines += [line[1:].strip() for line in longrepr.splitlines() if line.startswith("E ")]
    return "\n".join(lines)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        _write(event="collect", nodeid=report.nodeid, outcome=report.outcome, text=report.longreprtext)


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        xfail = item.get_closest_marker("xfail") is not None
        _write(event="item", nodeid=item.nodeid, path=str(item.path), function=_function(item), xfail=xfail)


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(event="start", nodeid=nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _write(
        event="phase",
        nodeid=item.nodeid,
        when=report.when,
        outcome=report.outcome,
        xfail=hasattr(report, "wasxfail"),
        text=_failure_text(call.excinfo, report.longreprtext) if report.failed else report.longreprtext[-500:],
        longrepr=report.longreprtext[-6000:] if report.failed else "",
        duration=round(report.duration, 3),
    )
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    _write(event="finish", exitstatus=int(exitstatus))


def _function(item: pytest.Item) -> str:
    return str(getattr(item, "originalname", None) or item.name)
