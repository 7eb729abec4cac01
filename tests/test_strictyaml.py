"""YAML with nothing left open: what is refused, where, in which words."""

from __future__ import annotations

import pytest

from fixpack.strictyaml import MAX_BYTES, Reader, Value, parse


def refused(text: str | bytes) -> list[tuple[int, str]]:
    """Line and message of each problem of a document."""
    _, problems = parse(text.encode() if isinstance(text, str) else text, "x.yaml")
    assert all(problem.file == "x.yaml" and problem.code == "yaml_invalid" for problem in problems)
    return [(problem.line, problem.message) for problem in problems]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first on line 1"),
        ("a: &x 1\nb: *x\n", 1, "aliases (*name) are not allowed in a registry file"),
        ("a: &x b\n*x : c\n", 1, "aliases (*name) are not allowed in a registry file"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, "merge keys (<<) are not allowed in a registry file"),
        (
            "a: !!python/object/apply:os.system [id]\n",
            1,
            "the tag 'tag:yaml.org,2002:python/object/apply:os.system' is",
        ),
        ("a: !own 1\n", 1, "the tag '!own' is not allowed in a registry file"),
        ("a: !!set {b}\n", 1, "the tag 'tag:yaml.org,2002:set' is not allowed in a registry file"),
        ("a: !!binary aGk=\n", 1, "the tag 'tag:yaml.org,2002:binary' is not allowed in a registry file"),
        ("a:\n\tb: 1\n", 2, "not valid YAML: found character that cannot start any token"),
        ("a: 1\n--- \nb: 2\n", 2, "not valid YAML: but found another document"),
        ("a: [1\nb: 2\n", 2, "not valid YAML: did not find expected ',' or ']'"),
        ("a: 1\r\nb: 2\r\n", 1, "a carriage return is not allowed in a registry file; use LF line ends"),
        ("a: 1\nb: \0\n", 2, "the character U+0000 is not allowed in a registry file"),
        ("a: 1\nb: '\u2028'\n", 2, "the character U+2028 is not allowed in a registry file"),
        ("\ufeffa: 1\n", 1, "the character U+FEFF is not allowed in a registry file"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8: invalid start byte at byte 8"),
        ("a: 1\nb: 1.5\n", 2, "'1.5' must be quoted to be a string"),
        ("a: 2026-01-01\n", 1, "'2026-01-01' must be quoted to be a string"),
        ("a: 010\n", 1, "'010' must be quoted to be a string"),
        ("a: 1:30\n", 1, "'1:30' must be quoted to be a string"),
        ("a: 0x1f\n", 1, "'0x1f' must be quoted to be a string"),
        ("a: " + "1" * 40 + "\n", 1, f"'{'1' * 40}' must be quoted to be a string"),
        ("a: 1\n5: 2\n", 2, "a key must be a plain string; quote '5'"),
        ("a: 1\nyes: 2\n", 2, "a key must be a plain string; quote 'yes'"),
        ("[a]: 1\n", 1, "a key must be a plain string; quote "),
        ("", 0, "the file is empty"),
        ("# nothing\n", 0, "the file is empty"),
        ("[" * 5000, 1, "nested deeper than 12 levels, or"),
        ("- " * 5000, 1, "nested deeper than 12 levels, or"),
        ("a:\n" + "[\n" * 501, 502, "nested deeper than 12 levels, or"),
        ("[" * 40 + "]" * 40, 1, "nested deeper than 12 levels"),
        ("a: " + "x" * MAX_BYTES, 0, f"the file has {MAX_BYTES + 3} bytes; a registry file has at most {MAX_BYTES}"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_refuses(text: str | bytes, line: int, message: str) -> None:
    found = refused(text)
    assert found
    assert found[0][0] == line
    assert found[0][1].startswith(message)


def test_reports_all_at_once() -> None:
    text = "a: 1\na: 2\nb: !x 1\nc: &y 1\nd: *y\n"
    assert refused(text) == [
        (2, "duplicate key 'a', first on line 1"),
        (3, "the tag '!x' is not allowed in a registry file"),
        (4, "aliases (*name) are not allowed in a registry file"),
    ]


def test_the_python_loader_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images without the C loader get the same answers."""
    import yaml

    texts = ["a: 1\na: 2\n", "a: &x 1\nb: *x\n", "a: 010\n", "a: [1, yes, 'x', null]\n", "[" * 1200]
    with_c = [bool(refused(text)) for text in texts]
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert [bool(refused(text)) for text in texts] == with_c == [True, True, True, False, True]


def reader(text: str) -> tuple[Reader, list[str]]:
    """A reader of a document and the list that its problems' texts can be had from."""
    value, problems = parse(text.encode(), "x.yaml")
    assert value
    assert not problems
    return Reader(value, "x.yaml", problems, "the thing"), problems  # type: ignore[return-value]


def said(problems: object) -> list[tuple[int, str, str]]:
    return [(problem.line, problem.message, problem.hint) for problem in problems]  # type: ignore[attr-defined]


def test_reader_says_what_is_wrong() -> None:
    top, problems = reader(
        "name: [1]\nnumber: two\nflag: 1\nlist: {}\nsub: 3\nempty: ' '\nchoice: rad\nnone: ~\nolder: 1\n"
    )
    top.text("name")
    top.integer("number")
    top.flag("flag")
    top.items("list", required=True)
    assert top.sub("sub") is None
    top.text("empty")
    top.text("choice", oneof=("red", "blue"))
    top.text("none")
    top.text("gone")
    top.text("older-one", "")
    top.done()
    assert said(problems) == [
        (1, "'name' must be a string, not a list", ""),
        (2, "'number' must be an integer, not a string", ""),
        (3, "'flag' must be true or false, not an integer", ""),
        (4, "'list' must be a list, not a mapping", ""),
        (5, "'sub' must be a mapping, not an integer", ""),
        (6, "'empty' must not be empty", ""),
        (7, "'choice' is 'rad', not one of red, blue", "did you mean 'red'?"),
        (8, "'none' must be a string, not nothing", ""),
        (1, "the thing lacks the key 'gone'", ""),
        (9, "the thing has the unknown key 'older'", "did you mean 'older-one'?"),
    ]


def test_reader_lists_and_numbers() -> None:
    top, problems = reader("list: [a, a, 3]\nnumber: 0\npairs: {B: 1}\n")
    assert top.texts("list", pattern="[a-z]") == ("a",)
    assert top.integer("number", least=1) == 0
    sub = top.sub("pairs")
    assert sub
    assert [key for key, _ in sub.pairs("[a-z]")] == ["B"]
    top.done()
    assert said(problems) == [
        (1, "'list' names 'a' twice", ""),
        (1, "'list' must hold strings that match [a-z], not 3", ""),
        (2, "'number' is 0, but must be at least 1", ""),
        (3, "the key 'B' does not match [a-z]", ""),
    ]


def test_reader_of_something_else() -> None:
    problems: list[object] = []
    Reader(Value([], 4), "x.yaml", problems, "the thing")  # type: ignore[arg-type]
    assert said(problems) == [(4, "the thing must be a mapping", "")]
