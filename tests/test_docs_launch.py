"""The launch section of a profile's page: every rule, tables that keep their columns, commands that pass the check."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fixpack import docs_launch, launch_case, launch_check, registry, serve_line, serve_options
from fixpack.model import Profile

REGISTRY = registry.load(str(Path(__file__).resolve().parent.parent))
PROFILES = [each for each in REGISTRY.profiles.values() if each.launch]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda each: each.name)
def test_every_rule_of_the_release_has_a_row(profile: Profile) -> None:
    text = "\n\n".join(docs_launch.launch_sections(profile, REGISTRY))
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    named = [row.split("`")[1] for row in rows]
    assert len(named) == len(set(named))
    fixes = {*profile.fixes, *profile.opt_in}
    wanted = {
        rule.id
        for file in REGISTRY.rule_files(profile)
        for rule in file.rules
        if (not rule.releases or profile.releases["vllm"] in rule.releases)
        and fixes.issuperset(rule.fixes)
        and not set(profile.fixes) & set(rule.without)
    }
    assert set(named) == wanted
    for file in REGISTRY.rule_files(profile):
        assert file.about.split()[0] in text


@pytest.mark.parametrize("profile", PROFILES, ids=lambda each: each.name)
def test_the_commands_shown_keep_every_rule(profile: Profile) -> None:
    text = "\n\n".join(docs_launch.launch_sections(profile, REGISTRY))
    files = REGISTRY.rule_files(profile)
    shown = re.findall(r"For ([^\n]+), this keeps every rule:\n\n```sh\n(.*?)\n```", text, re.S)
    assert shown
    keys = {row.about: row.key for row in launch_case.models(files).values()}
    options = serve_options.table(profile.releases["vllm"])
    for about, command in shown:
        served = serve_line.read(shlex.split(command.replace("\\\n", " ")), options)
        case = launch_case.Case(
            files, options, served, served.command.variables, frozenset(profile.fixes), keys[about.replace("\\", "")]
        )
        assert launch_check.check(case) == ()
        assert served.model == "MODEL"


@pytest.mark.parametrize("profile", PROFILES, ids=lambda each: each.name)
def test_what_is_forbidden_is_listed(profile: Profile) -> None:
    items = docs_launch.launch_prohibitions(profile, REGISTRY)
    assert any("`--speculative-config`" in item for item in items)
    assert all(item.startswith(("Do not give `--", "Do not set `")) for item in items)


def test_a_profile_without_rules() -> None:
    profile = PROFILES[0]._replace(launch=())
    sections = docs_launch.launch_sections(profile, REGISTRY)
    assert sections[0] == "## Launch"
    assert f"apply_all.py --profile {profile.name} && exec vllm serve" in sections[2]
    assert docs_launch.launch_prohibitions(profile, REGISTRY) == []
