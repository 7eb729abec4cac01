"""Payloads: the code that an edit puts in, and how it looks once it is in."""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

from fixpack.model import Edit, Fix

if TYPE_CHECKING:
    from fixpack.strictyaml import Reader  # brings YAML, which an apply from the lock's index does without

#: A line that this engine writes around a region.  The two groups after the indentation say which.
MARKER = re.compile(rb"(?m)^([ \t]*)# fixpack (begin|end) ([a-z0-9-]+) r([0-9]{1,6}): ([a-z0-9-]+)$")


def read_payload(root: str, fix: str, code: str, reader: Reader) -> str:
    """The text of ``patches/<fix>/<code>``; what is wrong with it goes to the reader's problems."""
    from fixpack.registry_files import read_registry_file

    path = f"patches/{fix}/{code}"
    line = reader.line_of("code")
    if os.path.islink(os.path.join(root, "patches", fix)):
        reader.bad(f"patches/{fix} is a symbolic link", line)
        return ""
    try:
        data = read_registry_file(root, path)
        text = data.decode("utf-8")
    except FileNotFoundError:
        reader.bad(f"the payload {path} does not exist", line, hint=f"write {path}")
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reader.bad(f"cannot read the payload {path}: {error}", line)
        return ""
    wrong = _wrong(text)
    if wrong:
        reader.bad(f"the payload {path} {wrong}", line)
    return text


def _wrong(text: str) -> str:
    if "\r" in text:
        return "has carriage returns; use LF line ends"
    if "\0" in text or "\ufeff" in text:
        return "holds a NUL or a byte order mark"
    if "\t" in text:
        return "holds a tab"
    if not text.endswith("\n") or not text.strip():
        return "must hold code and end with a newline"
    if text.endswith("\n\n") or text.startswith("\n"):
        return "must not start or end with an empty line"
    if text.startswith(" "):
        return "must start without indentation (the anchor's indentation is added)"
    if any(line != line.rstrip(" ") for line in text.split("\n")):
        return "has a line that ends in a space"
    if MARKER.search(text.encode()):
        return "holds a fixpack marker"
    return ""


def render(fix: Fix, edit: Edit, indent: bytes) -> bytes:
    """The whole region that an edit puts in, markers included, each line indented.

    :param indent: the anchor's own indentation, b"" for a new file.
    """
    name = (edit.anchor or "file").encode()
    head = b"%s# fixpack begin %s r%d: %s\n" % (indent, fix.id.encode(), fix.revision, name)
    tail = b"%s# fixpack end %s r%d: %s\n" % (indent, fix.id.encode(), fix.revision, name)
    return head + indented(edit.payload, indent) + tail


def payload_sha256(region: bytes, indent: bytes) -> str:
    """The hash of the payload inside a region, markers and indentation taken off; "" if there is no payload.

    :param region: whole lines, the two markers included.
    """
    lines = region.split(b"\n")[1:-2]
    if not lines:
        return ""
    return hashlib.sha256(b"".join(line.removeprefix(indent) + b"\n" for line in lines)).hexdigest()


def indented(text: str, indent: bytes) -> bytes:
    """Text with ``indent`` before every line that is not empty."""
    if not indent:
        return text.encode()
    lines = text.encode().split(b"\n")
    return b"\n".join(indent + line if line else line for line in lines)
