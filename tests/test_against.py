"""Anchors held against other trees: a commit that no release pins, from a real repository; a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kit import UPSTREAM, Kit, write

from fixpack import cli, registry
from fixpack.model import Release

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    monkeypatch.setenv("FIXPACK_SOURCES", str(tmp_path / "cache"))
    return Kit(tmp_path / "kit")


def commit(folder: Path) -> str:
    """Make a repository of a folder's files; out: the commit's id."""
    who = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(folder), *command], env={**os.environ, **who}, check=True)
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def lint(kit: Kit, *args: str) -> int:
    return cli.main(["lint", *args, "--registry", str(kit.registry)])


def test_a_commit_that_holds_all_anchors(kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines elsewhere are others; the anchors are where they were."""
    write(tmp_path / "clone", UPSTREAM["demo-plugin@v2.0.0"])
    write(tmp_path / "clone", {"demo_plugin/new.py": "x = 1\n"})
    name = f"demo-plugin@{commit(tmp_path / 'clone')}"
    fetch = ["sources", "fetch", name, "--from", str(tmp_path / "clone"), "--registry", str(kit.registry)]
    assert cli.main(fetch) == 0
    capsys.readouterr()
    assert lint(kit, "--against", name) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{name}:",
        "demo-plugin@v2.0.0: 6 of 6 anchors hold, 2 of 2 files are the same",
        "  all that they need: long-share, order-kept, rows-counted, wide-log",
        "demo-plugin@v1.0.0: 6 of 6 anchors hold, 1 of 2 files are the same",
        "  all that they need: long-share, order-kept, rows-counted, wide-log",
    ]


def test_a_folder_with_other_lines(kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = dict(UPSTREAM["demo-plugin@v1.0.0"])
    files["demo_plugin/runner.py"] = files["demo_plugin/runner.py"].replace("len(rows) - 1", "len(rows) - 2")
    del files["demo_plugin/batch.py"]
    write(tmp_path / "tree", files)
    assert lint(kit, "--against", f"demo-plugin={tmp_path / 'tree'}") == 1
    lines = capsys.readouterr().out.splitlines()
    where = "anchors/demo-plugin/v1.0.0.yaml"
    assert lines[:8] == [
        f"demo-plugin={tmp_path / 'tree'}:",
        "demo-plugin@v1.0.0: 3 of 6 anchors hold, 0 of 2 files are the same",
        "  ! demo_plugin/runner.py: anchor 'step-count' is not there in Runner.step "
        f"(the anchor is {where}:15)",
        f"  ! demo_plugin/batch.py: anchor 'batch-stale': the file is not there (the anchor is {where}:30)",
        f"  ! demo_plugin/batch.py: anchor 'batch-swap': the file is not there (the anchor is {where}:33)",
        "  not for order-kept: batch-stale",
        "  not for rows-counted: step-count",
        "  not for wide-log: batch-swap",
    ]
    assert lines[8] == "  all that they need: long-share"
    assert lines[-1] == "an apply goes by bytes: this tree needs an anchors file of its own, with its own sha256"
    assert lint(kit, "--against", f"demo-plugin={tmp_path / 'tree'}", "--json") == 1
    told = json.loads(capsys.readouterr().out)["releases"][0]
    assert (told["release"], told["whole"]) == ("demo-plugin@v1.0.0", ["long-share"])
    assert told["broken"]["rows-counted"] == ["step-count"]


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("demo-plugin=nowhere", 2, "nowhere holds no folder demo_plugin/"),
        ("demo-plug=.", 2, "did you mean 'demo-plugin'?"),
        (f"demo-plugin@{'d' * 40}", 1, "fixpack sources fetch demo-plugin@" + "d" * 40),
        ("demo-plugin@v9", 2, "no pinned release 'demo-plugin@v9'"),
        ("demo-core@v1.0.0", 1, "is not in the cache"),
    ],
)
def test_nothing_to_hold_against(
    kit: Kit, name: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lint(kit, "--against", name) == code
    assert told in capsys.readouterr().err


def test_a_later_commit_of_a_real_release(
    real_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fixed files of a pinned vLLM as a nightly would have them: one line else, in a repository of their own."""
    loaded = registry.load(str(REPO))
    release: Release = loaded.releases["vllm@v0.31.0"]
    tree = real_cache / "trees" / release.ref
    if not tree.is_dir():
        pytest.skip(f"source missing: fixpack sources fetch {release.ref}")
    monkeypatch.setenv("FIXPACK_SOURCES", str(tmp_path / "cache"))
    clone = tmp_path / "clone"
    for path in release.files:
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / path, clone / path)
    moved = clone / "vllm/model_executor/offloader/uva.py"
    moved.write_text(moved.read_text().replace("if self.pin_memory:", "if self.pin_memory and True:"))
    name = f"vllm@{commit(clone)}"
    assert cli.main(["sources", "fetch", name, "--from", str(clone)]) == 0
    capsys.readouterr()
    assert cli.main(["lint", "--against", name]) == 1
    out = capsys.readouterr().out
    part = out[out.index("vllm@v0.31.0:") :].split("\nvllm@")[0]
    anchors = sum(len(file.anchors) for file in release.files.values())
    files = len(release.files)
    assert part.startswith(
        f"vllm@v0.31.0: {anchors - 1} of {anchors} anchors hold, {files - 1} of {files} files are the same\n"
        "  ! vllm/model_executor/offloader/uva.py: anchor 'offload-pins' is not there in "
        "UVAOffloader._maybe_offload_to_cpu "
    )
    assert "  not for exact-pin: offload-pins\n" in part
