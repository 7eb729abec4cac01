"""Lint finds what loading cannot: payloads, pins, scopes and locks against the sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit import BATCH, FIXES, Kit, sha, write

from fixpack import lint, registry, sources
from fixpack.outcome import problem_text


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """The invented world, with its trees as the cache."""
    made = Kit(tmp_path)
    monkeypatch.setattr(sources, "have", lambda release: (made.trees / release.ref).is_dir())
    monkeypatch.setattr(sources, "tree", lambda release: str(made.trees / release.ref))
    tests = {f"tests/fixes/test_{name.replace('-', '_')}.py": "def test_it(): ...\n" for name in FIXES}
    write(made.registry, tests)
    return made


def report(kit: Kit) -> list[str]:
    found = lint.lint(registry.load(str(kit.registry)))
    return [problem_text(problem).removeprefix("error: ") for problem in found.problems]


def source(kit: Kit, path: str, text: str) -> None:
    """Other upstream text, pinned as such, in both releases of the plugin."""
    for release in ("v1.0.0", "v2.0.0"):
        old = (kit.trees / f"demo-plugin@{release}" / path).read_text()
        write(kit.trees / f"demo-plugin@{release}", {path: text})
        kit.edit(f"anchors/demo-plugin/{release}.yaml", sha(old), sha(text))


def test_clean(kit: Kit) -> None:
    found = lint.lint(registry.load(str(kit.registry)))
    assert found == ((), (), {"fixes": 5, "profiles": 2, "releases": 3, "anchors": 13, "checked": 3})


def test_a_release_without_its_source_is_skipped(kit: Kit) -> None:
    shutil.rmtree(kit.trees / "demo-core@v1.0.0")
    found = lint.lint(registry.load(str(kit.registry)))
    assert (found.problems, found.skipped, found.counts["checked"]) == ((), ("demo-core@v1.0.0",), 2)


def test_proofs(kit: Kit) -> None:
    write(kit.registry, {"tests/fixes/test_core_guard.py": "def test_other(): ...\n"})
    (kit.registry / "tests/fixes/test_wide_log.py").unlink()
    assert report(kit) == [
        "core-guard: fixes/core-guard.yaml: tests/fixes/test_core_guard.py has no test test_it [proof_missing]",
        "wide-log: fixes/wide-log.yaml: the proof tests/fixes/test_wide_log.py cannot be read: [Errno 2] "
        f"No such file or directory: '{kit.registry}/tests/fixes/test_wide_log.py' [proof_missing]",
    ]


def test_proof_that_is_nested_too_deeply(kit: Kit) -> None:
    for text in ("x = " + "-" * 50_000 + "1\n", "x = 1" + "+1" * 80_000 + "\n", "x = '\0'\n"):
        write(kit.registry, {"tests/fixes/test_core_guard.py": text})
        [told] = report(kit)
        assert told.startswith("core-guard: fixes/core-guard.yaml: the proof tests/fixes/test_core_guard.py cannot be ")
        assert not told.endswith(": [proof_missing]")


@pytest.mark.parametrize(
    ("payload", "line", "message"),
    [
        ('x = """\ny\n"""\n', 1, "a string over several lines would change when it is indented"),
        ('a = 1\nx = f"""\n{a}\n"""\n', 2, "a string over several lines would change when it is indented"),
        ("x = (\n", 0, "not Python: ('EOF in multi-line statement', (2, 0))"),
    ],
)
def test_payloads(kit: Kit, payload: str, line: int, message: str) -> None:
    write(kit.registry, {"patches/core-guard/guard.py": payload})
    where = "core-guard: patches/core-guard/guard.py" + (f":{line}" if line else "")
    assert report(kit)[0].startswith(f"{where}: {message}"[:80])


def test_unused_anchor(kit: Kit) -> None:
    kit.edit(
        "anchors/demo-core/v1.0.0.yaml",
        "      module-end: {}\n",
        "      module-end: {}\n      more: {within: schedule}\n",
    )
    kit.lock()
    assert report(kit) == [
        "anchors/demo-core/v1.0.0.yaml:11: no fix uses the anchor 'more' of demo-core@v1.0.0 [unused_anchor]\n"
        "  next: remove it"
    ]


def test_pins_and_anchors(kit: Kit) -> None:
    tree = kit.trees / "demo-plugin@v2.0.0/demo_plugin"
    (tree / "batch.py").write_text("x = 1\n")
    found = report(kit)
    assert found[0].startswith(
        "demo_plugin/batch.py: the sha256 that anchors/demo-plugin/v2.0.0.yaml pins is not that of this file"
    )
    kit.edit("anchors/demo-plugin/v1.0.0.yaml", "text: count = len(rows) - 1", "text: count = len(rows)")
    assert any("anchor 'step-count' is not there in Runner.step [anchor_missing]" in each for each in report(kit))


BATCH_WITH_COMMENT = """\
class Batch:
    def add(self, first, count):
        stale = True
        count += 1
        # that is all

    def swap(self, i, j):
        self.rows[i], self.rows[j] = self.rows[j], self.rows[i]
"""


def test_a_comment_at_the_end_of_a_scope_is_fine(kit: Kit) -> None:
    source(kit, "demo_plugin/batch.py", BATCH_WITH_COMMENT)
    kit.lock()
    assert report(kit) == []


@pytest.mark.parametrize(("end", "why"), [("-" * 50_000 + "1", "nests too deeply"), ("= 1", "invalid syntax")])
def test_upstream_that_is_no_python(kit: Kit, end: str, why: str) -> None:
    source(kit, "demo_plugin/batch.py", BATCH + f"x = {end}\n")
    told = [line for line in report(kit) if line.endswith("[not_python]")]
    assert [line.split(": ")[0] for line in told] == [
        "anchors/demo-plugin/v1.0.0.yaml",
        "anchors/demo-plugin/v2.0.0.yaml",
    ]
    assert all(why in line for line in told)


def test_a_scope_that_the_parser_sees_otherwise(kit: Kit) -> None:
    """A name without its class finds the method; text at column 0 in a string ends the scope early."""
    text = BATCH_WITH_COMMENT.replace("        # that is all\n", '        x = """\ntext\n"""\n')
    source(kit, "demo_plugin/batch.py", text)
    for release in ("v1.0.0", "v2.0.0"):
        kit.edit(f"anchors/demo-plugin/{release}.yaml", "within: Batch.swap", "within: swap")
    kit.lock()
    found = [
        (f"the scope {scope} of demo_plugin/batch.py in demo-plugin@{release} is not what Python's parser sees", *lines)
        for release in ("v1.0.0", "v2.0.0")
        for scope, *lines in (
            ("Batch.add", "lines 2 to 7", "lines 2 to 5"),
            ("swap", "no such definition", "lines 9 to 10"),
        )
    ]
    problems = lint.lint(registry.load(str(kit.registry))).problems
    assert [(each.message, each.expected, each.found) for each in problems] == found


@pytest.mark.parametrize("text", ['stale = """', "stale = f'''", "stale = True"])
def test_an_anchor_at_a_string(kit: Kit, text: str) -> None:
    """Code behind the first line of a string would be text, and Python would accept it."""
    quotes = text[-3:]
    if quotes == "rue":
        batch = BATCH_WITH_COMMENT.replace(
            "        stale = True\n", "        x = '''\n        stale = True\n        '''\n"
        )
    else:
        batch = BATCH_WITH_COMMENT.replace("        stale = True\n", f"        {text}\n        {quotes}\n")
    source(kit, "demo_plugin/batch.py", batch)
    for release in ("v1.0.0", "v2.0.0"):
        kit.edit(f"anchors/demo-plugin/{release}.yaml", "text: stale = True", f"text: |\n          {text}")
    kit.edit(
        "fixes/order-kept.yaml",
        "{anchor: batch-stale, op: delete}",
        "{anchor: batch-stale, op: insert-after, code: keep.py}",
    )
    kit.lock()
    assert [line.split(": ", 1)[1] for line in report(kit)] == [
        f"the anchor 'batch-stale' of demo-plugin@{release} begins or ends inside a string in demo_plugin/batch.py "
        f"[bad_anchor]\n  found     a string on lines 3 to {5 if quotes == 'rue' else 4}"
        for release in ("v1.0.0", "v2.0.0")
    ]


def test_locks(kit: Kit) -> None:
    made = kit.make_lock()
    made["fixes"]["core-guard"]["title"] = "another title"
    kit.write_lock(made)
    (kit.registry / "profiles/bench-v2.0.0.lock.json").rename(kit.registry / "profiles/gone.lock.json")
    assert report(kit) == [
        "profiles/gone.lock.json: profiles/gone.lock.json belongs to no profile [orphan_lock]\n  next: remove it",
        "profiles/bench-v1.0.0.lock.json: profiles/bench-v1.0.0.lock.json is not what the registry gives [lock_stale]\n"
        "  next: run `fixpack lock`",
        "profiles/bench-v2.0.0.lock.json: the profile bench-v2.0.0 has no lock [lock_missing]\n"
        "  next: run `fixpack lock`",
    ]


@pytest.mark.parametrize(
    ("form", "codes"), [("self.rows.append((first, count))", ["upstream_form_in_base"]), ("stale = False", [])]
)
def test_upstreams_form_is_not_in_what_is_to_be_fixed(kit: Kit, form: str, codes: list[str]) -> None:
    kit.edit(
        "fixes/order-kept.yaml",
        "    - {anchor: batch-stale, op: delete}\n",
        f"    - anchor: batch-stale\n      op: delete\n      upstream-form: {form}\n",
    )
    kit.lock()
    found = lint.lint(registry.load(str(kit.registry))).problems
    assert [problem.code for problem in found] == codes * 2  # in both releases


def test_an_anchor_that_only_an_older_revision_used_is_used(kit: Kit) -> None:
    kit.edit("fixes/order-kept.yaml", "    - {anchor: batch-stale, op: delete}\n", "")
    history = """\
history:
  - revision: 1
    reason: it deleted too much
    edits: {demo-plugin: [{anchor: batch-stale, op: delete}]}
"""
    kit.revise("order-kept", "keep.py", "order = rows[:]\n", history)
    assert lint.lint(registry.load(str(kit.registry))).problems == ()
