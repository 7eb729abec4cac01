"""``fixpack launch check`` and ``exec`` on the invented world: environments, exit codes, and what is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from kit import REPO, Done, Kit, write

from fixpack import envfile, launch_exec, lock, registry, serve_line
from fixpack.errors import MismatchError, RegistryError, UsageError

RULES = """\
launch: bench
about: a test bench
sources:
  bench: measured on the bench
  other: said elsewhere
models:
  small: {about: a small model, match: "(?i)small"}
variables:
  BENCH_GIB: {kind: number, unset: "1"}
rules:
  - {rule: two, required: --tensor-parallel-size, value: "2", reason: it has two halves, source: bench}
  - {rule: mode, recommended: BENCH_MODE, value: fast, also: [quick], reason: it is quicker, source: other}
  - {rule: lazy, forbidden: --enforce-eager, models: [small], reason: it is slow, source: bench}
  - rule: memory
    holds: max_model_len <= 4096 * BENCH_GIB
    models: [small]
    when: max_model_len is not None
    reason: a GiB holds 4096 tokens
    source: bench
    remedy: raise BENCH_GIB
  - {rule: shared, required: BENCH_SHARE, fixes: [long-share], reason: the fix reads it, source: bench}
"""
VLLM = """\
distribution: vllm
release: v0.31.0
version: "0.31.0"
package: vllm
commit: {commit}
files: {{}}
"""
RIGHT = ["vllm", "serve", "org/small-model", "-tp", "2"]


class LaunchKit(Kit):
    """With a release of vLLM, without files, and rules."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        write(self.registry, {"anchors/vllm/v0.31.0.yaml": VLLM.format(commit="d" * 40), "launch/bench.yaml": RULES})
        self.edit("profiles/bench-v1.0.0.yaml", "demo-core: v1.0.0", "demo-core: v1.0.0, vllm: v0.31.0")
        path = self.registry / "profiles/bench-v1.0.0.yaml"
        path.write_text(path.read_text() + "launch: [bench]\n")
        self.lock()
        write(self.site, {"vllm/__init__.py": ""})
        metadata = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0\n\nText.\n"
        info = "vllm-0.31.0.dist-info"
        write(self.site, {f"{info}/METADATA": metadata, f"{info}/RECORD": f"{info}/METADATA,,\n{info}/RECORD,,\n"})
        self.bin = folder / "bin"
        self.program("vllm", sys.executable)

    def program(self, name: str, interpreter: str) -> None:
        """A program that prints its arguments and variables."""
        dump = "import json, os, sys\nprint(json.dumps([sys.argv, dict(os.environ)]))\n"
        write(self.bin, {name: f"#!{interpreter}\n{dump}"})
        (self.bin / name).chmod(0o755)

    def launch(self, action: str, *args: str, env: Mapping[str, str] | None = None, site: bool = True) -> Done:
        """``python -m fixpack launch`` in a process of its own, as an image runs it."""
        where = ["--site", str(self.site)] if site and action == "exec" else []
        command = [sys.executable, "-m", "fixpack", "launch", action, "--registry", str(self.registry), *where]
        base = {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPO),
            "HOME": str(self.folder),
        }
        done = subprocess.run(
            [*command, "--profile", "v1.0.0", *args],
            env={**base, **(env or {})},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def kit(tmp_path: Path) -> LaunchKit:
    return LaunchKit(tmp_path)


MODE = {"BENCH_MODE": "Quick"}


def test_a_right_command(kit: LaunchKit) -> None:
    done = kit.launch("check", "--", *RIGHT, env=MODE)
    assert (done.code, done.out, done.err) == (
        0,
        "bench-v1.0.0: 4 rules checked: the command is as the rules want it\n",
        "",
    )


def test_every_violation_with_rule_reason_and_remedy(kit: LaunchKit) -> None:
    done = kit.launch("check", "--", "vllm", "serve", "small", "--enforce-eager", "--max-model-len=8K")
    assert (done.code, done.err) == (1, "")
    assert done.out == (
        "error: --tensor-parallel-size is 1, vLLM's default; it must be 2 [two]\n"
        "  why: it has two halves (bench/bench)\n"
        "  next: add --tensor-parallel-size 2\n"
        "error: --enforce-eager is given, which must not be [lazy]\n"
        "  why: it is slow (bench/bench)\n"
        "  next: leave out --enforce-eager\n"
        "error: max_model_len <= 4096 * BENCH_GIB does not hold: max_model_len is 8192, BENCH_GIB is 1 [memory]\n"
        "  why: a GiB holds 4096 tokens (bench/bench)\n"
        "  next: raise BENCH_GIB\n"
        "warning: BENCH_MODE is not set; it should be fast or quick [mode]\n"
        "  why: it is quicker (bench/other)\n"
        "  next: set BENCH_MODE=fast\n"
        "source bench/bench: measured on the bench\n"
        "source bench/other: said elsewhere\n"
        "bench-v1.0.0: 4 rules checked: 3 errors, 1 warning, 0 notes\n"
    )


def test_warnings_alone_are_no_failure_unless_strict(kit: LaunchKit) -> None:
    assert kit.launch("check", "--", *RIGHT).code == 0
    assert kit.launch("check", "--strict", "--", *RIGHT).code == 1
    done = kit.launch("check", "--strict", "--", "vllm", "serve", "other", "-tp", "2", env=MODE)
    assert done.code == 0  # a note: the model is none that the rules name
    assert done.out.startswith("note: 'other' is none of small: 2 rules not checked [model-unknown]\n")


def test_json(kit: LaunchKit) -> None:
    done = kit.launch("check", "--json", "--", *RIGHT)
    assert done.code == 0
    assert done.json == {
        "schema_version": 1,
        "profile": "bench-v1.0.0",
        "model": "small",
        "rules_checked": 4,
        "exit_code": 0,
        "findings": [
            {
                "level": "warning",
                "rule": "mode",
                "subject": "BENCH_MODE",
                "message": "BENCH_MODE is not set; it should be fast or quick",
                "reason": "it is quicker",
                "source": "bench/other",
                "remedy": "set BENCH_MODE=fast",
            }
        ],
    }
    refused = kit.launch("check", "--json", "--", "bash", "-c", "vllm serve m")
    assert refused.code == 2
    assert [each["code"] for each in refused.json["problems"]] == ["not_a_server"]


def test_where_the_variables_come_from(kit: LaunchKit) -> None:
    write(kit.folder, {"serve.env": "# ours\n\nBENCH_MODE=fast\nBENCH_GIB\n"})
    file = ["--env-file", str(kit.folder / "serve.env")]
    long = [*RIGHT, "--max-model-len", "8192"]
    assert kit.launch("check", *file, "--", *RIGHT, env={"BENCH_MODE": "slow"}).out.count("BENCH_MODE") == 0
    assert kit.launch("check", *file, "--", *long).code == 1
    assert kit.launch("check", *file, "--", *long, env={"BENCH_GIB": "2"}).code == 0  # a name alone takes our value
    assert kit.launch("check", *file, "--", "env", "BENCH_GIB=2", *long).code == 0
    found = kit.launch("check", *file, "--", "env", "BENCH_GIB=two", *long)
    assert found.code == 1
    assert "BENCH_GIB is 'two', which is no number [memory]" in found.out
    near = kit.launch("check", "--", *RIGHT, env={"BENCH_MOD": "fast"})
    assert "warning: BENCH_MOD is set, which neither vLLM v0.31.0 nor a rule knows [unknown-variable]" in near.out
    assert "did you mean 'BENCH_MODE'" in near.out


def test_fixes_and_models_that_are_named(kit: LaunchKit) -> None:
    assert "BENCH_SHARE is not set" in kit.launch("check", "--fix", "long-share", "--", *RIGHT, env=MODE).out
    assert kit.launch("check", "--fix", "long-share", "--", *RIGHT, env={**MODE, "BENCH_SHARE": "1"}).code == 0
    unknown = kit.launch("check", "--fix", "long-shar", "--", *RIGHT)
    assert unknown.code == 2
    assert "did you mean 'long-share'" in unknown.err
    hidden = ["vllm", "serve", "/models/ckpt", "-tp", "2", "--enforce-eager"]
    assert kit.launch("check", "--", *hidden, env=MODE).code == 0
    assert kit.launch("check", "--model", "small", "--", *hidden, env=MODE).code == 1
    assert kit.launch("check", "--model", "org/Small-2", "--", *hidden, env=MODE).code == 1
    other = kit.launch("check", "--model", "smal", "--", *hidden)
    assert (other.code, other.codes) == (2, ["unknown_model"])
    assert "did you mean 'small'" in other.err


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--"], "bad_usage"),
        ([], "bad_usage"),
        (["--env-file", "missing.env", "--", *RIGHT], "bad_env_file"),
        (["--profile", "v2.0.0", "--", *RIGHT], "no_rules"),
        (["--profile", "v9", "--", *RIGHT], "unknown_profile"),
    ],
)
def test_wrong_usage(kit: LaunchKit, args: list[str], code: str) -> None:
    for action in ("check", "exec"):
        done = kit.launch(action, *args)
        assert (done.code, done.codes) == (2, [code])


def test_a_changed_rule_is_no_rule_before_it_is_locked(kit: LaunchKit) -> None:
    kit.edit("launch/bench.yaml", 'value: "2"', 'value: "4"')
    done = kit.launch("check", "--", *RIGHT)
    assert (done.code, done.codes) == (2, ["lock_stale"])
    assert kit.apply().code == 2  # nor is the registry, for an apply
    kit.lock()
    assert kit.launch("check", "--", *RIGHT).code == 1
    assert kit.apply().code == 0


def test_the_lock_covers_the_rules_and_an_apply_does_not_read_them(kit: LaunchKit) -> None:
    locked = lock.read(str(kit.registry), "bench-v1.0.0")
    assert "launch/bench.yaml" in locked["registry"]
    assert "launch/bench.yaml" not in lock.read(str(kit.registry), "bench-v2.0.0")["registry"]
    arguments = ["apply_all.py", "--registry", str(kit.registry), "--profile", "v1.0.0", "--site", str(kit.site)]
    program = (
        "import runpy, sys\n"
        f"sys.argv = {arguments!r}\n"
        f"try:\n    runpy.run_path({str(REPO / 'apply_all.py')!r}, run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    print(stop.code, [each for each in sys.modules if 'launch' in each or 'formula' in each])\n"
    )
    for _ in range(2):  # applied, confirmed
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "0 []"


# -- exec -------------------------------------------------------------------------------------------------------------


def test_exec_verifies_checks_and_becomes_the_command(kit: LaunchKit) -> None:
    refused = kit.launch("exec", "--", *RIGHT, env=MODE)
    assert refused.code == 1
    assert refused.out == ""
    assert "not-applied" in refused.err or "not applied" in refused.err
    assert kit.apply().code == 0
    forbidden = kit.launch("exec", "--", *RIGHT, "--enforce-eager", env=MODE)
    assert (forbidden.code, forbidden.out) == (1, "")
    assert "error: --enforce-eager is given" in forbidden.err
    assert kit.launch("exec", "--strict", "--", *RIGHT).code == 1
    before = kit.content()
    hostile = 'it\'s $(small) `x`\n"y" \\ ü'
    write(kit.folder, {"serve.env": "BENCH_MODE=fast\n"})
    done = kit.launch(
        "exec",
        "--env-file",
        str(kit.folder / "serve.env"),
        "--",
        "vllm",
        "serve",
        hostile,
        "-tp",
        "2",
        env={"OWN": "1"},
    )
    assert done.code == 0, done.err
    argv, environment = json.loads(done.out)
    assert argv == [str(kit.bin / "vllm"), "serve", hostile, "-tp", "2"]
    assert (environment["BENCH_MODE"], environment["OWN"]) == ("fast", "1")
    assert "PYTHONPATH" not in environment  # it named the engine's folder only
    assert "bench-v1.0.0: confirmed" in done.err
    assert kit.content() == before


def test_exec_wants_the_opt_in_fixes_that_are_named(kit: LaunchKit) -> None:
    kit.apply()
    with_share = {**MODE, "BENCH_SHARE": "1"}
    assert kit.launch("exec", "--fix", "long-share", "--", *RIGHT, env=with_share).code == 1
    kit.apply("long-share")
    assert kit.launch("exec", "--fix", "long-share", "--", *RIGHT, env=with_share).code == 0


def test_exec_refuses_a_program_of_another_python(kit: LaunchKit) -> None:
    kit.apply()
    path = {"PYTHONPATH": f"{REPO}{os.pathsep}{kit.site}", **MODE}
    done = kit.launch("exec", "--", *RIGHT, env=path, site=False)
    assert done.code == 0, done.err
    assert json.loads(done.out)[1]["PYTHONPATH"] == str(kit.site)
    for interpreter in ("/usr/bin/python3", "/bin/sh", "/usr/bin/env python3.99"):
        kit.program("vllm", interpreter)
        done = kit.launch("exec", "--", *RIGHT, env=path, site=False)
        assert (done.code, done.codes, done.out) == (1, ["other_python"], "")
    (kit.bin / "vllm").write_text(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\nprint('started')\n")
    assert kit.launch("exec", "--", *RIGHT, env=path, site=False).out == "started\n"
    (kit.bin / "vllm").unlink()
    done = kit.launch("exec", "--", *RIGHT, env={**path, "PATH": str(kit.bin)}, site=False)
    assert (done.code, done.codes) == (2, ["no_program"])


COMMAND = serve_line.split(RIGHT)


def test_which_pythons_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"usr/python3.10": "", "usr/python3.12": "", "venv/pyvenv.cfg": "", "other/pyvenv.cfg": ""})
    (tmp_path / "usr/python3").symlink_to("python3.12")
    for venv in ("venv", "other"):
        (tmp_path / venv / "python").symlink_to(tmp_path / "usr/python3")
        (tmp_path / venv / "python3").symlink_to("python")
    (tmp_path / "bin").symlink_to("usr")

    def refused(ours: str, theirs: str) -> bool:
        monkeypatch.setattr(sys, "executable", str(tmp_path / ours))
        write(tmp_path, {"vllm": f"#!{tmp_path / theirs}\n"})
        try:
            launch_exec.same_python(str(tmp_path / "vllm"), COMMAND, os.environ)
        except MismatchError as error:
            return error.problems[0].found == str(tmp_path / theirs)
        return False

    same = [("usr/python3", "usr/python3.12"), ("bin/python3", "usr/python3"), ("venv/python", "venv/python3")]
    others = [("usr/python3", "usr/python3.10"), ("usr/python3", "venv/python"), ("venv/python", "other/python")]
    assert [refused(*each) for each in same] == [False] * 3
    assert [refused(*each) for each in others] == [True] * 3


# -- files of variables -----------------------------------------------------------------------------------------------


def test_an_env_file(tmp_path: Path) -> None:
    write(tmp_path, {"a.env": '\ufeffA=1\r\n  B= two words # no comment\n#C=3\nD=\nE={"a": 1}\nF\nGONE\nA=2\n'})
    assert envfile.read(str(tmp_path / "a.env"), {"F": "ours"}) == {
        "A": "2",
        "B": " two words # no comment",
        "D": "",
        "E": '{"a": 1}',
        "F": "ours",
    }


@pytest.mark.parametrize("text", ["export A=1", "A = 1", "1A=1", "=1", "A='1'", 'A="1"', "A B", "A=\0", "-A=1", "Ä=1"])
def test_a_bad_line_of_an_env_file(text: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.env": f"X=1\n{text}\nY=2\n"})
    with pytest.raises(UsageError) as caught:
        envfile.read(str(tmp_path / "a.env"), {})
    assert [(each.code, each.line) for each in caught.value.problems] == [("bad_env_file", 2)]


def test_a_bad_env_file(tmp_path: Path) -> None:
    write(tmp_path, {"binary": b"A=\xff\n", "large": b"A=1\n" * 300000})
    os.mkfifo(tmp_path / "pipe")  # nobody writes: opening it would wait for ever
    for name in ("binary", "large", "missing", ".", "pipe"):
        with pytest.raises(UsageError):
            envfile.read(str(tmp_path / name), {})


# -- files of rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("launch: bench", "launch: other", "'launch' is 'other', but the file's name says 'bench'"),
        ('value: "2", reason', 'valeu: "2", reason', "the rule 'two' has the unknown key 'valeu'"),
        ("required: --tensor-parallel-size", "required: --tensor-paralel-size", "which vLLM v0.31.0 does not have"),
        ("required: --tensor-parallel-size", "required: -tp", "does not match"),
        ('value: "2"', "value: two", "the rule 'two': 'two' is no whole number"),
        ('value: "2"', 'value: ["2", "3"]', "--tensor-parallel-size takes one value"),
        ("value: fast", "value: [fast, slow]", "a variable has one value"),
        ("forbidden: --enforce-eager", 'forbidden: --enforce-eager, value: "1"', "--enforce-eager takes no value"),
        ("rule: lazy", "rule: two", "there are two rules 'two'"),
        ("source: other", "source: elsewhere", "names the source 'elsewhere'"),
        ("source: other", "source: bench", "no rule names the source 'other'"),
        ("models: [small], reason", "models: [large], reason", "names the model 'large'"),
        ("BENCH_GIB\n    models", "BENCH_MIB\n    models", "no formula names the variable 'BENCH_GIB'"),
        ("holds: max_model_len <=", "holds: max_model_length <=", "names 'max_model_length' in"),
        ("holds: max_model_len <= 4096 * BENCH_GIB", "holds: __import__('os')", "'holds' is no formula"),
        ("holds: max_model_len", "holds: max_model_len <", "'holds' is no formula"),
        ("    remedy: raise BENCH_GIB\n", "", "needs a remedy"),
        ("recommended: BENCH_MODE", "recommended: BENCH_MODE, holds: 1 == 1", "needs one of"),
        ("recommended: BENCH_MODE, ", "", "needs one of"),
        ("also: [quick]", 'match: "("', "'match' is no regular expression"),
        ("also: [quick]", "match: a, allowed: 1 == 1", "exclude each other"),
        ("value: fast, also", "also", "'also' says what else"),
        ("fixes: [long-share]", "fixes: [long-shar]", "names 'long-shar', which is no fix"),
        ("fixes: [long-share]", "releases: [v9]", "is for vLLM v9, which no anchors file pins"),
        ('unset: "1"', 'unset: ""', "'unset'"),
        ("kind: number", "kind: float", "'kind' is 'float'"),
        ('match: "(?i)small"', 'match: "*"', "no regular expression"),
        ("rules:\n", "rules: []\nmore:\n", "there are no rules"),
    ],
)
def test_a_wrong_rule(kit: LaunchKit, old: str, new: str, message: str) -> None:
    kit.edit("launch/bench.yaml", old, new)
    with pytest.raises(RegistryError) as caught:
        registry.load(str(kit.registry))
    assert any(message in each.message for each in caught.value.problems), caught.value.problems
    assert {each.file for each in caught.value.problems} == {"launch/bench.yaml"}


def test_odd_files_of_rules(kit: LaunchKit) -> None:
    path = kit.registry / "launch/bench.yaml"
    text = path.read_text()
    for content in (b"\xff", b"", b"a: &a [*a]\n", b"launch: bench\r\n", b"x" * (1 << 21), text.encode() * 2):
        path.write_bytes(content)
        with pytest.raises(RegistryError) as caught:
            registry.load(str(kit.registry))
        assert "launch/bench.yaml" in {each.file for each in caught.value.problems}
    path.unlink()
    path.symlink_to("/dev/null")
    with pytest.raises(RegistryError, match="not an ordinary file"):
        registry.load(str(kit.registry))
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("")
    with pytest.raises(RegistryError, match="cannot be listed"):
        registry.load(str(kit.registry))


def test_files_of_rules_and_profiles_fit(kit: LaunchKit) -> None:
    write(kit.registry, {"launch/spare.yaml": RULES.replace("launch: bench", "launch: spare"), "launch/notes.txt": "x"})
    with pytest.raises(RegistryError) as caught:
        registry.load(str(kit.registry))
    assert [(each.code, each.file) for each in caught.value.problems] == [("registry_invalid", "launch/notes.txt")]
    (kit.registry / "launch/notes.txt").unlink()
    with pytest.raises(RegistryError) as caught:
        registry.load(str(kit.registry))
    assert [(each.code, each.file) for each in caught.value.problems] == [("unused_launch", "launch/spare.yaml")]
    kit.edit("profiles/bench-v1.0.0.yaml", "launch: [bench]", "launch: [bench, spare]")
    with pytest.raises(RegistryError, match="names are unique in a profile"):
        registry.load(str(kit.registry))
    kit.edit("profiles/bench-v1.0.0.yaml", "launch: [bench, spare]", "launch: [spare, bensh]")
    with pytest.raises(RegistryError) as caught:
        registry.load(str(kit.registry))
    assert sorted(each.code for each in caught.value.problems) == ["unknown_launch", "unused_launch"]
