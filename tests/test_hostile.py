"""Odd files in the target and odd files in the registry: each has a defined outcome."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from kit import CORE, PATCHES, REPO, Kit, sha, state

from fixpack import registry
from fixpack.errors import FixpackError, MismatchError, RegistryError

GUARD = PATCHES["core-guard/guard.py"].encode()
REGION = b"# fixpack begin core-guard r1: module-end\n" + GUARD + b"# fixpack end core-guard r1: module-end\n"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def pin(kit: Kit, data: bytes, path: str = "demo_core/core.py") -> None:
    """Make other bytes the pinned ones, in the invented upstream, the registry and the site folder."""
    for folder in (kit.trees / "demo-core@v1.0.0", kit.site):
        (folder / "demo_core/core.py").unlink()
        (folder / path).write_bytes(data)
    kit.edit("anchors/demo-core/v1.0.0.yaml", "demo_core/core.py", path)
    kit.edit("anchors/demo-core/v1.0.0.yaml", sha(CORE), sha(data))


#: bytes that a real upstream may hold, and that are not lines as an editor sees them
PINNED = {
    "empty": b"",
    "a form feed": b"def schedule(x):\n    return list(x)\n\f\nA = 1\n",
    "unicode line separators": "A = 'x\u2028y\u2029z\x85'\n\n\ndef schedule(x):\n    return list(x)\n".encode(),
    "control characters in a string": b"A = 'x\x0by\x1cz\x1d\x1e'\ndef schedule(x):\n    return list(x)\n",
    "a byte order mark": b"\xef\xbb\xbfdef schedule(x):\n    return list(x)\n",
    "latin-1": "# coding: latin-1\nA = 'ä'\n\n\ndef schedule(x):\n    return list(x)\n".encode("latin-1"),
    "CRLF": b"def schedule(x):\r\n    return list(x)\r\n",
    "mixed line ends": b"def schedule(x):\r\n    return list(x)\nA = 1\r\n",
    "tabs": b"def schedule(x):\n\treturn list(x)\n",
    "a line of a megabyte": b"def schedule(x):\n    return list(x)\nA = '" + b"x" * (1 << 20) + b"'\n",
    "half a marker": b"def schedule(x):\n    return list(x)\n# fixpack begin\nA = '# fixpack end'\n",
}


@pytest.mark.parametrize("case", PINNED)
def test_a_pinned_file_of_any_bytes(kit: Kit, case: str) -> None:
    """Fixed exactly as specified, confirmed, and taken back to the very bytes."""
    data = PINNED[case]
    if not data:
        kit.edit("patches/core-guard/guard.py", "assert schedule([1]) == [1]", "assert True")
    pin(kit, data)
    kit.lock()
    before = kit.content()
    done = kit.apply()
    assert (done.code, done.err) == (0, "")
    region = REGION if data else REGION.replace(GUARD, b"assert True\n")
    assert (kit.site / "demo_core/core.py").read_bytes() == data + region
    assert ": confirmed: " in kit.apply().out
    assert kit.states()["core-guard"] == "applied"
    assert kit.verb("diff", "core-guard").code == 0
    assert kit.verb("revert").code == 0
    assert kit.content() == before


@pytest.mark.parametrize(
    ("case", "data", "code"),
    [
        ("no final newline", CORE.encode()[:-1], "anchor_at_end"),
        ("a NUL", CORE.encode() + b"A = '\0'\n", "syntax_error"),
        ("not Python", CORE.encode() + b"def (:\n", "syntax_error"),
        ("an unknown encoding", b"# coding: no-such\n" + CORE.encode(), "syntax_error"),
        ("wrong bytes for its encoding", CORE.encode() + b"A = '\xff'\n", "syntax_error"),
    ],
)
def test_a_pinned_file_that_cannot_be_fixed_gets_no_lock(kit: Kit, case: str, data: bytes, code: str) -> None:
    pin(kit, data)
    with pytest.raises(MismatchError) as caught:
        kit.lock()
    assert code in [problem.code for problem in caught.value.problems], case


@pytest.mark.parametrize("mode", [0o444, 0o400, 0o754, 0o4755, 0o2664, 0o1777])
def test_modes_survive_apply_and_revert(kit: Kit, mode: int) -> None:
    path = kit.site / "demo_core/core.py"
    path.chmod(mode)
    if not os.geteuid():
        os.chown(path, 1234, 4321)
        path.chmod(mode)  # a change of owner drops setuid
    before = kit.content()
    assert kit.apply().code == 0
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == mode
    assert kit.verb("revert").code == 0
    assert kit.content() == before


def test_a_file_name_that_leaves_no_room_for_a_temporary_one(kit: Kit) -> None:
    name = "demo_core/" + "c" * 247 + ".py"
    pin(kit, CORE.encode(), name)
    kit.lock()
    before = kit.content()
    assert kit.apply().code == 0
    assert (kit.site / name).read_bytes() == CORE.encode() + REGION
    assert kit.verb("revert").code == 0
    assert kit.content() == before


def test_a_deep_folder(kit: Kit) -> None:
    """Close to the longest path that the system takes: fixed, or refused with nothing changed."""
    deep = kit.folder
    while len(str(deep)) < 3900:
        deep /= "d" * 120
    deep.mkdir(parents=True)
    site = kit.fresh_site(folder=deep / "site")
    before = kit.content()
    done = kit.run("--profile", "v1.0.0", "--site", str(site))
    assert done.code == 0, done.err
    kit.site = site
    assert kit.verb("revert").code == 0
    assert kit.content() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_package_folder_on_another_mount(kit: Kit) -> None:
    """Temporary files lie beside their targets, so no rename crosses a file system."""
    place = kit.site / "demo_core"
    away = kit.folder / "away"
    place.rename(away)
    place.mkdir()
    run = f"{sys.executable} -m fixpack %s --site {kit.site} --registry {kit.registry}"
    script = f"mount -t tmpfs tmpfs {place} && cp {away}/*.py {place} || exit 77\n"
    for verb in ("apply --profile v1.0.0", "verify", "status", "revert", "status", "apply --profile v1.0.0"):
        script += f"{run % verb} || exit 78\n"
    script += f"cp -r {place} {kit.folder}/result"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, cwd=REPO)
    if done.returncode in (1, 77) and "fixpack" not in done.stdout + done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert done.returncode == 0, done.stderr
    assert (kit.folder / "result/core.py").read_bytes() == CORE.encode() + REGION


# -- the registry -----------------------------------------------------------------------------------------------------

BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("case", "path", "data"),
    [
        ("a YAML bomb", "fixes/core-guard.yaml", BOMB.encode()),
        ("a tag", "fixes/core-guard.yaml", b"id: !!python/object/apply:os.system ['true']\n"),
        ("NUL", "fixes/core-guard.yaml", b"id: core\0guard\n"),
        ("not UTF-8", "fixes/core-guard.yaml", b"id: \xff\n"),
        ("UTF-16", "fixes/core-guard.yaml", "id: core-guard\n".encode("utf-16")),
        ("a tab", "fixes/core-guard.yaml", b"id:\tcore-guard\n\tx: 1\n"),
        ("two documents", "fixes/core-guard.yaml", b"id: core-guard\n---\nid: core-guard\n"),
        ("a megabyte", "fixes/core-guard.yaml", b"# " + b"x" * (1 << 20) + b"\n"),
        ("a name that looks alike", "fixes/c\u043ere-guard.yaml", "id: c\u043ere-guard\n".encode()),
        ("a full-width name", "fixes/\uff43ore-guard.yaml", "id: \uff43ore-guard\n".encode()),
        ("a name in capitals", "fixes/Core-guard.yaml", b"id: Core-guard\n"),
        ("a release with a slash", "anchors/demo-core/v1.1.0.yaml", b"release: ../../etc\n"),
        ("a payload with a carriage return", "patches/core-guard/guard.py", b"x = 1\r\n"),
        ("a payload with a NUL", "patches/core-guard/guard.py", b"x = '\0'\n"),
        ("a payload with a marker", "patches/core-guard/guard.py", REGION),
    ],
)
def test_a_hostile_registry_is_refused_by_the_loader_and_by_the_lock(
    kit: Kit, case: str, path: str, data: bytes
) -> None:
    (kit.registry / path).write_bytes(data)
    with pytest.raises(RegistryError):
        registry.load(str(kit.registry))
    before = state(kit.site)
    done = kit.apply()  # an apply reads the lock, which knows every byte of what it uses
    uses = path in ("fixes/core-guard.yaml", "patches/core-guard/guard.py")
    assert done.code == (2 if uses else 0), (case, done.err)
    assert not uses or (done.codes == ["lock_stale"] and state(kit.site) == before)
    assert kit.verb("status").code == 2
    assert kit.verb("revert").code == 2


@pytest.mark.parametrize(
    "path", ["../x.py", "demo_core/../../x.py", "/etc/x.py", "demo_core//x.py", "demo_core/./x.py"]
)
def test_a_path_that_climbs_out_is_refused(kit: Kit, path: str) -> None:
    kit.edit("fixes/rows-counted.yaml", "demo_plugin/_fixpack/rows.py", path)
    with pytest.raises(FixpackError):
        kit.lock()


# -- any file, any edits ----------------------------------------------------------------------------------------------

#: statements of a function, most of them valid; each is one or more lines
STATEMENTS: list[list[bytes]] = [
    *(
        [b"    first = rows[0]"],
        [b"    count = len(rows)"],
        [b""],
        [b"    x = 'a\x0cb'"],
        [b"\x0c"],
        [b"    # fixpack"],
    ),
    *(
        [b"    y = 1\r"],
        ["    z = '\u00e4\u2028'".encode()],
        [b"    if rows:", b"        w = 2"],
        [b"    v = (", b"    )"],
    ),
    *([b"    mark = 1"], [b"    anchor = 10"], [b"    def schedule():", b"        anchor = 2"], [b"# at the margin"]),
    *(
        [b"    t = [0, 1,", b"         2]"],
        [b"    pass  # anchor = 1"],
        [b"    u = '''", b"text at the margin", b"'''"],
    ),
]
LINES = st.lists(st.sampled_from(STATEMENTS), max_size=6).map(lambda found: [line for each in found for line in each])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=LINES, after=LINES, opt_in=st.sets(st.sampled_from(["long-share", "wide-log"])), data=st.data())
def test_whatever_is_accepted_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[bytes],
    after: list[bytes],
    opt_in: set[str],
    data: st.DataObject,
) -> None:
    """A generated upstream file: no lock; or an apply that is exactly what the edits say, and an exact revert."""
    kit = Kit(tmp_path_factory.mktemp("world"))
    base = b"\n".join(
        [b"def schedule(rows):", b"    mark = 0", *before, b"    anchor = 1", *after, b"    return rows", b""]
    )
    pin(kit, base)
    anchors = kit.registry / "anchors/demo-core/v1.0.0.yaml"
    text = "the-mark: {within: schedule, text: mark = 0}\n      the-anchor: {within: schedule, text: anchor = 1}\n"
    anchors.write_text(anchors.read_text().replace("module-end: {}\n", text))
    kit.edit(
        "fixes/core-guard.yaml",
        "    - {anchor: module-end, op: append, code: guard.py}\n",
        "    - {anchor: the-mark, op: insert-after, code: guard.py}\n"
        "    - {anchor: the-anchor, op: replace, code: guard.py}\n",
    )
    (kit.registry / "patches/core-guard/guard.py").write_text("kept = rows\n")
    try:
        kit.lock()
    except MismatchError:
        event("no lock")
        return  # not valid Python, or an anchor outside of what counts as the scope
    names = [
        name for name in ("long-share", "wide-log") if name in opt_in and (name != "wide-log" or "long-share" in opt_in)
    ]
    event("locked")
    stock = kit.content()
    assert kit.apply(*names).code == 0

    def region(anchor: bytes) -> list[bytes]:
        lines = (b"# fixpack begin core-guard r1: " + anchor, b"kept = rows", b"# fixpack end core-guard r1: " + anchor)
        return [b"    " + line for line in lines]

    expected = [b"def schedule(rows):", b"    mark = 0", *region(b"the-mark"), *before, *region(b"the-anchor"), *after]
    assert (kit.site / "demo_core/core.py").read_bytes() == b"\n".join([*expected, b"    return rows", b""])
    fixed = state(kit.site)
    assert kit.apply(*names).code == 0
    assert state(kit.site) == fixed
    found = (kit.site / "demo_core/core.py").read_bytes()
    at = data.draw(st.integers(0, len(found) - 1))
    flipped = found[:at] + bytes([found[at] ^ 1]) + found[at + 1 :]
    (kit.site / "demo_core/core.py").write_bytes(flipped)
    assert kit.apply("--strict", *names).code == 1
    (kit.site / "demo_core/core.py").write_bytes(found)
    assert kit.verb("revert").code == 0
    assert kit.content() == stock
