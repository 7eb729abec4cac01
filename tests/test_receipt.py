"""Receipts: what they say, that nothing believes them, and that no damage to one is a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from kit import BATCH, REPO, RUNNER, Kit, sha, state

from fixpack import __version__, receipt
from fixpack.target import site_target

INFO = "demo_plugin-1.0.0.dist-info"
NAME = f"{INFO}/fixpack.json"
SCHEMA = json.loads((REPO / "fixpack/schemas/receipt.schema.json").read_text())


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def read(kit: Kit, name: str = NAME) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kit.site / name).read_bytes())
    return found


def test_what_it_says(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    direct = {"url": "https://example.org/demo", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}
    (kit.site / INFO / "direct_url.json").write_text(json.dumps(direct))
    (kit.site / "demo_plugin/runner.py").chmod(0o754)
    kit.apply("long-share")
    found = read(kit)
    jsonschema.validate(found, SCHEMA)
    tool = found.pop("tool")
    assert tool["version"] == __version__
    assert len(tool["sha256"]) == 64
    bases = {path: each.pop("base") for path, each in found["files"].items()}
    lock = (kit.registry / "profiles/bench-v1.0.0.lock.json").read_bytes()
    files = {
        "demo_plugin/_fixpack/rows.py": (None, "0644"),
        "demo_plugin/_fixpack/share.py": (None, "0644"),
        "demo_plugin/batch.py": (sha(BATCH), "0644"),
        "demo_plugin/runner.py": (sha(RUNNER), "0754"),
    }
    assert found == {
        "schema": "fixpack.receipt/1",
        "time": "2023-11-14T22:13:20Z",
        "profile": "bench-v1.0.0",
        "lock_sha256": sha(lock),
        "distribution": {"name": "demo-plugin", "release": "v1.0.0", "version": "1.0.0", "commit": "1" * 39 + "a"},
        "location": {"root": str(kit.site), "how": f"--site {kit.site}", "direct_url": direct},
        "record": "added-rows",
        "fixes": [
            {"id": "rows-counted", "revision": 1, "opt_in": False},
            {"id": "order-kept", "revision": 1, "opt_in": False},
            {"id": "long-share", "revision": 1, "opt_in": True},
        ],
        "files": {
            path: {"base_sha256": base, "result_sha256": sha((kit.site / path).read_bytes()), "mode": mode}
            for path, (base, mode) in files.items()
        },
    }
    assert {path: base and zlib.decompress(b64decode(base)) for path, base in bases.items()} == {
        "demo_plugin/_fixpack/rows.py": None,
        "demo_plugin/_fixpack/share.py": None,
        "demo_plugin/batch.py": BATCH.encode(),
        "demo_plugin/runner.py": RUNNER.encode(),
    }
    assert [fix["id"] for fix in read(kit, "demo_core-1.0.0.dist-info/fixpack.json")["fixes"]] == ["core-guard"]


def test_the_time_is_now_without_an_epoch(kit: Kit) -> None:
    import time

    before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kit.apply()
    assert before <= read(kit)["time"] <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def test_it_follows_every_apply_and_revert_and_goes_with_the_last_fix(kit: Kit) -> None:
    ids: Callable[[], list[str]] = lambda: [fix["id"] for fix in read(kit)["fixes"]]  # noqa: E731
    kit.apply()
    assert ids() == ["rows-counted", "order-kept"]
    kit.apply("long-share")
    assert ids() == ["rows-counted", "order-kept", "long-share"]
    before = state(kit.site)
    assert kit.apply("long-share").out.count("confirmed: ") == 1
    assert state(kit.site) == before  # a confirm leaves it as it is
    kit.verb("revert", "order-kept", "long-share")
    assert ids() == ["rows-counted"]
    kit.verb("revert")
    assert not (kit.site / NAME).exists()
    assert "fixpack" not in (kit.site / INFO / "RECORD").read_text()


def test_a_source_tree_has_it_beside_the_package(kit: Kit) -> None:
    for folder in ("demo_plugin-1.0.0.dist-info", "demo_core-1.0.0.dist-info"):
        for path in (kit.site / folder).iterdir():
            path.unlink()
        (kit.site / folder).rmdir()
    before = kit.content()
    kit.apply()
    found = read(kit, ".fixpack.demo-plugin.json")
    assert (found["record"], found["distribution"]["version"]) == ("none", "")
    jsonschema.validate(found, SCHEMA)
    kit.verb("revert")
    assert kit.content() == before


def long_base(body: dict[str, Any]) -> None:
    body["files"]["demo_plugin/runner.py"]["base"] = b64encode(zlib.compress(b"\0" * (65 << 20))).decode()


def swapped(body: dict[str, Any]) -> None:
    files = body["files"]
    files["demo_plugin/runner.py"]["base"] = files["demo_plugin/batch.py"]["base"]


#: name -> change of the body, what status says of it
BODIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another version": (lambda body: body.update(schema="fixpack.receipt/2"), "is not a fixpack.receipt/1"),
    "a key too many": (lambda body: body.update(extra=1), "is not a fixpack.receipt/1: the keys of it are not schema"),
    "a key gone": (lambda body: body.pop("tool"), "is not a fixpack.receipt/1: the keys of it are not schema"),
    "a wrong type": (lambda body: body.update(fixes={}), "is not a fixpack.receipt/1: /fixes is not a list"),
    "a bool for a number": (
        lambda body: body["fixes"][0].update(revision=True),
        "is not a fixpack.receipt/1: /fixes/0/revision is True",
    ),
    "another distribution": (
        lambda body: body["distribution"].update(name="demo-core"),
        "is another distribution's: 'demo-core'",
    ),
    "another result": (lambda body: body["files"]["demo_plugin/batch.py"].update(result_sha256="0" * 64), "differs"),
    "another file": (lambda body: body["files"].update({"x/y.py": body["files"]["demo_plugin/batch.py"]}), "differs"),
    "a base that is no base64": (lambda body: body["files"]["demo_plugin/batch.py"].update(base="%%"), "agrees"),
    "a base that is not compressed": (lambda body: body["files"]["demo_plugin/batch.py"].update(base="AAAA"), "agrees"),
    "a bomb": (long_base, "agrees"),
    "another file's base": (swapped, "agrees"),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_wrong_body_is_never_believed(kit: Kit, case: str) -> None:
    kit.apply()
    change, said = BODIES[case]
    body = read(kit)
    change(body)
    (kit.site / NAME).write_text(json.dumps(body))
    check_unbelieved(kit, said)


RAW = {
    "empty": (b"", "is damaged"),
    "half": (None, "is damaged"),
    "not json": (b"\xff\xfe\0", "is damaged"),
    "deep": (b"[" * 200_000, "is damaged"),
    "a number": (b"7", "is not a fixpack.receipt/1"),
    "a list": (b"[]", "is not a fixpack.receipt/1"),
    "nan": (b'{"schema": NaN}', "is not a fixpack.receipt/1"),
}


@pytest.mark.parametrize("case", RAW)
def test_damaged_bytes_are_never_believed(kit: Kit, case: str) -> None:
    kit.apply()
    data, said = RAW[case]
    (kit.site / NAME).write_bytes((kit.site / NAME).read_bytes()[:300] if data is None else data)
    check_unbelieved(kit, said)


def check_unbelieved(kit: Kit, said: str) -> None:
    """State, confirm, verify, apply and revert are what the bytes say."""
    before = state(kit.site)
    done = kit.verb("status", "--json")
    assert done.code == 0
    assert done.json["receipts"][0]["state"].startswith(said), done.json["receipts"]
    assert {fix["state"] for fix in done.json["fixes"] if not fix["opt_in"]} == {"applied"}
    assert kit.verb("verify").code == 0
    assert "confirmed: " in kit.apply().out
    assert state(kit.site) == before
    assert kit.apply("long-share").code == 0  # and the next write writes it anew
    jsonschema.validate(read(kit), SCHEMA)
    (kit.site / NAME).write_bytes(b"{")
    assert kit.verb("revert").code == 0
    assert {path: kit.text(path) for path in ("demo_plugin/runner.py", "demo_plugin/batch.py")} == {
        "demo_plugin/runner.py": RUNNER,
        "demo_plugin/batch.py": BATCH,
    }
    assert not (kit.site / NAME).exists()


def test_a_missing_one_is_no_failure(kit: Kit) -> None:
    kit.apply()
    (kit.site / NAME).unlink()
    assert kit.verb("status", "--json").json["receipts"][0]["state"] == "none"
    assert "confirmed: " in kit.apply().out
    assert not (kit.site / NAME).exists()  # confirming needs none
    assert kit.verb("revert").code == 0


def test_one_that_is_left_from_a_package_that_was_installed_anew(kit: Kit) -> None:
    """It says applied, the bytes say pristine: the bytes are right."""
    kit.apply()
    saved = (kit.site / NAME).read_bytes()
    kit.fresh_site()
    (kit.site / NAME).write_bytes(saved)
    done = kit.verb("status", "--json")
    assert done.json["receipts"][0]["state"] == "differs"
    assert {fix["state"] for fix in done.json["fixes"]} == {"pristine"}
    assert kit.verb("verify").code == 1
    assert "applied: " in kit.apply().out


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_something_else_in_its_place(kit: Kit, kind: str) -> None:
    place = kit.site / NAME
    outside = kit.folder / "outside.json"
    outside.write_text("mine")
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(outside)
    before = state(kit.site)
    done = kit.apply()
    assert (done.code, done.codes) == (1, ["leaves_target" if kind == "link" else "not_a_file"])
    assert state(kit.site) == before
    assert outside.read_text() == "mine"
    assert kit.verb("status").code == 0


def test_a_dist_info_that_leads_out_of_the_target_is_not_written_to(kit: Kit) -> None:
    (kit.site / INFO).rename(kit.folder / INFO)
    (kit.site / INFO).symlink_to(kit.folder / INFO)
    before = state(kit.folder / INFO)
    done = kit.apply()
    assert (done.code, done.codes) == (1, ["leaves_target"])
    assert state(kit.folder / INFO) == before


def test_reading_is_by_the_hash_of_the_pin_only(kit: Kit) -> None:
    kit.apply()
    located = site_target(str(kit.site), [("demo-plugin", "demo_plugin")]).located["demo-plugin"]
    found = receipt.read(located)
    assert found.kept_base("demo_plugin/batch.py", sha(BATCH)) == BATCH.encode()
    assert found.kept_base("demo_plugin/batch.py", sha(RUNNER)) is None
    assert found.kept_base("demo_plugin/_fixpack/rows.py", sha(b"")) is None
    assert found.kept_base("demo_plugin/none.py", sha(BATCH)) is None


def test_a_confirm_neither_reads_nor_imports_it(kit: Kit) -> None:
    kit.apply()
    done = subprocess.run(
        [
            *(sys.executable, "-X", "importtime", str(REPO / "apply_all.py"), "--registry", str(kit.registry)),
            *("--profile", "v1.0.0", "--site", str(kit.site)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "confirmed: " in done.stdout
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"fixpack.confirm", "fixpack.lock"} <= modules
    heavy = {"yaml", "zlib", "fixpack.receipt", "fixpack.ledger", "fixpack.engine", "fixpack.commit", "fixpack.layers"}
    assert not modules & heavy, modules & heavy


def test_both_checks_of_the_form_agree(kit: Kit) -> None:
    """The schema for others and the form by which it is read."""
    kit.apply()
    located = site_target(str(kit.site), [("demo-plugin", "demo_plugin")]).located["demo-plugin"]
    for case, (change, said) in BODIES.items():
        kit.fresh_site()
        kit.apply()
        body = read(kit)
        change(body)
        (kit.site / NAME).write_text(json.dumps(body))
        valid = jsonschema.Draft202012Validator(SCHEMA).is_valid(body)
        assert valid == (receipt.read(located).state == "read" or "another distribution" in case), (case, said)
