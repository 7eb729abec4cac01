"""Text becomes Markdown and, read back by a Markdown parser, is the same text."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fixpack.markdown import Linker, code, fenced, prose, table

PARSER = MarkdownIt("gfm-like", {"linkify": False})
TEXT = st.text(st.sampled_from("ab1 _*`~<>[]()!|&;#-+=.:\\\"'/{}$%@^\n"), min_size=1, max_size=30)


def spans(text: str) -> list[tuple[str, str]]:
    """The inline tokens of the one paragraph that `text` is: (type, content)."""
    tokens = PARSER.parse(text)
    assert [each.type for each in tokens] == ["paragraph_open", "inline", "paragraph_close"], text
    return [(each.type, each.content) for each in tokens[1].children or []]


def words(text: str) -> str:
    """What a reader of the paragraph sees, code between backquotes; nothing else in it may be markup."""
    found = spans(text)
    assert {kind for kind, _ in found} <= {"text", "text_special", "code_inline"}, (text, found)
    return "".join(f"`{content}`" if kind == "code_inline" else content for kind, content in found)


@given(TEXT.filter(str.strip))
def test_prose_is_what_was_written(text: str) -> None:
    assert words(prose(text)) == " ".join(text.split())


@given(TEXT.filter(str.strip))
def test_prose_in_a_table_cell(text: str) -> None:
    cells = [each for each in PARSER.parse(table(["a", "b"], [[prose(text), "end"]])) if each.type == "inline"]
    assert [seen(each) for each in cells] == ["a", "b", " ".join(text.split()), "end"]


def seen(inline: Token) -> str:
    parts = inline.children or []
    return "".join(f"`{each.content}`" if each.type == "code_inline" else each.content for each in parts)


@given(st.text(st.sampled_from("ab `|\\*"), min_size=1, max_size=12).filter(lambda text: text == text.strip()))
def test_code_is_what_was_written(text: str) -> None:
    assert spans(code(text)) == [("code_inline", text)]


@given(st.lists(st.text(st.sampled_from("ab `~"), max_size=6).map(str.rstrip), min_size=1, max_size=4))
def test_a_block_ends_where_it_should(lines: list[str]) -> None:
    text = "\n".join(lines)
    tokens = PARSER.parse(fenced(text))
    assert [(each.type, each.info, each.content.rstrip("\n")) for each in tokens] == [
        ("fence", "python", text.rstrip("\n"))
    ]


def test_names_of_fixes_become_links() -> None:
    link = Linker(["rows", "rows-kept", "own"], own="own", folder="fixes/")
    made = prose("see rows-kept and rows, not own, arrows, rows-kept-too or x/rows", link)
    assert made == (
        "see [rows-kept](fixes/rows-kept.md) and [rows](fixes/rows.md), not own, arrows, rows-kept-too or x/rows"
    )
    assert prose("own", Linker(["own"], own="own")) == "own"


def test_names_of_pages_become_links() -> None:
    text = "as docs/share.md says, not /docs/share.md, docs/x.yaml or `docs/share.md`; docs/share.md."
    for folder, docs in (("", "../"), ("fixes/", ""), ("../fixes/", "../")):
        share = f"[share.md]({docs}share.md)"
        wanted = f"as {share} says, not /docs/share.md, docs/x.yaml or `docs/share.md`; {share}."
        assert prose(text, Linker(["rows"], folder=folder)) == wanted
    assert prose("docs/share.md") == "docs/share.md"


def test_code_between_backquotes() -> None:
    link = Linker(["rows"])
    assert prose("`rows` of `a_ *b*` <i>`<b>`</i>, rows", link) == (
        "`rows` of `a_ *b*` \\<i>`<b>`\\</i>, [rows](rows.md)"
    )
    for odd in ("`a", "a`", "``a``", "`a``b`", "` a`", "`a `", "`a|b`", "`a\\`", "``"):
        assert "code_inline" not in {kind for kind, _ in spans(prose(odd))}, odd
        assert words(prose(odd)) == odd
    assert spans(prose("`https://x.org/a_b`")) == [("code_inline", "https://x.org/a_b")]


def test_addresses_become_links() -> None:
    made = prose("it is the subject of (https://github.com/a_/b/pull/1); nothing of _rest_.")
    assert made == "it is the subject of (<https://github.com/a_/b/pull/1>); nothing of \\_rest\\_."
    assert re.findall(r'href="([^"]*)"', PARSER.render(made)) == ["https://github.com/a_/b/pull/1"]
