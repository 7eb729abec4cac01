"""Expected failures: what went wrong, where, and what to do next.

One exception base carries a list of problems, because every run reports all it found.  The exit
code belongs to the class; finer causes are the problems' reason codes.
"""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong, in the order people read it."""

    code: str  # reason code, e.g. "anchor_missing"; stable, for machines
    message: str  # one sentence
    fix: str = ""  # fix id
    file: str = ""  # the file that the problem is in
    line: int = 0  # 1-based line in that file; 0 where there is none
    expected: str = ""
    found: str = ""
    diff: tuple[str, ...] = ()  # "- expected" / "+ found" lines of the nearest candidate
    hint: str = ""  # what to do next


class FixpackError(Exception):
    """An expected failure; ``problems`` is never empty, ``exit_code`` is what the process returns."""

    exit_code = 1

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


class MismatchError(FixpackError):
    """The target is not what the fixes were proven on (exit code 1)."""

    exit_code = 1


class SourceError(FixpackError):
    """An upstream source could not be had, or is not the pinned one (exit code 1)."""

    exit_code = 1


class RegistryError(FixpackError):
    """The registry or its lock is invalid (exit code 2)."""

    exit_code = 2


class UsageError(FixpackError):
    """The command line asks for something that cannot be (exit code 2)."""

    exit_code = 2
