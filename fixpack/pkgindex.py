"""The machine's package index configuration, and where it offers a given source archive.

Nothing here names a host: addresses come from pip's and uv's environment variables and pip's
configuration files; without any, pypi-simple's own default is used.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from fixpack.gitcmd import hide

if TYPE_CHECKING:
    import requests
    from pypi_simple import DistributionPackage


class IndexConfig(NamedTuple):
    """What pip and uv are told about package indexes."""

    indexes: tuple[str, ...]  # in order of preference; "" is pypi-simple's default
    find_links: tuple[str, ...] = ()
    cert: str = ""
    client_cert: str = ""
    proxy: str = ""
    timeout: float = 30.0
    trusted_hosts: tuple[str, ...] = ()


class Offer(NamedTuple):
    """A file that an index or folder offers."""

    url: str  # address, or "file:" address
    sha256: str  # as the index tells it, "" if it does not
    source: str  # the index or folder, without credentials


def configuration(environ: Mapping[str, str]) -> IndexConfig:
    """Read the configuration of this machine; pip's environment variables win over its files."""
    files = _pip_files(environ)

    def pip(option: str) -> str:
        value = environ.get("PIP_" + option.upper().replace("-", "_"))
        return files.get(option, "") if value is None else value

    uv_index = [word.partition("=")[2] if re.match(r"[\w.-]+=", word) else word
                for word in environ.get("UV_INDEX", "").split()]  # fmt: skip
    first = (
        environ.get("PIP_INDEX_URL")
        or environ.get("UV_DEFAULT_INDEX")
        or environ.get("UV_INDEX_URL")
        or files.get("index-url", "")
    )
    extra = [*pip("extra-index-url").split(), *uv_index, *environ.get("UV_EXTRA_INDEX_URL", "").split()]
    no_index = pip("no-index").lower() in ("1", "true", "yes", "on", "y", "t")
    timeout = pip("timeout") or pip("default-timeout")
    return IndexConfig(
        indexes=() if no_index else tuple(dict.fromkeys([first.strip(), *extra])),
        find_links=tuple(pip("find-links").split()),
        cert=pip("cert"),
        client_cert=pip("client-cert"),
        proxy=pip("proxy"),
        timeout=float(timeout) if re.fullmatch(r"\d+(\.\d+)?", timeout) else 30.0,
        trusted_hosts=tuple(pip("trusted-host").split()),
    )


def _pip_files(environ: Mapping[str, str]) -> dict[str, str]:
    """The options of pip's configuration files, as pip itself reads them; {} without pip."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        env=dict(environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    options: dict[str, dict[str, str]] = {"global": {}, "download": {}, ":env:": {}}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        key, _, value = line.partition("=")
        section, _, option = key.partition(".")
        if section in options:
            options[section][option] = str(ast.literal_eval(value))
    return {**options["global"], **options["download"], **options[":env:"]}


def session(config: IndexConfig) -> requests.Session:
    """A session with the machine's certificates and proxy."""
    import requests

    made = requests.Session()
    if config.cert:
        made.verify = config.cert
    if config.client_cert:
        made.cert = config.client_cert
    if config.proxy:
        made.proxies.update({"http": config.proxy, "https": config.proxy})
    made.headers["Accept-Encoding"] = "identity"  # else a range would count compressed bytes
    return made


def trust(web: requests.Session, url: str, config: IndexConfig) -> bool | str:
    """What to verify the certificate of an address with: as the session does, unless pip trusts its host."""
    parts = urlsplit(url)
    if parts.hostname in config.trusted_hosts or f"{parts.hostname}:{parts.port}" in config.trusted_hosts:
        return False  # the content is pinned by sha256 either way
    return True if web.verify is None else web.verify


def offers(web: requests.Session, config: IndexConfig, project: str, filename: str) -> tuple[list[Offer], list[str]]:
    """Who offers the file, and for everybody else one line on why not."""
    found, reasons = [], []
    for place in config.find_links:
        path = _local(place)
        if path and os.path.isfile(os.path.join(path, filename)):
            found.append(Offer("file:" + os.path.join(path, filename), "", place))
    for index in config.indexes:
        packages, reason = _packages(web, config, index, project)
        match = next((package for package in packages if package.filename == filename), None)
        shown = hide(index) or "the default index"
        if match:
            found.append(Offer(match.url, match.digests.get("sha256", ""), shown))
        else:
            reasons.append(f"{shown}: {reason or f'does not list {filename}'}")
    return found, reasons


def _packages(
    web: requests.Session, config: IndexConfig, index: str, project: str
) -> tuple[list[DistributionPackage], str]:
    """What an index lists for a project, or why it lists nothing."""
    import pypi_simple
    import requests

    folder = _local(index)
    if folder:
        page = os.path.join(folder, re.sub(r"[-_.]+", "-", project).lower(), "index.html")
        try:
            with open(page, "rb") as file:
                return pypi_simple.ProjectPage.from_html(project, file.read(), "file://" + page).packages, ""
        except OSError as error:
            return [], f"{page}: {error.strerror}"
    client = pypi_simple.PyPISimple(index, session=web) if index else pypi_simple.PyPISimple(session=web)
    verify = web.verify
    web.verify = trust(web, client.endpoint, config)
    try:
        return client.get_project_page(project, timeout=config.timeout).packages, ""
    except pypi_simple.NoSuchProjectError:
        return [], f"does not know {project}"
    except (
        requests.RequestException,
        pypi_simple.UnsupportedContentTypeError,
        pypi_simple.UnsupportedRepoVersionError,
    ) as error:
        return [], hide(str(error))
    finally:
        web.verify = verify


def _local(place: str) -> str:
    """The folder that an index or find-links entry names; "" if it is no local one."""
    if place.startswith("file:"):
        return unquote(urlsplit(place).path)
    return place if os.path.isabs(place) else ""
