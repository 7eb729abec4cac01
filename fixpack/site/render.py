"""Markdown to HTML: no raw HTML gets through, headings have GitHub's ids, tables and code scroll in their own boxes."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

#: Files above this size (bytes) are shown without colours: they are generated data.
PLAIN_ABOVE = 60_000

#: Characters from which a table's cell counts as a sentence.
WIDE = 28


class Heading(NamedTuple):
    """A heading and the fragment that leads to it."""

    level: int
    id: str
    text: str


class Link(NamedTuple):
    """A link or image in a document."""

    target: str
    line: int  # 1-based, of the block that it is in


class Document(NamedTuple):
    """A parsed page."""

    tokens: tuple[Token, ...]
    headings: tuple[Heading, ...]
    links: tuple[Link, ...]

    @property
    def title(self) -> str:
        """The text of the first heading; "" if there is none."""
        return self.headings[0].text if self.headings else ""


def parse(text: str) -> Document:
    """Read Markdown; the comment that marks a made page is left out."""
    body = re.sub(r"\A<!--.*?-->\n*", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
    tokens = _parser().parse(body)
    headings: list[Heading] = []
    links: list[Link] = []
    used: dict[str, int] = {}
    for at, token in enumerate(tokens):
        children = token.children or []
        if token.type == "heading_open":
            words = _words(tokens[at + 1].children or [])
            fragment = _unique(slug(words), used)
            token.attrSet("id", fragment)
            headings.append(Heading(int(token.tag[1]), fragment, words))
        line = token.map[0] + 1 if token.map else 0
        for child in children:
            target = child.attrGet("href") or child.attrGet("src")
            if child.type in ("link_open", "image") and target is not None:
                links.append(Link(str(target), line))
    return Document(tuple(tokens), tuple(headings), tuple(links))


def slug(text: str) -> str:
    """The fragment that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def _unique(fragment: str, used: dict[str, int]) -> str:
    count = used.get(fragment, -1) + 1
    used[fragment] = count
    return f"{fragment}-{count}" if count else fragment


def _words(children: Sequence[Token]) -> str:
    return "".join(child.content for child in children if child.type in ("text", "text_special", "code_inline"))


def to_html(document: Document, target: Callable[[str], str]) -> str:
    """The document's HTML.

    :param target: gives the address to write for each link and image.
    """
    parser = _parser()
    tokens = list(document.tokens)
    for token in tokens:
        for child in token.children or []:
            if child.type == "link_open":
                child.attrSet("href", target(str(child.attrGet("href"))))
            elif child.type == "image":
                child.attrSet("src", target(str(child.attrGet("src"))))
    return str(parser.renderer.render(tokens, parser.options, {"name": document.title or "table"}))


def _parser() -> MarkdownIt:
    parser = MarkdownIt("gfm-like", {"linkify": False, "html": False})
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("code_block", _fence)
    parser.add_render_rule("table_open", _table_open)
    parser.add_render_rule("table_close", _table_close)
    parser.add_render_rule("th_open", _th_open)
    parser.add_render_rule("td_open", _td_open)
    return parser


Env = MutableMapping[str, Any]


def _fence(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Env) -> str:
    """A block of code; ``LANGUAGE fold N lines`` makes one that is opened by hand."""
    language, _, fold = tokens[at].info.partition(" fold ")
    block = code_block(tokens[at].content, lexer(language.strip()))
    if fold:
        block = f"<details><summary>Show {html.escape(fold.strip())}</summary>\n{block}</details>\n"
    return block


def _table_open(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Env) -> str:
    """A table in a box that scrolls; the box is named by the heading above it, for those who reach it by keyboard."""
    above = [each for each in range(at) if tokens[each].type == "heading_open"]
    name = _words(tokens[above[-1] + 1].children or []) if above else "table"
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(name)}, table">\n<table>\n'


def _table_close(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Env) -> str:
    return "</table>\n</div>\n"


def _th_open(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Env) -> str:
    return '<th scope="col">'


def _td_open(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Env) -> str:
    """A cell; one with a sentence asks for the width to read it, also where the table has to scroll."""
    return '<td class="wide">' if len(_words(tokens[at + 1].children or [])) > WIDE else "<td>"


# -- code -------------------------------------------------------------------------------------------------------------


def lexer(language: str) -> Lexer | None:
    """The lexer of a language, None for plain text."""
    try:
        return get_lexer_by_name(language, stripnl=False) if language else None
    except ClassNotFound:
        return None


def file_lexer(path: str, size: int) -> Lexer | None:
    """The lexer of a file, None for plain text and for what is too large to colour."""
    try:
        return get_lexer_for_filename(path, stripnl=False) if size <= PLAIN_ABOVE else None
    except ClassNotFound:
        return None


def code_block(text: str, how: Lexer | None) -> str:
    """Text as a block of code, every character escaped."""
    inner = highlight(text, how, HtmlFormatter(nowrap=True)) if how else html.escape(text)
    return f'<pre tabindex="0"><code>{inner}</code></pre>\n'
