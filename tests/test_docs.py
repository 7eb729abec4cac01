"""The pages in docs/ are those of the registry, and the command that makes them says what is not."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from kit import FIXES, REPO, Done, Kit, write

from fixpack import cli, docs, docs_facts, docs_models, proofs, registry
from fixpack.cli import apply

GUIDE = """\
sources: measured by nobody
every-model:
  rows-counted: always
  order-kept: rows move
  core-guard: a_ *star* | bar, after rows-counted
models:
  - model: Tiny
    about: a model of one layer
    fixes: {}
    opt-in:
      long-share: prompts are long
      wide-log: as long-share
    required: [rows-counted, long-share]
    required-by: cookbook
    notes: [nothing else]
  - model: Huge
    about: a model of two layers
"""

PAGE = """\
<!-- Made by `fixpack docs`; change the registry or docs/models.yaml instead. -->

# order-kept

Keep the order of rows. Revision 1; on by default in [bench-v1.0.0](../profiles/bench-v1.0.0.md), \
[bench-v2.0.0](../profiles/bench-v2.0.0.md).

## Symptom

rows are lost

## Cause

an index is off by one

## Limits

None are known.

## Requires

[rows-counted](rows-counted.md)

## Upstream

- State: not-reported (not known to be reported)
- Origin of the fix: our own

## When it retires

When upstream counts rows.

## Edits

### demo-plugin v1.0.0, v2.0.0

1. insert [keep.py](../../patches/order-kept/keep.py) after `step-add`, in `Runner.step`, `demo_plugin/runner.py`

   ```diff
    self.batch.add(
        first,
        count,
    )
   +# fixpack begin order-kept r1: step-add
   +order = list(rows)
   +# fixpack end order-kept r1: step-add
   ```

2. delete `batch-stale`, in `Batch.add`, `demo_plugin/batch.py`

   ```diff
   -stale = True
   +# fixpack begin order-kept r1: batch-stale
   +# fixpack end order-kept r1: batch-stale
   ```

## Proof

[tests/fixes/test_order_kept.py](../../tests/fixes/test_order_kept.py), run by `fixpack prove order-kept` on \
upstream's real code on a CPU. On stock, 1 test must fail with these words (regular expressions), and every other test \
of the file must pass; with the fix, alone and together with all others, all must pass.

- `test_it`: `a row was lost`

The last recorded run; counts are tests that did as they must, of those that ran:

| profile | result | red on stock | green on stock | fix alone | with all others | seconds | run |
|---|---|---|---|---|---|---|---|
| [bench-v1.0.0](../profiles/bench-v1.0.0.md) | proven | 1/1 | 2/2 | 3/3 | 6/6 | 1.2 | 2026-11-29, python 3.11.2 |
| [bench-v2.0.0](../profiles/bench-v2.0.0.md) | not recorded | - | - | - | - | - | - |

Source: [fixes/order-kept.yaml](../../fixes/order-kept.yaml). [All fixes](README.md).
"""

PROFILE = """\
<!-- Made by `fixpack docs`; change the registry or docs/models.yaml instead. -->

# bench-v1.0.0

a test bench. Also called `v1.0.0`.

## Apply

```sh
python apply_all.py --profile bench-v1.0.0
```

## Fixes

3 fixes, all applied by default.

| fix | what it does | requires | last proof | revision |
|---|---|---|---|---|
| [rows-counted](../fixes/rows-counted.md) | count every row of a step | | not recorded | r1 |
| [order-kept](../fixes/order-kept.md) | keep the order of rows | [rows-counted](../fixes/rows-counted.md) | proven \
| r1 |
| [core-guard](../fixes/core-guard.md) | guard the schedule | | not recorded | r1 |

## Opt-in

Off unless named behind the profile.

| fix | what it does | requires | last proof | revision |
|---|---|---|---|---|
| [long-share](../fixes/long-share.md) | share the budget of long prompts | | not recorded | r1 |
| [wide-log](../fixes/wide-log.md) | log what is shared | [long-share](../fixes/long-share.md) | not recorded | r1 |

## Required fixes, by model

measured by nobody

### Every model

| fix | why it matters | in this profile |
|---|---|---|
| [rows-counted](../fixes/rows-counted.md) | always | default |
| [order-kept](../fixes/order-kept.md) | rows move | default |
| [core-guard](../fixes/core-guard.md) | a\\_ \\*star\\* \\| bar, after [rows-counted](../fixes/rows-counted.md) \
| default |

### Tiny

a model of one layer

| fix | why it matters | in this profile |
|---|---|---|
| [long-share](../fixes/long-share.md) | prompts are long | opt-in, required by the cookbook |
| [wide-log](../fixes/wide-log.md) | as [long-share](../fixes/long-share.md) | opt-in |

Of those for every model, the cookbook requires [rows-counted](../fixes/rows-counted.md).

More on the models: [which fixes matter for which model](../models.md).

## Launch

In front of the server, the same command only confirms; the server starts only if every fix is in place:

```sh
python apply_all.py --profile bench-v1.0.0 && exec vllm serve MODEL …
```

## Known issues

- slow on Mondays, with [order-kept](../fixes/order-kept.md)

What the fixes leave open:

| fix | limits |
|---|---|
| [core-guard](../fixes/core-guard.md) | one schedule |

## What not to do

- never twice
- Do not upgrade or reinstall a fixed distribution in place: the stock package comes back, and `fixpack verify` fails \
until the profile is applied again.
- Do not edit a fixed scope by hand or by another tool: the next confirmation refuses it.
"""

NOTES = """\
notes:
  - for: [bench-v1.0.0]
    known-issues: ["slow on Mondays, with order-kept"]
    do-not: [never twice]
"""

INDEX = """\
<!-- Made by `fixpack docs`; change the registry or docs/models.yaml instead. -->

# Fixes

5 fixes. Each page tells symptom, cause, change and proof.

| fix | what it does | upstream | [bench-v1.0.0](../profiles/bench-v1.0.0.md) \
| [bench-v2.0.0](../profiles/bench-v2.0.0.md) |
|---|---|---|---|---|
| [rows-counted](rows-counted.md) | count every row of a step | not known to be reported | default | default |
| [order-kept](order-kept.md) | keep the order of rows | not known to be reported | default | default |
| [core-guard](core-guard.md) | guard the schedule | not known to be reported | default | default |
| [long-share](long-share.md) | share the budget of long prompts | not known to be reported | opt-in | - |
| [wide-log](wide-log.md) | log what is shared | not known to be reported | opt-in | - |
"""

START = """\
<!-- Made by `fixpack docs`; change the registry or docs/models.yaml instead. -->

# Documentation

Fixpack brings named, proven corrections into installed packages when an image is built: all of them or none, and only \
where each file that they touch is, byte for byte, the one on which they were proven.

## Guide

- [What it refuses](refusals.md): every reason code, what it means, and what to do
- [by_hand](by_hand.md)

## Profiles

| profile | hardware | releases | fixes | opt-in | state |
|---|---|---|---|---|---|
| [bench-v1.0.0](profiles/bench-v1.0.0.md) | a test bench | demo-plugin@v1.0.0, demo-core@v1.0.0 | 3 | 2 | supported |
| [bench-v2.0.0](profiles/bench-v2.0.0.md) | a test bench | demo-plugin@v2.0.0, demo-core@v1.0.0 | 3 | 0 | supported |

## Look up

- [All fixes](fixes/README.md): 5 fixes by profile, each with a page
- [All profiles](profiles/README.md)
- [Which fixes matter for which model](models.md)
- [Reference](reference.md): commands, exit codes, formats
"""

MODELS = """\
<!-- Made by `fixpack docs`; change the registry or docs/models.yaml instead. -->

# Which fixes matter for which model

measured by nobody

| fix | Tiny | Huge |
|---|---|---|
| [rows-counted](fixes/rows-counted.md) | yes | yes |
| [order-kept](fixes/order-kept.md) | yes | yes |
| [core-guard](fixes/core-guard.md) | yes | yes |
| [long-share](fixes/long-share.md) | opt-in | - |
| [wide-log](fixes/wide-log.md) | opt-in | - |

"yes": on by default, and it matters for this model; "opt-in": it matters, and has to be named behind the profile; \
"-": the model does not reach the place, or its profile has no such fix. The default fixes all go in, whatever the \
model.

## Every model

| fix | when it matters |
|---|---|
| [rows-counted](fixes/rows-counted.md) | always |
| [order-kept](fixes/order-kept.md) | rows move |
| [core-guard](fixes/core-guard.md) | a\\_ \\*star\\* \\| bar, after [rows-counted](fixes/rows-counted.md) |

## Tiny

a model of one layer

Beside the 3 fixes for every model:

| fix | why it matters here |
|---|---|
| [long-share](fixes/long-share.md) (opt-in) | prompts are long |
| [wide-log](fixes/wide-log.md) (opt-in) | as [long-share](fixes/long-share.md) |

Required by the cookbook: [rows-counted](fixes/rows-counted.md), [long-share](fixes/long-share.md).

- nothing else

## Huge

a model of two layers

Nothing beside the 3 fixes for every model.
"""


def docs_kit(folder: Path) -> Kit:
    """The invented world with everything that pages are made of."""
    made = Kit(folder)
    made.edit("profiles/bench-v2.0.0.yaml", "opt-in: [long-share, wide-log]\n", "")
    made.edit("fixes/core-guard.yaml", "requires: []", "requires: []\nlimits: one schedule")
    tests = {f"tests/fixes/test_{name.replace('-', '_')}.py": f"# {name}\n" for name in FIXES}
    hand = {"docs/by_hand.md": "kept\n", "docs/refusals.md": "# What it refuses\n"}
    write(made.registry, {"docs/models.yaml": GUIDE, "docs/profiles.yaml": NOTES, **tests, **hand})
    loaded = registry.load(str(made.registry))
    profile, fix = loaded.profiles["bench-v1.0.0"], loaded.fixes["order-kept"]
    digest = proofs.digest(loaded, profile, fix)
    result = proofs.Result(
        1, digest, "2026-11-29", "proven", (1, 1), (2, 2), (3, 3), (6, 6), 1.2, {"python": "3.11.2", "torch": ""}
    )
    path = made.registry / proofs.PATH
    proofs.write(loaded, str(path), {profile.name: proofs.Recorded({}, {fix.id: result})})
    return made


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """The invented world with docs/ and a recorded proof; the second profile has no opt-in fixes."""
    return docs_kit(tmp_path)


def run(kit: Kit, capsys: pytest.CaptureFixture[str], *args: str) -> Done:
    code = cli.main(["docs", "--registry", str(kit.registry), *args])
    told = capsys.readouterr()
    return Done(code, told.out, told.err)


def pages(kit: Kit) -> dict[str, str]:
    return docs.pages(docs_facts.read_facts(registry.load(str(kit.registry))))


def files(kit: Kit) -> dict[str, str]:
    folder = kit.registry / "docs"
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_pages_of_this_repository_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "--check"]) == 0, capsys.readouterr().out


def test_every_fix_and_profile_of_this_repository_has_a_page() -> None:
    loaded = registry.load(str(REPO))
    made = docs.pages(docs_facts.read_facts(loaded))
    assert {f"fixes/{name}.md" for name in loaded.fixes} | {f"profiles/{name}.md" for name in loaded.profiles} == {
        path for path in made if "/" in path and not path.endswith("README.md")
    }
    for name, fix in loaded.fixes.items():
        page = made[f"fixes/{name}.md"]
        for part in ("Symptom", "Cause", "Limits", "Upstream", "When it retires", "Edits", "Proof"):
            assert f"\n## {part}\n" in page, (name, part)
        assert all(f"patches/{name}/{edit.code}" in page for edits in fix.edits.values() for edit in edits if edit.code)
    for name, profile in loaded.profiles.items():
        page = made[f"profiles/{name}.md"]
        for part in ("Apply", "Launch", "Fixes", "Known issues", "What not to do", "Releases", "Pinned files"):
            assert f"\n## {part}\n" in page, (name, part)
        for fix in (*profile.fixes, *profile.opt_in):
            assert page.count(f"\n| [{fix}](../fixes/{fix}.md) |") >= 2, f"{name} gives no reason for {fix}"


def test_pages(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(kit, capsys)
    made = files(kit)
    assert sorted(made) == [
        "README.md",
        "by_hand.md",
        "fixes/README.md",
        "fixes/core-guard.md",
        "fixes/long-share.md",
        "fixes/order-kept.md",
        "fixes/rows-counted.md",
        "fixes/wide-log.md",
        "models.md",
        "models.yaml",
        "profiles.yaml",
        "profiles/README.md",
        "profiles/bench-v1.0.0.md",
        "profiles/bench-v2.0.0.md",
        "proofs.json",
        "reference.md",
        "refusals.md",
    ]
    assert made["fixes/order-kept.md"] == PAGE
    assert made["fixes/README.md"] == INDEX
    assert made["models.md"] == MODELS
    assert made["README.md"] == START
    assert made["profiles/bench-v1.0.0.md"].partition("\n## Releases\n")[0] == PROFILE
    assert done.code == 0
    assert done.out.splitlines()[-1] == "12 pages: 12 written, 0 removed"
    assert "## Opt-in" not in made["profiles/bench-v2.0.0.md"]
    assert "### Tiny" not in made["profiles/bench-v2.0.0.md"]  # it has none of that model's own fixes
    again = run(kit, capsys)
    assert (again.code, again.out, files(kit)) == (0, "12 pages: 0 written, 0 removed\n", made)


def test_a_proof_that_is_outdated_or_failed(kit: Kit) -> None:
    kit.edit("patches/order-kept/keep.py", "list(rows)", "tuple(rows)")
    assert "(../profiles/bench-v1.0.0.md) | outdated | 1/1 |" in pages(kit)["fixes/order-kept.md"]
    kit.edit("patches/order-kept/keep.py", "tuple(rows)", "list(rows)")
    kit.edit("docs/proofs.json", '"proven"', '"failed"')
    assert "(../profiles/bench-v1.0.0.md) | failed | 1/1 |" in pages(kit)["fixes/order-kept.md"]


def test_the_reference(kit: Kit) -> None:
    """It names every command with every argument, and every key of every schema."""
    page = pages(kit)["reference.md"]
    assert re.findall(r"^### fixpack (.*)$", page, re.M) == list(cli.VERBS)
    assert "| `--profile P` | the profile, by name or alias |" in page
    assert "#### fixpack sources fetch" in page
    assert "| `130` |" in page
    assert "| `proof.stock.<name>` |" in page
    assert "| [`history[].reason`] |" in page or "| `history[].reason` |" in page
    assert not re.search(r"%\(|==SUPPRESS==|None", page)


def test_what_other_releases_have_is_told_apart(kit: Kit) -> None:
    kit.edit(
        "fixes/order-kept.yaml",
        "proof:\n",
        "variants:\n  demo-plugin@v2.0.0:\n    - {anchor: batch-stale, op: delete}\nproof:\n",
    )
    page = pages(kit)["fixes/order-kept.md"]
    assert re.findall(r"^### .*|^[0-9]\. [a-z]+", page, re.M) == [
        "### demo-plugin v1.0.0",
        "1. insert",
        "2. delete",
        "### demo-plugin v2.0.0",
        "1. delete",
    ]


def test_a_stale_page(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    run(kit, capsys)
    kit.edit("fixes/order-kept.yaml", "symptom: rows are lost", "symptom: rows are gone")
    before = files(kit)
    done = run(kit, capsys, "--check")
    assert (done.code, done.out) == (
        1,
        "docs/fixes/order-kept.md: stale\n12 pages: 1 stale, 0 orphaned, 0 dead links\n",
    )
    assert files(kit) == before
    assert run(kit, capsys).out == "docs/fixes/order-kept.md: written\n12 pages: 1 written, 0 removed\n"
    assert run(kit, capsys, "--check").code == 0


def test_a_missing_page(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    run(kit, capsys)
    (kit.registry / "docs/models.md").unlink()
    assert run(kit, capsys, "--check").code == 1


def test_an_orphan(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    run(kit, capsys)
    old = kit.registry / "docs/fixes/gone.md"
    old.write_text(PAGE)
    (kit.registry / "docs/models.yaml").unlink()
    done = run(kit, capsys, "--check")
    assert done.code == 1
    assert done.out == (
        "docs/README.md: stale\ndocs/profiles/bench-v1.0.0.md: stale\ndocs/profiles/bench-v2.0.0.md: stale\n"
        "docs/fixes/gone.md: orphaned\ndocs/models.md: orphaned\n11 pages: 3 stale, 2 orphaned, 0 dead links\n"
    )
    assert old.exists()
    assert run(kit, capsys).code == 0
    assert sorted(files(kit)) == sorted(["by_hand.md", "refusals.md", "profiles.yaml", "proofs.json", *pages(kit)])


def test_a_page_of_somebody_else_is_kept(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    run(kit, capsys)
    write(kit.registry, {"docs/fixes/notes.md": "mine\n"})
    (kit.registry / "docs/models.md").unlink()
    for args in ((), ("--check",)):
        done = run(kit, capsys, *args)
        assert done.code == 1
        assert done.err.startswith("error: docs/fixes/notes.md: not a page that this program made [page_foreign]\n")
    assert files(kit)["fixes/notes.md"] == "mine\n"
    assert "models.md" not in files(kit)


def test_without_a_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = Kit(tmp_path)
    done = run(kit, capsys)
    assert (done.code, "docs_missing" in done.err) == (2, True)
    assert not (kit.registry / "docs").exists()


def replaced(old: str, new: str) -> str:
    assert GUIDE.count(old) == 1
    return GUIDE.replace(old, new)


WRONG = {
    "unknown fix": (
        replaced("rows-counted: always", "rows-conted: always"),
        "docs/models.yaml:3: there is no fix 'rows-conted' [unknown_fix]",
    ),
    "unknown required fix": (
        replaced("[rows-counted, long-share]", "[rows-counted, long-shore]"),
        "docs/models.yaml:13: there is no fix 'long-shore' [unknown_fix]",
    ),
    "a fix that is left out": (
        replaced("      wide-log: as long-share\n", ""),
        "wide-log: docs/models.yaml: it does not say for which models wide-log matters [fix_without_model]",
    ),
    "a default fix as opt-in": (
        replaced("  order-kept: rows move\n", "").replace("opt-in:\n", "opt-in:\n      order-kept: rows move\n"),
        "docs/models.yaml:9: order-kept is on by default in a profile: name it below fixes [registry_invalid]",
    ),
    "an opt-in fix as default": (
        replaced("fixes: {}", "fixes: {long-share: x}").replace("      long-share: prompts are long\n", ""),
        "docs/models.yaml:9: long-share is off by default in every profile: name it below opt-in [registry_invalid]",
    ),
    "a fix that is named twice": (
        replaced("fixes: {}", "fixes: {order-kept: x}"),
        "docs/models.yaml:7: Tiny names order-kept twice, or again after every-model [registry_invalid]",
    ),
    "required by nobody": (
        replaced("    required-by: cookbook\n", ""),
        "docs/models.yaml:7: 'required' and 'required-by' go together [registry_invalid]",
    ),
    "required without a reason": (
        replaced("  order-kept: rows move\n", "")
        .replace("[rows-counted, long-share]", "[order-kept]")
        .replace("two layers\n", "two layers\n    fixes: {order-kept: x}\n"),
        "docs/models.yaml:12: Tiny requires order-kept, but no reason is given [registry_invalid]",
    ),
    "no reason": (
        replaced("rows-counted: always", "rows-counted: 3"),
        "docs/models.yaml:3: 'rows-counted' needs a reason in words [registry_invalid]",
    ),
    "an unknown profile": (
        replaced("notes:", "profiles: [bench-v3.0.0]\n    notes:"),
        "docs/models.yaml:15: there is no profile 'bench-v3.0.0' [unknown_profile]",
    ),
    "an unknown key": (
        replaced("notes:", "note:"),
        "docs/models.yaml:15: Tiny has the unknown key 'note' [registry_invalid]",
    ),
}


def test_a_model_of_some_profiles_has_only_their_fixes(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    """What matters for every model does not, where the model's profile has no such fix."""
    kit.edit("profiles/bench-v2.0.0.yaml", "[rows-counted, order-kept, core-guard]", "[core-guard]")
    guide = replaced("two layers\n", "two layers\n    profiles: [bench-v2.0.0]\n")
    write(kit.registry, {"docs/models.yaml": guide})
    assert run(kit, capsys).code == 0
    page = (kit.registry / "docs/models.md").read_text()
    assert "| [rows-counted](fixes/rows-counted.md) | yes | - |" in page
    assert "| [core-guard](fixes/core-guard.md) | yes | yes |" in page
    assert page.endswith("## Huge\n\na model of two layers\n\nNothing beside the 1 fix for every model.\n")


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_guide(case: str, kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    text, problem = WRONG[case]
    write(kit.registry, {"docs/models.yaml": text})
    done = run(kit, capsys)
    assert done.code == 2
    assert f"error: {problem}" in done.err.splitlines()
    assert not (kit.registry / "docs/fixes").exists()


WRONG_NOTES = {
    "unknown profile": (
        NOTES.replace("bench-v1.0.0", "bench-v1.0.1"),
        "docs/profiles.yaml:2: there is no profile 'bench-v1.0.1' [unknown_profile]",
    ),
    "nothing to say": ("notes: [{for: [bench-v1.0.0]}]\n", "docs/profiles.yaml:1: a note needs"),
    "an unknown key": (NOTES + "    not: [x]\n", "docs/profiles.yaml:5: a note has the unknown key 'not'"),
}


@pytest.mark.parametrize("case", WRONG_NOTES)
def test_wrong_notes(case: str, kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    text, problem = WRONG_NOTES[case]
    write(kit.registry, {"docs/profiles.yaml": text})
    done = run(kit, capsys)
    assert done.code == 2
    assert f"error: {problem}" in done.err


def test_dead_links(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    run(kit, capsys)
    text = (
        "# By hand\n\n[a](fixes/gone.md) [b](fixes/order-kept.md#proof) [c](fixes/order-kept.md#prove) [d](#by-hand)\n"
        "[e](#by-foot)\n\n[f](../../x.md) [g](../fixes) <https://example.org/a> [h](https://example) [i](ftp://a.org/)\n"
    )
    write(kit.registry, {"docs/by_hand.md": text})
    run(kit, capsys)
    done = run(kit, capsys, "--check")
    assert done.code == 1
    assert done.out.splitlines() == [
        "docs/by_hand.md:3: dead link: fixes/gone.md: there is no such file",
        "docs/by_hand.md:3: dead link: fixes/order-kept.md#prove: docs/fixes/order-kept.md has no heading 'prove'",
        "docs/by_hand.md:3: dead link: #by-foot: docs/by_hand.md has no heading 'by-foot'",
        "docs/by_hand.md:6: dead link: ../../x.md: leads out of the checkout",
        "docs/by_hand.md:6: dead link: https://example: not a well-formed address",
        "docs/by_hand.md:6: dead link: ftp://a.org/: not an http address",
        "12 pages: 0 stale, 0 orphaned, 6 dead links",
    ]


#: Modules whose reason codes a person meets when an apply or a confirmation refuses.
REFUSING = (
    *("cli/apply", "cli/target_options", "commit", "compose", "confirm", "detect", "diagnose", "engine", "index"),
    *("layers", "lock", "look", "scope", "strictyaml", "target"),
)


def test_every_reason_code_is_explained() -> None:
    """Those of the apply path, and none that no module gives."""
    page = (REPO / "docs/refusals.md").read_text(encoding="utf-8")
    explained = {each for row in re.findall(r"^\| (`.*?) \|", page, re.M) for each in re.findall(r"`([a-z_]+)`", row)}
    sources = {path: path.read_text(encoding="utf-8") for path in (REPO / "fixpack").rglob("*.py")}
    raised = {
        code
        for module in REFUSING
        for code in re.findall(r"Problem\(\s*\"([a-z_]+)\"", sources[REPO / "fixpack" / f"{module}.py"])
    }
    assert raised - explained == set()
    everything = "\n".join(sources.values()).replace("unknown_{kind}", '"unknown_fix" "unknown_profile"')
    codes = set(re.findall(r"\"([a-z_-]+)\"", everything))
    assert {each for each in explained if not {each, each.replace("_", "-")} & codes} == set()


def test_the_quick_start_is_six_lines_that_parse() -> None:
    page = (REPO / "docs/quick-start.md").read_text(encoding="utf-8")
    lines = page.partition("```dockerfile\n")[2].partition("```")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["FROM", "COPY", "RUN", "RUN", "ENTRYPOINT", "CMD"]
    parser = argparse.ArgumentParser()
    apply.configure(parser)
    loaded = registry.load(str(REPO))
    for line in (*lines[2:4], lines[5]):
        words = line.partition("/opt/fixpack/apply_all.py ")[2].partition(" && ")[0].split()
        registry.find_profile(loaded, parser.parse_args(words).profile)


def test_the_models_of_this_repository() -> None:
    """The models that the docs are for, each with what is required of it."""
    guide = docs_models.read_guide(registry.load(str(REPO)))
    assert guide is not None
    assert [model.name for model in guide.models] == [
        "MiMo-V2.6-Pro",
        "MiMo-V2.6-Pro-RL on a GB300",
        "MiMo-V2.6-Flash",
        "gpt-oss",
        "Gemma 3",
        "Long-context RoPE models",
    ]
    pro, on_gb300, flash = guide.models[:3]
    assert pro.required == flash.required
    assert len(pro.required) >= 12
    assert {"offload-naming", "exact-pin"} <= on_gb300.fixes.keys()
    assert on_gb300.profiles == ("gb300-v0.31.0", "gb300-v0.30.0", "gb300-v0.33.0")
