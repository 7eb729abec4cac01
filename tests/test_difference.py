"""Diffs: as the target has them or would get them, in a form that patch takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kit import DEFAULT, Kit, state

from fixpack.difference import unified


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def patched(folder: Path, text: str, *flags: str) -> None:
    subprocess.run(["patch", "-p1", "-s", "--fuzz=0", *flags], input=text.encode(), cwd=folder, check=True)


def package_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.py")}


@pytest.mark.parametrize("opt_in", [(), ("long-share",), ("long-share", "wide-log")])
def test_what_it_would_get_and_what_it_has_are_the_same(kit: Kit, opt_in: tuple[str, ...]) -> None:
    stock = kit.folder / "stock"
    shutil.copytree(kit.site, stock)
    before = state(kit.site)
    planned = kit.verb("diff", *(DEFAULT + opt_in if opt_in else ()))
    assert planned.code == 0
    assert planned.err.count("would be written by apply\n") == planned.out.count("\n+++ ")
    assert state(kit.site) == before
    kit.apply(*opt_in)
    had = kit.verb("diff")
    assert had.out == planned.out
    assert set(had.err.splitlines()) == {
        line.replace("would be written by apply", "in place") for line in planned.err.splitlines()
    }
    patched(stock, had.out)
    assert package_files(stock) == package_files(kit.site)
    patched(stock, had.out, "-R")
    assert (stock / "demo_plugin/runner.py").read_text().count("fixpack") == 0


def test_one_fix_of_several_is_the_step_to_it(kit: Kit) -> None:
    kit.apply("long-share")
    done = kit.verb("diff", "order-kept")
    other = kit.folder / "other"
    shutil.copytree(kit.site, other)
    patched(other, done.out, "-R")
    assert kit.verb("revert", "order-kept").code == 0
    assert package_files(other) == package_files(kit.site)


def test_what_a_fix_requires_is_no_part_of_its_diff(kit: Kit) -> None:
    done = kit.verb("diff", "order-kept", "--json")
    assert [file["path"] for file in done.json["files"]] == ["demo_plugin/batch.py", "demo_plugin/runner.py"]
    text = "".join(file["text"] for file in done.json["files"])
    assert "+        # fixpack begin order-kept" in text
    assert "+        # fixpack begin rows-counted" not in text


def test_a_foreign_layer_elsewhere_is_no_part_of_the_diff(kit: Kit) -> None:
    kit.apply()
    clean = kit.verb("diff").out
    path = kit.site / "demo_plugin/runner.py"
    path.write_text(path.read_text().replace("count = 0", "count = 1"))
    layered = kit.verb("diff")
    assert layered.code == 0
    assert [line for line in layered.out.splitlines() if line[:1] in "+-"] == [
        line for line in clean.splitlines() if line[:1] in "+-"
    ]


def test_what_is_not_the_pinned_file_has_no_diff(kit: Kit) -> None:
    path = kit.site / "demo_core/core.py"
    path.write_text(path.read_text() + "# more\n")
    done = kit.verb("diff")
    assert (done.code, done.codes[0], done.out) == (1, "base_sha_unknown", "")
    assert kit.verb("diff", "rows-counted").code == 0
    assert kit.verb("diff", "rows-count").codes == ["unknown_fix"]


def test_odd_bytes_and_ends() -> None:
    assert unified("a.py", b"same\n", b"same\n") == ""
    assert unified("a.py", None, b"x\n") == "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+x\n"
    assert unified("a.py", b"x", b"x\n") == (
        "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n"
    )
    odd = unified("a.py", b"a\x0cb\xff\xe2\x80\xa8c\r\n", b"")
    assert odd.encode("utf-8", "surrogateescape") == (
        b"--- a/a.py\n+++ b/a.py\n@@ -1 +0,0 @@\n-a\x0cb\xff\xe2\x80\xa8c\r\n"
    )
