"""The state of each fix: every one of them, its reason, its letter, and that looking changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit import DEFAULT, PATCHES, REPO, Kit, as_nobody, sha, state

from fixpack import docs
from fixpack.docs_facts import read_facts
from fixpack.errors import RegistryError
from fixpack.registry import load

ALL_PRISTINE = dict.fromkeys((*DEFAULT, "long-share", "wide-log"), "pristine")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_bytes().decode()
    assert text.count(old) == 1, (old, text.count(old))
    path.write_bytes(text.replace(old, new).encode())


def test_the_whole_report_of_an_applied_set(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    kit.apply("long-share")
    before = state(kit.site)
    done = kit.verb("status")
    site = kit.site
    assert done == (
        0,
        f"""\
demo-plugin 1.0.0 in {site}  [--site {site}]
demo-core 1.0.0 in {site}  [--site {site}]
  = rows-counted  r1  count every row of a step
  = order-kept    r1  keep the order of rows
  = core-guard    r1  guard the schedule
  = long-share    r1  share the budget of long prompts
  - wide-log      r1  log what is shared
receipt of demo-plugin: agrees, of 2023-11-14T22:13:20Z  {site}/demo_plugin-1.0.0.dist-info/fixpack.json
receipt of demo-core: agrees, of 2023-11-14T22:13:20Z  {site}/demo_core-1.0.0.dist-info/fixpack.json
bench-v1.0.0: 4 applied, 1 pristine
  = in place, every byte as proven; - opt-in, not in place
""",
        "",
    )
    assert state(kit.site) == before


def test_stock(kit: Kit) -> None:
    before = state(kit.site)
    done = kit.verb("status")
    assert done.code == 0
    assert [line[2] for line in done.out.splitlines()[2:7]] == ["+", "+", "+", "-", "-"]
    assert kit.states() == ALL_PRISTINE
    assert state(kit.site) == before


def remove_package(kit: Kit) -> None:
    shutil.rmtree(kit.site / "demo_plugin")


def remove_file(kit: Kit) -> None:
    (kit.site / "demo_plugin/batch.py").unlink()


def remove_added(kit: Kit) -> None:
    kit.apply()
    (kit.site / "demo_plugin/_fixpack/rows.py").unlink()


def edit_region(kit: Kit) -> None:
    kit.apply()
    rewrite(kit.site / "demo_plugin/runner.py", "order = list(rows)", "order = rows")


def edit_scope(kit: Kit) -> None:
    kit.apply()
    rewrite(kit.site / "demo_plugin/batch.py", "self.rows.append((first, count))", "self.rows.append(first)")


def edit_elsewhere(kit: Kit) -> None:
    kit.apply()
    rewrite(kit.site / "demo_plugin/batch.py", "self.rows = []", "self.rows = list()")


def break_marker(kit: Kit) -> None:
    kit.apply()
    rewrite(kit.site / "demo_plugin/runner.py", "        # fixpack end order-kept r1: step-add\n", "")


def add_own_file(kit: Kit) -> None:
    (kit.site / "demo_plugin/_fixpack").mkdir()
    (kit.site / "demo_plugin/_fixpack/rows.py").write_text("mine = 1\n")


def crlf(kit: Kit) -> None:
    path = kit.site / "demo_core/core.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def empty(kit: Kit) -> None:
    (kit.site / "demo_core/core.py").write_bytes(b"")


def fifo(kit: Kit) -> None:
    (kit.site / "demo_core/core.py").unlink()
    os.mkfifo(kit.site / "demo_core/core.py")


def folder(kit: Kit) -> None:
    (kit.site / "demo_core/core.py").unlink()
    (kit.site / "demo_core/core.py").mkdir()


def unknown_fix(kit: Kit) -> None:
    with (kit.site / "demo_core/core.py").open("a") as file:
        file.write("# fixpack begin other-fix r1: module-end\nx = 1\n# fixpack end other-fix r1: module-end\n")


def unchecked_bytecode(kit: Kit) -> None:
    kit.apply()
    cache = kit.site / "demo_core/__pycache__"
    cache.mkdir(exist_ok=True)
    head = b"\0\0\0\0" + (1).to_bytes(4, "little") + b"\0" * 8
    (cache / f"core.{sys.implementation.cache_tag}.pyc").write_bytes(head)


#: name -> change, fixes that are not what they were, their state, and the reason code of the first
CASES: dict[str, tuple[Callable[[Kit], None], dict[str, str], str]] = {
    "package gone": (remove_package, dict.fromkeys(("rows-counted", "order-kept"), "missing"), "distribution_missing"),
    "file gone": (remove_file, {"order-kept": "missing"}, "file_missing"),
    "added file gone": (remove_added, {"rows-counted": "pristine"}, "half_applied"),
    "region edited": (edit_region, {"order-kept": "foreign"}, "edited_inside"),
    "scope edited": (edit_scope, {"order-kept": "foreign"}, "edited_in_scope"),
    "edited elsewhere": (edit_elsewhere, {}, ""),
    "marker gone": (break_marker, {"order-kept": "foreign"}, "marker_broken"),
    "a file of that name": (add_own_file, {"rows-counted": "foreign"}, "file_exists"),
    "line ends": (crlf, {"core-guard": "foreign"}, "eol_differs"),
    "empty file": (empty, {"core-guard": "foreign"}, "empty_file"),
    "a pipe": (fifo, {"core-guard": "foreign"}, "not_a_file"),
    "a folder": (folder, {"core-guard": "foreign"}, "not_a_file"),
    "another registry's fix": (unknown_fix, {"core-guard": "foreign"}, "unknown_fix"),
    "unchecked bytecode": (unchecked_bytecode, {"core-guard": "foreign"}, "stale_bytecode"),
}


@pytest.mark.parametrize("case", CASES)
def test_state_and_reason(kit: Kit, case: str) -> None:
    change, expected, code = CASES[case]
    change(kit)
    before = state(kit.site)
    done = kit.verb("status", "--profile", "v1.0.0", "--json")
    assert state(kit.site) == before
    assert done.code == bool(expected)
    fixes = {fix["id"]: fix for fix in done.json["fixes"] if not fix["opt_in"]}
    for name, wanted in expected.items():
        assert fixes[name]["state"] == wanted, (name, fixes[name])
        assert code in [problem["code"] for problem in fixes[name]["problems"]]
        assert fixes[name]["reason"]
    rest = {fix["state"] for name, fix in fixes.items() if name not in expected}
    assert rest <= {"applied", "pristine"} or case in ("region edited", "marker gone"), rest
    assert kit.verb("status", "--profile", "v1.0.0").code == done.code


def test_an_opt_in_fix_that_is_not_in_place_is_no_fault(kit: Kit) -> None:
    """Its only file has other bytes, or is gone: no letter of a fault, exit 0, and a line that says so."""
    path = kit.site / "demo_plugin/_fixpack/share.py"
    path.parent.mkdir()
    path.write_text("SHARE = 3\n")  # at the name of a file that the fix would add
    done = kit.verb("status")
    assert done.code == 0
    lines = done.out.splitlines()
    at = next(number for number, line in enumerate(lines) if "long-share" in line)
    assert lines[at].startswith("  - long-share")
    assert lines[at + 1].endswith("it is not the fix's [file_exists]")
    assert lines[-2] == "bench-v1.0.0: 4 pristine, 1 not in place"
    assert lines[-1] == "  + not in place; apply can bring it in; - opt-in, not in place"
    found = {each["id"]: each for each in kit.verb("status", "--json").json["fixes"]}
    assert (found["long-share"]["state"], found["long-share"]["absent"]) == ("foreign", True)


def test_what_is_left_of_an_opt_in_fix_is_a_fault(kit: Kit) -> None:
    """No edit of it is whole, but its markers are there."""
    path = kit.site / "demo_plugin/_fixpack/share.py"
    path.parent.mkdir()
    path.write_text("# fixpack begin long-share r1: file\nSHARE = 3\n# fixpack end long-share r1: file\n")
    done = kit.verb("status")
    assert done.code == 1
    assert "  ! long-share" in done.out
    found = {each["id"]: each for each in kit.verb("status", "--json").json["fixes"]}
    assert (found["long-share"]["edits"], found["long-share"]["absent"]) == (0, False)


def declare_upstream(kit: Kit) -> None:
    """order-kept's two edits get upstream's own forms."""
    kit.edit(
        "fixes/order-kept.yaml",
        "    - {anchor: step-add, op: insert-after, code: keep.py}\n    - {anchor: batch-stale, op: delete}\n",
        "    - anchor: step-add\n      op: insert-after\n      code: keep.py\n"
        "      upstream-form: |\n        order = [*rows]\n        return order\n"
        "    - anchor: batch-stale\n      op: delete\n      upstream-form: 'fresh = True'\n",
    )
    kit.lock()


@pytest.mark.parametrize(
    ("runner", "batch", "expected"),
    [
        (True, True, "superseded"),
        (True, False, "partly-superseded"),
        (False, True, "partly-superseded"),
        (False, False, "pristine"),
    ],
)
def test_what_upstream_has(kit: Kit, runner: bool, batch: bool, expected: str) -> None:
    declare_upstream(kit)
    if runner:
        rewrite(
            kit.site / "demo_plugin/runner.py",
            "        return order\n",
            "        order = [*rows]\n        return order\n",
        )
    if batch:
        rewrite(kit.site / "demo_plugin/batch.py", "stale = True", "fresh = True")
    found = kit.verb("status", "--profile", "v1.0.0", "--json")
    fix = next(fix for fix in found.json["fixes"] if fix["id"] == "order-kept")
    assert fix["state"] == expected
    if expected == "pristine":
        return
    count = runner + batch
    assert fix["reason"] == f"upstream has {count} of its 2 edits in its own form; it retires when upstream counts rows"
    done = kit.apply()
    assert done.code == 1
    assert {"superseded"} <= set(done.codes)  # per file it is the whole of the fix's edits there
    assert "upstream has 1 of 1 edits of order-kept" in done.err


def test_upstreams_form_inside_another_scope_does_not_count(kit: Kit) -> None:
    declare_upstream(kit)
    rewrite(kit.site / "demo_plugin/batch.py", "self.rows = []", "self.rows = []\n        fresh = True")
    assert kit.states("--profile", "v1.0.0")["order-kept"] == "foreign"


def test_a_file_that_only_an_older_revision_added(kit: Kit) -> None:
    kit.apply()
    rows = sha(PATCHES["rows-counted/rows.py"])
    count = sha(PATCHES["rows-counted/count.py"])
    history = f"""\
history:
  - revision: 1
    reason: it lay elsewhere
    edits:
      demo-plugin@v1.0.0:
        - {{anchor: step-count, op: replace, sha256: {count}}}
        - {{op: add-file, path: demo_plugin/_fixpack/rows.py, sha256: {rows}}}
"""
    path = kit.registry / "fixes/rows-counted.yaml"
    path.write_text(path.read_text().replace("_fixpack/rows.py", "_fixpack/counted.py"))
    kit.revise("rows-counted", "rows.py", PATCHES["rows-counted/rows.py"], history)
    assert kit.states()["rows-counted"] == "stale"
    assert kit.verb("revert", "rows-counted", "order-kept").code == 0
    assert not (kit.site / "demo_plugin/_fixpack").exists()
    assert kit.apply().code == 0
    assert os.listdir(kit.site / "demo_plugin/_fixpack") == ["counted.py"]


def test_a_history_that_names_what_is_nowhere_is_refused(kit: Kit) -> None:
    kit.apply()
    history = """\
history:
  - revision: 1
    reason: it was wrong
    edits:
      demo-plugin: [{anchor: step-away, op: delete}]
      demo-core: [{op: add-file, path: other/x.py, sha256: %s}]
      demo-more: [{anchor: step-add, op: delete}]
""" % ("a" * 64)
    with pytest.raises(Exception, match="step-away") as caught:
        kit.revise("order-kept", "keep.py", "order = rows\n", history)
    assert [problem.code for problem in caught.value.problems] == ["unknown_anchor", "bad_path", "unknown_release"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; pytest's own are for its user only."""
    with tempfile.TemporaryDirectory(prefix="fixpack-open-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_every_reading_verb_as_another_user(open_folder: Path) -> None:
    """All that a probe in a container may do is read."""
    kit = Kit(open_folder)
    kit.apply()
    verbs = (("status",), ("verify",), ("verify", "--strict"), ("diff",), ("apply", "--profile", "v1.0.0"))
    for verb in (*verbs, ("doctor",), ("revert", "--dry-run")):  # as root first: that imports everything
        assert kit.verb(*verb).code == 0
    before = state(kit.site)
    for verb in verbs:
        assert as_nobody(lambda verb=verb: kit.verb(*verb).code) == 0, verb
    assert as_nobody(lambda: kit.verb("doctor").out.count("[unwritable]")) == 7  # every folder was really tried
    assert as_nobody(lambda: kit.verb("revert", "--dry-run").code) == 0

    def revert() -> int:
        done = kit.verb("revert")
        return done.code if done.codes == ["write_failed"] else 98

    assert as_nobody(revert) == 1
    assert state(kit.site) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_read_only_mount(kit: Kit) -> None:
    kit.apply()
    place = kit.folder / "mounted"
    place.mkdir()
    script = f"mount --bind {kit.site} {place} && mount -o remount,bind,ro {place} || exit 77\n"
    command = f"{sys.executable} -m fixpack %s --site {place} --registry {kit.registry}"
    script += f"! touch {place}/x 2>/dev/null || exit 78\n"
    for verb in ("status", "verify --strict", "diff", "apply --profile v1.0.0", "apply --profile v1.0.0 --check"):
        script += f"{command % verb} || exit 79\n"
    script += f"{command % 'apply --profile v1.0.0 long-share'}; test $? = 1 || exit 80\n"
    script += f"{command % 'revert'}; test $? = 1 || exit 81\n"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, cwd=REPO)
    if done.returncode in (1, 77) and "fixpack" not in done.stdout + done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr.count("[write_failed]") == 2
    assert "Read-only file system" in done.stderr


def supersede(kit: Kit) -> None:
    """The plugin's second release has what order-kept brings: its profile does without the fix."""
    kit.edit("profiles/bench-v2.0.0.yaml", "rows-counted, order-kept, core-guard", "rows-counted, core-guard")
    kit.edit(
        "fixes/order-kept.yaml",
        "proof:\n",
        "upstream-has:\n  demo-plugin@v2.0.0:\n    url: https://example.org/pull/7\n"
        "    reason: It keeps the order since then.\n    anchor: order-of-upstream\nproof:\n",
    )
    kit.edit(
        "anchors/demo-plugin/v2.0.0.yaml",
        "      step-add:\n",
        "      order-of-upstream:\n        within: Runner.step\n        text: order = sorted(rows)\n      step-add:\n",
    )
    kit.lock()
    kit.fresh_site("v2.0.0")


def superseded_fix(kit: Kit) -> dict[str, str]:
    found = kit.verb("status", "--profile", "v2.0.0", "--json").json["fixes"]
    return next(fix for fix in found if fix["id"] == "order-kept")


def test_a_fix_that_the_release_has(kit: Kit) -> None:
    """On stock, with the other fixes in, and beside a foreign change elsewhere in its file."""
    supersede(kit)
    told = "upstream has it in demo-plugin@v2.0.0: It keeps the order since then (https://example.org/pull/7)"
    for _ in range(2):
        fix = superseded_fix(kit)
        assert (fix["state"], fix["reason"]) == ("superseded", told)
        assert kit.run("--profile", "v2.0.0", "--site", str(kit.site)).code == 0
    done = kit.verb("status", "--profile", "v2.0.0")
    assert done.code == 0
    line = f"      fixes/order-kept.yaml: {told} [superseded]\n"
    assert f"  ^ order-kept    r1  keep the order of rows\n{line}" in done.out
    rewrite(kit.site / "demo_plugin/runner.py", "One per process.", "One per thread.")
    assert superseded_fix(kit)["state"] == "superseded"


@pytest.mark.parametrize(("change", "state"), [("sorted(rows)", "foreign"), ("", "missing")])
def test_upstreams_line_is_not_in_the_bytes(kit: Kit, change: str, state: str) -> None:
    """The release is said to have it; these bytes do not."""
    supersede(kit)
    if change:
        rewrite(kit.site / "demo_plugin/runner.py", change, "list(rows)")
    else:
        (kit.site / "demo_plugin/runner.py").unlink()
    assert superseded_fix(kit)["state"] == state
    assert kit.verb("status", "--profile", "v2.0.0").code == 1


@pytest.mark.parametrize(
    ("path", "old", "new", "told"),
    [
        ("profiles/bench-v2.0.0.yaml", "[rows-counted, core", "[rows-counted, order-kept, core",
         "bench-v2.0.0 lists order-kept, which demo-plugin@v2.0.0 has"),
        ("fixes/order-kept.yaml", "demo-plugin@v2.0.0:", "demo-plugin@v9.0.0:",
         "order-kept says that 'demo-plugin@v9.0.0' has it, for which there is no anchors file"),
        ("fixes/order-kept.yaml", "anchor: order-of-upstream", "anchor: order-of-others",
         "order-kept names a line of upstream's by 'order-of-others', an anchor that "
         "anchors/demo-plugin/v2.0.0.yaml lacks"),
        ("fixes/order-kept.yaml", "anchor: order-of-upstream", "anchor: order-of-upstream\n    green: [test_other]",
         "test_other is said to be green on demo-plugin@v2.0.0, but is not among the tests that stock fails"),
    ],
)  # fmt: skip
def test_a_wrong_word_about_upstream(kit: Kit, path: str, old: str, new: str, told: str) -> None:
    supersede(kit)
    kit.edit(path, old, new)
    with pytest.raises(RegistryError) as caught:
        load(str(kit.registry))
    assert told in [problem.message for problem in caught.value.problems]


def test_show_says_what_upstream_has(kit: Kit) -> None:
    supersede(kit)
    out = kit.verb("show", "order-kept").out
    assert "demo-plugin@v2.0.0 has it: https://example.org/pull/7\n  It keeps the order since then.\n" in out
    assert "\n  demo-plugin@v2.0.0\n" not in out  # it edits nothing there
    assert kit.verb("show", "order-kept", "--json").json["upstream_has"] == {
        "demo-plugin@v2.0.0": {
            "url": "https://example.org/pull/7",
            "reason": "It keeps the order since then.",
            "green": [],
        }
    }


def test_pages_say_what_upstream_has(kit: Kit) -> None:
    supersede(kit)
    made = docs.pages(read_facts(load(str(kit.registry))))
    assert "| [order-kept](../fixes/order-kept.md) | demo-plugin@v2.0.0 | It keeps the order since then." in made[
        "profiles/bench-v2.0.0.md"
    ]
    assert "- demo-plugin@v2.0.0 has it: It keeps the order since then. <https://example.org/pull/7>" in made[
        "fixes/order-kept.md"
    ]
    assert "| default | upstream |" in made["fixes/README.md"]
