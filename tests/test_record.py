"""Rows of RECORD: only those that are meant change, and the order of runs does not matter."""

from __future__ import annotations

import pytest

from fixpack.record import edited, row

STOCK = b"pkg/a.py,sha256=x,1\npkg/b.py,sha256=y,2\npkg-1.dist-info/RECORD,,\n"
A, NEW = b"a = 2\n", b"new = 1\n"


def test_a_row() -> None:
    assert row("pkg/empty.py", b"") == b"pkg/empty.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_added_changed_and_removed(newline: bytes) -> None:
    stock = STOCK.replace(b"\n", newline)
    new = edited(stock, {"pkg/z.py": NEW, "pkg/new.py": NEW}, {"pkg/a.py": A})
    lines = [row("pkg/a.py", A), b"pkg/b.py,sha256=y,2", b"pkg-1.dist-info/RECORD,,"]
    lines += [row("pkg/new.py", NEW), row("pkg/z.py", NEW)]
    assert new == b"".join(line + newline for line in lines)
    back = edited(new, {}, {}, ["pkg/z.py", "pkg/new.py"])
    assert back == stock.replace(b"pkg/a.py,sha256=x,1", row("pkg/a.py", A))


def test_twice_is_once_and_the_way_does_not_matter() -> None:
    both = edited(STOCK, {"pkg/new.py": NEW, "pkg/z.py": NEW}, {})
    assert edited(both, {"pkg/new.py": NEW, "pkg/z.py": NEW}, {}) == both
    assert edited(edited(STOCK, {"pkg/z.py": NEW}, {}), {"pkg/new.py": NEW, "pkg/z.py": NEW}, {}) == both


def test_nothing_to_do_leaves_every_byte() -> None:
    for odd in (b"", b"\n", b"a,b", b"a\n\nb", STOCK + b'"with, comma",sha256=z,3', b"\xff\x00\n"):
        assert edited(odd, {}, {}) == odd
        assert edited(odd, {}, {"pkg/none.py": A}, ["pkg/none.py"]) == odd


def test_a_name_that_only_begins_alike_is_another_file() -> None:
    stock = b"pkg/new.pyc,,\npkg/new.py.orig,,\n"
    assert edited(stock, {}, {}, ["pkg/new.py"]) == stock


def test_a_last_line_without_newline_gets_one_before_a_new_row() -> None:
    assert edited(b"pkg/a.py,,", {"pkg/new.py": NEW}, {}) == b"pkg/a.py,,\n" + row("pkg/new.py", NEW) + b"\n"
