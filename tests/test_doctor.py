"""Doctor, show, and the choice of a profile without being told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import Kit, state


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def codes(kit: Kit, level: str, *args: str) -> set[str]:
    done = kit.verb("doctor", "--json", *args)
    found = {each["code"] for each in done.json["findings"] if each["level"] == level}
    assert done.code == (1 if any(each["level"] == "problem" for each in done.json["findings"]) else 0)
    return found


def test_a_sound_place(kit: Kit) -> None:
    before = state(kit.site)
    done = kit.verb("doctor")
    assert (done.code, done.out.splitlines()[-1]) == (0, "bench-v1.0.0: 0 problems")
    assert codes(kit, "problem") == codes(kit, "note") == set()
    assert state(kit.site) == before  # probes are gone


def nested(kit: Kit) -> None:
    subprocess.run(["git", "init", "-q", str(kit.folder)], check=True)


def future(kit: Kit) -> None:
    later = time.time() + 86400
    os.utime(kit.site / "demo_core/core.py", (later, later))


def journal(kit: Kit) -> None:
    (kit.site / ".fixpack-new-journal").write_text("{")


def stale_lock(kit: Kit) -> None:
    kit.edit("patches/core-guard/guard.py", "[1]) == [1]", "[2]) == [2]")


def bytecode(kit: Kit) -> None:
    cache = kit.site / "demo_core/__pycache__"
    cache.mkdir()
    (cache / "core.cpython-311.pyc").write_bytes(b"\0\0\0\0" + (1).to_bytes(4, "little") + b"\0" * 8)


def linked(kit: Kit) -> None:
    os.link(kit.site / "demo_core/core.py", kit.folder / "store")


def no_record(kit: Kit) -> None:
    (kit.site / "demo_core-1.0.0.dist-info/RECORD").unlink()


def no_dist_info(kit: Kit) -> None:
    shutil.rmtree(kit.site / "demo_core-1.0.0.dist-info")


def gone(kit: Kit) -> None:
    shutil.rmtree(kit.site / "demo_core")


def changed_line(kit: Kit) -> None:
    path = kit.site / "demo_core/core.py"
    path.write_text(path.read_text() + "more = 1\n")


def another_release(kit: Kit) -> None:
    kit.fresh_site("v2.0.0")


def own_module(kit: Kit) -> None:
    """A fixed tree, one of whose added modules was edited."""
    kit.apply()
    path = kit.site / "demo_plugin/_fixpack/rows.py"
    path.write_text(path.read_text() + "more = 1\n")


def another_layer(kit: Kit) -> None:
    """A fixed tree, one of whose files was changed outside of every fixed scope."""
    kit.apply()
    path = kit.site / "demo_plugin/batch.py"
    path.write_text(path.read_text().replace("self.rows = []", "self.rows = list()"))


@pytest.mark.parametrize(
    ("change", "level", "code"),
    [
        (nested, "note", "nested_git"),
        (future, "problem", "clock"),
        (journal, "problem", "journal"),
        (stale_lock, "problem", "lock_stale"),
        (bytecode, "problem", "stale_bytecode"),
        (linked, "note", "hard_links"),
        (no_record, "note", "no_record"),
        (no_dist_info, "note", "no_dist_info"),
        (gone, "problem", "distribution_missing"),
        (changed_line, "problem", "base_sha_unknown"),
        (another_release, "problem", "other_release"),
        (own_module, "problem", "file_exists"),
        (another_layer, "note", "foreign_layer"),
    ],
)
def test_what_it_finds(kit: Kit, change: Callable[[Kit], None], level: str, code: str) -> None:
    change(kit)
    assert codes(kit, level, "--profile", "v1.0.0") == {code}
    assert f"[{code}]" in kit.verb("doctor", "--profile", "v1.0.0").out


def test_it_computes_what_an_apply_would_write(kit: Kit) -> None:
    last = kit.verb("doctor").out.splitlines()[-2]
    assert last == ("ok       an apply of bench-v1.0.0 would write 4 files, each with the sha256 of the lock [apply]")
    kit.apply("long-share")
    before = state(kit.site)
    last = kit.verb("doctor").out.splitlines()[-2]
    assert last.startswith("ok       an apply of bench-v1.0.0 would find every file in place")
    assert state(kit.site) == before


def test_what_an_apply_would_say_is_a_finding(kit: Kit) -> None:
    """File, both hashes and the next step are those of the refusal."""
    another_release(kit)
    refused = kit.apply("--dry-run", "--json")
    found = kit.verb("doctor", "--profile", "v1.0.0", "--json").json["findings"]
    problems = [each for each in found if each["level"] == "problem"]
    assert len(problems) == len(refused.json["problems"]) > 0
    for each, said in zip(problems, refused.json["problems"], strict=True):
        assert (each["code"], each["hint"]) == (said["code"], said["hint"])
        for part in ("file", "message", "expected", "found"):
            assert said[part] in each["message"]


def test_show(kit: Kit) -> None:
    done = kit.verb("show", "order-kept")
    assert done.code == 0
    for text in (
        *("order-kept r1: keep the order of rows", "rows are lost", "an index is off by one", "requires: rows-counted"),
        *("profiles: bench-v1.0.0 (default), bench-v2.0.0 (default)", "proof: tests/fixes/test_order_kept.py"),
        *(
            "insert-after step-add  in demo_plugin/runner.py Runner.step",
            "patches/order-kept/keep.py:",
            "order = list(rows)",
        ),
    ):
        assert text in done.out
    found = kit.verb("show", "order-kept", "--json").json
    assert [(each["release"], each["op"]) for each in found["edits"]] == [
        ("demo-plugin@v1.0.0", "insert-after"),
        ("demo-plugin@v1.0.0", "delete"),
        ("demo-plugin@v2.0.0", "insert-after"),
        ("demo-plugin@v2.0.0", "delete"),
    ]
    done = kit.verb("show", "order-keep")
    assert (done.code, done.codes) == (2, ["unknown_fix"])
    assert "did you mean 'order-kept'?" in done.err


@pytest.mark.parametrize("release", ["v1.0.0", "v2.0.0"])
def test_the_profile_is_found_by_bytes(kit: Kit, release: str) -> None:
    kit.fresh_site(release)
    assert kit.verb("status", "--json").json["profile"] == f"bench-{release}"
    kit.run("--profile", release, "--site", str(kit.site))
    assert kit.verb("verify", "--json").json["profile"] == f"bench-{release}"


def test_a_version_that_lies_does_not_matter(kit: Kit) -> None:
    path = kit.site / "demo_plugin-1.0.0.dist-info/METADATA"
    path.write_text(path.read_text().replace("Version: 1.0.0", "Version: 2.0.0"))
    assert kit.verb("status", "--json").json["profile"] == "bench-v1.0.0"


def test_no_profile_fits(kit: Kit) -> None:
    for path in kit.site.rglob("*.py"):
        path.write_text("other = 1\n")
    done = kit.verb("status")
    assert (done.code, done.codes) == (2, ["no_profile"])
    assert "known: bench-v1.0.0, bench-v2.0.0" in done.err


@pytest.mark.parametrize("verb", ["status", "verify", "doctor", "apply"])
def test_without_any_package(kit: Kit, verb: str) -> None:
    """A named profile: the target does not match.  None named: nothing is there to tell one by."""
    for name in ("demo_plugin", "demo_core"):
        shutil.rmtree(kit.site / name)
    done = kit.verb(verb, "--profile", "v1.0.0")
    assert done.code == 1
    assert "[distribution_missing]" in done.out + done.err
    if verb != "apply":
        done = kit.verb(verb)
        assert (done.code, done.codes) == (2, ["no_profile"])
        assert "no package that a profile is for is in this target" in done.err
        assert "--source NAME=DIR" in done.err


def test_two_profiles_fit(kit: Kit) -> None:
    path = kit.registry / "profiles/bench-v1.0.0.yaml"
    (kit.registry / "profiles/twin.yaml").write_text(
        path.read_text().replace("bench-v1.0.0", "twin").replace("[v1.0.0]", "[]")
    )
    kit.lock()
    done = kit.verb("status")
    assert (done.code, done.codes) == (2, ["no_profile"])
    assert "several profiles fit this target: bench-v1.0.0, twin" in done.err
    kit.run("--profile", "twin", "--site", str(kit.site))
    assert kit.verb("status", "--json").json["profile"] == "twin"  # its receipts say so, its bytes do not contradict
    assert json.loads((kit.site / "demo_core-1.0.0.dist-info/fixpack.json").read_text())["profile"] == "twin"
