"""Source archives: downloaded with resume, pinned by sha256, only the package unpacked."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import tarfile
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fixpack import pkgindex
from fixpack.errors import Problem, SourceError
from fixpack.gitcmd import hide
from fixpack.model import Release, Sdist
from fixpack.pkgindex import IndexConfig, Offer
from fixpack.progress import bar
from fixpack.target import read_file

if TYPE_CHECKING:
    import requests

_BLOCK = 1 << 14  # of a download: what a broken connection loses at most
#: Connections that break are taken up again this often in one run, then the run ends and keeps its part.
_TRIES = 3


def file_sha256(path: str) -> str:
    """The sha256 of an ordinary file's content.  Raises: SourceError for anything else, a pipe included."""
    data = read_file(path)
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    raise SourceError(data or Problem("not_a_file", "is not there", file=path))


def is_pinned(archive: str, sdist: Sdist) -> bool:
    """Whether the cache has the archive, as pinned.  Raises: SourceError if something else is in its place."""
    if not os.path.lexists(archive):
        return False
    try:
        return file_sha256(archive) == sdist.sha256
    except SourceError as error:
        hint = "remove it, and run this again"
        raise SourceError(*(problem._replace(hint=hint) for problem in error.problems)) from error


def from_index(release: Release, sdist: Sdist, archive: str, config: IndexConfig) -> str:
    """Download a release's archive by project name; out: who gave it.  Raises: SourceError."""
    with pkgindex.session(config) as web:
        found, reasons = pkgindex.offers(web, config, release.distribution, sdist.filename)
        for offer in found:
            if offer.sha256 and offer.sha256 != sdist.sha256:
                raise _wrong(release, sdist, f"{offer.source} lists another {sdist.filename}", offer.sha256)
        if not found:
            raise SourceError(
                Problem(
                    "sdist_missing",
                    f"no package index of this machine gives {sdist.filename}",
                    file=release.where,
                    found="; ".join(reasons) or "no index is configured",
                    hint=f"check pip's index configuration (python -m pip config list), or name a copy: "
                    f"fixpack sources fetch {release.ref} --from PATH_OR_URL",
                )
            )
        _get(web, release, sdist, found[0], archive, config)
        return found[0].source


def from_address(release: Release, sdist: Sdist, origin: str, archive: str, config: IndexConfig) -> None:
    """Take a release's archive from a path or an address.  Raises: SourceError."""
    url = "file:" + origin if os.path.isabs(origin) else origin
    with pkgindex.session(config) as web:
        _get(web, release, sdist, Offer(url, "", hide(origin)), archive, config)


def _get(
    web: requests.Session, release: Release, sdist: Sdist, offer: Offer, archive: str, config: IndexConfig
) -> None:
    """Bring the archive to its place; a wrong content keeps nothing."""
    part = f"{archive}.{sdist.sha256[:12]}.part"
    if offer.url.startswith("file:"):
        shutil.copyfile(unquote(urlsplit(offer.url).path) if offer.url.startswith("file://") else offer.url[5:], part)
    else:
        resumed = _download(web, release, offer, part, config)
        if resumed and file_sha256(part) != sdist.sha256:  # the pieces do not belong together
            os.unlink(part)
            _download(web, release, offer, part, config)
    found = file_sha256(part)
    if found != sdist.sha256:
        os.unlink(part)
        raise _wrong(release, sdist, f"{offer.source} gave another {sdist.filename}; nothing of it was kept", found)
    os.replace(part, archive)


def _download(web: requests.Session, release: Release, offer: Offer, part: str, config: IndexConfig) -> bool:
    """Complete the part file; out: whether an earlier run's bytes are in it.  Raises: SourceError."""
    import requests

    began = os.path.getsize(part) if os.path.exists(part) else 0
    cause = ""
    with bar(f"downloading {os.path.basename(part).split('.tar.gz')[0]}") as advance:
        for _ in range(_TRIES):
            have = os.path.getsize(part) if os.path.exists(part) else 0
            headers = {"Range": f"bytes={have}-"} if have else {}
            verify = pkgindex.trust(web, offer.url, config)
            try:
                with web.get(offer.url, headers=headers, stream=True, timeout=config.timeout, verify=verify) as reply:
                    if reply.status_code == 416 and have:  # already whole, or longer than the file is
                        return True
                    reply.raise_for_status()
                    goes_on = reply.headers.get("Content-Range", "").startswith(f"bytes {have}-")
                    if reply.status_code != 206 or not goes_on:
                        have = began = 0
                    total = have + int(reply.headers.get("Content-Length") or 0)
                    with open(part, "ab" if have else "wb") as file:
                        for block in reply.iter_content(_BLOCK):
                            file.write(block)
                            have += len(block)
                            if advance:
                                advance(have, total)
                return began > 0
            except requests.HTTPError as error:
                cause = hide(str(error))
                break
            except requests.RequestException as error:
                cause = hide(str(error))
    size = os.path.getsize(part) if os.path.exists(part) else 0
    kept = f"{size} bytes are kept for the next run" if size else "nothing is kept"
    raise SourceError(
        Problem(
            "download_broken",
            f"the download of {release.ref} broke off; {kept}",
            file=release.where,
            found=cause,
            hint=f"fixpack sources fetch {release.ref}",
        )
    )


def _wrong(release: Release, sdist: Sdist, message: str, found: str) -> SourceError:
    """The failure for an archive that is not the pinned one."""
    hint = f"do not use that file; name another copy: fixpack sources fetch {release.ref} --from PATH_OR_URL"
    return SourceError(
        Problem(
            "sdist_hash", message, file=release.where,
            expected=f"sha256 {sdist.sha256}", found=f"sha256 {found}", hint=hint,
        )
    )  # fmt: skip


def unpack(archive: str, package: str, into: str) -> dict[str, str]:
    """Unpack a package, its egg-info and PKG-INFO without the archive's top folder.

    Out: path -> sha256 of every file.  Raises: SourceError for an archive with links or paths that
    leave it anywhere, or without the package.
    """
    name = os.path.basename(archive)
    if not hasattr(tarfile, "data_filter"):
        message = "this Python unpacks archives without a safety filter"
        raise SourceError(Problem("python_too_old", message, hint="use Python 3.12, or a current 3.10 or 3.11"))
    files: dict[str, str] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar, bar(f"unpacking {name}") as advance:
            for done, member in enumerate(tar):
                path = posixpath.normpath(member.name)
                if path.startswith(("/", "..")) or ".." in member.name.split("/"):
                    raise SourceError(Problem("hostile_path", f"the archive holds the path {member.name!r}", file=name))
                inner = path.partition("/")[2]
                if inner != "PKG-INFO" and not inner.startswith((f"{package}/", f"{package}.egg-info/")):
                    continue
                if member.isdir():
                    continue
                if not member.isreg() or inner in files:
                    kind = "the same path twice" if inner in files else "something that is no plain file"
                    raise SourceError(Problem("hostile_path", f"the archive holds {kind}: {member.name!r}", file=name))
                tar.extract(member.replace(name=inner), into, filter="data")
                files[inner] = file_sha256(os.path.join(into, inner))
                if advance:
                    advance(done, 0)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # a full disk says so itself
        raise SourceError(Problem("sdist_damaged", f"the archive cannot be read: {error}", file=name)) from error
    if not any(path.startswith(f"{package}/") for path in files):
        raise SourceError(Problem("sdist_damaged", f"the archive holds no folder {package}/", file=name))
    return files
