"""Formulas: what they compute, what they refuse, and that nothing runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixpack.formula import Formula, FormulaError, Undecided, Value, read

NAMES: dict[str, Value] = {"n": 8, "x": 2.5, "word": "stock", "on": True, "off": False, "gone": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 - 4", 3),
        ("-n / 4 + 7 // 2 + 7 % 4", 4),
        ("min(n, 3) + max(x, 1)", 5.5),
        ("0 < n <= 8 < 9", True),
        ("0 < n < 8", False),
        ("n == 8 and word == 'stock'", True),
        ("n != 8 or word != 'stock'", False),
        ("word == 8", False),
        ("not off and on", True),
        ("gone is None and n is not None", True),
        ("gone is not None", False),
        ("off and gone > 1", False),  # decided without what is not given
        ("gone > 1 and off", False),
        ("on or gone > 1", True),
        ("gone > 1 or on", True),
        ("513612 - 19117 * (152.8 - 141.75) >= 262144", True),
    ],
)
def test_values(text: str, expected: Value) -> None:
    formula = read(text)
    assert formula.value({name: NAMES.get(name) for name in formula.names}) == expected


@pytest.mark.parametrize(
    "text",
    ["gone + 1", "gone == 8", "gone != 8", "not gone", "gone", "gone > 1 and on", "n < word", "-word", "n / (n - 8)"],
)
def test_what_is_not_given_decides_nothing(text: str) -> None:
    formula = read(text)
    if text == "gone":
        assert formula.value(NAMES) is None
        return
    with pytest.raises(Undecided):
        formula.value(NAMES)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it cannot be read"),
        ("1 +", "it cannot be read"),
        ("n = 8", "it cannot be read"),
        ("a; b", "it cannot be read"),
        ("__import__('os')", "only min and max may be called"),
        ("open('/etc/passwd')", "only min and max may be called"),
        ("n.bit_length()", "only min and max may be called"),
        ("min(n)", "min takes two values"),
        ("min(n, key=n)", "only min and max may be called"),
        ("n.real", "is not allowed (Attribute)"),
        ("n[0]", "is not allowed (Subscript)"),
        ("[n]", "is not allowed (List)"),
        ("(n, n)", "is not allowed (Tuple)"),
        ("{n}", "is not allowed (Set)"),
        ("lambda: n", "is not allowed (Lambda)"),
        ("[n for n in n]", "is not allowed (ListComp)"),
        ("f'{n}'", "is not allowed (JoinedStr)"),
        ("n if n else n", "is not allowed (IfExp)"),
        ("(m := n)", "is not allowed (NamedExpr)"),
        ("n ** n", "is not allowed (BinOp)"),
        ("n << n", "is not allowed (BinOp)"),
        ("~n", "is not allowed (UnaryOp)"),
        ("n in word", "the comparison In is not allowed"),
        ("n is 8", "None is compared with"),
        ("n == None", "None is compared with"),
        ("None", "neither a number nor a text"),
        ("b'n'", "neither a number nor a text"),
        ("1j", "neither a number nor a text"),
        ("...", "neither a number nor a text"),
        ("1e400", "too large"),
        ("9" * 40, "too large"),
        ("n + " * 200 + "n", "at most 400"),
        ("-" * 100 + "n", "nests too deeply"),
        ("n\0", "cannot be read"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(FormulaError) as caught:
        read(text)
    assert reason in str(caught.value)


def test_a_product_cannot_grow_without_end() -> None:
    formula = read(" * ".join(["1e20"] * 9))
    with pytest.raises(Undecided, match="too large"):
        formula.value({})


@given(st.text(max_size=60))
def test_any_text_is_a_formula_or_refused(text: str) -> None:
    try:
        formula = read(text)
    except FormulaError:
        return
    assert isinstance(formula, Formula)
    try:
        value = formula.value(dict.fromkeys(formula.names))
    except Undecided:
        return
    assert value is None or isinstance(value, bool | int | float | str)
