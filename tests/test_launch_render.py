"""``fixpack launch render``: three files that shell, compose and Kubernetes read as meant, whatever the names hold."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit import REPO, Done

from fixpack import cli, registry

REGISTRY = registry.load(str(REPO))
PRO = "XiaomiMiMo/MiMo-V2.6-Pro-RL"
HOSTILE = [
    PRO,
    "/models/it's $(touch x) `id` ${HOME} $HOME $$ MiMo-V2.6-Pro",
    '/models/"quoted" \\ back\\slash MiMo-V2.6-Pro',
    "/models/new\nline\t#comment: {a: [b]} MiMo-V2.6-Pro",
    "/models/{{ 7 * 7 }} {% raw %} MiMo-V2.6-Pro",
    "/models/ü 漢 \U0001f600 \u2028 \x85 \x7f \x1b[31m MiMo-V2.6-Pro",
    "/models/*?[a-z]~!&|;<>()%^ MiMo-V2.6-Pro",
]


def fixpack(*args: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(list(args))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def render(folder: Path, *args: str, profile: str = "gaudi2-v0.26.0", model: str = PRO) -> Done:
    return fixpack("launch", "render", "--profile", profile, "--model", model, "-o", str(folder), *args)


Command = tuple[list[str], dict[str, str]]


def of_shell(folder: Path) -> Command:
    """Run the script with a `python3` that prints what it gets."""
    script = folder / "serve.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    stand_in = folder / "bin" / "python3"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([['python3', *sys.argv[1:]], dict(os.environ)]))\n"
    )
    stand_in.chmod(0o755)
    env = {"PATH": f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}", "HOME": "/nowhere"}
    done = subprocess.run([str(script)], env=env, capture_output=True, text=True, check=True, cwd=folder)
    words, variables = json.loads(done.stdout)
    return words, {
        name: value
        for name, value in variables.items()
        if name not in ("PATH", "HOME", "PWD", "SHLVL", "_", "LC_CTYPE")
    }


def of_compose(folder: Path) -> tuple[Command, dict[str, Any]]:
    document = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    (service,) = document["services"].values()

    def plain(text: str) -> str:
        assert not re.search(r"(?<!\$)\$(\$\$)*(?!\$)", text), text  # compose would look for a variable
        return text.replace("$$", "$")

    words = [plain(each) for each in service["entrypoint"]]
    return (words, {name: plain(value) for name, value in service["environment"].items()}), service


def of_kubernetes(folder: Path) -> tuple[Command, dict[str, Any]]:
    deployment, service = yaml.safe_load_all((folder / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    pod = deployment["spec"]["template"]["spec"]
    (server,) = pod["containers"]

    def plain(text: str) -> str:
        return re.sub(r"\$(.)", lambda found: "$" if found[1] == "$" else found[0], text)

    words = [plain(each) for each in server["command"]]
    return (words, {each["name"]: plain(each["value"]) for each in server["env"]}), pod


def commands(folder: Path) -> list[Command]:
    return [of_shell(folder), of_compose(folder)[0], of_kubernetes(folder)[0]]


@pytest.mark.parametrize("model", HOSTILE)
def test_every_file_starts_the_same_command_whatever_the_model_is_called(model: str, tmp_path: Path) -> None:
    done = render(
        tmp_path, "--model-dir", "/models/it's $x", "--env", "GREETING=a $b 'c' \"d\"\n\U0001f600", model=model
    )
    assert done.code == 0, done.err
    found = commands(tmp_path)
    for words, variables in found:
        at = words.index("--")
        assert words[:at] == ["python3", "-m", "fixpack", "launch", "exec", "--profile", "gaudi2-v0.26.0"]
        assert words[at + 1 : at + 4] == ["vllm", "serve", model]
        assert words == found[0][0]
        assert variables["GREETING"] == "a $b 'c' \"d\"\n\U0001f600"
        assert variables["PYTHONPATH"] == "/opt/fixpack"
        assert variables["MIMO_GA_TILE"] == "1"


@pytest.mark.parametrize("profile", [each.name for each in REGISTRY.profiles.values() if each.launch])
def test_what_is_written_passes_the_check(profile: str, tmp_path: Path) -> None:
    done = render(tmp_path, profile=profile)
    assert done.code == 0, done.err
    assert "the command is as the rules want it" in done.out
    for words, variables in commands(tmp_path):
        file = tmp_path / "serve.env"
        file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        server = words[words.index("--") + 1 :]
        checked = fixpack("launch", "check", "--strict", "--profile", profile, "--env-file", str(file), "--", *server)
        assert checked.code == 0, checked.out
        assert "the command is as the rules want it" in checked.out


def test_what_the_machines_need(tmp_path: Path) -> None:
    assert render(tmp_path / "gaudi", "--model-dir", "/models").code == 0
    assert render(tmp_path / "gb300", profile="gb300").code == 0
    (_, variables), gaudi = of_compose(tmp_path / "gaudi")
    assert (gaudi["runtime"], gaudi["cap_add"], variables["HABANA_VISIBLE_DEVICES"]) == ("habana", ["SYS_NICE"], "all")
    assert gaudi["volumes"] == [
        {"type": "bind", "source": "/models", "target": "/models", "read_only": True},
        {
            "type": "bind",
            "source": "/var/cache/hpu-recipes",
            "target": "/var/cache/hpu-recipes",
            "bind": {"create_host_path": True},
        },
    ]
    assert "deploy" not in gaudi
    assert "ulimits" not in gaudi
    gb300 = of_compose(tmp_path / "gb300")[1]
    assert gb300["ulimits"] == {"memlock": {"soft": -1, "hard": -1}}
    assert gb300["cap_add"] == ["IPC_LOCK"]
    (device,) = gb300["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    pod = of_kubernetes(tmp_path / "gaudi")[1]
    assert pod["containers"][0]["resources"] == {"limits": {"habana.ai/gaudi": 8}}
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in pod["containers"][0]["volumeMounts"]}
    (verify,) = pod["initContainers"]
    assert verify["image"] == pod["containers"][0]["image"] == "vllm-fixed:gaudi2-v0.26.0"
    assert verify["command"] == ["python3", "/opt/fixpack/apply_all.py", "--profile", "gaudi2-v0.26.0", "--check"]
    assert of_kubernetes(tmp_path / "gb300")[1]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def folders(folder: Path) -> list[tuple[str, bool]]:
    """What the container sees of the host, with whether it is read-only; the same from both files."""
    volumes = of_compose(folder)[1].get("volumes", [])
    assert all(each["source"] == each["target"] for each in volumes)
    found = [(each["source"].replace("$$", "$"), each.get("read_only", False)) for each in volumes]
    pod = of_kubernetes(folder)[1]
    hosts = {each["name"]: each["hostPath"] for each in pod["volumes"] if "hostPath" in each}
    seen = []
    for each in pod["containers"][0]["volumeMounts"]:
        if each["name"] in hosts:
            host = hosts[each["name"]]
            only_read = each.get("readOnly", False)
            assert host["path"] == each["mountPath"]
            assert host["type"] == ("Directory" if only_read else "DirectoryOrCreate")
            seen.append((host["path"].replace("$$", "$"), only_read))
    assert seen == found
    return found


@pytest.mark.parametrize(
    ("args", "seen"),
    [
        ([], [("/var/lib/hotsplit", True)]),
        (["--env", "HOTSPLIT_COUNTS=/data/it's $x/c.json"], [("/data/it's $x", True)]),
        (["--env", "HOTSPLIT_LIVE_COUNTS=/live/l.json"], [("/var/lib/hotsplit", True), ("/live", False)]),
        (["--env", "HOTSPLIT_LIVE_COUNTS=/var/lib/hotsplit/l.json"], [("/var/lib/hotsplit", False)]),
        (["--model-dir", "/m", "--env", "HOTSPLIT_COUNTS=/m/c.json"], [("/m", True)]),
    ],
)
def test_folders_that_the_variables_name(args: list[str], seen: list[tuple[str, bool]], tmp_path: Path) -> None:
    done = render(tmp_path, "--fix", "hotsplit", *args, profile="gb300")
    assert done.code == 0, done.err
    assert folders(tmp_path) == seen


@pytest.mark.parametrize("path", ["counts.json", "/counts.json", "/a:b/counts.json"])
def test_folders_that_cannot_be_mounted(path: str, tmp_path: Path) -> None:
    done = render(tmp_path / "out", "--fix", "hotsplit", "--env", f"HOTSPLIT_COUNTS={path}", profile="gb300")
    assert (done.code, done.codes) == (2, ["bad_usage"])
    assert "its folder cannot be mounted" in done.err
    assert not (tmp_path / "out").exists()


def test_own_choices_stay_and_opt_in_fixes_are_verified(tmp_path: Path) -> None:
    options = ["--fix", "mimo-swa-window", "--port", "9000", "--name", "mimo", "--image", "reg/x:1", "--as", "mimo-pro"]
    extra = ["--env", "VLLM_MOE_CHUNK=64", "--", "--max-model-len", "128k", "--served-model-name", "one", "two"]
    done = render(tmp_path, *options, *extra, model="/data/checkpoint")
    assert done.code == 0, done.err
    assert "VLLM_MOE_CHUNK is '64'; it should be 256" in done.out
    for words, variables in commands(tmp_path):
        launcher, server = words[: words.index("--")], words[words.index("--") + 1 :]
        assert launcher[7:] == ["--fix", "mimo-swa-window", "--model", "mimo-pro"]
        assert server[2:12] == [
            *("/data/checkpoint", "--host", "0.0.0.0", "--port", "9000"),
            *("--max-model-len", "128k", "--served-model-name", "one", "two"),
        ]
        assert server.count("--max-model-len") == 1
        assert variables["VLLM_MOE_CHUNK"] == "64"
    pod = of_kubernetes(tmp_path)[1]
    assert pod["initContainers"][0]["command"][-1] == "mimo-swa-window"
    assert of_compose(tmp_path)[1]["image"] == "reg/x:1"
    assert list(yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]) == ["mimo"]


@pytest.mark.parametrize(
    ("args", "model", "message"),
    [
        ([], "--trust-remote-code", "begins with a dash"),
        ([], "", "no name that can stand"),
        ([], "A=b", "no name that can stand"),
        ([], "bad \udcff name", "is not UTF-8"),
        (["--name", "Bad Name"], PRO, "is not one of a service"),
        (["--name", "x\n  evil: y"], PRO, "is not one of a service"),
        (["--port", "80"], PRO, "is not between 1024 and 65535"),
        (["--fixpack-dir", "relative"], PRO, "no absolute path"),
        (["--model-dir", "/a:/b"], PRO, "no absolute path"),
        (["--env", "A B=1"], PRO, "--env needs NAME=VALUE"),
        (["--env", "A=1", "--env", "A=2"], PRO, "--env needs NAME=VALUE"),
        (["--env", "PYTHONPATH=/x"], PRO, "PYTHONPATH is the files' own"),
        (["--env", "PYTHONHOME=/x"], PRO, "PYTHONHOME changes where Python takes packages from"),
        (["--env", "PYTHONSAFEPATH=1"], PRO, "PYTHONSAFEPATH changes where Python takes packages from"),
        (["--", "--port", "9999"], PRO, "--port behind -- is the files' own"),
        (["--", "--port=9999"], PRO, "next: write render's own option --port in front of the --"),
        (["--", "--host", "127.0.0.1"], PRO, "--host behind -- is the files' own"),
        (["--", "--uds", "/tmp/s"], PRO, "--uds behind -- is the files' own"),
        (["--", "--config", "a.yaml", "--port", "9999"], PRO, "--port behind -- is the files' own"),
        (["--fix", "no-such-fix"], PRO, "there is no fix 'no-such-fix'"),
        (["--as", "mimo-max"], PRO, "the rules name no model 'mimo-max'"),
    ],
)
def test_wrong_usage(args: list[str], model: str, message: str, tmp_path: Path) -> None:
    done = fixpack(
        "launch", "render", "--profile", "gaudi2-v0.26.0", f"--model={model}", "-o", str(tmp_path / "o"), *args
    )
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "o").exists()


def test_nothing_is_written_that_breaks_a_rule(tmp_path: Path) -> None:
    done = render(tmp_path / "out", "--", "--max-model-len", "1M", "--speculative-config.method", "mtp", "--no-such")
    assert (done.code, done.codes) == (1, ["rule_broken"] * 3)
    assert "[context-pro]" in done.err
    assert "[window-kv-no-speculation]" in done.err
    assert "[unknown-option]" in done.err
    assert not (tmp_path / "out").exists()


def test_a_model_that_the_rules_do_not_know_is_named_with_as(tmp_path: Path) -> None:
    done = render(tmp_path, model="/data/checkpoint")
    assert done.code == 0, done.err
    assert "next: if it is one of them, say so with --as\n" in done.out
    assert "--model\n" not in done.out


def test_files_of_others_stay(tmp_path: Path) -> None:
    assert render(tmp_path).code == 0
    before = {name: (tmp_path / name).read_bytes() for name in ("serve.sh", "compose.yaml", "kubernetes.yaml")}
    assert (tmp_path / "serve.sh").stat().st_mode & 0o777 == 0o755
    assert render(tmp_path).code == 0  # its own are written again, the same
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    done = render(tmp_path, "--port", "9000")
    assert (done.code, done.codes) == (1, ["file_exists"])
    assert (tmp_path / "compose.yaml").read_text() == "services: {}\n"
    assert (tmp_path / "serve.sh").read_bytes() == before["serve.sh"]
    (tmp_path / "compose.yaml").unlink()
    (tmp_path / "compose.yaml").symlink_to(tmp_path / "serve.sh")
    assert render(tmp_path).codes == ["file_exists"]


def test_the_example_of_the_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPO / "docs/launch.md").read_text(encoding="utf-8")
    blocks = [[line.strip() for line in each.splitlines()] for each in re.findall(r"(?m)(?:^    .*\n)+", page)]
    (command,) = next(each for each in blocks if each[0].startswith("fixpack launch check"))
    finding = next(each for each in blocks if each[0].startswith("error: "))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.env").write_text("")
    told = [line.strip() for line in fixpack(*command.split()[1:]).out.splitlines()]
    assert told[told.index(finding[0]) :][:3] == finding


def test_without_jinja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = render(tmp_path / "out")
    assert (done.code, done.codes) == (2, ["missing_library"])
    assert "pip install Jinja2" in done.err
    assert not (tmp_path / "out").exists()
    right = fixpack("launch", "check", "--profile", "gaudi2-v0.26.0", "--", "vllm", "serve", "m")
    assert right.code == 0  # only render needs it
