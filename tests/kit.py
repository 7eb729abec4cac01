"""A small invented world: two upstream packages, a registry of five fixes for them, and a site folder.

``Kit(folder)`` writes all of it below a folder, makes the lock from the invented sources, and runs the
real commands, in this process or in one of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fixpack import cli, lock, locksmith, registry
from fixpack.cli import apply_main

REPO = Path(__file__).resolve().parent.parent
APPLY_ALL = REPO / "apply_all.py"

RUNNER = '''"""Runs steps."""

from demo_plugin.batch import Batch


class Runner:
    """One per rank."""

    def __init__(self):
        self.batch = Batch()

    def step(self, rows):
        """Run one step."""
        first = rows[0]
        count = len(rows) - 1
        order = sorted(rows)
        self.batch.add(
            first,
            count,
        )
        return order

    def stop(self):
        count = 0
        return count
'''

BATCH = '''"""Rows of a step."""


class Batch:
    def __init__(self):
        self.rows = []

    def add(self, first, count):
        stale = True
        self.rows.append((first, count))

    def swap(self, i, j):
        self.rows[i], self.rows[j] = self.rows[j], self.rows[i]
'''

CORE = '''"""The core."""


def schedule(requests):
    return list(requests)
'''

#: distribution@release -> path -> text
UPSTREAM: dict[str, dict[str, str]] = {
    "demo-plugin@v1.0.0": {
        "demo_plugin/__init__.py": "",
        "demo_plugin/runner.py": RUNNER,
        "demo_plugin/batch.py": BATCH,
    },
    "demo-plugin@v2.0.0": {
        "demo_plugin/__init__.py": "",
        "demo_plugin/runner.py": RUNNER.replace("One per rank.", "One per process."),
        "demo_plugin/batch.py": BATCH,
    },
    "demo-core@v1.0.0": {"demo_core/__init__.py": "", "demo_core/core.py": CORE},
}

ANCHORS = """\
distribution: demo-plugin
release: {release}
version: "{version}"
package: demo_plugin
commit: {commit}
files:
  demo_plugin/runner.py:
    sha256: {runner}
    anchors:
      step-begin:
        within: Runner.step
        text: first = rows[0]
      step-count:
        within: Runner.step
        text: count = len(rows) - 1
      step-add:
        within: Runner.step
        text: |
          self.batch.add(
              first,
              count,
          )
      stop-end:
        within: Runner.stop
  demo_plugin/batch.py:
    sha256: {batch}
    anchors:
      batch-stale:
        within: Batch.add
        text: stale = True
      batch-swap:
        within: Batch.swap
        text: self.rows[i], self.rows[j] = self.rows[j], self.rows[i]
"""

FIX = """\
id: {id}
revision: 1
title: {title}
symptom: rows are lost
cause: an index is off by one
origin: {{kind: own}}
upstream: {{status: not-reported}}
retires-when: upstream counts rows
requires: [{requires}]
edits:
{edits}proof:
  test: tests/fixes/test_{test}.py
  stock: {{test_it: "a row was lost"}}
"""

#: id -> title, requires, edits
FIXES = {
    "rows-counted": (
        "count every row of a step",
        "",
        "  demo-plugin:\n"
        "    - {anchor: step-count, op: replace, code: count.py}\n"
        "    - {op: add-file, path: demo_plugin/_fixpack/rows.py, code: rows.py}\n",
    ),
    "order-kept": (
        "keep the order of rows",
        "rows-counted",
        "  demo-plugin:\n"
        "    - {anchor: step-add, op: insert-after, code: keep.py}\n"
        "    - {anchor: batch-stale, op: delete}\n",
    ),
    "core-guard": (
        "guard the schedule",
        "",
        "  demo-core:\n    - {anchor: module-end, op: append, code: guard.py}\n",
    ),
    "long-share": (
        "share the budget of long prompts",
        "",
        "  demo-plugin:\n"
        "    - {anchor: step-begin, op: insert-before, code: share.py}\n"
        "    - {anchor: step-begin, op: insert-after, code: shared.py}\n"
        "    - {op: add-file, path: demo_plugin/_fixpack/share.py, code: share_file.py}\n",
    ),
    "wide-log": (
        "log what is shared",
        "long-share",
        "  demo-plugin:\n"
        "    - {anchor: stop-end, op: append, code: log.py}\n"
        "    - {anchor: batch-swap, op: insert-after, code: log.py}\n",
    ),
}

PATCHES = {
    "rows-counted/count.py": "from demo_plugin._fixpack.rows import count_rows\n\ncount = count_rows(rows)\n",
    "rows-counted/rows.py": "def count_rows(rows):\n    return len(rows)\n",
    "order-kept/keep.py": "order = list(rows)\n",
    "core-guard/guard.py": "assert schedule([1]) == [1]\n",
    "long-share/share.py": "if not rows:\n    return []\n",
    "long-share/shared.py": "first = rows[0]\n",
    "long-share/share_file.py": "SHARE = 2\n",
    "wide-log/log.py": 'print("wide")\n',
}

PROFILE = """\
profile: {name}
aliases: [{alias}]
hardware: a test bench
releases: {{demo-plugin: {plugin}, demo-core: v1.0.0}}
fixes: [rows-counted, order-kept, core-guard]
opt-in: [long-share, wide-log]
"""

DEFAULT = ("rows-counted", "order-kept", "core-guard")


def sha(text: str | bytes) -> str:
    """The sha256 of a text's bytes."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def registry_files() -> dict[str, str]:
    """The registry's files: path -> text."""
    files = {}
    for number, release in ((1, "v1.0.0"), (2, "v2.0.0")):
        tree = UPSTREAM[f"demo-plugin@{release}"]
        files[f"anchors/demo-plugin/{release}.yaml"] = ANCHORS.format(
            release=release,
            version=release[1:],
            commit=str(number) * 39 + "a",
            runner=sha(tree["demo_plugin/runner.py"]),
            batch=sha(tree["demo_plugin/batch.py"]),
        )
        files[f"profiles/bench-{release}.yaml"] = PROFILE.format(name=f"bench-{release}", alias=release, plugin=release)
    files["anchors/demo-core/v1.0.0.yaml"] = (
        f'distribution: demo-core\nrelease: v1.0.0\nversion: "1.0.0"\npackage: demo_core\ncommit: {"c" * 40}\n'
        f"files:\n  demo_core/core.py:\n    sha256: {sha(CORE)}\n    anchors:\n      module-end: {{}}\n"
    )
    for name, (title, requires, edits) in FIXES.items():
        files[f"fixes/{name}.yaml"] = FIX.format(
            id=name, title=title, requires=requires, edits=edits, test=name.replace("-", "_")
        )
    files |= {f"patches/{path}": text for path, text in PATCHES.items()}
    return files


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below a folder."""
    for path, content in files.items():
        full = folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content.encode() if isinstance(content, str) else content)


class Done(NamedTuple):
    """A command that ran."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as JSON."""
        return json.loads(self.out)

    @property
    def codes(self) -> list[str]:
        """The reason codes that it printed, in order."""
        return re.findall(r"\[([a-z_]+)\]$", self.err, re.MULTILINE)


class FileState(NamedTuple):
    """Everything of a file that a run which writes nothing must leave alone."""

    sha256: str
    mode: int
    owner: tuple[int, int]
    inode: int
    mtime: int


def state(folder: Path) -> dict[str, FileState | str]:
    """Every file, folder and link below a folder."""
    found: dict[str, FileState | str] = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(here, name)
            about = os.lstat(path)
            key = os.path.relpath(path, folder)
            if os.path.islink(path):
                found[key] = f"-> {os.readlink(path)}"
            elif os.path.isfile(path):
                digest = sha(Path(path).read_bytes())
                owner = (about.st_uid, about.st_gid)
                found[key] = FileState(digest, about.st_mode, owner, about.st_ino, about.st_mtime_ns)
            else:
                found[key] = f"mode {about.st_mode:o}"
    return found


def as_nobody(act: Callable[[], int]) -> int:
    """Run something in a child that gave up root."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            code = act()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Kit:
    """The invented world in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = folder / "registry"
        self.trees = folder / "trees"
        self.site = folder / "site"
        write(self.registry, registry_files())
        for ref, files in UPSTREAM.items():
            write(self.trees / ref, files)
        self.fresh_site()
        self.lock()

    # -- the registry

    def edit(self, path: str, old: str, new: str) -> None:
        """Change one place of a registry file."""
        full = self.registry / path
        text = full.read_text()
        assert text.count(old) == 1, (path, old, text.count(old))
        full.write_bytes(text.replace(old, new).encode())

    def make_lock(self, profile: str = "bench-v1.0.0") -> lock.Lock:
        """What the lock of a profile should be."""
        loaded = registry.load(str(self.registry))
        found = loaded.profiles[profile]
        trees = {each.distribution: str(self.trees / each.ref) for each in loaded.profile_releases(found)}
        return locksmith.make(loaded, found, trees)

    def lock(self) -> None:
        """Write the locks of all profiles."""
        for profile in registry.load(str(self.registry)).profiles:
            self.write_lock(self.make_lock(profile))

    def write_lock(self, made: lock.Lock) -> None:
        """Write one lock."""
        (self.registry / "profiles" / f"{made['profile']}.lock.json").write_bytes(lock.dump(made))

    # -- targets

    def fresh_site(self, release: str = "v1.0.0", folder: Path | None = None) -> Path:
        """A site folder with both packages and their dist-info, as pip leaves them."""
        site = folder or self.site
        shutil.rmtree(site, ignore_errors=True)
        for ref in (f"demo-plugin@{release}", "demo-core@v1.0.0"):
            name, _, version = ref.partition("@v")
            write(site, UPSTREAM[ref])
            info = f"{name.replace('-', '_')}-{version}.dist-info"
            rows = [f"{path},sha256=x,{len(text)}" for path, text in UPSTREAM[ref].items()]
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText.\n"
            record = "\n".join([*rows, f"{info}/METADATA,,", f"{info}/RECORD,,", ""])
            write(site, {f"{info}/METADATA": metadata, f"{info}/RECORD": record})
        return site

    def text(self, path: str) -> str:
        """A file of the site folder."""
        return (self.site / path).read_text()

    # -- commands

    def run(self, *args: str) -> Done:
        """``apply_all.py`` in this process, on this registry, exactly these arguments."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = apply_main.main(["--registry", str(self.registry), *args])
            except SystemExit as stop:
                code = int(stop.code or 0)
        return Done(code, out.getvalue(), err.getvalue())

    def apply(self, *args: str) -> Done:
        """``run`` with the first profile on the site folder."""
        return self.run("--profile", "v1.0.0", "--site", str(self.site), *args)

    def command(
        self, *args: str, python: str = sys.executable, env: Mapping[str, str] | None = None, flags: Sequence[str] = ()
    ) -> Done:
        """``python apply_all.py`` in a process of its own."""
        command = [python, *flags, str(APPLY_ALL), "--registry", str(self.registry), *args]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **(env or {})}, cwd=self.folder, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def verb(self, *args: str) -> Done:
        """A verb of ``fixpack`` in this process, on this registry and, unless told otherwise, the site folder."""
        where = [] if {"--site", "--root", "--source"} & set(args) or args[0] == "show" else ["--site", str(self.site)]
        out, err = io.TextIOWrapper(io.BytesIO(), write_through=True, newline=""), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli.main([*args, *where, "--registry", str(self.registry)])
            except SystemExit as stop:
                code = int(stop.code or 0)
        out.seek(0)
        return Done(code, out.read(), err.getvalue())

    def content(self) -> dict[str, tuple[str, int, tuple[int, int]] | str]:
        """The site folder's files by content, mode and owner, its folders by mode; not times and inodes."""
        return {
            path: (each.sha256, each.mode, each.owner) if isinstance(each, FileState) else each
            for path, each in state(self.site).items()
        }

    def states(self, *args: str) -> dict[str, str]:
        """What ``fixpack status`` says of each fix."""
        return {fix["id"]: fix["state"] for fix in self.verb("status", "--json", *args).json["fixes"]}

    def revise(self, fix: str, payload: str, text: str, history: str) -> None:
        """Make a second revision of a fix, with another payload, and lock it."""
        path = self.registry / "fixes" / f"{fix}.yaml"
        path.write_text(path.read_text().replace("revision: 1\n", "revision: 2\n", 1) + history)
        (self.registry / "patches" / fix / payload).write_text(text)
        self.lock()
