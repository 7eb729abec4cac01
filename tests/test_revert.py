"""Revert: exact, all or nothing, one fix out of many, and never at the cost of somebody else's change."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from kit import DEFAULT, PATCHES, Kit, sha, state

from fixpack.revert import only_regions_differ

HISTORY = f"""\
history:
  - revision: 1
    reason: it kept the wrong order
    edits:
      demo-plugin:
        - {{anchor: step-add, op: insert-after, sha256: {sha(PATCHES["order-kept/keep.py"])}}}
        - {{anchor: batch-stale, op: delete}}
"""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")  # receipts of two runs are then the same
    return Kit(tmp_path)


@pytest.mark.parametrize("opt_in", [(), ("long-share",), ("long-share", "wide-log")])
def test_back_to_the_very_bytes(kit: Kit, opt_in: tuple[str, ...]) -> None:
    (kit.site / "demo_plugin/runner.py").chmod(0o754)
    before = kit.content()
    assert kit.apply(*opt_in).code == 0
    assert kit.content() != before
    done = kit.verb("revert")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"bench-v1.0.0: {', '.join((*DEFAULT, *opt_in))} taken out"
    assert kit.content() == before
    assert kit.apply(*opt_in).code == 0  # and in again


def test_any_part_of_the_fixes_by_any_way(kit: Kit) -> None:
    """Everything in and some out is the same, byte for byte, as only the rest in, receipts included."""
    needs = {"order-kept": {"rows-counted"}, "wide-log": {"long-share"}}
    everything = (*DEFAULT, "long-share", "wide-log")
    seen: dict[frozenset[str], object] = {}
    for count in range(1, len(everything)):
        for out in itertools.combinations(everything, count):
            stay = frozenset(everything) - set(out)
            kit.fresh_site()
            assert kit.apply("long-share", "wide-log").code == 0
            done = kit.verb("revert", *out)
            if any(needs.get(name, set()) - stay for name in stay):
                assert (done.code, done.codes[0]) == (2, "missing_requirement"), out
                continue
            assert done.code == 0, (out, done.err)
            assert {name for name, found in kit.states().items() if found == "applied"} == stay
            for name in out:
                assert kit.verb("revert", name).out.startswith("bench-v1.0.0: no fix in place"), name
            seen[stay] = kit.content()
            if set(DEFAULT) <= stay:
                kit.fresh_site()
                kit.apply(*(name for name in everything if name in stay - set(DEFAULT)))
                assert kit.content() == seen[stay], out
    assert len(seen) == 2 * 3 * 3 - 2  # all that requirements allow, without none and all


def test_one_by_one_is_the_same_as_at_once(kit: Kit) -> None:
    before = kit.content()
    kit.apply("long-share", "wide-log")
    for name in ("wide-log", "order-kept", "long-share", "core-guard", "rows-counted"):
        assert kit.verb("revert", name).code == 0
    assert kit.content() == before


def test_nothing_in_place(kit: Kit) -> None:
    before = state(kit.site)
    done = kit.verb("revert", "--json")
    assert (done.code, done.json["action"], done.json["files"]) == (0, "nothing-in-place", [])
    assert state(kit.site) == before


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(kit: Kit) -> None:
    kit.apply()
    before = state(kit.site)
    done = kit.verb("revert", "--dry-run", "--json")
    assert done.code == 0
    assert done.json == {
        "schema_version": 1,
        "exit_code": 0,
        "action": "would-revert",
        "profile": "bench-v1.0.0",
        "out": list(DEFAULT),
        "stay": [],
        "files": [
            [str(kit.site / "demo_plugin/_fixpack/rows.py"), "removed"],
            [str(kit.site / "demo_plugin/batch.py"), "restored"],
            [str(kit.site / "demo_plugin/runner.py"), "restored"],
            [str(kit.site / "demo_core/core.py"), "restored"],
        ],
        "written": False,
        "notes": [],
    }
    assert state(kit.site) == before


def test_unknown_names(kit: Kit) -> None:
    kit.apply()
    done = kit.verb("revert", "order-keep")
    assert (done.code, done.codes) == (2, ["unknown_fix"])
    assert "did you mean 'order-kept'?" in done.err


def test_a_hard_linked_store_stays_fixed_or_stock_as_it_was(kit: Kit) -> None:
    stock = (kit.site / "demo_plugin/runner.py").read_bytes()
    os.link(kit.site / "demo_plugin/runner.py", kit.folder / "store.py")
    kit.apply()
    os.link(kit.site / "demo_plugin/runner.py", kit.folder / "fixed.py")
    fixed = (kit.folder / "fixed.py").read_bytes()
    kit.verb("revert")
    assert (kit.folder / "store.py").read_bytes() == stock == (kit.site / "demo_plugin/runner.py").read_bytes()
    assert (kit.folder / "fixed.py").read_bytes() == fixed


FOREIGN = {
    "outside of every scope": ("demo_plugin/runner.py", "count = 0", "count = 1", "base_sha_unknown"),
    "inside a scope": ("demo_plugin/runner.py", "order = sorted(rows)", "order = rows", "edited_in_scope"),
    "inside a region": ("demo_plugin/runner.py", "order = list(rows)", "order = tuple(rows)", "edited_inside"),
    "in a new file": ("demo_plugin/_fixpack/rows.py", "len(rows)", "len(rows) + 1", "edited_inside"),
    "line ends": ("demo_core/core.py", "    return list(requests)\n", "    return list(requests)\r\n", "eol_differs"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_change_is_never_lost(kit: Kit, case: str) -> None:
    path, old, new, code = FOREIGN[case]
    kit.apply()
    text = (kit.site / path).read_bytes().decode()
    assert text.count(old) == 1
    (kit.site / path).write_bytes(text.replace(old, new).encode())
    before = state(kit.site)
    done = kit.verb("revert")
    assert done.code == 1
    assert code in done.codes
    assert "revert would lose it: take that layer out with its own tool, then revert" in done.err
    assert done.err.endswith("nothing was changed\n")
    assert state(kit.site) == before


def test_a_foreign_change_elsewhere_does_not_keep_other_fixes_in(kit: Kit) -> None:
    kit.apply()
    path = kit.site / "demo_plugin/runner.py"
    path.write_text(path.read_text().replace("count = 0", "count = 1"))
    foreign = path.read_bytes()
    stock = "def schedule(requests):\n    return list(requests)\n"
    assert kit.verb("revert", "core-guard").code == 0
    assert (kit.site / "demo_core/core.py").read_text().endswith(stock)
    assert path.read_bytes() == foreign
    assert kit.states() == {
        "rows-counted": "applied",
        "order-kept": "applied",
        "core-guard": "pristine",
        "long-share": "foreign",  # apply would refuse the file
        "wide-log": "foreign",
    }


def test_a_half_applied_set_is_taken_out(kit: Kit) -> None:
    """One distribution was installed anew: what is left of the fixes goes."""
    before = kit.content()
    stock = (kit.site / "demo_plugin/runner.py").read_bytes()
    kit.apply()
    (kit.site / "demo_plugin/runner.py").write_bytes(stock)
    assert kit.states()["rows-counted"] == "pristine"
    assert kit.verb("revert").code == 0
    assert kit.content() == before


def test_an_older_revision_goes_by_its_history(kit: Kit) -> None:
    before = kit.content()
    kit.apply("long-share")
    kit.revise("order-kept", "keep.py", "order = rows[:]\n", HISTORY)
    assert kit.states() == {
        "rows-counted": "applied",
        "order-kept": "stale",
        "core-guard": "applied",
        "long-share": "applied",
        "wide-log": "pristine",
    }
    done = kit.apply()
    assert (done.code, done.codes) == (1, ["stale_revision", "stale_revision"])
    assert "revision 1 is in place; the registry has revision 2 (it kept the wrong order)" in done.err
    assert "`fixpack revert order-kept` takes it out, then apply again" in done.err
    assert kit.verb("revert", "order-kept").code == 0
    assert kit.states()["order-kept"] == "pristine"
    assert kit.apply("long-share").code == 0
    assert "order = rows[:]" in kit.text("demo_plugin/runner.py")
    assert kit.verb("revert").code == 0
    assert kit.content() == before


def test_an_older_revision_that_stays_stops_the_revert_of_its_file(kit: Kit) -> None:
    kit.apply("long-share")
    kit.revise("order-kept", "keep.py", "order = rows[:]\n", HISTORY)
    before = state(kit.site)
    done = kit.verb("revert", "long-share")
    assert (done.code, done.codes) == (1, ["stale_revision"])
    assert state(kit.site) == before
    assert kit.verb("revert", "long-share", "order-kept").code == 0


@pytest.mark.parametrize("case", ["whole", "none", "truncated", "wrong base", "wrong result"])
def test_a_revision_that_no_history_knows_goes_by_the_kept_base(kit: Kit, case: str) -> None:
    before = kit.content()
    kit.apply()
    kit.revise("order-kept", "keep.py", "order = rows[:]\n", "")
    receipt = kit.site / "demo_plugin-1.0.0.dist-info/fixpack.json"
    body = json.loads(receipt.read_text())
    if case == "none":
        receipt.unlink()
    elif case == "truncated":
        receipt.write_bytes(receipt.read_bytes()[:-40])
    elif case == "wrong base":
        files = body["files"]
        files["demo_plugin/batch.py"]["base"] = files["demo_plugin/runner.py"]["base"]
        receipt.write_text(json.dumps(body))
    elif case == "wrong result":
        body["files"]["demo_plugin/batch.py"]["result_sha256"] = "0" * 64
        receipt.write_text(json.dumps(body))
    found = state(kit.site)
    assert kit.states()["order-kept"] == "foreign"
    done = kit.verb("revert")
    if case == "whole":
        assert done.code == 0, done.err
        assert kit.content() == before
    else:
        assert (done.code, set(done.codes)) == (1, {"stale_revision"})
        assert state(kit.site) == found


def test_only_regions_differ() -> None:
    mark = b"# fixpack begin a r1: x\nnew\n# fixpack end a r1: x\n"
    assert only_regions_differ(b"1\n2\n3\n", b"1\n" + mark + b"2\n3\n")
    assert only_regions_differ(b"1\n2\n3\n", b"1\n" + mark + b"3\n")
    assert only_regions_differ(b"1\n2\n3\n", mark)
    assert only_regions_differ(b"1\n2\n3\n4\n", mark + b"2\n" + mark + b"4\n")
    for data in (
        b"1\n2\n3\n",  # no region at all
        b"1\n" + mark + b"2\n4\n",
        b"1\n" + mark + b"2\n3\n3\n",
        b"2\n" + mark + b"1\n3\n",
        b"1\n" + mark + b"9\n" + mark + b"3\n",
        b"1\n2\n3\n" + mark[:-24],
        b"1\n2\n" + mark.replace(b"end a", b"end b") + b"3\n",
        b"1\n2\n3\n" + mark + b"3\n",
    ):
        assert not only_regions_differ(b"1\n2\n3\n", data), data


def test_an_opt_in_of_another_profile_is_not_touched(kit: Kit) -> None:
    kit.apply()
    done = kit.verb("revert", "--profile", "v2.0.0")
    assert done.code == 1
    assert "other_release" in done.codes or "base_sha_unknown" in done.codes


def test_a_package_that_is_not_there_is_not_taken_for_reverted(kit: Kit) -> None:
    kit.apply()
    (kit.site / "demo_core").rename(kit.folder / "away")
    before = state(kit.site)
    done = kit.verb("revert", "--profile", "v1.0.0")
    assert (done.code, done.codes) == (1, ["distribution_missing"])
    assert state(kit.site) == before
    assert kit.verb("revert", "--profile", "v1.0.0", "rows-counted", "order-kept").code == 0
