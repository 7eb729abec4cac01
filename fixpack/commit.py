"""Write computed results as one transaction: after any crash, the next run makes it all new or all old.

A journal in the target's folder says first what is going to be made.  Then every new file is laid beside its
target as a temporary file, every old one gets a second name (a hard link, so that putting it back keeps
inode, mode and owner), all of it is synced, and the journal says that too.  Then come the renames.
``recover`` finishes a journal that a killed run left behind: forward if every new file is still there,
else backward; one that had only begun is cleaned up.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fixpack.disk import digest, is_there, make_folder, missing_folders
from fixpack.durable import sync
from fixpack.errors import Problem
from fixpack.hold import shielded
from fixpack.steps import (
    STAGING,
    SWITCHING,
    Change,
    Step,
    WriteError,
    advice,
    parents,
    read_back,
    remove_leftovers,
    settle,
    stage,
    switch,
    undo,
    unsettled,
    write_journal,
)


def commit(changes: list[Change], *roots: str) -> None:
    """Make all changes or none.  The caller holds ``locked`` on each root.

    SIGINT and SIGTERM wait until it is done.

    Modes and owners are kept, hard-linked copies stay untouched (every write makes a new inode), and
    no compiled form of a changed file is left.  Each file is read back and compared.

    :param roots: the folders that the journal goes to: each from which a later run may start to look.
    :raises WriteError: if anything failed; then the old files are back, inode and all.
    """
    with shielded():
        _commit(changes, roots)


def _commit(changes: list[Change], roots: Sequence[str]) -> None:
    steps = [Step(change.path, digest(change.old), digest(change.new)) for change in changes]
    folders = sorted({os.path.dirname(step.path) for step in steps})
    made: list[str] = []
    try:
        made = missing_folders(folders)
        write_journal(roots, steps, made, STAGING)
        for folder in made:
            make_folder(folder)
        for folder in folders:
            remove_leftovers(folder)
        for change, step in zip(changes, steps, strict=True):
            stage(change, step)
        staged = [each for step in steps for each in (step.temp, step.backup) if is_there(each)]
        sync([*staged, *parents(folders, made)])
        write_journal(roots, steps, made, SWITCHING)
        for step in steps:
            switch(step)
        read_back(steps)
    except BaseException as error:
        problems = undo(roots, steps, made, switched=True)
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or str(error)
        hint = ("" if problems else "nothing was changed; ") + advice(error)
        first = Problem("write_failed", f"cannot write: {reason}", file=str(error.filename or roots[0]), hint=hint)
        raise WriteError(first, *problems) from error
    try:
        settle(roots, steps, folders)
    except OSError as error:  # all files are new; the journal is still there
        raise WriteError(unsettled(roots[0], error)) from error
