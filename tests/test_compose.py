"""Splicing and taking out again: every operation, every overlap, any order, and back to the same bytes."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixpack.compose import check_syntax, compose, strip, target_path, touched
from fixpack.errors import MismatchError, Problem
from fixpack.model import Anchor, Edit, Fix, Origin, Proof, Release, SourceFile, Upstream

PATH = "pkg/x.py"
BASE = b"import os\n\n\nclass A:\n    def f(self):\n        one = 1\n        two = 2\n        three = 3\n\n\nlast = 1\n"


def release(anchors: dict[str, tuple[str, str]], paths: Sequence[str] = (PATH,)) -> Release:
    """A release whose first file has these anchors: name -> scope, text."""
    found = {
        name: Anchor(name, *place, where=f"anchors/pkg/v1.yaml:{n}") for n, (name, place) in enumerate(anchors.items())
    }
    files = {path: SourceFile(path, "", found if path == PATH else {}) for path in paths}
    return Release("pkg", "v1", "1", "pkg", "a" * 40, (), "", None, files, "anchors/pkg/v1.yaml")


def fix(name: str, *edits: tuple[str, str, str], revision: int = 1) -> Fix:
    """A fix with edits: operation, anchor or path, payload."""
    made = tuple(
        Edit(
            op,
            "" if op == "add-file" else place,
            place if op == "add-file" else "",
            "x.py",
            text,
            f"fixes/{name}.yaml:{n}",
        )
        for n, (op, place, text) in enumerate(edits, 10)
    )
    return Fix(
        *(name, revision, "", "", "", Origin("own", "", ""), Upstream("", "", ""), "", "", ()),
        *({"pkg": made}, {}, Proof("", {}), f"fixes/{name}.yaml"),
    )


ANCHORS = {
    "one": ("A.f", "one = 1"),
    "two": ("A.f", "two = 2"),
    "one-two": ("A.f", "one = 1\ntwo = 2"),
    "end": ("A.f", ""),
    "class-end": ("A", ""),
    "module-end": ("", ""),
    "last": ("", "last = 1"),
}
PINS = release(ANCHORS)


def result(*fixes: Fix, base: bytes = BASE, pins: Release = PINS) -> str:
    return compose({PATH: base}, pins, fixes)[PATH].decode()


def problems(*fixes: Fix, base: bytes = BASE, pins: Release = PINS) -> list[Problem]:
    with pytest.raises(MismatchError) as caught:
        compose({PATH: base, "pkg/new.py": None}, pins, fixes)
    return list(caught.value.problems)


def block(text: str) -> str:
    """Lines of the method's body, as they stand in the file."""
    return "".join(f"        {line}\n" if line else "\n" for line in text.split("\n"))


@pytest.mark.parametrize(
    ("op", "anchor", "payload", "expected"),
    [
        ("insert-before", "one", "x = 1\n", block("{\nx = 1\n}\none = 1\ntwo = 2\nthree = 3")),
        ("insert-after", "one", "x = 1\n", block("one = 1\n{\nx = 1\n}\ntwo = 2\nthree = 3")),
        ("insert-after", "one-two", "x = 1\n", block("one = 1\ntwo = 2\n{\nx = 1\n}\nthree = 3")),
        ("replace", "one-two", "if x:\n\n    y = 1\n", block("{\nif x:\n\n    y = 1\n}\nthree = 3")),
        ("delete", "two", "", block("one = 1\n{\n}\nthree = 3")),
        ("append", "end", "x = 1\n", block("one = 1\ntwo = 2\nthree = 3\n{\nx = 1\n}")),
    ],
)
def test_operations(op: str, anchor: str, payload: str, expected: str) -> None:
    head, _, rest = BASE.decode().partition("        one = 1\n")
    tail = rest[rest.index("\n\nlast") :]
    expected = expected.replace("{", f"# fixpack begin fix-a r3: {anchor}").replace(
        "}", f"# fixpack end fix-a r3: {anchor}"
    )
    assert result(fix("fix-a", (op, anchor, payload), revision=3)) == head + expected + tail


def test_append_to_class_and_module() -> None:
    made = result(fix("fix-a", ("append", "class-end", "def g(self): ...\n"), ("append", "module-end", "x = 1\n")))
    assert made == (
        "import os\n\n\nclass A:\n    def f(self):\n        one = 1\n        two = 2\n        three = 3\n"
        "    # fixpack begin fix-a r1: class-end\n    def g(self): ...\n    # fixpack end fix-a r1: class-end\n"
        "\n\nlast = 1\n"
        "# fixpack begin fix-a r1: module-end\nx = 1\n# fixpack end fix-a r1: module-end\n"
    )


def test_add_file() -> None:
    new = fix("fix-a", ("add-file", "pkg/new.py", "x = 1\n"))
    assert compose({"pkg/new.py": None}, PINS, [new]) == {
        "pkg/new.py": b"# fixpack begin fix-a r1: file\nx = 1\n# fixpack end fix-a r1: file\n"
    }
    assert touched(PINS, [new, fix("fix-b", ("delete", "one", ""))]) == {"pkg/new.py": True, PATH: False}
    assert [target_path(PINS, edit) for edit in new.edits["pkg"]] == ["pkg/new.py"]


def test_indentation_is_the_file_s() -> None:
    base = b"class A:\n\tdef f(self):\n\t\tone = 1\n"
    assert result(fix("fix-a", ("insert-after", "one", "if x:\n    y = 1\n")), base=base) == (
        "class A:\n\tdef f(self):\n\t\tone = 1\n\t\t# fixpack begin fix-a r1: one\n\t\tif x:\n\t\t    y = 1\n"
        "\t\t# fixpack end fix-a r1: one\n"
    )


# -- overlaps ---------------------------------------------------------------------------------------------------------

X = "x = 1\n"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("replace", "one", X), ("replace", "one-two", X)),
        (("delete", "two", ""), ("replace", "one-two", X)),
        (("insert-before", "two", X), ("replace", "one-two", X)),
        (("insert-after", "one", X), ("insert-before", "two", X)),
        (("insert-after", "two", X), ("insert-after", "one-two", X)),
        (("append", "end", X), ("append", "class-end", X)),
        (("insert-after", "last", X), ("append", "module-end", X)),
    ],
)
def test_overlaps_are_refused_in_either_order(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    for first, second in ((one, two), (two, one)):
        [problem] = problems(fix("fix-a", first), fix("fix-b", second))
        assert problem.code == "overlap"
        assert problem.file == PATH
        assert {"fix-a (fixes/fix-a.yaml:10)", "fix-b (fixes/fix-b.yaml:10)"} == set(
            problem.message.removesuffix(" edit the same place").split(" and ")
        )


def test_neighbours_are_not_overlaps() -> None:
    made = result(
        fix("fix-a", ("insert-before", "one", X), ("replace", "one", X)),
        fix("fix-b", ("insert-after", "one", X), ("replace", "two", X)),
    )
    assert [line.split()[-3:] for line in made.split("\n") if "begin" in line] == [
        ["fix-a", "r1:", "one"],
        ["fix-a", "r1:", "one"],
        ["fix-b", "r1:", "one"],
        ["fix-b", "r1:", "two"],
    ]


def test_every_overlap_with_a_large_region_is_reported() -> None:
    """Not only the one next to it."""
    pins = release(
        {"all": ("A.f", "one = 1\ntwo = 2\nthree = 3"), "two": ANCHORS["two"], "three": ("A.f", "three = 3")}
    )
    large, two, three = (
        fix("all", ("delete", "all", "")),
        fix("two", ("delete", "two", "")),
        fix("three", ("delete", "three", "")),
    )
    assert [(each.fix, each.line) for each in problems(large, two, three, pins=pins)] == [("two", 7), ("three", 8)]


def test_all_problems_in_one_run() -> None:
    """The first and the third of three fixes are broken: both are reported."""
    base = BASE.replace(b"one = 1", b"one = 11").replace(b"last = 1", b"last = 11")
    found = problems(
        fix("fix-a", ("delete", "one", "")),
        fix("fix-b", ("delete", "two", "")),
        fix("fix-c", ("delete", "last", "")),
        base=base,
    )
    assert [(each.fix, each.code, each.line) for each in found] == [
        ("fix-a", "anchor_missing", 6),
        ("fix-c", "anchor_missing", 11),
    ]


def test_two_fixes_add_one_file() -> None:
    new = ("add-file", "pkg/new.py", X)
    assert [(each.code, each.fix, each.message) for each in problems(fix("fix-a", new), fix("fix-b", new))] == [
        ("overlap", "fix-b", "two fixes add pkg/new.py")
    ]


def test_append_to_a_file_without_final_newline() -> None:
    [problem] = problems(fix("fix-a", ("append", "module-end", X)), base=BASE[:-1])
    assert (problem.code, problem.message) == ("anchor_at_end", "pkg/x.py does not end with a newline")


def test_unknown_anchor_and_missing_file() -> None:
    [problem] = problems(fix("fix-a", ("delete", "gone", "")))
    assert (problem.code, problem.message) == ("unknown_anchor", "anchors/pkg/v1.yaml has no anchor 'gone'")
    with pytest.raises(MismatchError, match=r"pkg/x\.py is not there"):
        compose({PATH: None}, PINS, [fix("fix-a", ("delete", "one", ""))])


# -- syntax -----------------------------------------------------------------------------------------------------------


def test_syntax() -> None:
    assert check_syntax(PATH, BASE) is None
    assert check_syntax(PATH, b"x = 1\nif:\n") == Problem(
        "syntax_error", "the result is not valid Python: invalid syntax (x.py, line 2)", file=PATH, line=2
    )
    assert check_syntax(PATH, b"x = '\0'\n") is not None
    assert check_syntax(PATH, b"x = '\\d'\n") is None  # a warning of upstream's own is not ours


def test_syntax_of_the_edited_scopes() -> None:
    """Only what was edited need suit the running Python; a scope that is only valid in its place is still valid."""
    data = b"def f():\n    return 1\n\ndef g():\n    if:\n"
    assert check_syntax(PATH, data, ["f"]) is None
    assert check_syntax(PATH, data, ["f", "g"]) is not None
    assert check_syntax(PATH, data, ["f", ""]) is not None
    super_class = b"class A:\n    def f(self):\n        return super().f\n"
    assert check_syntax(PATH, super_class, ["A.f"]) is None
    nonlocal_name = b"def f():\n    x = 1\n    def g():\n        nonlocal x\n        return x\n"
    assert check_syntax(PATH, nonlocal_name, ["f.g"]) is None


# -- taking out -------------------------------------------------------------------------------------------------------


def fixes_by_id(*fixes: Fix) -> dict[str, Fix]:
    return {each.id: each for each in fixes}


TWO = fix("fix-a", ("insert-before", "one", X), ("insert-after", "one", "y = 1\n"), ("delete", "two", ""))
OTHER = fix("fix-b", ("append", "end", "z = 1\n"), ("replace", "last", "last = 2\n"))


def test_strip_undoes_compose() -> None:
    """Two edits of one fix at one anchor are told apart."""
    made = result(TWO, OTHER).encode()
    assert strip(PATH, made, PINS, fixes_by_id(TWO, OTHER)) == (BASE, {"fix-a": 3, "fix-b": 2}, (), {})
    assert strip(PATH, BASE, PINS, fixes_by_id(TWO, OTHER)) == (BASE, {}, (), {})


def stripped(old: str, new: str, *known: Fix) -> list[Problem]:
    """The problems of stripping a result in which one text was changed."""
    made = result(TWO, OTHER)
    assert old in made
    return list(strip(PATH, made.replace(old, new, 1).encode(), PINS, fixes_by_id(*(known or (TWO, OTHER)))).problems)


@pytest.mark.parametrize(
    ("old", "new", "code", "name", "line"),
    [
        ("y = 1", "y = 2", "edited_inside", "fix-a", 11),
        ("# fixpack end fix-a r1: one\n", "#\n", "marker_broken", "fix-a", 6),
        ("# fixpack begin fix-a r1: one\n", "#\n", "marker_broken", "fix-a", 8),
        ("# fixpack begin fix-a r1: one\n", "# fixpack begin fix-c r1: one\n", "marker_broken", "fix-c", 6),
        ("        # fixpack end fix-a r1: one\n", "    # fixpack end fix-a r1: one\n", "edited_inside", "fix-a", 8),
    ],
)
def test_forged_markers(old: str, new: str, code: str, name: str, line: int) -> None:
    found = stripped(old, new)
    assert found
    assert (found[0].code, found[0].fix, found[0].line) == (code, name, line)


def test_regions_of_other_registries() -> None:
    [problem] = stripped("y = 1", "y = 1", OTHER, fix("fix-a", revision=2))[:1]
    assert (problem.code, problem.message) == (
        "stale_revision",
        "fix-a is in the file in revision 1; the registry has revision 2",
    )
    [problem] = stripped("y = 1", "y = 1", OTHER)[:1]
    assert (problem.code, problem.message) == ("unknown_fix", "the file carries fix-a, which this registry lacks")
    [problem] = stripped("y = 1", "y = 1", OTHER, fix("fix-a", ("delete", "two", "")))[:1]
    assert (problem.code, problem.message) == ("foreign_region", "fix-a has no edit at 'one' in this file of pkg@v1")


def test_a_forged_region_that_is_right_still_needs_the_base() -> None:
    """Markers only nominate: what is left must hash to the pin, which is the caller's to check."""
    made = result(TWO).encode()
    region = made[made.index(b"        # fixpack begin") : made.index(b"        one = 1")]
    assert strip(PATH, made + region, PINS, fixes_by_id(TWO)) == (BASE, {"fix-a": 4}, (), {})
    assert strip(PATH, made + b"#\n", PINS, fixes_by_id(TWO)) == (BASE + b"#\n", {"fix-a": 3}, (), {})


# -- any file, any set of edits ---------------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[bytes, Release, list[Fix]]:
    """A file of distinct statements, anchors on some of them, and fixes that do not overlap."""
    count = draw(st.integers(2, 12))
    lines, bodies, inside = [], [], False
    for number in range(count):
        if draw(st.booleans()):
            lines.append(f"def f{number}():")
            inside = True
        indent = "    " if inside else ""
        body = f"v{number} = '{draw(st.sampled_from(['', 'é', chr(0x2028), chr(12)]))}'"
        lines += [indent + body, *([""] if draw(st.booleans()) else [])]
        bodies.append(body)
    chosen = draw(st.lists(st.sampled_from(range(count)), unique=True, min_size=1, max_size=count))
    anchors = {f"at-{number}": ("", bodies[number]) for number in chosen}
    names = draw(st.permutations(["fix-a", "fix-b", "fix-c"]))
    edits: dict[str, list[tuple[str, str, str]]] = {name: [] for name in names}
    for number in chosen:
        op = draw(st.sampled_from(["insert-before", "insert-after", "replace", "delete"]))
        if op == "insert-before" and f"at-{number - 1}" in anchors:
            op = "replace"  # the neighbour may insert behind itself
        payload = draw(st.sampled_from(["x = 1\n", "if x:\n    y = 1\n\n    z = 2\n", "# only this\npass\n"]))
        edits[draw(st.sampled_from(names))].append((op, f"at-{number}", "" if op == "delete" else payload))
    data = ("\n".join(lines) + "\n").encode()
    return data, release(anchors), [fix(name, *found) for name, found in edits.items() if found]


@settings(deadline=None, max_examples=150)
@given(worlds())
def test_any_order_gives_the_same_bytes_and_strip_gives_the_base(world: tuple[bytes, Release, list[Fix]]) -> None:
    base, pins, fixes = world
    results = {compose({PATH: base}, pins, order)[PATH] for order in itertools.permutations(fixes)}
    assert len(results) == 1
    made = results.pop()
    found = strip(PATH, made, pins, fixes_by_id(*fixes))
    assert found == (base, {each.id: len(each.edits["pkg"]) for each in fixes}, (), {})
    # from any subset, by way of the base, to the same bytes
    some = compose({PATH: base}, pins, fixes[:1])[PATH]
    again = strip(PATH, some, pins, fixes_by_id(*fixes)).base
    assert compose({PATH: again}, pins, fixes)[PATH] == made
    # what is in the file outside of the regions is the base, line by line
    kept, inside = [], False
    for line in made.decode().split("\n"):
        if "# fixpack" in line:
            inside = "begin" in line
        elif not inside:
            kept.append(line)
    replaced = [
        pins.find(edit.anchor) for each in fixes for edit in each.edits["pkg"] if edit.op in ("replace", "delete")
    ]
    gone = {place[1].text for place in replaced if place}
    assert kept == [line for line in base.decode().split("\n") if line.strip(" ") not in gone]
    assert ast.parse(base) is not None


@settings(deadline=None, max_examples=150)
@given(worlds(), st.integers(0, 10**6), st.integers(1, 255))
def test_any_changed_byte_of_a_result_shows(world: tuple[bytes, Release, list[Fix]], where: int, by: int) -> None:
    """Never the base and no problem."""
    base, pins, fixes = world
    made = bytearray(compose({PATH: base}, pins, fixes)[PATH])
    made[where % len(made)] ^= by
    found = strip(PATH, bytes(made), pins, fixes_by_id(*fixes))
    assert found.base != base or found.problems
