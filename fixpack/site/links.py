"""Dead links: of Markdown documents among themselves, and of built pages; addresses elsewhere only by their form."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

from fixpack.errors import Problem
from fixpack.site.render import Document, parse

#: Folders that hold no documents of the project.
_SKIPPED = ("node_modules", "build", "dist", "__pycache__")

_HOST = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+(:[0-9]+)?", re.I)


def documents(root: str) -> dict[str, str]:
    """Every Markdown file below a checkout, by its path in it."""
    found = {}
    for here, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(names):
            if name.endswith(".md"):
                path = os.path.join(here, name)
                with open(path, encoding="utf-8", errors="replace") as file:
                    found[os.path.relpath(path, root).replace(os.sep, "/")] = file.read()
    return found


def dead_links(pages: Mapping[str, str], exists: Callable[[str], bool]) -> list[Problem]:
    """Every link of Markdown pages that leads nowhere.

    :param pages: by their path in the checkout.
    :param exists: whether the checkout has a path.
    """
    parsed = {path: parse(text) for path, text in pages.items()}
    return [
        Problem("link_dead", f"{link.target}: {why}", file=path, line=link.line)
        for path, document in parsed.items()
        for link in document.links
        if (why := _dead(path, link.target, parsed, exists))
    ]


def _dead(path: str, target: str, parsed: Mapping[str, Document], exists: Callable[[str], bool]) -> str:
    """Why a link is dead; "" if it is not."""
    if is_external(target):
        return bad_address(target)
    place, fragment = resolve(path, target)
    if place is None:
        return "leads out of the checkout"
    if place in parsed:
        ids = {each.id for each in parsed[place].headings}
        return "" if not fragment or fragment in ids else f"{place} has no heading {fragment!r}"
    if not exists(place):
        return "there is no such file"
    return "only a page has headings" if fragment else ""


def is_external(target: str) -> bool:
    """Whether a link has a scheme, or names a host."""
    return bool(re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.I))


def bad_address(target: str) -> str:
    """What is wrong with the form of an address elsewhere; "" if nothing is."""
    parts = urlsplit(target)
    if parts.scheme not in ("https", "http"):
        return "not an http address"
    if not _HOST.fullmatch(parts.netloc) or re.search(r"[\s<>\"`{}|\\^]", target):
        return "not a well-formed address"
    return ""


def resolve(path: str, target: str) -> tuple[str | None, str]:
    """Where a relative link of a page leads: (path in the checkout, or None if it climbs out, and the fragment)."""
    place, _, fragment = target.partition("#")
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(place))) if place else path
    return (None if whole.startswith(("../", "/")) or whole == ".." else whole), unquote(fragment)


# -- built pages ------------------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """Ids and links of one HTML page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.links: list[tuple[str, bool]] = []  # (target, whether a browser fetches it by itself)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag names."""
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src", "srcset", "poster", "data", "action"):
                self.links.append((value or "", tag != "a"))


def dead_site_links(files: Mapping[str, bytes]) -> list[Problem]:
    """Every link of built pages that leads nowhere, ids that occur twice, and whatever would be fetched elsewhere.

    :param files: the whole site, by path.
    """
    pages: dict[str, _Page] = {}
    for path, data in files.items():
        if path.endswith(".html"):
            pages[path] = _Page()
            pages[path].feed(data.decode())
            pages[path].close()
    return [
        Problem("link_dead", why, file=path)
        for path, page in pages.items()
        for why in (*_twice(page), *_dead_targets(path, page, pages, files))
    ]


def _twice(page: _Page) -> Iterator[str]:
    yield from (f"the id {each!r} occurs twice" for each in sorted({x for x in page.ids if page.ids.count(x) > 1}))


def _dead_targets(path: str, page: _Page, pages: Mapping[str, _Page], files: Mapping[str, bytes]) -> Iterator[str]:
    for target, fetched in page.links:
        if is_external(target):
            why = "would be fetched from elsewhere" if fetched else bad_address(target)
        else:
            place, fragment = resolve(path, target)
            if place is None or place not in files:
                why = "there is no such file"
            else:
                there = fragment and (place not in pages or fragment not in pages[place].ids)
                why = f"{place} has no id {fragment!r}" if there else ""
        if why:
            yield f"{target}: {why}"
