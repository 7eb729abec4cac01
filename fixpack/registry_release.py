"""Load a release: anchors/<distribution>/<release>.yaml."""

from __future__ import annotations

from fixpack.errors import Problem
from fixpack.model import Anchor, Release, Sdist, SourceFile
from fixpack.registry_files import (
    COMMIT,
    COMMIT_SHORT,
    NAME,
    PATH,
    RELEASE,
    SCOPE,
    SHA256,
    URL,
    check_lines,
    open_yaml,
    same_name,
)
from fixpack.strictyaml import Reader, Value


def load_release(root: str, distribution: str, name: str, problems: list[Problem]) -> Release | None:
    """A release by the names of its folder and file; what is wrong with it goes to `problems`."""
    path = f"anchors/{distribution}/{name}.yaml"
    before = len(problems)
    top = open_yaml(root, path, problems, "the anchors file")
    if top is None:
        return None
    same_name(top, "distribution", distribution, NAME, "its folder")
    same_name(top, "release", name, RELEASE, "the file's name")
    package = top.text("package", pattern=r"[a-z_][a-z0-9_]*")
    sdist_reader = top.sub("sdist", required=False)
    sdist = None
    if sdist_reader:
        sdist = Sdist(
            sdist_reader.text("filename", pattern=r"[A-Za-z0-9_.+-]+\.tar\.gz"),
            sdist_reader.text("sha256", pattern=SHA256),
        )
        sdist_reader.done()
    files: dict[str, SourceFile] = {}
    files_reader = top.sub("files")
    for file_path, file_value in files_reader.pairs(PATH) if files_reader else ():
        file_reader = Reader(file_value, path, problems, file_path)
        if (package and not file_path.startswith(package + "/")) or not file_path.endswith(".py"):
            file_reader.bad(f"{file_path!r} is not a Python file below {package}/")
        sha256 = file_reader.text("sha256", pattern=SHA256)
        anchors: dict[str, Anchor] = {}
        anchors_reader = file_reader.sub("anchors", required=False)
        for anchor_name, anchor_value in anchors_reader.pairs(NAME) if anchors_reader else ():
            taken = next((other for other in files.values() if anchor_name in other.anchors), None)
            if taken and anchors_reader:
                anchors_reader.bad(
                    f"the anchor {anchor_name!r} is already in {taken.path}; names are unique in a release",
                    anchors_reader.line_of(anchor_name),
                )
            anchors[anchor_name] = _load_anchor(anchor_name, anchor_value, path, problems)
        file_reader.done()
        files[file_path] = SourceFile(file_path, sha256, anchors)
    release = Release(
        distribution,
        name,
        top.text("version", pattern=r"[0-9][0-9A-Za-z.+]*"),
        package,
        top.text("commit", pattern=COMMIT_SHORT if sdist else COMMIT),
        top.texts("also-commits", pattern=COMMIT),
        top.text("git", "", URL),
        sdist,
        files,
        path,
    )
    top.done()
    return release if len(problems) == before else None


def _load_anchor(name: str, value: Value, path: str, problems: list[Problem]) -> Anchor:
    reader = Reader(value, path, problems, f"the anchor {name!r}")
    within = reader.text("within", "", SCOPE)
    text = reader.text("text", "")
    reader.done()
    text = text[:-1] if text.endswith("\n") else text
    check_lines(reader, "text", text)
    return Anchor(name, within, text, f"{path}:{reader.line_of('text') or value.line}")
