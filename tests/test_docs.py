"""The pages in docs/ are those of the registry, and the command that makes them says what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kit import REPO, Done, Kit, write

from fixpack import cli, docs, docs_models, registry

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
- It retires when upstream counts rows

## Edits

### demo-plugin v1.0.0, v2.0.0

1. insert [keep.py](../../patches/order-kept/keep.py) after `step-add`, in `Runner.step`, `demo_plugin/runner.py`

   ```python
   self.batch.add(
       first,
       count,
   )
   ```

2. delete `batch-stale`, in `Batch.add`, `demo_plugin/batch.py`

   ```python
   stale = True
   ```

## Proof

[tests/fixes/test_order_kept.py](../../tests/fixes/test_order_kept.py), run by `fixpack prove order-kept` on \
upstream's real code on a CPU. On stock, 1 test must fail with these words (regular expressions), and every other test \
of the file must pass; with the fix, alone and together with all others, all must pass.

- `test_it`: `a row was lost`

Source: [fixes/order-kept.yaml](../../fixes/order-kept.yaml). All fixes: [README.md](README.md).
"""

INDEX = """\
<!-- Made by `fixpack docs`; change the registry or docs/models.yaml instead. -->

# Fixes

| fix | what it does | [bench-v1.0.0](../profiles/bench-v1.0.0.md) | [bench-v2.0.0](../profiles/bench-v2.0.0.md) |
|---|---|---|---|
| [rows-counted](rows-counted.md) | count every row of a step | default | default |
| [order-kept](order-kept.md) | keep the order of rows | default | default |
| [core-guard](core-guard.md) | guard the schedule | default | default |
| [long-share](long-share.md) | share the budget of long prompts | opt-in | - |
| [wide-log](wide-log.md) | log what is shared | opt-in | - |
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


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """The invented world with docs/; the second profile has no opt-in fixes."""
    made = Kit(tmp_path)
    made.edit("profiles/bench-v2.0.0.yaml", "opt-in: [long-share, wide-log]\n", "")
    write(made.registry, {"docs/models.yaml": GUIDE, "docs/by_hand.md": "kept\n"})
    return made


def run(kit: Kit, capsys: pytest.CaptureFixture[str], *args: str) -> Done:
    code = cli.main(["docs", "--registry", str(kit.registry), *args])
    told = capsys.readouterr()
    return Done(code, told.out, told.err)


def files(kit: Kit) -> dict[str, str]:
    folder = kit.registry / "docs"
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_pages_of_this_repository_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "--check"]) == 0, capsys.readouterr().out


def test_every_link_of_this_repository_leads_somewhere() -> None:
    broken, count = [], 0
    for page in sorted((REPO / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            count += 1
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(REPO)}: {target}")
    assert broken == []
    assert count > 300


def test_pages(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(kit, capsys)
    made = files(kit)
    assert sorted(made) == [
        "by_hand.md",
        "fixes/README.md",
        "fixes/core-guard.md",
        "fixes/long-share.md",
        "fixes/order-kept.md",
        "fixes/rows-counted.md",
        "fixes/wide-log.md",
        "models.md",
        "models.yaml",
        "profiles/bench-v1.0.0.md",
        "profiles/bench-v2.0.0.md",
    ]
    assert made["fixes/order-kept.md"] == PAGE
    assert made["fixes/README.md"] == INDEX
    assert made["models.md"] == MODELS
    assert done.code == 0
    assert done.out.splitlines()[-1] == "9 pages: 9 written, 0 removed"
    assert "## Opt-in" in made["profiles/bench-v1.0.0.md"]
    assert "## Opt-in" not in made["profiles/bench-v2.0.0.md"]
    again = run(kit, capsys)
    assert (again.code, again.out, files(kit)) == (0, "9 pages: 0 written, 0 removed\n", made)


def test_what_other_releases_have_is_told_apart(kit: Kit) -> None:
    kit.edit(
        "fixes/order-kept.yaml",
        "proof:\n",
        "variants:\n  demo-plugin@v2.0.0:\n    - {anchor: batch-stale, op: delete}\nproof:\n",
    )
    page = docs.pages(registry.load(str(kit.registry)), None)["fixes/order-kept.md"]
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
    assert (done.code, done.out) == (1, "docs/fixes/order-kept.md: stale\n9 pages: 1 stale, 0 orphaned\n")
    assert files(kit) == before
    assert run(kit, capsys).out == "docs/fixes/order-kept.md: written\n9 pages: 1 written, 0 removed\n"
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
    assert done.out == "docs/fixes/gone.md: orphaned\ndocs/models.md: orphaned\n8 pages: 0 stale, 2 orphaned\n"
    assert old.exists()
    assert run(kit, capsys).code == 0
    assert sorted(files(kit)) == ["by_hand.md", *sorted(docs.pages(registry.load(str(kit.registry)), None))]


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
