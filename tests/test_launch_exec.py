"""``fixpack launch exec`` starts only what imports as this Python does: nothing else was verified."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit import REPO, Done, write
from test_launch import MODE, RIGHT, LaunchKit

from fixpack import launch_exec, serve_line
from fixpack.errors import MismatchError

MODULE = ["-m", "vllm.entrypoints.openai.api_server", "--model", "org/small-model", "-tp", "2"]
ENTRY = "import json, os, sys, vllm\nprint(json.dumps([vllm.__file__, sys.argv, dict(os.environ)]))\n"


@pytest.fixture
def kit(tmp_path: Path) -> LaunchKit:
    """With a server that says which vLLM it imports, and another vLLM in ``stock``."""
    made = LaunchKit(tmp_path)
    for folder in (made.site, made.folder / "stock"):
        write(
            folder,
            {
                "vllm/__init__.py": "",
                "vllm/entrypoints/__init__.py": "",
                "vllm/entrypoints/openai/__init__.py": "",
                "vllm/entrypoints/openai/api_server.py": ENTRY,
            },
        )
    write(made.bin, {"vllm": f"#!{sys.executable}\n{ENTRY}"})
    assert made.apply().code == 0
    return made


def start(kit: LaunchKit, *args: str, env: dict[str, str] | None = None) -> Done:
    path = f"{REPO}{os.pathsep}{kit.site}"
    return kit.launch("exec", *args, env={"PYTHONPATH": path, **MODE, **(env or {})}, site=False)


def verified(kit: LaunchKit, done: Done) -> bool:
    """Whether it started, with the vLLM that was verified."""
    return bool(done.code == 0 and json.loads(done.out)[0] == str(kit.site / "vllm/__init__.py"))


def test_both_commands_start_what_was_verified(kit: LaunchKit) -> None:
    for command in (RIGHT, ["python", *MODULE], [sys.executable, "-uP", *MODULE], ["env", "OWN=1", *RIGHT]):
        done = start(kit, "--", *command, env={"PATH": f"{kit.bin}{os.pathsep}{os.path.dirname(sys.executable)}"})
        assert verified(kit, done), done.err
    same = f"PYTHONPATH={kit.site}"  # what is left of this process's own without the engine
    assert verified(kit, start(kit, "--", "env", same, *RIGHT))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTHONPATH", "{stock}"),
        ("PYTHONPATH", "{stock}:{site}"),
        ("PYTHONPATH", ""),
        ("PYTHONHOME", "/usr"),
        ("PYTHONNOUSERSITE", "1"),
        ("PYTHONUSERBASE", "{stock}"),
        ("PYTHONSAFEPATH", "1"),
        ("PYTHONPYCACHEPREFIX", "{stock}"),
    ],
)
def test_variables_that_change_what_is_imported(name: str, value: str, kit: LaunchKit) -> None:
    value = value.format(stock=kit.folder / "stock", site=kit.site)
    write(kit.folder, {"serve.env": f"{name}={value}\n"})
    for args in (
        ["--", "env", f"{name}={value}", *RIGHT],
        ["--", f"{name}={value}", sys.executable, *MODULE],
        ["--env-file", str(kit.folder / "serve.env"), "--", *RIGHT],
    ):
        done = start(kit, *args)
        assert (done.code, done.codes, done.out) == (1, ["other_imports"], "")
        assert f"{name} is another one for the server" in done.err
        assert "--site DIR" in done.err


@pytest.mark.parametrize("name", ["vllm/x.py", "vllm_gaudi/__init__.py", "vllm.py", "vllm_gaudi.so"])
def test_a_package_in_the_working_folder(name: str, kit: LaunchKit) -> None:
    write(kit.folder, {name: ""})
    done = start(kit, "--", sys.executable, *MODULE)
    assert (done.code, done.codes, done.out) == (1, ["other_imports"], "")
    assert f"{name.partition('/')[0]} would be imported from {kit.folder} before" in done.err
    assert verified(kit, start(kit, "--", *RIGHT))  # a script searches its own folder
    assert verified(kit, start(kit, "--", sys.executable, "-P", *MODULE)) or sys.version_info < (3, 11)


def test_a_package_beside_the_script(kit: LaunchKit) -> None:
    write(kit.bin, {"vllm_gaudi/__init__.py": ""})
    (kit.folder / "other").mkdir()
    (kit.folder / "other/vllm").symlink_to(kit.bin / "vllm")
    for program in ("vllm", str(kit.folder / "other/vllm")):
        done = start(kit, "--", program, *RIGHT[1:])
        assert (done.code, done.codes, done.out) == (1, ["other_imports"], "")
        assert f"vllm_gaudi would be imported from {kit.bin} before" in done.err


def test_the_interpreter_is_searched_with_the_commands_own_path(kit: LaunchKit) -> None:
    write(kit.folder / "decoy", {"python3": "#!/bin/sh\necho decoy\n"})
    (kit.folder / "decoy/python3").chmod(0o755)
    write(kit.bin, {"vllm": f"#!/usr/bin/env python3\n{ENTRY}"})
    (kit.bin / "vllm").chmod(0o755)
    ours = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    script = str(kit.bin / "vllm")
    assert verified(kit, start(kit, "--", script, *RIGHT[1:], env={"PATH": ours}))
    decoy = f"PATH={kit.folder / 'decoy'}:{ours}"
    write(kit.folder, {"serve.env": f"{decoy}\n"})
    for args in (
        ["--", "env", decoy, script, *RIGHT[1:]],
        ["--env-file", str(kit.folder / "serve.env"), "--", script, *RIGHT[1:]],
    ):
        done = start(kit, *args, env={"PATH": ours})
        assert (done.code, done.codes, done.out) == (1, ["other_python"], "")
        assert str(kit.folder / "decoy/python3") in done.err


@pytest.mark.parametrize("flag", ["-I", "-E", "-s", "-S", "-uE", "-IB"])
def test_pythons_own_options(flag: str, kit: LaunchKit) -> None:
    done = start(kit, "--", sys.executable, flag, *MODULE)
    assert (done.code, done.codes, done.out) == (1, ["other_imports"], "")
    assert f"the option {flag}" in done.err
    write(kit.bin, {"vllm": f"#!{sys.executable} {flag}\n{ENTRY}"})
    done = start(kit, "--", *RIGHT)
    assert (done.code, done.codes, done.out) == (1, ["other_imports"], "")
    assert f"{kit.bin / 'vllm'} gives Python the option {flag}" in done.err


@pytest.mark.parametrize(("flag", "name"), [("-E", "ignore_environment"), ("-S", "no_site"), ("-s", "no_user_site")])
def test_an_option_of_this_python(flag: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    write(tmp_path, {"vllm": f"#!{sys.executable}\n"})
    flags = {"ignore_environment": 0, "no_site": 0, "no_user_site": 0}
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**flags))
    launch_exec.same_python(str(tmp_path / "vllm"), serve_line.split(RIGHT), os.environ)
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**{**flags, name: 1}))
    with pytest.raises(MismatchError, match=f"fixpack itself runs with python {flag}"):
        launch_exec.same_python(str(tmp_path / "vllm"), serve_line.split(RIGHT), os.environ)
