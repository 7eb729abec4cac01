"""The real command on a site folder: all or nothing, confirmed by bytes, and every doubt explained."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import py_compile
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import BATCH, CORE, DEFAULT, RUNNER, Kit, sha, state, write


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


FIXED_CORE = (
    CORE
    + "# fixpack begin core-guard r1: module-end\nassert schedule([1]) == [1]\n"
    + "# fixpack end core-guard r1: module-end\n"
)


# -- applying and confirming ------------------------------------------------------------------------------------------


def test_apply_then_confirm(kit: Kit) -> None:
    """In processes of their own, as an image build and a start script do it."""
    where = (
        f"demo-plugin 1.0.0 in {kit.site}  [--site {kit.site}]\ndemo-core 1.0.0 in {kit.site}  [--site {kit.site}]\n"
    )
    infos = [kit.site / f"{name}-1.0.0.dist-info" for name in ("demo_core", "demo_plugin")]
    records = [info / name for info in infos for name in ("RECORD", "fixpack.json")]
    done = kit.command("--profile", "v1.0.0", "--site", str(kit.site))
    assert done == (
        0,
        f"{where}"
        "  + rows-counted  r1  count every row of a step\n"
        "  + order-kept    r1  keep the order of rows\n"
        "  + core-guard    r1  guard the schedule\n"
        + "".join(f"  record written: {path}\n" for path in records)
        + "bench-v1.0.0: applied: 3 fixes in 4 files; 4 files written, each read back with the expected sha256\n",
        "",
    )
    assert kit.text("demo_core/core.py") == FIXED_CORE
    before = state(kit.site)
    done = kit.command("--profile", "v1.0.0", "--site", str(kit.site))
    assert done == (
        0,
        f"{where}"
        "  = rows-counted  r1  count every row of a step\n"
        "  = order-kept    r1  keep the order of rows\n"
        "  = core-guard    r1  guard the schedule\n"
        "bench-v1.0.0: confirmed: 3 fixes in 4 files, every byte of them as proven; nothing written\n",
        "",
    )
    assert state(kit.site) == before


def test_what_only_a_record_lacks(kit: Kit) -> None:
    """Every file is right, but RECORD does not know an added one."""
    kit.apply()
    record = kit.site / "demo_plugin-1.0.0.dist-info/RECORD"
    record.write_text("".join(line for line in record.read_text().splitlines(True) if "_fixpack/rows.py" not in line))
    done = kit.verb("verify")
    assert (done.code, done.out.splitlines()[-1]) == (
        1,
        "bench-v1.0.0: not applied: 0 of 4 files lack what an apply brings in",
    )
    assert f"  record out of date: {record}\n" in done.out


def test_records_are_reported(kit: Kit) -> None:
    """What a run writes, or would write, besides the fixed files."""
    infos = [kit.site / f"{name}-1.0.0.dist-info" for name in ("demo_core", "demo_plugin")]
    records = [str(info / name) for info in infos for name in ("RECORD", "fixpack.json")]
    before = state(kit.site)
    done = kit.apply("--dry-run", "--json")
    assert (done.json["action"], done.json["records"]) == ("would-apply", records)
    assert f"  record to be written: {records[0]}\n" in done.err
    assert state(kit.site) == before
    assert kit.apply("--json").json["records"] == records
    assert kit.apply("--json").json["records"] == []


def test_the_fixed_package_runs(kit: Kit) -> None:
    assert kit.apply("long-share", "wide-log").code == 0
    code = (
        "from demo_plugin.runner import Runner; import demo_core.core\n"
        "r = Runner(); print(r.step([]), r.step([3, 1]), r.batch.rows)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(kit.site)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[] [3, 1] [(3, 2)]\n"


def test_confirm_on_a_read_only_tree(kit: Kit) -> None:
    kit.apply()
    for path in (kit.site, *kit.site.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = state(kit.site)
    assert kit.apply().code == 0
    assert kit.apply("--check").code == 0
    assert state(kit.site) == before


def test_eight_at_once(kit: Kit) -> None:
    """Eight ranks start together on a stock install: one writes, all end with 0, the bytes are right."""
    command = [sys.executable, str(Path(__file__).parent.parent / "apply_all.py"), "--registry", str(kit.registry)]
    command += ["--profile", "v1.0.0", "--site", str(kit.site)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    outs = [each.communicate() for each in running]
    assert [each.returncode for each in running] == [0] * 8, outs
    assert sum(": applied:" in out for out, _ in outs) == 1
    assert kit.apply("--check").code == 0


# -- any one byte -----------------------------------------------------------------------------------------------------

FILES = ("demo_plugin/runner.py", "demo_plugin/batch.py", "demo_core/core.py")
ADDED = ("demo_plugin/_fixpack/rows.py",)


def flips(kit: Kit, paths: tuple[str, ...], count: int) -> list[tuple[str, int, int]]:
    chance = random.Random(2)
    found = []
    for _ in range(count):
        path = chance.choice(paths)
        found.append((path, chance.randrange((kit.site / path).stat().st_size), chance.randrange(1, 256)))
    return found


@pytest.mark.parametrize("applied", [False, True])
def test_any_changed_byte_is_refused_and_nothing_is_touched(kit: Kit, applied: bool) -> None:
    paths = FILES
    if applied:
        kit.apply()
        paths += ADDED
    for path, at, by in flips(kit, paths, 60):
        full = kit.site / path
        right = full.read_bytes()
        wrong = bytearray(right)
        wrong[at] ^= by
        full.write_bytes(wrong)
        before = state(kit.site)
        done = kit.apply("--strict")  # without it, a change outside of every fixed scope is only reported
        assert done.code == 1, (path, at, by, done)
        assert str(full) in done.err
        assert state(kit.site) == before
        full.write_bytes(right)
    assert kit.apply().code == 0


def test_every_truncation_and_addition_is_refused(kit: Kit) -> None:
    full = kit.site / "demo_core/core.py"
    for data in (
        b"",
        CORE[:-1].encode(),
        CORE[:20].encode(),
        f"{CORE}\n".encode(),
        f"{CORE} ".encode(),
        CORE.encode() * 2,
    ):
        full.write_bytes(data)
        before = state(kit.site)
        assert kit.apply().code == 1
        assert state(kit.site) == before


# -- messages ---------------------------------------------------------------------------------------------------------


def test_message_for_a_drifted_anchor(kit: Kit) -> None:
    """Which fix, which file and line, expected, found, the nearest candidate, what to do next."""
    drifted = RUNNER.replace("len(rows) - 1", "len(rows) + 1")
    path = kit.site / "demo_plugin/runner.py"
    path.write_text(drifted)
    pins = (
        f"demo-plugin@v1.0.0 {sha(RUNNER)[:12]}…, demo-plugin@v2.0.0 {sha(RUNNER.replace('rank.', 'process.'))[:12]}…"
    )
    assert kit.apply() == (
        1,
        "",
        f"error: rows-counted, order-kept, long-share, wide-log: {path}: the file is not a pinned one "
        "[base_sha_unknown]\n"
        f"  expected  sha256 {sha(RUNNER)} (demo-plugin@v1.0.0)\n"
        f"  found     sha256 {sha(drifted)}; known pins: {pins}\n"
        "  next: rebuild the layer from the stock image of the pinned release\n"
        f"error: rows-counted: {path}:15: anchor 'step-count' is not there in Runner.step [anchor_missing]\n"
        "  expected  1 match of 'count = len(rows) - 1' in Runner.step\n"
        "  found     0 matches\n"
        "  nearest at line 15:\n"
        "    - count = len(rows) - 1\n"
        "    ?                   ^\n"
        "    + count = len(rows) + 1\n"
        "    ?                   ^\n"
        "  next: rebuild the layer from the stock image of the pinned release "
        "(the anchor is anchors/demo-plugin/v1.0.0.yaml:15)\n"
        "2 problems; nothing was changed\n",
    )


def test_all_problems_in_one_run(kit: Kit) -> None:
    (kit.site / "demo_plugin/batch.py").write_text(BATCH.replace("stale = True", "stale = False"))
    (kit.site / "demo_core/core.py").unlink()
    write(kit.site, {"demo_plugin/_fixpack/rows.py": "x = 1\n"})
    done = kit.apply()
    assert done.code == 1
    assert done.codes == ["file_exists", "base_sha_unknown", "anchor_missing", "file_missing"]
    assert done.err.endswith("4 problems; nothing was changed\n")


def one_problem(kit: Kit, *args: str) -> tuple[str, str, str]:
    """Code, message and hint of the only problem of an apply that must leave all alone."""
    before = state(kit.folder)
    done = kit.apply("--json", *args)
    assert done.code == 1
    assert state(kit.folder) == before
    [problem] = done.json["problems"]
    return problem["code"], problem["message"], problem["hint"]


def damage_cases() -> dict[str, tuple[Callable[[Path], object], str, str]]:
    def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
        return lambda path: path.write_bytes(change(path.read_bytes()))

    def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
        return lambda path: (path.unlink(), make(path))

    tail = "; apart from that it is the pinned one"
    return {
        "crlf": (
            rewrite(lambda data: data.replace(b"\n", b"\r\n")),
            "eol_differs",
            f"the file has CRLF line ends{tail}",
        ),
        "bom": (rewrite(lambda data: b"\xef\xbb\xbf" + data), "bom", f"the file starts with a byte order mark{tail}"),
        "no final newline": (
            rewrite(lambda data: data[:-1]),
            "no_final_newline",
            f"the file lacks its final newline{tail}",
        ),
        "empty": (rewrite(lambda data: b""), "empty_file", "the file is empty"),
        "gone": (Path.unlink, "file_missing", "demo-core@v1.0.0 pins this file, but it is not there"),
        "fifo": (instead(os.mkfifo), "not_a_file", "is not an ordinary file"),
        "folder": (instead(Path.mkdir), "not_a_file", "is not an ordinary file"),
        "loop": (
            instead(lambda path: path.symlink_to(path.name)),
            "unreadable",
            "cannot be read: Too many levels of symbolic links",
        ),
        "link out": (
            instead(lambda path: path.symlink_to("/etc/hostname")),
            "leaves_target",
            "the path leads out of the target through a symbolic link",
        ),
    }


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("case", damage_cases())
def test_damaged_file(kit: Kit, case: str, applied: bool) -> None:
    """The same reason before and after the fixes are in."""
    if applied:
        kit.apply()
    change, code, message = damage_cases()[case]
    change(kit.site / "demo_core/core.py")
    assert one_problem(kit)[:2] == (code, message)


def test_file_of_another_release_names_the_profile(kit: Kit) -> None:
    kit.fresh_site("v2.0.0")
    code, message, hint = one_problem(kit)
    assert (code, hint) == ("other_release", "use --profile bench-v2.0.0")
    assert message == "this is the file of demo-plugin@v2.0.0, not of demo-plugin@v1.0.0"
    assert kit.run("--profile", "v2.0.0", "--site", str(kit.site)).code == 0
    assert one_problem(kit)[0] == "other_release"


def test_older_revision_is_stale(kit: Kit) -> None:
    kit.apply()
    kit.edit("fixes/core-guard.yaml", "revision: 1", "revision: 2")
    kit.edit("patches/core-guard/guard.py", "[1]) == [1]", "[2]) == [2]")
    kit.lock()
    code, message, hint = one_problem(kit)
    advice = "the history of core-guard has no such code; rebuild the layer from the stock image"
    assert (code, hint) == ("stale_revision", advice)
    assert message == "core-guard is in the file in revision 1; the registry has revision 2"


def test_region_that_was_edited(kit: Kit) -> None:
    kit.apply()
    path = kit.site / "demo_core/core.py"
    path.write_text(FIXED_CORE.replace("== [1]", "!= [1]"))
    done = kit.apply()
    assert done.err == (
        f"error: core-guard: {path}:7: the region of core-guard at 'module-end' was edited after it was applied "
        "[edited_inside]\n  nearest at line 7:\n"
        "    - assert schedule([1]) == [1]\n    + assert schedule([1]) != [1]\n"
        "  next: rebuild the layer from the stock image\n1 problem; nothing was changed\n"
    )


def test_region_that_was_removed_is_put_back(kit: Kit) -> None:
    """What is left is the pinned base, byte for byte."""
    kit.apply()
    (kit.site / "demo_core/core.py").write_text(CORE)
    done = kit.apply()
    assert (done.code, done.out.splitlines()[-1]) == (
        0,
        "bench-v1.0.0: applied: 3 fixes in 4 files; 1 file written, each read back with the expected sha256",
    )
    assert kit.text("demo_core/core.py") == FIXED_CORE


def test_git_in_the_parent_does_not_matter(kit: Kit) -> None:
    subprocess.run(["git", "init", "-q", str(kit.folder)], check=True)
    (kit.folder / ".git/config").write_text("[core]\n autocrlf = true\n[apply]\n whitespace = fix\n")
    assert kit.apply().code == 0
    assert kit.text("demo_core/core.py") == FIXED_CORE


# -- opt-in fixes -----------------------------------------------------------------------------------------------------


def fixed(kit: Kit, *runs: tuple[str, ...]) -> dict[str, str]:
    """The files of a fresh site after some runs."""
    kit.fresh_site()
    for names in runs:
        done = kit.apply(*names)
        assert done.code == 0, done.err
    return {str(path.relative_to(kit.site)): path.read_text() for path in kit.site.rglob("*.*") if path.is_file()}


def test_the_path_taken_does_not_matter(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")  # the time in the receipts
    both = fixed(kit, ("long-share", "wide-log"))
    assert "demo_plugin/_fixpack/share.py" in both
    assert fixed(kit, ("wide-log", "long-share")) == both
    assert fixed(kit, (), ("long-share", "wide-log")) == both
    assert fixed(kit, ("long-share",), ("long-share", "wide-log")) == both
    assert fixed(kit, (), ("long-share",), ("wide-log", "long-share"), ()) == both


def test_every_combination_is_what_the_lock_says(kit: Kit) -> None:
    made = kit.make_lock()
    for names in ((), ("long-share",), ("long-share", "wide-log")):
        found = fixed(kit, names)
        for release in made["releases"].values():
            for path, entry in release["files"].items():
                key = "+".join(sorted(name for name in entry["fixes"] if name in names))
                assert entry["results"][key] == (sha(found[path]) if path in found else None)


def test_an_opt_in_that_is_in_place_stays(kit: Kit) -> None:
    kit.apply("long-share", "wide-log")
    before = state(kit.site)
    done = kit.apply()
    assert done.code == 0
    assert done.out.splitlines()[2:] == [
        "  = rows-counted  r1  count every row of a step",
        "  = order-kept    r1  keep the order of rows",
        "  = core-guard    r1  guard the schedule",
        "  = long-share    r1  share the budget of long prompts  (in place, not asked for)",
        "  = wide-log      r1  log what is shared  (in place, not asked for)",
        "bench-v1.0.0: confirmed: 5 fixes in 5 files, every byte of them as proven; nothing written",
    ]
    assert state(kit.site) == before


def test_an_opt_in_that_is_only_half_in_place_and_not_asked_for(kit: Kit) -> None:
    """A leftover is no wish: neither completed nor taken out behind the user's back."""
    kit.apply("long-share")
    half = kit.text("demo_plugin/_fixpack/share.py")
    kit.fresh_site()
    write(kit.site, {"demo_plugin/_fixpack/share.py": half})
    code, message, hint = one_problem(kit)
    assert (code, message) == ("partly_applied", "long-share is in place in part, and was not asked for")
    assert hint == "name long-share to complete it, or rebuild from a stock image"
    assert kit.apply("long-share").code == 0


def test_missing_requirement(kit: Kit) -> None:
    before = state(kit.site)
    assert kit.apply("wide-log") == (
        2,
        "",
        "error: wide-log: wide-log requires long-share, which is opt-in and was not named [missing_requirement]\n"
        "  next: name long-share as well\n1 problem; nothing was changed\n",
    )
    assert state(kit.site) == before


def test_unknown_fixes(kit: Kit) -> None:
    assert kit.apply("long-shar", "zzz", "zzz") == (
        2,
        "",
        "error: long-shar: the profile bench-v1.0.0 has no fix 'long-shar' [unknown_fix]\n"
        "  next: did you mean 'long-share'?\n"
        "error: zzz: the profile bench-v1.0.0 has no fix 'zzz' [unknown_fix]\n"
        f"  next: its fixes: {', '.join(DEFAULT)}, long-share, wide-log\n2 problems; nothing was changed\n",
    )


def test_naming_a_fix_twice_or_a_default_one(kit: Kit) -> None:
    done = kit.apply("long-share", "rows-counted", "long-share")
    assert done.code == 0
    assert done.out.count("long-share") == 1


def test_a_fix_of_another_profile_is_in_place(kit: Kit) -> None:
    """The registry knows it, this profile does not."""
    kit.apply("long-share")
    for release in ("v1.0.0", "v2.0.0"):
        kit.edit(f"profiles/bench-{release}.yaml", "opt-in: [long-share, wide-log]", "opt-in: []")
    write(
        kit.registry,
        {
            "profiles/wide.yaml": "profile: wide\nhardware: a test bench\n"
            "releases: {demo-plugin: v1.0.0, demo-core: v1.0.0}\n"
            "fixes: [rows-counted, order-kept, core-guard, long-share, wide-log]\n"
        },
    )
    kit.lock()
    assert one_problem(kit)[:2] == (
        "other_profile",
        "long-share is in place, but the profile bench-v1.0.0 does not have it",
    )


# -- options ----------------------------------------------------------------------------------------------------------


def test_check_and_dry_run(kit: Kit) -> None:
    before = state(kit.site)
    check, dry = kit.apply("--check"), kit.apply("--dry-run")
    assert (check.code, check.out.splitlines()[-1]) == (
        1,
        "bench-v1.0.0: not applied: 4 of 4 files lack what an apply brings in",
    )
    assert "record" not in check.out
    verify = kit.verb("verify")
    assert (verify.code, verify.out) == (1, check.out)
    assert (dry.code, dry.out.splitlines()[-1]) == (
        0,
        "bench-v1.0.0: would apply: 3 fixes in 4 files; 4 files would be written, nothing was",
    )
    assert state(kit.site) == before
    kit.apply()
    before = state(kit.site)
    assert (kit.apply("--check").code, kit.apply("--dry-run").code) == (0, 0)
    (kit.site / "demo_core/core.py").write_text("x = 1\n")
    assert (kit.apply("--check").code, kit.apply("--dry-run").code) == (1, 1)
    assert kit.apply("--check", "--dry-run").code == 2


def test_json(kit: Kit) -> None:
    done = kit.apply("--json").json
    assert {key: done[key] for key in ("schema_version", "action", "exit_code", "profile", "problems")} == {
        "schema_version": 1,
        "action": "applied",
        "exit_code": 0,
        "profile": "bench-v1.0.0",
        "problems": [],
    }
    assert done["places"][0] == {
        "distribution": "demo-plugin",
        "release": "v1.0.0",
        "root": str(kit.site),
        "how": f"--site {kit.site}",
        "version": "1.0.0",
        "commit": "",
    }
    assert done["fixes"][2] == {
        "id": "core-guard",
        "revision": 1,
        "title": "guard the schedule",
        "state": "written",
        "opt_in": False,
        "asked": True,
        "files": ["demo_core/core.py"],
    }
    assert [file for file in done["files"] if file["distribution"] == "demo-core"] == [
        {
            "distribution": "demo-core",
            "path": "demo_core/core.py",
            "real": str(kit.site / "demo_core/core.py"),
            "base_sha256": sha(CORE),
            "result_sha256": sha(FIXED_CORE),
            "changed": True,
        }
    ]
    again = kit.apply("--json").json
    assert (again["action"], {fix["state"] for fix in again["fixes"]}) == ("confirmed", {"applied"})
    (kit.site / "demo_core/core.py").write_text("x = 1\n")
    refused = kit.apply("--json")
    assert (refused.json["action"], refused.json["exit_code"]) == ("refused", 1)
    assert refused.json["problems"][0]["code"] == "base_sha_unknown"
    usage = kit.apply("--json", "zzz")
    assert (usage.code, usage.json["exit_code"]) == (2, 2)


def test_list(kit: Kit) -> None:
    before = state(kit.folder)
    assert kit.run("--list", "--profile", "v1.0.0") == (
        0,
        "bench-v1.0.0 (also v1.0.0)  a test bench\n"
        "  on demo-plugin v1.0.0, commit 111111111111\n"
        "  on demo-core v1.0.0, commit cccccccccccc\n"
        "  default  rows-counted  r1  count every row of a step\n"
        "  default  order-kept    r1  keep the order of rows\n"
        "  default  core-guard    r1  guard the schedule\n"
        "  opt-in   long-share    r1  share the budget of long prompts\n"
        "  opt-in   wide-log      r1  log what is shared\n",
        "",
    )
    assert [row["profile"] for row in kit.run("--list", "--json").json["profiles"]] == ["bench-v1.0.0", "bench-v2.0.0"]
    assert kit.run("--list", "--profile", "v3.0.0").codes == ["unknown_profile"]
    assert state(kit.folder) == before


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([], "no_profile"),
        (["--profile", ""], "no_profile"),
        (["--profile", "v3.0.0"], "unknown_profile"),
        (["--profile", "v1.0.0", "--site", "/nowhere"], "no_such_folder"),
        (["--profile", "v1.0.0", "--site", ""], "bad_usage"),
        (["--profile", "v1.0.0", "--root", ""], "bad_usage"),
        (["--profile", "v1.0.0", "--source", ""], "bad_usage"),
        (["--profile", "v1.0.0", "--registry", ""], "bad_usage"),
        (["--profile", "v1.0.0", "--registry", "/nowhere"], "registry_missing"),
        (["--profile", "v1.0.0", "--registry", "/etc/hostname"], "registry_missing"),
        (["--profile", "v1.0.0", "--site", "/", "--root", "/"], "bad_usage"),
        (["--profile", "v1.0.0", "--source", "demo-plugin"], "bad_usage"),
        (["--profile", "v1.0.0", "--source", "demo-plugin="], "bad_usage"),
        (["--profile", "v1.0.0", "--source", "demo-plugin=/etc", "--source", "demo-plugin=/etc"], "bad_usage"),
        (["--profile", "v1.0.0", "--source", "demo-plugin=/etc"], "not_a_source_tree"),
        (["--profile", "v1.0.0", "--source", "demo=/etc"], "unknown_distribution"),
        (["--list", "--profile", "v1.0.0", "long-share"], "bad_usage"),
    ],
)
def test_usage(kit: Kit, args: list[str], code: str) -> None:
    """An empty option is a variable that was not set, never the default."""
    done = kit.run(*args)
    assert (done.code, done.codes) == (2, [code]), done.err


@pytest.mark.parametrize("args", [["--prof", "v1.0.0"], ["--fuzz", "2"], ["--profile"], ["--check", "--list"]])
def test_usage_of_the_parser(kit: Kit, args: list[str]) -> None:
    done = kit.run(*args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("usage: apply_all.py ")


def test_fixes_before_and_between_options(kit: Kit) -> None:
    done = kit.run("long-share", "--profile", "v1.0.0", "wide-log", "--site", str(kit.site))
    assert done.code == 0, done.err
    assert kit.apply("long-share", "wide-log", "--check").code == 0


def test_output_survives_any_path_and_encoding(kit: Kit) -> None:
    """A path that is not UTF-8, on a terminal that is not either."""
    site = os.fsencode(kit.folder) + b"/s\xff\xc3\xa9"
    shutil.copytree(os.fsencode(kit.site), site)
    for encoding in ("utf-8", "ascii"):
        done = kit.command("--profile", "v1.0.0", "--site", os.fsdecode(site), env={"PYTHONIOENCODING": encoding})
        assert done.code == 0, done.err
        assert "bench-v1.0.0: " in done.out
    assert kit.command("--profile", "v1.0.0", "--site", os.fsdecode(site), "--json").json["action"] == "confirmed"


# -- nothing silent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["profiles", "fixes", "anchors", "patches", "."])
def test_no_registry(kit: Kit, folder: str) -> None:
    """The layer that copies the patches comes after the one that applies them."""
    shutil.rmtree(kit.registry / folder)
    before = state(kit.site)
    done = kit.apply()
    assert done.code == 2
    assert set(done.codes) <= {"registry_missing", "lock_stale"}
    assert state(kit.site) == before


@pytest.mark.parametrize("env", [{}, {"CI": "1"}, {"CI": "true", "TERM": "dumb"}])
def test_the_exit_code_does_not_depend_on_ci(kit: Kit, env: dict[str, str]) -> None:
    (kit.site / "demo_plugin/batch.py").write_text(BATCH.replace("stale = True", "stale = False"))
    assert kit.command("--profile", "v1.0.0", "--site", str(kit.site), env=env).code == 1


def test_no_distribution(kit: Kit) -> None:
    shutil.rmtree(kit.site / "demo_core")
    assert one_problem(kit)[:2] == (
        "distribution_missing",
        "demo-core was not found, but 1 selected fix must go into it",
    )


def test_internal_error_names_a_log(kit: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fixpack import lock

    monkeypatch.setattr(lock, "stale", lambda *_: 1 / 0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    done = kit.apply()
    assert (done.code, done.err.splitlines()[0]) == (3, "internal error: ZeroDivisionError: division by zero")
    log = Path(done.err.splitlines()[1].removeprefix("  log: "))
    assert "ZeroDivisionError" in log.read_text()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    done = kit.apply()
    assert done.code == 3
    assert "ZeroDivisionError" in done.err


def test_interrupt(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    from fixpack import lock

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "stale", interrupt)
    assert kit.apply() == (130, "", "interrupted\n")


# -- the file system --------------------------------------------------------------------------------------------------


def test_modes_owners_and_hard_links(kit: Kit) -> None:
    """A hard link to a package store stays clean; mode and owner stay."""
    store = kit.folder / "store"
    shutil.copytree(kit.site, store, copy_function=os.link, dirs_exist_ok=True)
    modes = {"demo_plugin/runner.py": 0o444, "demo_plugin/batch.py": 0o754, "demo_core/core.py": 0o600}
    for path, mode in modes.items():
        (kit.site / path).chmod(mode)
        if os.geteuid() == 0:
            os.chown(kit.site / path, 1234, 4321)
    before = state(store)
    umask = os.umask(0o077)
    try:
        assert kit.apply().code == 0
    finally:
        os.umask(umask)
    assert state(store) == before
    for path, mode in modes.items():
        about = (kit.site / path).stat()
        assert stat.S_IMODE(about.st_mode) == mode
        assert os.geteuid() or (about.st_uid, about.st_gid) == (1234, 4321)
        assert about.st_ino != (store / path).stat().st_ino
    added = (kit.site / "demo_plugin/_fixpack").stat(), (kit.site / "demo_plugin/_fixpack/rows.py").stat()
    assert [stat.S_IMODE(about.st_mode) for about in added] == [0o755, 0o644]


def test_links_inside_the_target_are_followed(kit: Kit) -> None:
    (kit.site / "demo_core/core.py").rename(kit.site / "real_core.py")
    (kit.site / "demo_core/core.py").symlink_to("../real_core.py")
    assert kit.apply().code == 0
    assert (kit.site / "demo_core/core.py").is_symlink()
    assert kit.text("real_core.py") == FIXED_CORE


@pytest.mark.parametrize("name", ["demo_core", "demo_plugin/_fixpack", "demo_plugin-1.0.0.dist-info"])
def test_folder_links_out_of_the_target_are_refused(kit: Kit, name: str) -> None:
    outside = kit.folder / "outside"
    if (kit.site / name).exists():
        (kit.site / name).rename(outside)
    else:
        outside.mkdir()
    (kit.site / name).symlink_to(outside)
    assert one_problem(kit)[0] == "leaves_target"


def test_a_file_where_a_folder_should_be(kit: Kit) -> None:
    (kit.site / "demo_plugin/_fixpack").write_text("")
    assert one_problem(kit)[:2] == ("unreadable", "cannot be read: Not a directory")


def pyc_names(kit: Kit) -> list[str]:
    return sorted(path.name for path in kit.site.rglob("*.pyc"))


def test_stale_bytecode_goes(kit: Kit) -> None:
    """Every tag and level, and the kind that Python never checks; not that of other files."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for path in ("demo_core/core.py", "demo_core/__init__.py"):
        source = kit.site / path
        for level in (0, 1, 2):
            py_compile.compile(str(source), optimize=level, invalidation_mode=unchecked, doraise=True)
        tag = Path(importlib.util.cache_from_source(str(source)))
        for other in ("cpython-310", "cpython-314.opt-2", "pypy39"):
            shutil.copy(tag, tag.with_name(f"{source.stem}.{other}.pyc"))
    kept = [name for name in pyc_names(kit) if name.startswith("__init__.")]
    assert len(pyc_names(kit)) == 12
    assert kit.apply().code == 0
    assert pyc_names(kit) == kept
    code = (
        f"import sys; sys.path.insert(0, {str(kit.site)!r}); import demo_core.core as c; print(open(c.__file__).read())"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == FIXED_CORE + "\n"


def test_unchecked_bytecode_that_is_not_of_the_fixed_file(kit: Kit) -> None:
    """Put there after the apply: the file is right, what would run is not."""
    kit.apply()
    source = kit.site / "demo_core/core.py"
    right = source.read_bytes()
    source.write_text(CORE)
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True)
    source.write_bytes(right)
    before = state(kit.site)
    done = kit.apply()
    assert (done.code, done.codes) == (1, ["stale_bytecode"])
    assert state(kit.site) == before
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True)
    assert kit.apply().code == 0


def test_source_date_epoch(kit: Kit) -> None:
    done = kit.command("--profile", "v1.0.0", "--site", str(kit.site), env={"SOURCE_DATE_EPOCH": "1700000000"})
    assert done.code == 0
    for path in (*FILES, *ADDED, "demo_plugin-1.0.0.dist-info/RECORD"):
        assert (kit.site / path).stat().st_mtime == 1700000000


@pytest.mark.parametrize("crash", [False, True])
def test_source_date_epoch_of_folders(kit: Kit, monkeypatch: pytest.MonkeyPatch, crash: bool) -> None:
    """A layer of an image holds each folder in which names came or went; the others keep their time."""
    py_compile.compile(str(kit.site / "demo_core/core.py"), doraise=True)
    folders = [kit.site, *(path for path in kit.site.rglob("*") if path.is_dir())]
    (kit.site / "demo_core/data").mkdir()
    for folder in (*folders, kit.site / "demo_core/data"):
        os.utime(folder, (1, 1))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    if crash:
        monkeypatch.setattr("fixpack.commit.settle", lambda *_: os._exit(9))
        child = os.fork()
        if child == 0:
            kit.apply()
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert kit.apply().code == 0
    found = {path.relative_to(kit.site).as_posix(): path.stat().st_mtime for path in kit.site.rglob("*")}
    assert found.pop("demo_core/data") == 1
    touched = {path for path in found if (kit.site / path).is_dir()} | {*FILES, *ADDED}
    assert {path: found[path] for path in touched} == dict.fromkeys(touched, 1700000000)
    assert kit.site.stat().st_mtime == 1700000000


@pytest.mark.parametrize("text", ["yesterday", "-1", "1.5", "٣", "170000000000"])
def test_a_wrong_source_date_epoch_is_refused(kit: Kit, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    before = state(kit.site)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    done = kit.apply()
    assert done.code == 2
    assert f"SOURCE_DATE_EPOCH is {text!r}, not seconds since 1970" in done.err
    assert state(kit.site) == before


def test_an_empty_source_date_epoch_is_none(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build argument without a value."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "")
    assert kit.apply().code == 0


def test_record_has_the_added_files(kit: Kit) -> None:
    """So that pip uninstall takes them away; the rows of changed files stay upstream's."""
    kit.apply("long-share")
    record = kit.text("demo_plugin-1.0.0.dist-info/RECORD").splitlines()
    assert [line.split(",")[0] for line in record] == [
        "demo_plugin/__init__.py",
        "demo_plugin/runner.py",
        "demo_plugin/batch.py",
        "demo_plugin-1.0.0.dist-info/METADATA",
        "demo_plugin-1.0.0.dist-info/RECORD",
        "demo_plugin-1.0.0.dist-info/fixpack.json",
        "demo_plugin/_fixpack/rows.py",
        "demo_plugin/_fixpack/share.py",
    ]
    assert record[1].split(",")[1] == "sha256=x"
    added = (kit.site / "demo_plugin/_fixpack/rows.py").read_bytes()
    assert record[6].split(",")[2] == str(len(added))
    assert kit.text("demo_core-1.0.0.dist-info/RECORD").count("\n") == 5


def test_record_that_lost_a_row_is_completed(kit: Kit) -> None:
    kit.apply()
    path = kit.site / "demo_plugin-1.0.0.dist-info/RECORD"
    right = path.read_bytes()
    path.write_bytes(b"\n".join(line for line in right.split(b"\n") if b"_fixpack" not in line))
    assert kit.apply("--check").code == 1
    assert kit.apply().code == 0
    assert path.read_bytes() == right


def test_no_record(kit: Kit) -> None:
    shutil.rmtree(kit.site / "demo_plugin-1.0.0.dist-info")
    (kit.site / "demo_core-1.0.0.dist-info/RECORD").unlink()
    assert kit.apply().code == 0
    assert kit.apply("--check").code == 0


@pytest.mark.parametrize("name", ["METADATA", "direct_url.json", "RECORD"])
@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_strange_metadata(kit: Kit, name: str, kind: str) -> None:
    """It only explains, so it cannot stop an apply; a RECORD that cannot be kept in step does."""
    path = kit.site / "demo_plugin-1.0.0.dist-info" / name
    path.unlink(missing_ok=True)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    done = kit.apply()
    assert (done.code, done.codes) == ((1, ["not_a_file"]) if name == "RECORD" else (0, []))


def test_strange_version_file(kit: Kit) -> None:
    os.mkfifo(kit.site / "demo_core/_version.py")
    (kit.site / "demo_plugin/_version.py").mkdir()
    assert kit.apply().code == 0


def test_the_commit_is_said_when_it_is_known(kit: Kit) -> None:
    write(kit.site, {"demo_plugin/_version.py": "__commit_id__ = commit_id = 'g" + "1" * 9 + "'\n"})
    info = {"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": "c" * 40}}
    write(kit.site, {"demo_core-1.0.0.dist-info/direct_url.json": json.dumps(info)})
    places = kit.apply("--json").json["places"]
    assert [place["commit"] for place in places] == ["1" * 39 + "a", "c" * 40]


# -- failures while writing -------------------------------------------------------------------------------------------


def immutable(path: Path) -> None:
    if (
        shutil.which("chattr") is None
        or subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False).returncode
    ):
        pytest.skip("chattr +i is not possible here")


@pytest.mark.parametrize("path", [*FILES, "demo_plugin-1.0.0.dist-info/RECORD"])
def test_an_immutable_file_leaves_all_as_it_was(kit: Kit, path: str) -> None:
    immutable(kit.site / path)
    try:
        before = state(kit.site)
        done = kit.apply()
        after = state(kit.site)
    finally:
        subprocess.run(["chattr", "-i", str(kit.site / path)], check=True)
    assert (done.code, done.codes) == (1, ["write_failed"])
    assert "nothing was changed; run as the owner of the files" in done.err
    assert after == before
    assert kit.apply().code == 0


@pytest.mark.parametrize("size", range(44, 84, 8))
def test_a_full_file_system_leaves_all_as_it_was(kit: Kit, size: int) -> None:
    """Sizes from what holds the stock site to what holds the fixed one."""
    disk = kit.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        shutil.copytree(kit.site, disk / "site")
        before = state(disk)
        done = kit.run("--profile", "v1.0.0", "--site", str(disk / "site"))
        if done.code == 0:
            assert kit.run("--profile", "v1.0.0", "--site", str(disk / "site"), "--check").code == 0
        else:
            assert (done.code, done.codes) == (1, ["write_failed"])
            assert "free space" in done.err
            assert state(disk) == before
    except OSError as error:
        pytest.skip(f"the disk is too small for the site: {error.strerror}")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("args", [(), ("--check",)])
def test_a_forged_journal_cannot_reach_out_of_the_target(kit: Kit, args: tuple[str, ...]) -> None:
    """An image's root is what somebody else wrote."""
    outside = kit.folder / "outside.txt"
    outside.write_text("x")
    steps = [["../outside.txt", sha("x"), ""]]
    body = {"schema": "fixpack.journal/2", "phase": "switching", "steps": steps, "made": []}
    write(kit.site, {".fixpack-journal": json.dumps(body)})
    done = kit.apply(*args)
    assert outside.exists()
    assert (done.code, done.codes) == (1, ["journal_invalid"])


def test_leftovers_of_a_killed_run(kit: Kit) -> None:
    write(kit.site, {"demo_core/.fixpack-new-core.py": "x", "demo_plugin/.fixpack-old-runner.py": "x"})
    assert kit.apply().code == 0
    assert [path.name for path in kit.site.rglob(".fixpack*")] == []


def test_a_file_that_changes_meanwhile(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the write: refused, and the other files are back."""
    from fixpack import engine

    real = engine.commit

    def commit(*args: object) -> None:
        (kit.site / "demo_core/core.py").write_text("x = 1\n")
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "commit", commit)
    done = kit.apply()
    assert (done.code, done.codes) == (1, ["write_failed"])
    assert (kit.text("demo_plugin/runner.py"), kit.text("demo_plugin/batch.py")) == (RUNNER, BATCH)
    assert not (kit.site / "demo_plugin/_fixpack").exists()


def without_privileges(kit: Kit, *args: str) -> subprocess.CompletedProcess[str]:
    """The command as a user whom file modes bind."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    prefix = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    command = [
        *prefix,
        sys.executable,
        str(Path(__file__).parent.parent / "apply_all.py"),
        "--registry",
        str(kit.registry),
    ]
    return subprocess.run(
        [*command, "--profile", "v1.0.0", "--site", str(kit.site), *args], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("path", "mode", "code", "reason"),
    [
        ("site/demo_core/core.py", 0, 1, "unreadable"),
        ("site/demo_core", 0, 1, "unreadable"),
        ("site/demo_core", 0o555, 1, "write_failed"),
        ("site/demo_plugin-1.0.0.dist-info", 0, 1, "unreadable"),
        ("site", 0, 1, "unreadable"),
        ("registry/profiles", 0, 2, "registry_missing"),
        ("registry/profiles/bench-v1.0.0.lock.json", 0, 2, "lock_invalid"),
        ("registry/patches/core-guard", 0, 2, "lock_stale"),
        ("registry/fixes/core-guard.yaml", 0, 2, "lock_stale"),
    ],
)
def test_what_may_not_be_read_or_written(kit: Kit, path: str, mode: int, code: int, reason: str) -> None:
    full = kit.folder / path
    full.chmod(mode)
    try:
        done = without_privileges(kit)
    finally:
        full.chmod(0o755 if full.is_dir() else 0o644)
    assert done.returncode == code, done.stderr
    assert f"[{reason}]" in done.stderr
    assert (kit.text("demo_plugin/runner.py"), kit.text("demo_core/core.py")) == (RUNNER, CORE)


def test_pairs_of_damage_are_both_reported(kit: Kit) -> None:
    for one, two in itertools.combinations(FILES, 2):
        kit.fresh_site()
        (kit.site / one).write_bytes(b"")
        (kit.site / two).write_bytes(b"")
        done = kit.apply()
        assert (done.code, done.codes) == (1, ["empty_file", "empty_file"])
        assert str(kit.site / one) in done.err
        assert str(kit.site / two) in done.err
