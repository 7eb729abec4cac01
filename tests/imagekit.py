"""For tests that build images: a stock base out of Debian's packages and the real releases, and buildah on a store of
its own.

Needs root, buildah and debootstrap, a Debian mirror, about 3 GB for a while, and no container engine.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixpack import sources
from fixpack.image import CONTEXT
from fixpack.model import Release

#: Set: what is missing for these tests is a failure, not a skip.
REQUIRE = "FIXPACK_REQUIRE_IMAGE"
SUITE = "bookworm"
PACKAGES = ("python3", "python3-yaml", "python3-pip-whl")
SITE = "usr/local/lib/python3.11/dist-packages"
PIP = "PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) python3 -m pip"
INSTALL = f"{PIP} install --quiet --no-index --no-deps --no-compile --break-system-packages --root-user-action ignore"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: no image needs them, and every copy of the store would hold them
USELESS = ("var/cache", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")


class Layer(NamedTuple):
    """The topmost layer of an image."""

    digest: str  # of its uncompressed bytes
    entries: dict[str, tarfile.TarInfo]
    config: dict[str, Any]


def refuse(why: str) -> None:
    """Skip, or fail where these tests are required."""
    if os.environ.get(REQUIRE):
        pytest.fail(f"{why}, and {REQUIRE} is set")
    pytest.skip(f"{why}: see README, Proofs")


class Images:
    """buildah with its own store below a folder, and what tests do with images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        home = folder / "home"
        home.mkdir()
        conf = folder / "storage.conf"
        conf.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
        kept = {name: value for name in ("LANG", "TERM", "TMPDIR") if (value := os.environ.get(name))}
        self.env = {
            **kept,
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": str(home),
            "CONTAINERS_STORAGE_CONF": str(conf),
            "BUILDAH_ISOLATION": "chroot",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command in the sealed environment, whatever comes of it."""
        return subprocess.run(words, env=self.env, cwd=cwd or self.folder, capture_output=True, text=True, check=False)

    def out(self, *words: str) -> str:
        """The output of a command that must not fail."""
        done = self.run(*words)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout.strip()

    def inside(self, container: str, script: str, user: str = "") -> subprocess.CompletedProcess[str]:
        """A shell script in a container."""
        return self.run("buildah", "run", *(("--user", user) if user else ()), container, "--", "sh", "-c", script)

    def container(self, image: str) -> str:
        """A container of an image; its files lie at ``root``."""
        return self.out("buildah", "from", "--pull-never", image)

    def root(self, container: str) -> Path:
        """Where a container's files are."""
        return Path(self.out("buildah", "mount", container))

    def commit(self, container: str, image: str) -> None:
        """Make an image of a container, which goes."""
        self.out("buildah", "commit", "--quiet", "--rm", container, image)

    def reference(self, image: str) -> str:
        """The name of a local image, with tag and digest."""
        digest = self.out("buildah", "images", "--format", "{{.Digest}}", "--no-trunc", image)
        return f"localhost/{image}:latest@{digest}"

    def layer(self, image: str) -> Layer:
        """The topmost layer of an image, and the image's configuration."""
        folder = self.folder / f"pushed-{image}"
        self.out("buildah", "push", "--quiet", "--disable-compression", image, f"dir:{folder}")
        manifest = json.loads((folder / "manifest.json").read_bytes())
        config = json.loads((folder / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
        digest = config["rootfs"]["diff_ids"][-1]
        blob = folder / digest.removeprefix("sha256:")
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
        with tarfile.open(blob) as tar:
            entries = {entry.name.rstrip("/"): entry for entry in tar}
        shutil.rmtree(folder)
        return Layer(digest, entries, config)

    def drop(self) -> None:
        """Everything away."""
        self.run("buildah", "umount", "--all")
        self.run("buildah", "rm", "--all")
        shutil.rmtree(self.folder)


def needs(releases: Sequence[Release]) -> None:
    """Skip or fail where no image can be made."""
    if os.geteuid() != 0:
        refuse("images are built as root")
    for tool in ("buildah", "debootstrap"):
        if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            refuse(f"{tool} is not installed (apt-get install buildah debootstrap)")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        refuse("this root may not mount")
    missing = [sources.fetch_command(release) for release in releases if not sources.have(release)]
    if missing:
        refuse(f"upstream sources are missing ({'; '.join(missing)})")


def make_base(images: Images, releases: Sequence[Release], stale: Mapping[str, str], image: str) -> dict[str, Path]:
    """A stock image: Debian, Python, PyYAML, and the releases installed by pip.

    :param stale: files of the releases of which the image has bytecode: path -> its invalidation mode.
    :returns: the wheels that were installed, by distribution.
    """
    root = images.folder / "debian"
    include = f"--include={','.join(PACKAGES)}"
    # in a namespace of its own, so that what it mounts goes with it, whatever becomes of it
    done = images.run("unshare", "--mount", "debootstrap", "--variant=minbase", include, SUITE, str(root))
    if done.returncode:
        refuse(f"debootstrap found no base: {' | '.join(done.stdout.splitlines()[-3:])}")
    for name in USELESS:
        shutil.rmtree(root / name)
        (root / name).mkdir()
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")  # as every real image has it; else a RUN makes one
    wheels = {}
    for release in releases:
        wheels[release.distribution] = wheel = make_wheel(images.folder, release)
        shutil.copy(wheel, root / "tmp")
    names = " ".join(f"/tmp/{wheel.name}" for wheel in wheels.values())
    images.out("chroot", str(root), "sh", "-c", f"{INSTALL} {names} && rm {names}")
    for mode in set(stale.values()):
        files = [f"/{SITE}/{path}" for path, wanted in stale.items() if wanted == mode]
        images.out("chroot", str(root), "python3", "-m", "compileall", "-q", "--invalidation-mode", mode, *files)
    container = images.container("scratch")
    images.out("cp", "-a", f"{root}/.", str(images.root(container)))
    shutil.rmtree(root)
    images.out("buildah", "config", "--env", f"PATH={PATH}", "--cmd", "python3", "--workingdir", "/srv", container)
    images.commit(container, image)
    return wheels


def make_wheel(folder: Path, release: Release) -> Path:
    """A pinned source tree as a wheel of pure Python, its files as they are."""
    project = release.distribution.replace("-", "_")
    tree = Path(sources.tree(release))
    told = tree / "PKG-INFO"
    metadata = f"Metadata-Version: 2.1\nName: {release.distribution}\nVersion: {release.version}\n"
    info = f"{project}-{release.version}.dist-info"
    files = {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in sorted((tree / release.package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{info}/METADATA"] = told.read_bytes() if told.exists() else metadata.encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows.writerow([name, f"sha256={digest}", len(data)])
    rows.writerow([f"{info}/RECORD", "", ""])
    path = folder / f"{project}-{release.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in {**files, f"{info}/RECORD": record.getvalue().encode()}.items():
            wheel.writestr(name, data)
    return path


def make_checkout(folder: Path, repo: Path, *, umask: int = 0o022) -> Path:
    """What a build reads of a checkout, as a git repository of one commit: the same id each time, other modes."""
    before = os.umask(umask)
    try:
        folder.mkdir()
        for each in (*CONTEXT, ".gitignore"):
            for path in [repo / each, *sorted((repo / each).rglob("*"))]:
                if path.is_file() and "__pycache__" not in path.parts:
                    target = folder / path.relative_to(repo)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(path.read_bytes())
        (folder / "apply_all.py").chmod(0o755)
        (folder / "fixpack/__pycache__").mkdir()
        (folder / "fixpack/__pycache__/stray.pyc").write_bytes(b"none of an image's business")
        (folder / "notes.txt").write_text("none of an image's business either\n")
    finally:
        os.umask(before)
    when = {f"GIT_{role}_DATE": "1700000000 +0000" for role in ("AUTHOR", "COMMITTER")}
    who = {f"GIT_{role}_{what}": "test" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {**os.environ, **who, **when, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (("init", "--quiet"), ("add", *CONTEXT, ".gitignore"), ("commit", "--quiet", "--message", "all")):
        subprocess.run(["git", *words], cwd=folder, env=env, check=True)
    return folder
