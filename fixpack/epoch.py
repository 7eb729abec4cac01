"""SOURCE_DATE_EPOCH: the time that a reproducible build gives to everything it makes."""

from __future__ import annotations

import os
import re

from fixpack.errors import Problem, UsageError

NAME = "SOURCE_DATE_EPOCH"


def epoch() -> int | None:
    """The wanted time in seconds since 1970 (UTC); None if the variable is not set, or is empty.

    :raises UsageError: if it is no such number: a build that ignores it would only seem reproducible.
    """
    text = os.environ.get(NAME, "")
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,11}", text):
        hint = "`git log -1 --format=%ct` prints such a number; an empty value means now"
        raise UsageError(Problem("bad_usage", f"{NAME} is {text[:40]!r}, not seconds since 1970", hint=hint))
    return int(text)
