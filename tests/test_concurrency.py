"""Many runs at once on one install: one writes, all end well, nobody waits for a lock to confirm."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit import APPLY_ALL, DEFAULT, Kit, state

from fixpack.hold import locked

COUNT = 16


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    return Kit(tmp_path)


def start(kit: Kit, *names: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(APPLY_ALL), "--registry", str(kit.registry), "--profile", "v1.0.0"]
    return subprocess.Popen(
        [*command, "--site", str(kit.site), *names], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def alone(kit: Kit, *names: str) -> object:
    """What a single run makes."""
    kit.fresh_site()
    assert kit.apply(*names).code == 0
    found = kit.content()
    kit.fresh_site()
    return found


def test_sixteen_of_the_same(kit: Kit) -> None:
    expected = alone(kit)
    runs = [start(kit) for _ in range(COUNT)]
    done = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0] * COUNT, done
    assert sum(": applied: " in out for out, _ in done) == 1
    assert sum(": confirmed: " in out for out, _ in done) == COUNT - 1
    assert kit.content() == expected
    assert not list(kit.site.rglob(".fixpack*"))


def test_sixteen_confirms_of_one_that_is_in_place(kit: Kit) -> None:
    kit.apply()
    before = state(kit.site)
    with locked(str(kit.site)):  # somebody writes for long: a confirm does not care
        runs = [start(kit) for _ in range(COUNT)]
        done = [run.communicate(timeout=120) for run in runs]
    assert [(run.returncode, err) for run, (_, err) in zip(runs, done, strict=True)] == [(0, "")] * COUNT
    assert state(kit.site) == before


def test_different_selections(kit: Kit) -> None:
    """Each is right about what it found; opt-in fixes stay, whoever came first."""
    expected = alone(kit, "long-share", "wide-log")
    choices = [(), ("long-share",), ("long-share", "wide-log"), ()] * 4
    runs = [start(kit, *names) for names in choices]
    done = [run.communicate(timeout=120) for run in runs]
    for names, run, (out, err) in zip(choices, runs, done, strict=True):
        if run.returncode:  # it met opt-in fixes that it did not name and that are not whole: it says so
            assert (run.returncode, "[missing_requirement]" in err or "[partly_applied]" in err) == (1, True), err
        else:
            assert ": applied: " in out or ": confirmed: " in out
            assert all(f" {name} " in out for name in (*DEFAULT, *names))
    assert kit.content() == expected


def test_applies_and_reverts(kit: Kit) -> None:
    """Whatever order they come in, the end is one of the two states, whole."""
    fixed = alone(kit)
    stock = kit.content()
    revert = [sys.executable, "-m", "fixpack", "revert", "--registry", str(kit.registry), "--site", str(kit.site)]
    runs = []
    for number in range(COUNT):
        command = [*revert, "--profile", "v1.0.0"]
        other = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=APPLY_ALL.parent
        )
        runs.append(start(kit) if number % 2 else other)
    done = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0] * COUNT, done
    assert kit.content() in (stock, fixed)
    assert not list(kit.site.rglob(".fixpack*"))


def test_a_dead_process_holds_no_lock(kit: Kit) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(kit.site)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    waiting = start(kit)
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == f"waiting for another run on {kit.site}\n"
    holder.send_signal(signal.SIGKILL)
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (0, "")
    assert ": applied: " in out
    holder.wait()
    holder.stdout.close()


HOLD = """
import fcntl, os, sys, time
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


def test_a_waiting_run_can_be_interrupted(kit: Kit) -> None:
    before = state(kit.site)
    with locked(str(kit.site)):
        run = start(kit)
        assert run.stderr is not None
        assert run.stderr.readline().startswith("waiting for another run")
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (130, "interrupted\n")
    assert state(kit.site) == before


def test_killed_again_and_again(kit: Kit) -> None:
    """Runs that are killed at any moment, one after the other: the last one is left to end, and all is right."""
    expected = alone(kit)
    for number in range(COUNT):
        run = start(kit)
        time.sleep(0.02 + 0.008 * number)
        run.kill()
        run.communicate()
    done = start(kit)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    assert ": applied: " in out or ": confirmed: " in out
    assert kit.content() == expected
    assert not list(kit.site.rglob(".fixpack*"))


def test_a_lock_needs_no_file(kit: Kit) -> None:
    before = set(os.listdir(kit.site))
    with locked(str(kit.site)):
        assert set(os.listdir(kit.site)) == before
        descriptor = os.open(kit.site, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
