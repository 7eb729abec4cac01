"""Finish or undo what a killed run left behind, as its journal says."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence

from fixpack.disk import digest, drop_bytecode, is_there, read
from fixpack.errors import Problem
from fixpack.hold import shielded
from fixpack.journal import JOURNAL, NEW_JOURNAL
from fixpack.steps import (
    PREFIX,
    SCHEMA,
    STAGING,
    SWITCHING,
    Step,
    WriteError,
    read_back,
    settle,
    switch,
    undo,
    unsettled,
)
from fixpack.target import read_file


def recover(root: str, known: Collection[str]) -> str:
    """Finish what a killed run left behind.  The caller holds ``locked(root)``.

    :param known: the resolved paths of all files that a run on this target may write.  A journal lies in
        the target, which can be somebody else's work; one that names any other file is not acted on.
    :returns: what was done, "" if there was no journal.
    :raises WriteError: if the files are in no state that the journal knows; nothing is changed then.
    """
    journal = os.path.join(root, JOURNAL)
    raw = read_file(journal)
    if raw is None:
        return _forget(root)
    try:
        if isinstance(raw, Problem):
            raise ValueError(raw.message)
        data = json.loads(raw)
        if data["schema"] != SCHEMA or data["phase"] not in (STAGING, SWITCHING):
            raise ValueError(f"its schema is {data['schema']!r}")
        steps = [Step(os.path.normpath(os.path.join(root, path)), old, new) for path, old, new in data["steps"]]
        made = [os.path.normpath(os.path.join(root, path)) for path in data["made"]]
        _check_known(steps, made, known)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        hint = "run the command that was interrupted once more; if there was none, rebuild from a stock image"
        raise WriteError(
            Problem("journal_invalid", f"cannot use the journal: {error}", file=journal, hint=hint)
        ) from error
    try:
        with shielded():
            return _recover((root,), steps, made, data["phase"])
    except OSError as error:
        raise WriteError(unsettled(root, error)) from error


def _check_known(steps: list[Step], made: list[str], known: Collection[str]) -> None:
    for step in steps:
        folder, name = os.path.split(step.path)
        if os.path.join(os.path.realpath(folder), name) not in known:
            raise ValueError(f"it names {step.path}, which is no file of this profile")
        if not all(digest == "" or re.fullmatch("[0-9a-f]{64}", digest) for digest in (step.old, step.new)):
            raise ValueError(f"it has no sha256 for {step.path}")
    for folder in made:
        if not any(step.path.startswith(folder + os.sep) for step in steps):
            raise ValueError(f"it names the folder {folder}, which holds no file of this run")


def _forget(root: str) -> str:
    """Remove a journal that was never finished: nothing was done yet."""
    path = os.path.join(root, NEW_JOURNAL)
    try:
        if is_there(path):  # on a read-only file system, removing nothing fails too
            os.unlink(path)
    except OSError as error:
        raise WriteError(unsettled(root, error)) from error
    return ""


def _recover(roots: Sequence[str], steps: list[Step], made: list[str], phase: str) -> str:
    if phase == STAGING:
        problems = undo(roots, steps, made, switched=False)
        if problems:
            raise WriteError(*problems)
        return "cleaned up after an interrupted run that had changed nothing"
    now = {step.path: digest(read(step.path)) for step in steps}
    strange = [step for step in steps if now[step.path] not in (step.old, step.new)]
    if strange:
        hint = (
            f"put the old file back from {PREFIX}old-* beside it, or rebuild from a stock image; then remove {JOURNAL}"
        )
        raise WriteError(
            *(
                Problem(
                    "journal_conflict",
                    "an interrupted run left it, and it was changed since",
                    file=step.path,
                    hint=hint,
                )
                for step in strange
            )
        )
    folders = sorted({os.path.dirname(step.path) for step in steps})
    pending = [step for step in steps if now[step.path] != step.new]
    if all(step.new == "" or digest(read(step.temp)) == step.new for step in pending):
        for step in pending:
            switch(step)
        for step in steps:  # the kill may have come between a rename and this
            drop_bytecode(step.path)
        read_back(steps)
        settle(roots, steps, folders)
        return f"finished an interrupted run: {len(pending)} of {len(steps)} files were still to be written"
    problems = undo(roots, steps, made, switched=True)
    if problems:
        raise WriteError(*problems)
    return f"undid an interrupted run: {len(steps)} files are as they were before it"
