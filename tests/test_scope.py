"""Scopes and anchor texts: the scanner finds what Python's parser finds, or says why not."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixpack.errors import Problem
from fixpack.model import Anchor, SourceFile
from fixpack.scope import Place, ScopeError, find_scope, find_text, line_at, locate


def lines_of(source: str, dotted: str) -> str:
    """The scope's text."""
    data = source.encode()
    place = find_scope(data, dotted)
    return data[place.start : place.end].decode()


def refusal(source: str, dotted: str) -> tuple[str, str]:
    with pytest.raises(ScopeError) as caught:
        find_scope(source.encode(), dotted)
    return caught.value.code, str(caught.value)


SOURCE = textwrap.dedent(
    '''\
    import os

    def helper(): return 1

    @decorate(
        "x",
    )
    class Runner(
        Base,
    ):
        # about step
        @property
        async def step(
            self,
        ) -> dict[str, int]:
            """Text."""
            def inner():
                return 1
            x = [
                1,
            ]
            return inner

        # about step_two
        def step_two(self):
            return 2

        class Inner:
            def step(self):
                return 3

    # about helper_two
    def helper_two():
        if True:

            return 4
        # still inside


    LAST = 1
    '''
)


def test_scopes() -> None:
    assert lines_of(SOURCE, "helper") == "def helper(): return 1\n"
    assert lines_of(SOURCE, "Runner").startswith("class Runner(\n    Base,\n):\n")
    assert lines_of(SOURCE, "Runner").endswith("            return 3\n")
    assert lines_of(SOURCE, "Runner.step").startswith("    async def step(\n")
    assert lines_of(SOURCE, "Runner.step").endswith("        return inner\n")
    assert lines_of(SOURCE, "Runner.step.inner") == "        def inner():\n            return 1\n"
    assert lines_of(SOURCE, "Runner.step_two") == "    def step_two(self):\n        return 2\n"
    assert lines_of(SOURCE, "Runner.Inner.step") == "        def step(self):\n            return 3\n"
    assert lines_of(SOURCE, "helper_two").endswith("        return 4\n    # still inside\n")
    assert lines_of(SOURCE, "") == SOURCE


def test_missing_and_ambiguous() -> None:
    assert refusal(SOURCE, "Gone.step") == ("scope_missing", "the scope Gone is not there")
    assert refusal(SOURCE, "Runner.steps") == ("scope_missing", "the scope Runner.steps is not there")
    assert refusal(SOURCE, "helper.step") == ("scope_missing", "the scope helper.step is not there")
    assert refusal(SOURCE, "Runner.step_two.inner") == ("scope_missing", "the scope Runner.step_two.inner is not there")
    twice = "class A:\n    @overload\n    def f(self): ...\n    def f(self, x): ...\n"
    assert refusal(twice, "A.f") == ("scope_ambiguous", "the scope A.f is defined 2 times (lines 3, 4)")
    branches = "if x:\n    def f(): ...\nelse:\n    def f(): ...\n"
    assert refusal(branches, "f") == ("scope_ambiguous", "the scope f is defined 2 times (lines 2, 4)")


@pytest.mark.parametrize(
    ("source", "dotted", "expected"),
    [
        ("def fé():\n    return 1\ndef f():\n    return 2\n", "f", "def f():\n    return 2\n"),
        ("def ff():\n    return 1\ndef f():\n    return 2\n", "f", "def f():\n    return 2\n"),
        ("class A:\n    x = 1\n\x0c\n    y = 2\n\x0c\nz = 1\n", "A", 4),
        ("def f():\n    x = '\u2028'\n    y = '\x85\x0b'\n    return x\nz = 1\n", "f", 4),
        ("def f():\n    return 1", "f", "def f():\n    return 1"),
        ("def f(): return 1", "f", "def f(): return 1"),
        ("def f():\n\n\n    return 1\n\n\n# about g\n\ndef g(): ...\n", "f", "def f():\n\n\n    return 1\n"),
        ("class A:\n  def f(self):\n     return 1\n  x = 2\n", "A.f", "  def f(self):\n     return 1\n"),
        ("class A:\n\tdef f(self):\n\t\treturn 1\n\tx = 2\n", "A.f", "\tdef f(self):\n\t\treturn 1\n"),
        ("def f(\n    a,\n):\n    return (\n        a\n    )\nx = 1\n", "f", 6),
        ("try:\n    def f(): ...\nexcept E:\n    x = 1\n", "f", "    def f(): ...\n"),
        ("async  def f():\n    pass\nx = 1\n", "f", "async  def f():\n    pass\n"),
        ("def f():\n    pass\n@g\ndef h(): ...\n", "f", "def f():\n    pass\n"),
        ("class f_:\n    def f(self):\n        pass\nclass f:\n    pass\n", "f", "class f:\n    pass\n"),
        ("undef f\ndef f():\n    pass\n", "f", "def f():\n    pass\n"),
    ],
)
def test_odd_sources(source: str, dotted: str, expected: str | int) -> None:
    """A number stands for that many lines, which Python's parser counts too."""
    if isinstance(expected, int):
        expected = "".join(line + "\n" for line in source.split("\n")[:expected])
    assert lines_of(source, dotted) == expected


def test_text_at_column_0_inside_a_string_ends_the_scope_early() -> None:
    """Too short is safe: the anchor behind it is not found, and lint says that the parser sees more."""
    source = 'def f():\n    x = """\ntext\n"""\n    y = 1\n'
    assert lines_of(source, "f") == 'def f():\n    x = """\n'


# -- against Python's parser ------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["f", "ff", "F", "step", "step_two", "g"])


@st.composite
def blocks(draw: st.DrawFn, depth: int, indent: str) -> list[str]:
    """Lines of a block: statements over one or more lines, comments, blanks, definitions."""
    lines: list[str] = []
    deeper = indent + draw(st.sampled_from(["    ", "  ", " "]))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 9 if depth < 3 else 5))
        if kind == 0:
            lines += ["", f"{indent}# about what follows", f"{indent}x = 1"]
        elif kind == 1:
            lines += [f"{indent}x = [", f"{deeper}1,", f"{indent}]"]
        elif kind == 2:
            lines += [f'{indent}"""Text', "", f"{deeper}def step(self):", f'{deeper}"""']
        elif kind == 3:
            lines += [f"{indent}if x:", f"{deeper}pass", "", f"{indent}else:", f"{deeper}x = 'def g():'"]
        elif kind == 4:
            lines += [f"{indent}x = 'é\u2028\x0b'  # def f():", "  "]
        elif kind == 5:
            lines += [f"{indent}pass"]
        else:
            name = draw(NAMES)
            head = draw(
                st.sampled_from(
                    [
                        [f"{indent}def {name}(x):"],
                        [f"{indent}async def {name}(", f"{deeper}x,", f"{indent}):"],
                        [f"{indent}@deco", f"{indent}def {name}(", f"{deeper} x) -> int:"],
                        [f"{indent}class {name}:"],
                        [f"{indent}class {name}(", f"{deeper}x,", f"{indent}):", "", f"{deeper}# first"],
                    ]
                )
            )
            lines += [*head, *draw(blocks(depth + 1, deeper))]
    return lines


def definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield prefix + node.name, node
            yield from definitions(node.body, f"{prefix}{node.name}.")


@settings(deadline=None, max_examples=150)
@given(blocks(0, ""), st.booleans())
def test_agrees_with_the_parser(lines: list[str], newline: bool) -> None:
    """Where the scanner finds a scope that the parser has once, both see the same first and last line."""
    source = "\n".join(lines) + ("\n" if newline else "")
    found = list(definitions(ast.parse(source).body))
    names = [name for name, _ in found]
    data = source.encode()
    for name, node in found:
        if any(names.count(name[: len(name) - cut]) > 1 for cut in range(len(name)) if cut == 0 or name[-cut] == "."):
            continue  # the parser has it twice, so its parts are not to be trusted
        try:
            place = find_scope(data, name)
        except ScopeError as error:
            known = error.code == "scope_ambiguous" and "def step(self):" in source
            if not known:  # else the name stands in a string at the same depth
                raise
            continue
        text = data[place.start : place.end].decode()
        first = line_at(data, place.start)
        if first != node.lineno:
            assert "def step(self):" in source
            continue
        code = [line for line in text.split("\n") if line.strip()]
        while code[-1].lstrip().startswith("#"):
            code.pop()
        assert code[-1] == source.split("\n")[(node.end_lineno or 0) - 1]


# -- texts ------------------------------------------------------------------------------------------------------------


def found(source: str, text: str) -> list[tuple[int, int, bytes]]:
    """First and last line and indentation of each place."""
    data = source.encode()
    return [
        (line_at(data, place.start), line_at(data, place.end - 1), place.indent)
        for place in find_text(data, text, 0, len(data))
    ]


@pytest.mark.parametrize(
    ("source", "text", "places"),
    [
        ("a = 1\nb = 2\n", "a = 1", [(1, 1, b"")]),
        ("  a = 1\n", "a = 1", [(1, 1, b"  ")]),
        ("\ta = 1\n", "a = 1", [(1, 1, b"\t")]),
        ("aa = 1\na = 11\na = 1 \nx; a = 1\n# a = 1\n", "a = 1", []),
        ("a = 1\r\n", "a = 1", []),
        ("a = 1", "a = 1", [(1, 1, b"")]),
        ("a = 1\n  a = 1\n", "a = 1", [(1, 1, b""), (2, 2, b"  ")]),
        ("  if a:\n      b\n", "if a:\n    b", [(1, 2, b"  ")]),
        ("  if a:\n    b\n", "if a:\n    b", []),
        ("  if a:\n\n      b\n", "if a:\n\n    b", [(1, 3, b"  ")]),
        ("  if a:\n  \n      b\n", "if a:\n\n    b", []),
        ("a\na\na\n", "a\na", [(1, 2, b""), (2, 3, b"")]),
        ("a = '\u2028b'\n", "b'", []),
        ("x\x0c\na = 1\n", "a = 1", [(2, 2, b"")]),
        ("\x0ca = 1\n", "a = 1", []),
        ("é = 1\na = 'é'\n", "a = 'é'", [(2, 2, b"")]),
    ],
)
def test_texts(source: str, text: str, places: list[tuple[int, int, bytes]]) -> None:
    assert found(source, text) == places


def test_text_stays_inside_the_bounds() -> None:
    """An anchor of two lines does not reach behind its scope."""
    data = b"def f(): pass\ndef g(): pass\n"
    scope = find_scope(data, "f")
    assert find_text(data, "def f(): pass\ndef g(): pass", scope.start, scope.end) == []


def at(source: str, text: str, within: str = "") -> Place | Problem:
    anchor = Anchor("here", within, text, "anchors/x.yaml:7")
    return locate(source.encode(), SourceFile("pkg/x.py", "", {}), anchor, "fix-a")


TWINS = "class A:\n    def f(self):\n        x = 1\n\n    def g(self):\n        x = 1\n"


def test_look_alikes_are_told_apart_by_scope_only() -> None:
    """The complaint about patch and git apply: exact context in the wrong function."""
    assert at(TWINS, "x = 1", "A.g") == Place(58, 72, b"        ")
    assert at(TWINS, "x = 1") == Problem(
        "anchor_ambiguous",
        "anchor 'here' stands 2 times",
        "fix-a",
        "pkg/x.py",
        6,
        "1 match of 'x = 1'",
        "2 matches, on lines 3, 6",
        hint="narrow the anchor (anchors/x.yaml:7) with more lines or a scope",
    )
    drifted = TWINS.replace("x = 1\n\n", "x = 2\n\n")
    assert at(drifted, "x = 1", "A.f") == Problem(
        "anchor_missing",
        "anchor 'here' is not there in A.f",
        "fix-a",
        "pkg/x.py",
        3,
        "1 match of 'x = 1' in A.f",
        "0 matches",
        ("- x = 1", "?     ^", "+ x = 2", "?     ^"),
        "the anchor is anchors/x.yaml:7; its text is whole lines that stand once in its scope",
    )


def test_nothing_alike() -> None:
    problem = at("a = 1\n", "zzzzzzzzzz")
    assert isinstance(problem, Problem)
    assert (problem.line, problem.diff) == (0, ())


def test_last_line_without_newline() -> None:
    assert at("a = 1", "a = 1") == Problem(
        "anchor_at_end", "anchor 'here' is a last line without newline", "fix-a", "pkg/x.py"
    )


@pytest.mark.parametrize(
    ("source", "within", "start", "indent"),
    [
        (TWINS, "A.f", TWINS.index("\n    def g"), b"        "),
        (TWINS, "A", len(TWINS), b"    "),
        (TWINS, "", len(TWINS), b""),
        ("", "", 0, b""),
        ("def f():\n  x\n\n# about g\ndef g(): ...\n", "f", 13, b"  "),
    ],
)
def test_ends(source: str, within: str, start: int, indent: bytes) -> None:
    assert at(source, "", within) == Place(start, start, indent)
