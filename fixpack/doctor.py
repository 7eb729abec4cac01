"""What would make an apply fail later, or a server run other code than the files say: really tried."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fixpack import receipt
from fixpack.bytecode import unchecked
from fixpack.confirm import select
from fixpack.engine import Plan, compute
from fixpack.errors import FixpackError
from fixpack.journal import pending
from fixpack.lock import Lock, stale
from fixpack.steps import PREFIX
from fixpack.survey import Survey
from fixpack.target import Located, Target, read_file
from fixpack.text import plural

#: left alone by the leftovers' removal of a commit, and gone again at once
PROBE = f"{PREFIX}new-probe"


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: str  # ok | note | problem
    code: str
    message: str
    hint: str = ""


def examine(root: str, lock: Lock, target: Target, found: Survey) -> list[Finding]:
    """Look at the engine, the registry and the target.  Writes only probe files, and removes them.

    :param root: the registry's folder.
    :param found: the states of the fixes, whose files are looked at.
    """
    findings = [*_python(), *_registry(root, lock), *_distributions(lock, target)]
    for located in target.located.values():
        findings += _place(located, found)
    findings += _bytecode(found)
    findings += _clock(found)
    return [*findings, *_apply(root, lock, target, findings)]


def _python() -> Iterator[Finding]:
    yield Finding("ok", "python", f"Python {sys.version.split()[0]}, {sys.executable}")
    import yaml

    if hasattr(yaml, "CSafeLoader"):
        yield Finding("ok", "yaml_loader", f"PyYAML {yaml.__version__} with its C loader")
    else:
        hint = "only status, show, revert and explanations get slower; install a PyYAML wheel with libyaml"
        yield Finding("note", "yaml_loader", f"PyYAML {yaml.__version__} without its C loader", hint)


def _registry(root: str, lock: Lock) -> Iterator[Finding]:
    problems = stale(root, lock)
    for problem in problems:
        yield Finding("problem", problem.code, problem.message, problem.hint)
    if not problems:
        count = len(lock["registry"])
        yield Finding("ok", "registry", f"{count} registry files are what the lock of {lock['profile']} was made from")


def _distributions(lock: Lock, target: Target) -> Iterator[Finding]:
    for distribution, release in lock["releases"].items():
        located = target.located.get(distribution)
        if located is None:
            level = "problem" if release["files"] else "note"
            hint = "run with the interpreter that has it, or name it: --site DIR or --source"
            yield Finding(level, "distribution_missing", f"{distribution} was not found", hint)
            continue
        said = f"{distribution} {located.version or 'of unknown version'} in {located.root} [{located.how}]"
        yield Finding("ok", "distribution", said)
        if not release["files"]:
            continue
        if not located.dist_info:
            hint = f"the receipt goes to {receipt.path_in(located)}; `pip uninstall` will not know the added files"
            yield Finding("note", "no_dist_info", f"{distribution} has no dist-info beside its package", hint)
        elif not isinstance(read_file(os.path.join(located.dist_info, "RECORD")), bytes):
            hint = "`pip uninstall` will not know the added files"
            yield Finding("note", "no_record", f"{distribution} was installed without RECORD", hint)


def _place(located: Located, found: Survey) -> Iterator[Finding]:
    files = [file for file in found.files if file.distribution == located.distribution and file.real]
    if not files:
        return
    if pending(located.root):
        hint = "the next apply, revert, status or verify finishes or undoes it"
        yield Finding("problem", "journal", f"an interrupted run left its journal in {located.root}", hint)
    repository = _repository(located.root)
    if repository:
        hint = "`git checkout`, `stash` and `clean` there undo fixes; verify before each start"
        yield Finding("note", "nested_git", f"{located.root} lies in the git work tree {repository}", hint)
    folders = {located.root, *(os.path.dirname(file.real) for file in files)}
    if located.dist_info:
        folders.add(located.dist_info)
    unwritable = 0
    for folder in sorted(folder for folder in folders if os.path.isdir(folder)):
        error = _try_writing(folder)
        if error:
            unwritable += 1
            hint = "run as the owner of the files, on a writable file system; confirming and verifying need no writing"
            yield Finding("problem", "unwritable", f"{folder}: {error.strerror or error}", hint)
    if not unwritable:
        yield Finding("ok", "writable", f"wrote, linked, renamed and removed a file in {len(folders)} folders")
    error = _try_locking(located.root)
    if error:
        hint = "no two runs on this folder at once; some network file systems cannot lock folders"
        yield Finding("problem", "no_lock", f"{located.root} cannot be locked: {error.strerror}", hint)
    shared = [file.real for file in files if os.path.exists(file.real) and os.stat(file.real).st_nlink > 1]
    if shared:
        hint = "an apply makes new files, so the store's stay as they are"
        yield Finding("note", "hard_links", f"{len(shared)} files are shared with a package store", hint)
    needed = 4 * sum(os.path.getsize(file.real) for file in files if os.path.exists(file.real)) + (1 << 20)
    space = os.statvfs(located.root)
    if space.f_bavail * space.f_frsize < needed:
        yield Finding("problem", "no_space", f"less than {needed >> 20} MiB are free in {located.root}", "free space")


def _repository(folder: str) -> str:
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return ""
        folder = parent


def _try_writing(folder: str) -> OSError | None:
    """Write, sync, link, rename and remove a file, as a transaction does."""
    probe, second = os.path.join(folder, PROBE), os.path.join(folder, f"{PROBE}-2")
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b"probe")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(probe, second)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV):
                raise
        os.replace(probe, second)
        os.unlink(second)
    except OSError as error:
        return error
    finally:
        for each in (probe, second):
            if os.path.lexists(each):
                os.unlink(each)
    return None


def _try_locking(folder: str) -> OSError | None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None  # another run holds it, so it can be locked
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
    return None


def _bytecode(found: Survey) -> Iterator[Finding]:
    problems = []
    for one in found.seen.values():
        if one.data is not None and one.real.endswith(".py"):
            problems += unchecked(one.real, one.data)
    for problem in problems:
        yield Finding("problem", problem.code, f"{problem.file}: {problem.message}", problem.hint)
    if not problems:
        yield Finding("ok", "bytecode", "no stale bytecode that Python would run unchecked")


def _apply(root: str, lock: Lock, target: Target, said: Sequence[Finding]) -> Iterator[Finding]:
    """What a dry run of the profile's own fixes computes, or why it cannot; what was said already is not repeated."""
    if any(each.code == "journal" or each.code.startswith("lock_") for each in said):
        return  # an apply does not get as far as the files
    try:
        plan = compute(root, lock, select(lock, ()), target)
    except FixpackError as error:
        known = {(each.code, each.message) for each in said}
        for problem in error.problems:
            at = f"{problem.file}:{problem.line}" if problem.line else problem.file
            pair = f"; expected {problem.expected}, found {problem.found}" if problem.expected else ""
            message = f"{at}: {problem.message}" if at else problem.message
            if problem.code != "distribution_missing" and (problem.code, message) not in known:
                yield Finding("problem", problem.code, message + pair, problem.hint)
        return
    if isinstance(plan, Plan):
        changed = sum(file.changed for file in plan.files)
        doing = f"would write {plural(changed, 'file')}" if changed else "would find every file in place"
        yield Finding("ok", "apply", f"an apply of {lock['profile']} {doing}, each with the sha256 of the lock")
        return
    for file in plan.foreign:
        hint = "every fix confirms by its own regions and scopes; with --strict, apply and verify refuse it"
        yield Finding("note", "foreign_layer", f"another layer changed {file}, outside of every fixed scope", hint)


def _clock(found: Survey) -> Iterator[Finding]:
    now = time.time()
    times = [(os.stat(one.real).st_mtime, one.real) for one in found.seen.values() if one.data is not None]
    newest = max(times, default=(0.0, ""))
    if newest[0] > now + 60:
        hint = "set the clock: Python compares times to decide whether bytecode is stale"
        yield Finding("problem", "clock", f"{newest[1]} is {int(newest[0] - now)} s in the future of the clock", hint)
    else:
        yield Finding("ok", "clock", "no file is newer than the clock")
