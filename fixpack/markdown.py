"""Plain text as Markdown: prose that stays prose, code that stays code, tables that keep their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"[\\*<`|&~\[]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LIST = re.compile(r"([0-9]*)([.)](?= |$)|[#>+=-])")  # what begins a heading, a quote, a list or a rule
_SPAN = re.compile(r"(?<!`)`([^`|\\\s](?:[^`|\\]*[^`|\\\s])?)`(?!`)")  # no character that a table cell would change
_PAGE = re.compile(r"(?<![\w/.-])docs/([a-z0-9-]+\.md)(?![\w/-])")
_URL = re.compile(r"https://[^\s<>]+[^\s<>.,;:)]")


class Linker:
    """Makes the names of fixes, and of pages like docs/NAME.md, links to their pages."""

    def __init__(self, names: Iterable[str], own: str = "", folder: str = "") -> None:
        """
        :param own: the fix whose page this is; its name stays plain.
        :param folder: from the page to the folder of the fixes' pages, "" or with a final slash.
        """
        self.folder = folder
        self.docs = folder.removesuffix("fixes/") if folder else "../"
        longest = sorted((name for name in names if name != own), key=lambda name: (-len(name), name))
        self.pattern = re.compile(rf"(?<![\w/-])({'|'.join(map(re.escape, longest))})(?![\w/-])") if longest else None

    def to(self, name: str) -> str:
        """A link to a fix."""
        return f"[{name}]({self.folder}{name}.md)"

    def all(self, text: str) -> str:
        """The text, in which each name of a fix or of a page is a link."""
        text = _PAGE.sub(lambda match: f"[{match[1]}]({self.docs}{match[1]})", text)
        return self.pattern.sub(lambda match: self.to(match[1]), text) if self.pattern else text


def prose(text: str, link: Linker | None = None) -> str:
    """One paragraph.

    `words` between single backquotes are code, addresses and names of fixes become links; nothing else in it is taken
    for markup.
    """
    made: list[str] = []
    at = 0
    line = " ".join(text.split())
    for span in _SPAN.finditer(line):
        made += [_linked(line[at : span.start()], link), code(span[1])]
        at = span.end()
    whole = "".join([*made, _linked(line[at:], link)])
    return _LIST.sub(r"\1\\\2", whole, count=1) if _LIST.match(whole) else whole


def _linked(text: str, link: Linker | None) -> str:
    made: list[str] = []
    at = 0
    for url in _URL.finditer(text):
        made += [_plain(text[at : url.start()], link), f"<{url[0]}>"]
        at = url.end()
    return "".join([*made, _plain(text[at:], link)])


def _plain(text: str, link: Linker | None) -> str:
    escaped = _SPECIAL.sub(lambda match: "\\" + match[0], text)
    return link.all(escaped) if link else escaped


def code(text: str) -> str:
    """A code span, whatever the text holds."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def fenced(text: str, indent: str = "", language: str = "python") -> str:
    """A block of code; the fence is longer than any in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return "\n".join(f"{indent}{line}".rstrip() for line in (fence + language, *text.splitlines(), fence))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown already."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in rows]
    return "\n".join(lines)
