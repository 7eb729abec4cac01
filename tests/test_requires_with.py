"""Requirements that hold only where a profile pins a distribution: lock, apply, diff, revert and proofs."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Kit

from fixpack import crosscheck, registry
from fixpack.errors import RegistryError
from fixpack.proof_plan import plan

BARE = """\
profile: bare
hardware: a test bench without demo-core
releases: {demo-plugin: v1.0.0}
fixes: [rows-counted]
opt-in: [wide-log]
"""


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """wide-log requires long-share only beside demo-core; the profile bare has no demo-core."""
    made = Kit(tmp_path)
    made.edit("fixes/wide-log.yaml", "requires: [long-share]", "requires-with: {demo-core: [long-share]}")
    (made.registry / "profiles" / "bare.yaml").write_text(BARE)
    made.lock()
    return made


def test_closure(kit: Kit) -> None:
    loaded = registry.load(str(kit.registry))
    assert crosscheck.closure(loaded, ("wide-log",), ["demo-plugin", "demo-core"]) == ("long-share", "wide-log")
    assert crosscheck.closure(loaded, ("wide-log",), ["demo-plugin"]) == ("wide-log",)


def test_lock(kit: Kit) -> None:
    """It says what is required in its own profile."""
    assert kit.make_lock()["fixes"]["wide-log"]["requires"] == ["long-share"]
    assert kit.make_lock("bare")["fixes"]["wide-log"]["requires"] == []


def test_apply(kit: Kit) -> None:
    assert kit.apply("wide-log") == (
        2,
        "",
        "error: wide-log: wide-log requires long-share, which is opt-in and was not named [missing_requirement]\n"
        "  next: name long-share as well\n1 problem; nothing was changed\n",
    )
    assert kit.run("--profile", "bare", "--site", str(kit.site), "wide-log").code == 0
    assert 'print("wide")' in kit.text("demo_plugin/batch.py")
    assert not (kit.site / "demo_plugin/_fixpack/share.py").exists()


def test_stale_lock(kit: Kit) -> None:
    """Taking the condition away without a new lock is refused like any other change of the registry."""
    kit.edit("fixes/wide-log.yaml", "requires-with: {demo-core: [long-share]}", "requires: []")
    done = kit.apply("wide-log", "long-share")
    assert (done.code, done.codes) == (2, ["lock_stale"])


def test_revert(kit: Kit) -> None:
    assert kit.apply("wide-log", "long-share").code == 0
    done = kit.verb("revert", "--profile", "v1.0.0", "long-share")
    assert (done.code, done.codes) == (2, ["missing_requirement"])
    assert "wide-log stays and requires long-share" in done.err


def test_proof_alone(kit: Kit) -> None:
    """A fix is proven with what it requires beside the pinned distributions, and with no more."""
    loaded = registry.load(str(kit.registry))
    alone = {
        name: next(run.fixes for run in plan(loaded, loaded.profiles[name], ("wide-log",)) if "alone" in run.name)
        for name in ("bench-v1.0.0", "bare")
    }
    assert alone == {"bench-v1.0.0": ("long-share", "wide-log"), "bare": ("wide-log",)}


def test_show(kit: Kit) -> None:
    assert "requires: with demo-core: long-share\n" in kit.verb("show", "wide-log").out
    assert kit.verb("show", "wide-log", "--json").json["requires_with"] == {"demo-core": ["long-share"]}


def test_no_profile_of_it_pins_the_distribution(kit: Kit) -> None:
    for release in ("v1.0.0", "v2.0.0"):
        kit.edit(f"profiles/bench-{release}.yaml", "opt-in: [long-share, wide-log]", "opt-in: [long-share]")
    with pytest.raises(RegistryError) as found:
        registry.load(str(kit.registry))
    assert [(each.code, each.message) for each in found.value.problems] == [
        ("unpinned_distribution", "wide-log requires fixes with demo-core, which no profile of it pins")
    ]
