"""Another tool patches the same files afterwards: elsewhere it is reported, inside a fixed scope it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Kit, state

RUNNER = "demo_plugin/runner.py"
BATCH = "demo_plugin/batch.py"

#: name -> file, old text, new text: changes that no fixed scope holds
OUTSIDE = {
    "another function": (RUNNER, "        count = 0\n", "        count = 1\n"),
    "a new import": (
        RUNNER,
        "from demo_plugin.batch import Batch\n",
        "import os\nfrom demo_plugin.batch import Batch\n",
    ),
    "a new method before": (RUNNER, "    def step(self", "    def port(self):\n        return 1\n\n    def step(self"),
    "a new method behind": (BATCH, "    def swap(self", "    def port(self):\n        return 1\n\n    def swap(self"),
    "a class at the end": (
        RUNNER,
        "        return count\n",
        "        return count\n\n\nclass Port(Runner):\n    pass\n",
    ),
    "a docstring": (RUNNER, '"""One per rank."""', '"""One per rank, and port."""'),
}

#: the same for changes that one does hold, with the fixes whose scope it is and the lines that are named
INSIDE = {
    "a changed line": (RUNNER, "order = sorted(rows)", "order = rows", ("rows-counted", "order-kept"), "line 20"),
    "a new line": (
        RUNNER,
        "        order = sorted",
        "        port()\n        order = sorted",
        ("order-kept",),
        "line 20",
    ),
    "a line gone": (RUNNER, '        """Run one step."""\n', "", ("rows-counted",), "line 13"),
    "a changed header": (
        RUNNER,
        "def step(self, rows):",
        "def step(self, rows, port=None):",
        ("order-kept",),
        "line 12",
    ),
    "a decorator": (RUNNER, "    def step(self", "    @port\n    def step(self", ("order-kept",), "line 12"),
    "two lines": (
        RUNNER,
        "        return order\n\n    def stop",
        "        port()\n        return order or None\n\n    def stop",
        ("rows-counted",),
        "lines 28, 29",
    ),
    "renamed": (BATCH, "def add(self", "def append(self", ("order-kept",), "the scope Batch.add is not there"),
    "defined twice": (
        BATCH,
        "    def swap(self",
        "    def add(self, *port):\n        return port\n\n    def swap(self",
        ("order-kept",),
        "the scope Batch.add is defined 2 times",
    ),
    "the module that is fixed as a whole": (
        "demo_core/core.py",
        '"""The core."""',
        '"""Port."""',
        ("core-guard",),
        "line 1",
    ),
}


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def change(kit: Kit, path: str, old: str, new: str) -> None:
    full = kit.site / path
    text = full.read_bytes().decode()
    assert text.count(old) == 1, (old, text.count(old))
    full.write_bytes(text.replace(old, new).encode())


@pytest.mark.parametrize("opt_in", [(), ("long-share",)])
@pytest.mark.parametrize("case", OUTSIDE)
def test_outside_of_every_scope(kit: Kit, case: str, opt_in: tuple[str, ...]) -> None:
    kit.apply(*opt_in)
    path, old, new = OUTSIDE[case]
    change(kit, path, old, new)
    before = state(kit.site)
    done = kit.apply(*opt_in)
    count = 3 + len(opt_in)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[2:] == [
        *(line for line in kit.verb("status").out.splitlines()[2 : 2 + count]),
        f"  # another layer changed {kit.site / path}, outside of every fixed scope",
        f"bench-v1.0.0: confirmed: {count} fixes in {4 + len(opt_in)} files, every region and fixed scope as proven, "
        "but 1 file with foreign changes; nothing written",
    ]
    done = kit.apply("--json", *opt_in)
    assert (done.json["action"], done.json["foreign"]) == ("confirmed", [str(kit.site / path)])
    assert kit.apply("--check", *opt_in).code == 0
    assert kit.verb("verify").code == 0
    for strict in (kit.apply("--strict", *opt_in), kit.verb("verify", "--strict")):
        assert (strict.code, strict.codes) == (1, ["foreign_layer"])
        assert str(kit.site / path) in strict.err
    found = kit.states()
    assert {found[name] for name in ("rows-counted", "order-kept", "core-guard", *opt_in)} == {"applied"}
    assert kit.verb("status").code == 0
    assert kit.verb("revert").code == 1
    assert kit.verb("diff").code == 0
    assert state(kit.site) == before


@pytest.mark.parametrize("receipt", [True, False])
@pytest.mark.parametrize("case", INSIDE)
def test_inside_a_scope(kit: Kit, case: str, receipt: bool) -> None:
    kit.apply()
    if not receipt:
        for each in kit.site.rglob("fixpack.json"):
            each.unlink()
    path, old, new, fixes, lines = INSIDE[case]
    change(kit, path, old, new)
    before = state(kit.site)
    done = kit.apply()
    assert done.code == 1
    assert "edited_in_scope" in done.codes
    found = kit.states()
    assert {found[name] for name in fixes} == {"foreign"}
    if receipt or lines.startswith("the scope"):
        assert lines in done.err, done.err
    else:  # without the kept base, the whole scope is named
        assert "on lines " in done.err
    assert kit.verb("verify").code == kit.verb("status").code == kit.verb("revert").code == 1
    assert state(kit.site) == before


def test_the_whole_message(kit: Kit) -> None:
    kit.apply()
    change(kit, RUNNER, "order = sorted(rows)", "order = rows")
    path = kit.site / RUNNER
    hint = "take that layer out with its own tool, or rebuild from the stock image and apply this before it"
    problem = f"""\
error: {{}}: {path}:20: another layer changed Runner.step on line 20, where {{}} is [edited_in_scope]
  nearest at line 20:
    -         order = sorted(rows)
    +         order = rows
  next: {hint}
"""
    assert kit.apply().err.startswith("".join(problem.format(name, name) for name in ("rows-counted", "order-kept")))


def test_a_region_that_was_moved_within_its_scope(kit: Kit) -> None:
    kit.apply()
    text = kit.text(RUNNER)
    begin = text.index("        # fixpack begin order-kept")
    end = text.index("\n", text.index("# fixpack end order-kept")) + 1
    region = text[begin:end]
    moved = text.replace(region, "").replace("        first = rows[0]\n", "        first = rows[0]\n" + region)
    (kit.site / RUNNER).write_text(moved.replace("count = 0", "count = 1"))
    assert kit.states()["order-kept"] == "foreign"
    assert kit.apply().code == 1
    (kit.site / RUNNER).write_text(moved)  # with nothing else changed, the base is proven: apply puts it right
    assert kit.apply("--check").code == 1
    assert kit.apply().code == 0
    assert kit.text(RUNNER) == text


def test_a_copied_region_is_no_second_fix(kit: Kit) -> None:
    kit.apply()
    text = kit.text(RUNNER)
    begin = text.index("        # fixpack begin order-kept")
    end = text.index("\n", text.index("# fixpack end order-kept")) + 1
    (kit.site / RUNNER).write_text(text + text[begin:end])
    assert kit.apply("--check").code == 1
    assert kit.states()["order-kept"] != "applied"


def test_broken_syntax_elsewhere_is_not_confirmed(kit: Kit) -> None:
    kit.apply()
    change(kit, RUNNER, "        count = 0\n", "        count = = 0\n")
    assert kit.apply().code == kit.verb("verify").code == kit.verb("status").code == 1
    assert kit.states()["rows-counted"] == "foreign"


def test_a_layer_before_an_apply_is_refused(kit: Kit) -> None:
    """What is not a pinned base is never written to."""
    change(kit, RUNNER, "        count = 0\n", "        count = 1\n")
    before = state(kit.site)
    done = kit.apply()
    assert (done.code, done.codes[0]) == (1, "base_sha_unknown")
    assert state(kit.site) == before


def test_one_more_fix_on_a_layered_file_is_refused(kit: Kit) -> None:
    kit.apply()
    change(kit, RUNNER, "        count = 0\n", "        count = 1\n")
    before = state(kit.site)
    done = kit.apply("long-share")
    assert done.code == 1
    assert "and another layer changed it outside of every fixed scope" in done.err
    assert state(kit.site) == before


def test_a_layer_on_one_file_and_work_on_another_is_refused(kit: Kit) -> None:
    """Nothing is confirmed that is only half there."""
    kit.apply()
    stock = kit.folder / "stock"
    kit.fresh_site(folder=stock)
    (kit.site / BATCH).write_bytes((stock / BATCH).read_bytes())
    change(kit, RUNNER, "        count = 0\n", "        count = 1\n")
    before = state(kit.site)
    assert kit.apply().code == kit.apply("--check").code == 1
    assert state(kit.site) == before


def test_taking_the_layer_out_makes_revert_possible(kit: Kit) -> None:
    stock = kit.content()
    kit.apply()
    change(kit, RUNNER, "        count = 0\n", "        count = 1\n")
    assert kit.verb("revert").code == 1
    change(kit, RUNNER, "        count = 1\n", "        count = 0\n")
    assert kit.verb("revert").code == 0
    assert kit.content() == stock
