"""The lock: what it says, when it is stale, and that nothing in a bad one is an internal error."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import BATCH, DEFAULT, Kit, sha, state

from fixpack import lock, registry
from fixpack.errors import MismatchError, Problem, RegistryError, UsageError

LOCK = "profiles/bench-v1.0.0.lock.json"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def test_what_a_lock_says(kit: Kit) -> None:
    made = kit.make_lock()
    assert {name: fix["opt_in"] for name, fix in made["fixes"].items()} == {
        "rows-counted": False,
        "order-kept": False,
        "core-guard": False,
        "long-share": True,
        "wide-log": True,
    }
    plugin = made["releases"]["demo-plugin"]
    assert (plugin["release"], plugin["version"], plugin["package"]) == ("v1.0.0", "1.0.0", "demo_plugin")
    files = plugin["files"]
    assert {path: (entry["base"], entry["fixes"]) for path, entry in files.items()} == {
        "demo_plugin/_fixpack/rows.py": (None, ["rows-counted"]),
        "demo_plugin/_fixpack/share.py": (None, ["long-share"]),
        "demo_plugin/batch.py": (sha(BATCH), ["order-kept", "wide-log"]),
        "demo_plugin/runner.py": (
            sha((kit.site / "demo_plugin/runner.py").read_bytes()),
            ["rows-counted", "order-kept", "long-share", "wide-log"],
        ),
    }
    assert list(files["demo_plugin/runner.py"]["results"]) == ["", "long-share", "wide-log", "long-share+wide-log"]
    assert files["demo_plugin/_fixpack/share.py"]["results"][""] is None
    assert made["registry"] == {
        path.relative_to(kit.registry).as_posix(): sha(path.read_bytes())
        for path in sorted(kit.registry.rglob("*.*"))
        if path.is_file() and "v2.0.0" not in path.name and path.suffix != ".json"
    }


def test_made_twice_is_the_same_and_survives_its_file(kit: Kit) -> None:
    made = kit.make_lock()
    assert lock.dump(made) == lock.dump(kit.make_lock()) == (kit.registry / LOCK).read_bytes()
    assert lock.read(str(kit.registry), "bench-v1.0.0") == made


def test_result_does_not_depend_on_the_order_of_the_profile(kit: Kit) -> None:
    before = kit.make_lock()["releases"]
    kit.edit(
        "profiles/bench-v1.0.0.yaml", "[rows-counted, order-kept, core-guard]", "[core-guard, order-kept, rows-counted]"
    )
    kit.edit("profiles/bench-v1.0.0.yaml", "[long-share, wide-log]", "[wide-log, long-share]")
    after = kit.make_lock()["releases"]
    for distribution, release in before.items():
        for path, entry in release["files"].items():
            assert after[distribution]["files"][path]["results"] == entry["results"]


# -- making -----------------------------------------------------------------------------------------------------------


def refusal(kit: Kit) -> list[tuple[str, str, str]]:
    with pytest.raises(MismatchError) as caught:
        kit.make_lock()
    return [(problem.code, problem.file, problem.message) for problem in caught.value.problems]


def test_source_that_is_not_the_pin(kit: Kit) -> None:
    tree = kit.trees / "demo-plugin@v1.0.0" / "demo_plugin"
    (tree / "batch.py").write_text(BATCH + "\n")
    (tree / "runner.py").unlink()
    (tree / "_fixpack").mkdir()
    (tree / "_fixpack" / "rows.py").write_text("")
    assert refusal(kit) == [
        (
            "file_missing",
            "demo_plugin/runner.py",
            "demo-plugin@v1.0.0 pins demo_plugin/runner.py, which cannot be read: No such file or directory",
        ),
        (
            "file_exists",
            "demo_plugin/_fixpack/rows.py",
            "demo_plugin/_fixpack/rows.py is to be added, but demo-plugin@v1.0.0 has it already",
        ),
        (
            "base_sha_unknown",
            "demo_plugin/batch.py",
            "the sha256 that anchors/demo-plugin/v1.0.0.yaml pins is not that of this file of the source",
        ),
    ]


def test_result_that_is_not_python(kit: Kit) -> None:
    (kit.registry / "patches/rows-counted/count.py").write_text("count = (\n")
    assert [(code, file) for code, file, _ in refusal(kit)] == [("syntax_error", "demo_plugin/runner.py")] * 4


def test_edits_at_one_point(kit: Kit) -> None:
    """Two anchors that touch: only the bytes show it."""
    kit.edit("fixes/wide-log.yaml", "{anchor: batch-swap, op: insert-after", "{anchor: step-count, op: insert-before")
    assert refusal(kit) == [
        (
            "overlap",
            "demo_plugin/runner.py",
            "long-share (fixes/long-share.yaml:13) and wide-log (fixes/wide-log.yaml:13) edit the same place",
        )
    ]


# -- staleness --------------------------------------------------------------------------------------------------------


def stale(kit: Kit) -> list[tuple[str, str]]:
    """File and message; the same through the command, which leaves the target alone."""
    before = state(kit.site)
    problems = lock.stale(str(kit.registry), lock.read(str(kit.registry), "bench-v1.0.0"))
    done = kit.apply()
    assert (done.code, done.codes) == ((2, ["lock_stale"] * len(problems)) if problems else (0, []))
    assert state(kit.site) == before or not problems
    return [(problem.file, problem.message) for problem in problems]


def test_fresh(kit: Kit) -> None:
    assert stale(kit) == []


def test_changed_files(kit: Kit) -> None:
    kit.edit("profiles/bench-v1.0.0.yaml", "a test bench", "another bench")
    kit.edit("patches/rows-counted/rows.py", "len(rows)", "len(rows) + 0")
    assert stale(kit) == [
        (path, "this is not what the lock was made from")
        for path in ("patches/rows-counted/rows.py", "profiles/bench-v1.0.0.yaml")
    ]


def test_missing_files(kit: Kit) -> None:
    (kit.registry / "fixes/core-guard.yaml").unlink()
    shutil.rmtree(kit.registry / "patches/core-guard")
    assert stale(kit) == [
        (path, f"the lock names {path}, which is not there")
        for path in ("fixes/core-guard.yaml", "patches/core-guard/guard.py")
    ]


def test_strange_files(kit: Kit) -> None:
    import os

    for path in ("fixes/core-guard.yaml", "patches/rows-counted/rows.py", "patches/rows-counted/count.py"):
        (kit.registry / path).unlink()
    os.mkfifo(kit.registry / "fixes/core-guard.yaml")
    (kit.registry / "patches/rows-counted/rows.py").mkdir()
    (kit.registry / "patches/rows-counted/count.py").symlink_to("/dev/null")
    assert stale(kit) == [
        ("fixes/core-guard.yaml", "the lock names fixes/core-guard.yaml, which is not an ordinary file"),
        (
            "patches/rows-counted/count.py",
            "the lock names patches/rows-counted/count.py, which cannot be read: Too many levels of symbolic links",
        ),
        ("patches/rows-counted/rows.py", "the lock names patches/rows-counted/rows.py, which is not an ordinary file"),
    ]


def test_extra_payload(kit: Kit) -> None:
    (kit.registry / "patches/core-guard/more.py").write_text("x = 1\n")
    assert stale(kit) == [("patches/core-guard/more.py", "no payload of the locked fixes")]


def test_another_profile_s_file_does_not_matter(kit: Kit) -> None:
    kit.edit("profiles/bench-v2.0.0.yaml", "a test bench", "another bench")
    assert stale(kit) == []


# -- finding and reading ----------------------------------------------------------------------------------------------


def test_find(kit: Kit) -> None:
    root = str(kit.registry)
    assert lock.find(root, "v2.0.0")["profile"] == lock.find(root, "bench-v2.0.0")["profile"] == "bench-v2.0.0"
    with pytest.raises(UsageError) as caught:
        lock.find(root, "v3.0.0")
    assert caught.value.problems == (
        Problem("unknown_profile", "there is no profile 'v3.0.0'", hint="did you mean 'v2.0.0' or 'v1.0.0'?"),
    )


def test_no_lock(kit: Kit) -> None:
    (kit.registry / LOCK).unlink()
    done = kit.run("--profile", "bench-v1.0.0", "--site", str(kit.site))
    assert (done.code, done.err) == (
        2,
        f"error: {LOCK}: the profile bench-v1.0.0 has no lock [lock_missing]\n  next: run `fixpack lock`\n"
        "1 problem; nothing was changed\n",
    )
    done = kit.apply()
    assert (done.code, done.err) == (
        2,
        "error: there is no profile 'v1.0.0' [unknown_profile]\n"
        "  next: did you mean 'v2.0.0'?; without a lock: bench-v1.0.0 (run `fixpack lock`)\n"
        "1 problem; nothing was changed\n",
    )


@pytest.mark.parametrize(
    "name", ["../profiles/bench-v1.0.0", "../fixes/core-guard", ".", "", "bench-v1.0.0.lock", "a\nb"]
)
def test_a_profile_s_name_is_no_path(kit: Kit, name: str) -> None:
    done = kit.run("--profile", name, "--site", str(kit.site))
    assert done.code == 2
    assert done.codes == (["unknown_profile"] if name else ["no_profile"])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*path, key))


def changed(document: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    document = copy.deepcopy(document)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return document


OTHER: list[Any] = [None, 7, True, "text", [7], {"x": 7}]


def test_no_value_in_a_lock_is_an_internal_error(kit: Kit) -> None:
    """Every value replaced by one of every other kind, and every key removed: exit 0, 1 or 2, never 3."""
    made = json.loads((kit.registry / LOCK).read_bytes())
    before = state(kit.site)
    codes: dict[int, int] = {}
    for path in places(made):
        if not path or path[:2] in (("fixes", "order-kept"), ("releases", "demo-core"), ("index", "demo-core")):
            continue  # of each kind, one is enough
        old = made
        for key in path:
            old = old[key]
        variants = [changed(made, path, lambda holder, key: holder.__delitem__(key))]
        for value in OTHER:
            if type(value) is not type(old):
                variants.append(changed(made, path, lambda holder, key, value=value: holder.__setitem__(key, value)))
        for variant in variants:
            (kit.registry / LOCK).write_text(json.dumps(variant))
            done = kit.run("--profile", "bench-v1.0.0", "--site", str(kit.site), "--dry-run")
            assert done.code in (0, 1, 2), (path, done.err)
            assert "internal error" not in done.err
            codes[done.code] = codes.get(done.code, 0) + 1
    assert state(kit.site) == before
    assert codes[2] > 10 * (codes.get(0, 0) + codes.get(1, 0)), codes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it was edited or merged by hand"),
        ("[]", "it was edited or merged by hand"),
        ({"schema": "fixpack.lock/0", "profile": "bench-v1.0.0"}, "it is not a fixpack.lock/1 of bench-v1.0.0"),
        ({"schema": "fixpack.lock/1", "profile": "bench-v2.0.0"}, "it is not a fixpack.lock/1 of bench-v1.0.0"),
        (
            {"schema": "fixpack.lock/1", "profile": "bench-v1.0.0"},
            "the keys of the lock are not schema, profile, aliases, hardware, fixes, releases, registry, index",
        ),
        ("[" * 100_000, "it was edited or merged by hand"),
    ],
)
def test_not_a_lock(kit: Kit, text: str | dict[str, str], why: str) -> None:
    (kit.registry / LOCK).write_bytes(text.encode() if isinstance(text, str) else lock.dump(text))
    with pytest.raises(RegistryError) as caught:
        lock.read(str(kit.registry), "bench-v1.0.0")
    [problem] = caught.value.problems
    assert problem.message.startswith(f"the lock cannot be used: {why}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"revision": 1', '"revision": 2'),
        ('"demo_plugin/batch.py": {', '"demo_plugin/other.py": {'),
        ("\n}\n", "\n}\n\n"),
        ('{\n "schema"', '{\n  "schema"'),
    ],
)
def test_a_lock_that_was_edited_by_hand(kit: Kit, old: str, new: str) -> None:
    """Also where the edit is consistent in itself: only `fixpack lock` makes locks."""
    path = kit.registry / LOCK
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    kit.apply()
    done = kit.apply()
    assert (done.code, done.codes) == (2, ["lock_invalid"])
    assert "it was edited or merged by hand" in done.err


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made["releases"].pop("demo-plugin"),
        lambda made: made["releases"]["demo-plugin"]["files"].clear(),
        lambda made: [entry.update(fixes=[]) for entry in made["releases"]["demo-plugin"]["files"].values()],
        lambda made: made["releases"]["demo-plugin"]["files"].pop("demo_plugin/runner.py"),
        lambda made: [
            entry["results"].update(dict.fromkeys(entry["results"], entry["base"]))
            for entry in made["releases"]["demo-plugin"]["files"].values()
        ],
    ],
)
def test_a_wrong_lock_never_confirms_what_is_not_fixed(kit: Kit, change: Callable[[Any], object]) -> None:
    made = kit.make_lock()
    change(made)
    kit.write_lock(made)
    before = state(kit.site)
    done = kit.apply()
    assert done.code == 2, done
    assert state(kit.site) == before


def bad_lock(kit: Kit, change: Callable[[Any, Any], object]) -> str:
    """What apply says of a lock after a change; the second argument of the change is the runner's entry."""
    made = kit.make_lock()
    change(made, made["releases"]["demo-plugin"]["files"]["demo_plugin/runner.py"])
    kit.write_lock(made)
    before = state(kit.site)
    done = kit.apply("long-share", "wide-log")
    assert (done.code, done.codes) == (2, ["lock_invalid"]), done.err
    assert state(kit.site) == before
    return done.err.split("cannot be used: ")[1].split(" [lock")[0]


def test_a_lock_that_contradicts_itself(kit: Kit) -> None:
    says = [
        bad_lock(kit, lambda made, runner: made["registry"].pop("fixes/core-guard.yaml")),
        bad_lock(kit, lambda made, runner: runner["results"].pop("long-share")),
        bad_lock(kit, lambda made, runner: runner["fixes"].append("gone")),
        bad_lock(kit, lambda made, runner: runner.update(base="0" * 64)),
        bad_lock(kit, lambda made, runner: made["index"].pop("demo-plugin")),
        bad_lock(kit, lambda made, runner: runner["fixes"].remove("order-kept")),
        bad_lock(kit, lambda made, runner: made["releases"]["demo-plugin"]["files"].pop("demo_plugin/batch.py")),
        bad_lock(kit, lambda made, runner: made["index"]["demo-plugin"]["edits"].pop()),
    ]
    assert says == [
        "it lacks the sha256 of fixes/core-guard.yaml",
        "the results of demo_plugin/runner.py are not one for each choice of opt-in fixes",
        "demo_plugin/runner.py names the fix 'gone', which it lacks",
        "the base of demo_plugin/runner.py is not its pin",
        "it has no index of demo-plugin",
        *["its files of demo-plugin are not those that its fixes touch"] * 3,
    ]


def test_an_index_with_another_payload_cannot_change_the_result(kit: Kit) -> None:
    """The result's hash shows it, and then the registry itself is asked."""
    made = kit.make_lock()
    edit = next(each for each in made["index"]["demo-plugin"]["edits"] if each[4] == "keep.py")
    edit[1] = "insert-before"
    kit.write_lock(made)
    assert kit.apply().code == 0
    kit.lock()
    assert kit.apply("--check").code == 0


def test_a_result_that_is_not_the_lock_s(kit: Kit) -> None:
    made = kit.make_lock()
    made["releases"]["demo-core"]["files"]["demo_core/core.py"]["results"][""] = "0" * 64
    kit.write_lock(made)
    before = state(kit.site)
    done = kit.apply()
    assert (done.code, done.codes) == (1, ["result_sha_differs"])
    assert state(kit.site) == before


def test_default_fixes_of_the_kit(kit: Kit) -> None:
    loaded = registry.load(str(kit.registry))
    assert loaded.profiles["bench-v1.0.0"].fixes == DEFAULT
