"""Pinned git commits: fetched through the pack protocol, exported blob by blob, re-hashed.

Contents never pass through a checkout or `git archive`: filters, line-ending conversion and the
attributes export-ignore and export-subst could change them.  One long-lived `git cat-file` hands
out the blobs, and each is hashed again before it is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from fixpack.errors import Problem, SourceError
from fixpack.gitcmd import git_output, hide, reason, refused, repository
from fixpack.model import Release
from fixpack.progress import bar

if TYPE_CHECKING:
    import git

#: Branches and tags, and the branches that a clone knows of its own origin.
_REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", "+refs/remotes/*:refs/remotes/*")
_FETCH = ("fetch", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--force", "--progress")


#: hex digits of a full commit id
FULL = 40


class Entry(NamedTuple):
    """A file of a commit."""

    mode: str  # "100644", "100755" or "120000"
    blob: str  # git's id of the content


def blob_id(data: bytes) -> str:
    """Git's id of a content."""
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


def missing(gitdir: str, commit: str) -> bool:
    """Whether the commit or anything in its tree is not in the repository."""
    import git

    if not os.path.isdir(gitdir):
        return True
    with repository(gitdir) as runner:
        try:
            if not _has(runner, commit):
                return True
            listing = git_output(
                runner, "rev-list", "--objects", "--no-object-names", "--missing=print", "--no-walk", commit
            )
        except git.GitCommandError:
            return True
    return b"?" in listing


def wanted(gitdir: str, release: Release) -> list[str]:
    """The full ids of the commits that a release pins, as far as the repository can tell.

    An abbreviated pin is resolved by the release's tag if the id there starts with it, else by the one commit that
    does; where there is none, or more than one, it is left out.
    """
    import git

    found = []
    for commit in (release.commit, *release.also_commits):
        if len(commit) == FULL:
            found.append(commit)
            continue
        if not os.path.isdir(gitdir):
            continue
        with repository(gitdir) as runner:
            for name in (f"refs/tags/{release.name}", commit):
                with contextlib.suppress(git.GitCommandError):
                    full = git_output(runner, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
                    if len(full) == FULL and full.startswith(commit):
                        found.append(full)
                        break
    return found


def fetch(gitdir: str, release: Release, origin: str) -> str:
    """Bring a release's commit into the repository, with branches and tags where the origin has them.

    In: an origin that git can fetch from, a local one as absolute path.  Out: the full id of the commit, the
    pinned one or one of `also-commits`.  Raises: SourceError.
    """
    import git

    pins = (release.commit, *release.also_commits)
    # A server gives a commit by its full id only; one that is abbreviated is asked for by the release's tag.
    names = [commit if len(commit) == FULL else f"refs/tags/{release.name}" for commit in pins]
    local = origin if os.path.isabs(origin) else ""
    with repository(gitdir, local) as runner:
        _sweep(gitdir)
        if not os.path.isfile(os.path.join(gitdir, "HEAD")) or not os.path.isdir(os.path.join(gitdir, "objects")):
            try:
                git_output(runner, "init", "--quiet", "--bare", "--template=", gitdir)
            except git.GitCommandError as error:
                message = f"the repository cannot be made: {reason(error)}"
                raise refused(error, gitdir) or SourceError(Problem("git_damaged", message, file=gitdir)) from error
        causes = []
        # Everything first: later commands need history.  It fails on a partial clone, and brings
        # nothing from a shallow one.  Then the commit with its history, then the commit alone.  Git
        # asks for nothing below a commit that it has: what a partial clone lacked takes a refetch.
        attempts: list[tuple[str, ...]] = [_REFS]
        attempts += [(name,) for name in names]
        attempts += [("--depth=1", name) for name in names]
        attempts += [("--refetch", *_REFS)]
        for attempt in attempts:
            if attempt[0] == "--refetch" and not any(_has(runner, commit) for commit in pins):
                continue
            options = [word for word in attempt if word.startswith("--")]
            try:
                _fetch(runner, origin, options, [word for word in attempt if not word.startswith("--")])
            except git.GitCommandError as error:
                if failure := refused(error, gitdir):
                    raise failure from error
                causes.append(reason(error))
                if attempt is _REFS and not local:
                    break  # cannot be reached; no use in asking again
            finally:
                # A commit without its parents is fine as long as no ref names it; a `shallow` file
                # would cut the history of everything that is fetched later.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(gitdir, "shallow"))
            if attempt is _REFS and causes and local:
                _copy_partial(runner, gitdir, local)
            for commit in wanted(gitdir, release):
                if not missing(gitdir, commit):
                    return commit
        raise _lacks(runner, release, origin, causes)


def _sweep(gitdir: str) -> None:
    """Remove what a killed git left in a repository that nobody else uses: its locks, and half-written packs."""
    objects = os.path.join(gitdir, "objects")
    for folder, _, names in os.walk(gitdir):
        inside = folder == objects or folder.startswith(objects + os.sep)
        for name in names:
            if name.startswith("tmp_") if inside else name.endswith(".lock"):
                os.unlink(os.path.join(folder, name))


def _has(runner: git.Git, commit: str) -> bool:
    """Whether the commit object is there, whatever of its tree is."""
    import git

    try:
        git_output(runner, "cat-file", "-e", f"{commit}^{{commit}}")
    except git.GitCommandError:
        return False
    return True


def _fetch(runner: git.Git, origin: str, options: list[str], refs: list[str]) -> None:
    """One `git fetch` with a progress bar.  Raises: git.GitCommandError."""
    import git
    from git.cmd import handle_process_output

    with bar(f"fetching from {hide(origin)}") as advance:

        class Progress(git.RemoteProgress):
            def update(
                self, op_code: int, cur_count: str | float, max_count: str | float | None = None, message: str = ""
            ) -> None:
                if advance:
                    advance(float(cur_count or 0), float(max_count or 0))

        progress = Progress()
        settings = ["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "protocol.version=2"]
        command = [runner.GIT_PYTHON_GIT_EXECUTABLE or "git", *settings, *_FETCH, *options, "--", origin, *refs]
        process = runner.execute(command, as_process=True, universal_newlines=True)
        handle_process_output(
            process,
            None,
            progress.new_message_handler(),
            decode_streams=False,
        )
        process.wait(stderr="\n".join(progress.error_lines))


def _copy_partial(runner: git.Git, gitdir: str, source: str) -> None:
    """Copy what a partial clone has, all its branches and tags, through a pack.

    Its `upload-pack` refuses to serve history of which it lacks a blob.  `index-pack` computes each
    object's id from its content, as a fetch does.  Missing objects are never fetched on the way:
    the source's own remotes stay out of this.
    """
    import git

    folder = next((path for path in (os.path.join(source, ".git"), source) if os.path.isdir(path)), source)
    with tempfile.TemporaryFile(dir=gitdir) as pack:
        try:
            with repository(folder, source) as theirs:
                refs = git_output(
                    theirs, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags"
                )
                refs += git_output(theirs, "for-each-ref", "--format=%(objectname) %(refname)", "refs/remotes")
                with tempfile.TemporaryFile() as ids:
                    ids.write(b"".join(line.split()[0] + b"\n" for line in refs.splitlines()))
                    ids.seek(0)
                    theirs.execute(
                        ["git", "pack-objects", "--revs", "--missing=allow-any", "--stdout", "-q"],
                        istream=ids,
                        output_stream=pack,
                    )
            pack.seek(0)
            runner.execute(["git", "index-pack", "--stdin"], istream=pack)
            with tempfile.TemporaryFile() as updates:
                for line in refs.splitlines():
                    oid, name = line.split()
                    updates.write(b"update %b %b\n" % (name, oid))
                updates.seek(0)
                runner.execute(["git", "update-ref", "--stdin"], istream=updates)
        except git.GitCommandError as error:
            if failure := refused(error, gitdir):
                raise failure from error
            return  # shallow, damaged or no repository: what follows says so


#: what git says when it got no answer at all
_UNREACHABLE = re.compile("(?i)could not resolve|unable to access|connection|timed out|could not read from remote")


def _lacks(runner: git.Git, release: Release, origin: str, causes: list[str]) -> SourceError:
    """The failure of a fetch, told by what the origin has instead."""
    import git

    tag = ""
    with contextlib.suppress(git.GitCommandError):
        listing = git_output(runner, "ls-remote", "--tags", "--", origin, f"refs/tags/{release.name}*").decode()
        for line in listing.splitlines():
            oid, name = line.split("\t")
            if name in (f"refs/tags/{release.name}", f"refs/tags/{release.name}^{{}}"):
                tag = oid
    also = f" (or {', '.join(release.also_commits)})" if release.also_commits else ""
    fetch_line = f"fixpack sources fetch {release.ref} --from PATH_OR_URL"
    if tag:
        found = f"its tag {release.name} is {tag}"
    else:
        found = "; ".join(dict.fromkeys(causes)) or f"neither that commit nor a tag {release.name}"
    reached = bool(tag) or not _UNREACHABLE.search(found)
    return SourceError(
        Problem(
            "commit_missing" if reached else "origin_unreachable",
            f"{hide(origin)} {'does not give the commit' if reached else 'cannot be reached for the commit'} "
            f"that {release.ref} pins",
            file=release.where,
            expected=f"commit {release.commit}{also}, tag {release.name}",
            found=found,
            hint=f"name a clone or mirror that has it: {fetch_line}",
        )
    )


def damage(gitdir: str) -> str:
    """What git finds wrong with the files of a repository, "" if nothing; reads all of it.

    Objects that are not there do not count: a partial origin gave no more, and a fetch brings them.
    """
    import git

    with repository(gitdir) as runner:
        try:
            git_output(runner, "fsck", "--full", "--no-dangling", "--no-progress")
        except git.GitCommandError as error:
            if not isinstance(error.status, int) or error.status & ~_ABSENT:
                return reason(error)
    return ""


#: of the exit status of `git fsck`: the bit that says that objects are missing
_ABSENT = 2


def entries(gitdir: str, commit: str) -> dict[str, Entry]:
    """The files of a commit by path; submodules are left out.  Raises: SourceError for a hostile path."""
    import git

    with repository(gitdir) as runner:
        try:
            listing = git_output(runner, "ls-tree", "-r", "-z", "--full-tree", commit)
        except git.GitCommandError as error:
            message = f"commit {commit} cannot be read: {reason(error)}"
            raise SourceError(Problem("git_damaged", message, file=gitdir)) from error
    files = {}
    for line in listing.split(b"\0")[:-1]:
        meta, _, name = line.partition(b"\t")
        mode, kind, blob = meta.decode("ascii").split()
        path = os.fsdecode(name)
        if any(part.lower() in ("", ".", "..", ".git") for part in path.split("/")):
            raise SourceError(Problem("hostile_path", f"commit {commit} holds the path {path!r}", file=gitdir))
        if kind == "blob":
            files[path] = Entry(mode, blob)
    return files


def export(gitdir: str, commit: str, into: str) -> None:
    """Write the files of a commit below `into`, bytes as committed.

    Raises: SourceError when a blob is missing or its content does not hash to its id, and for
    links that leave the tree.
    """
    files = entries(gitdir, commit)
    links = {}
    with repository(gitdir) as runner, bar(f"exporting {commit[:12]}") as advance:
        for done, (path, entry) in enumerate(files.items()):
            try:
                data = runner.get_object_data(entry.blob)[3]
            except (ValueError, BrokenPipeError) as error:  # git ends at content that it cannot unpack
                message = f"the content of {path} is missing or damaged"
                raise SourceError(Problem("git_damaged", message, file=gitdir)) from error
            if blob_id(data) != entry.blob:
                raise SourceError(
                    Problem("git_damaged", f"the content of {path} is not what its id says", file=gitdir,
                            expected=f"blob {entry.blob}", found=f"blob {blob_id(data)}")
                )  # fmt: skip
            target = os.path.join(into, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if entry.mode == "120000":
                links[path] = os.fsdecode(data)
                continue
            with open(target, "xb") as file:
                file.write(data)
            os.chmod(target, 0o755 if entry.mode == "100755" else 0o644)
            if advance:
                advance(done + 1, len(files))
    for path, link in links.items():  # last, so that no file is written through one
        if posixpath.isabs(link) or posixpath.normpath(posixpath.join(posixpath.dirname(path), link)).startswith(".."):
            raise SourceError(Problem("hostile_path", f"the link {path} leaves the tree: {link}", file=gitdir))
        os.symlink(link, os.path.join(into, path))
