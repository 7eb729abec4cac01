"""Build the site in memory, check it, and write it into a folder of its own."""

from __future__ import annotations

import html
import os
import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fixpack import __version__, docs
from fixpack.docs_facts import Facts
from fixpack.durable import replace
from fixpack.errors import FixpackError, Problem, UsageError
from fixpack.site.links import dead_site_links, is_external, resolve
from fixpack.site.render import Document, Heading, code_block, file_lexer, parse, to_html

THEME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "theme")
STYLE = "style.css"
ICON = "favicon.svg"

#: The list of files that a build wrote; a folder without it, and not empty, is somebody else's.
MANIFEST = "fixpack-site.txt"

#: What linked files are copied as they are, not shown as text.
PICTURES = (".png", ".svg")

#: Documents outside docs/ that belong to the site -> their page.
_BESIDE = {"README.md": "readme.html", "CHANGELOG.md": "changelog.html"}

_NAVIGATION = (
    ("Start", "index.html"),
    ("Quick start", "quick-start.html"),
    ("Fixes", "fixes/index.html"),
    ("Profiles", "profiles/index.html"),
    ("Models", "models.html"),
    ("Launch", "launch.html"),
    ("Reference", "reference.html"),
    ("Refusals", "refusals.html"),
    ("Threat model", "threat-model.html"),
)


class _Page(NamedTuple):
    """A page to be put into the frame."""

    title: str
    body: str
    headings: tuple[Heading, ...]
    source: str  # the document in the checkout


def build(facts: Facts) -> dict[str, bytes]:
    """The whole site: content by path.

    :raises FixpackError: if a link of it leads nowhere.
    """
    root = facts.registry.root
    texts = {f"docs/{name}": text for name, text in docs.hand_written(os.path.join(root, "docs")).items()}
    for name in _BESIDE:
        if os.path.isfile(os.path.join(root, name)):
            with open(os.path.join(root, name), encoding="utf-8") as beside:
                texts[name] = beside.read()
    texts.update({f"docs/{path}": text for path, text in docs.pages(facts).items()})
    documents = {path: parse(text) for path, text in texts.items()}
    at = {path: _page_path(path) for path in documents}
    linked = _linked_files(root, documents, at)
    pictures = {path: data for path, data in linked.items() if path.endswith(PICTURES)}
    sources = {path: data.decode(errors="replace") for path, data in linked.items() if path not in pictures}
    at.update({path: path.removeprefix("docs/") for path in pictures})
    at.update({path: f"source/{path}.html" for path in sources})
    made: dict[str, _Page] = {}
    for path, document in documents.items():
        body = to_html(document, _targets(path, at))
        made[at[path]] = _Page(document.title or path, body, document.headings, path)
    for path, content in sources.items():
        block = code_block(content, file_lexer(path, len(content)))
        heading = f"<h1>{html.escape(path)}</h1>\n"
        made[at[path]] = _Page(path, heading + block, (), path)
    files = {path: _framed(path, page, made).encode() for path, page in made.items()}
    files.update({at[path]: data for path, data in pictures.items()})
    for name in (STYLE, ICON):
        with open(os.path.join(THEME, name), "rb") as file:
            files[name] = file.read()
    problems = dead_site_links(files)
    if problems:
        raise FixpackError(*problems)
    return files


def _page_path(path: str) -> str:
    """Where a document's page lies in the site."""
    if path in _BESIDE:
        return _BESIDE[path]
    inner = path.removeprefix("docs/").removesuffix(".md")
    return posixpath.join(posixpath.dirname(inner), "index.html") if inner.endswith("README") else f"{inner}.html"


def _linked_files(root: str, documents: Mapping[str, Document], at: Mapping[str, str]) -> dict[str, bytes]:
    """The files of the checkout that documents link to and that are no pages, by path."""
    found: dict[str, bytes] = {}
    for path, document in documents.items():
        for link in document.links:
            place, _ = resolve(path, link.target) if not is_external(link.target) else (None, "")
            if place and place not in at and os.path.isfile(os.path.join(root, place)):
                with open(os.path.join(root, place), "rb") as file:
                    found[place] = file.read()
    return dict(sorted(found.items()))


def _targets(path: str, at: Mapping[str, str]) -> Callable[[str], str]:
    """From the links of a document to those of its page; what leads nowhere stays, and is found by the check."""
    folder = posixpath.dirname(at[path]) or "."

    def target(link: str) -> str:
        if is_external(link) or link.startswith("#"):
            return link
        place, fragment = resolve(path, link)
        if place is None or place not in at:
            return link
        return posixpath.relpath(at[place], folder) + (f"#{fragment}" if fragment else "")

    return target


def _framed(path: str, page: _Page, made: Iterable[str]) -> str:
    """The whole page: head, navigation, contents."""
    environment = Environment(
        loader=FileSystemLoader(THEME),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    folder = posixpath.dirname(path) or "."
    there = set(made)
    section = posixpath.join(posixpath.dirname(path), "index.html")
    links = [
        {"text": text, "href": posixpath.relpath(to, folder), "current": _current(path, to, section)}
        for text, to in _NAVIGATION
        if to in there
    ]
    return environment.get_template("page.html.j2").render(
        title=page.title,
        body=Markup(page.body),
        style=posixpath.relpath(STYLE, folder),
        icon=posixpath.relpath(ICON, folder),
        home=posixpath.relpath("index.html", folder),
        navigation=links,
        contents=[each for each in page.headings if each.level == 2],
        deeper=[each for each in page.headings if each.level in (2, 3)],
        source=page.source,
        version=__version__,
    )


def _current(path: str, to: str, section: str) -> str:
    """What aria-current says of a link: this page, or the section that it is in."""
    return "page" if path == to else "true" if to == section and "/" in to else ""


# -- writing ----------------------------------------------------------------------------------------------------------


def write(files: Mapping[str, bytes], folder: str) -> None:
    """Write the site; files of an earlier build that it no longer has go.

    :raises UsageError: if the folder holds anything that no build wrote, or a link where the site goes.
    """
    manifest = os.path.join(folder, MANIFEST)
    _refuse_links(folder, [MANIFEST])
    old: list[str] = []
    if os.path.isfile(manifest):
        with open(manifest, encoding="utf-8") as file:
            old = file.read().splitlines()
    elif os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        message = "neither empty nor a site that this program built"
        raise UsageError(Problem("folder_not_empty", message, file=folder, hint="name an empty or new folder"))
    listed = "".join(f"{path}\n" for path in sorted(files))
    gone = [path for path in old if path not in files and "\0" not in path and resolve("", path)[0] == path]
    _refuse_links(folder, [*files, *gone])
    os.makedirs(folder, exist_ok=True)
    everything = "".join(f"{path}\n" for path in sorted({*files, *gone}))  # a stopped build is ours
    replace(manifest, everything.encode(), lasting=False)
    for path, data in files.items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        replace(os.path.join(folder, path), data, lasting=False)
    for path in gone:
        if os.path.lexists(os.path.join(folder, path)):
            os.unlink(os.path.join(folder, path))
    replace(manifest, listed.encode(), lasting=False)


def _refuse_links(folder: str, paths: Iterable[str]) -> None:
    """Refuse to write or remove through a symbolic link inside the site; the site's folder itself may be one.

    :raises UsageError: naming each path that leads elsewhere.
    """
    real = os.path.realpath(folder)
    hint = "remove the link, or name another folder"
    problems = [
        Problem("folder_not_empty", "a symbolic link leads elsewhere", file=os.path.join(folder, path), hint=hint)
        for path in paths
        if os.path.realpath(os.path.join(real, path)) != os.path.join(real, path)
    ]
    if problems:
        raise UsageError(*problems)
