"""The CycloneDX document: valid by the official schema, about what is in place, and the same for the same target."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit import Kit, sha

pytest.importorskip("cyclonedx")

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from fixpack import registry
from fixpack.compose import compose


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    return Kit(tmp_path)


def made(kit: Kit) -> dict[str, Any]:
    done = kit.verb("sbom")
    assert (done.code, done.err) == (0, "")
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(done.out)
    assert wrong is None, wrong
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_what_it_says(kit: Kit) -> None:
    kit.apply("long-share")
    found = made(kit)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    lock = (kit.registry / "profiles/bench-v1.0.0.lock.json").read_bytes()
    assert found["properties"] == [
        {"name": "fixpack:lock:sha256", "value": sha(lock)},
        {"name": "fixpack:profile", "value": "bench-v1.0.0"},
    ]
    core, plugin = found["components"]
    assert (core["name"], core["version"], core["purl"]) == ("demo-core", "1.0.0", "pkg:pypi/demo-core@1.0.0")
    assert plugin["pedigree"]["ancestors"][0]["purl"] == "pkg:pypi/demo-plugin@1.0.0"
    assert plugin["pedigree"]["commits"] == [{"uid": "1" * 39 + "a"}]
    patches = {patch["resolves"][0]["id"]: patch for patch in plugin["pedigree"]["patches"]}
    assert set(patches) == {"rows-counted", "order-kept", "long-share"}
    one = patches["rows-counted"]
    assert one["type"] == "unofficial"
    assert one["resolves"] == [
        {"type": "defect", "id": "rows-counted", "name": "count every row of a step", "description": "rows are lost"}
    ]
    values = {each["name"]: each["value"] for each in plugin["properties"]}
    assert values["fixpack:sha256:demo_plugin/runner.py"] == sha((kit.site / "demo_plugin/runner.py").read_bytes())


def test_an_abbreviated_commit_comes_with_its_archive(kit: Kit) -> None:
    archive = f"sdist: {{filename: demo_core-1.0.0.tar.gz, sha256: {'a' * 64}}}\n"
    kit.edit("anchors/demo-core/v1.0.0.yaml", f"commit: {'c' * 40}\n", f"commit: {'c' * 9}\n{archive}")
    kit.lock()
    kit.apply()
    core = made(kit)["components"][0]
    values = {each["name"]: each["value"] for each in core["properties"]}
    assert (values["fixpack:commit"], values["fixpack:sdist:sha256"]) == ("c" * 9, "a" * 64)
    assert core["pedigree"]["commits"] == [{"uid": "c" * 9}]


def test_each_diff_makes_the_fixed_files_out_of_upstreams(kit: Kit, tmp_path: Path) -> None:
    kit.apply("long-share")
    loaded = registry.load(str(kit.registry))
    for component in made(kit)["components"]:
        release = loaded.releases[f"{component['name']}@v1.0.0"]
        for patch in component["pedigree"]["patches"]:
            stock = kit.fresh_site(folder=tmp_path / "stock")
            fix = loaded.fixes[patch["resolves"][0]["id"]]
            base = {path: (stock / path).read_bytes() for path in release.files}
            (tmp_path / "one.diff").write_text(patch["diff"]["text"]["content"])
            command = ["patch", "-p1", "-s", "--fuzz=0", "-i", str(tmp_path / "one.diff")]
            subprocess.run(command, cwd=stock, check=True)
            expected = compose({**base}, release, [fix])
            assert {path: (stock / path).read_bytes() for path in expected} == expected


def test_origins_and_upstream(kit: Kit) -> None:
    kit.edit(
        "fixes/core-guard.yaml",
        "origin: {kind: own}\nupstream: {status: not-reported}",
        "origin: {kind: backport, url: 'https://example.org/commit/1'}\n"
        "upstream: {status: accepted, url: 'https://example.org/pull/7'}",
    )
    kit.lock()
    kit.apply()
    [patch] = made(kit)["components"][0]["pedigree"]["patches"]
    assert (patch["type"], patch["diff"]["url"]) == ("backport", "https://example.org/commit/1")
    assert patch["resolves"][0]["source"]["url"] == "https://example.org/pull/7"


def test_the_same_target_gives_the_same_document(kit: Kit, tmp_path: Path) -> None:
    kit.apply()
    first = kit.verb("sbom").out
    assert kit.verb("sbom", "--output", str(tmp_path / "bom.json")).out == ""
    assert (tmp_path / "bom.json").read_text() == first
    kit.apply("long-share")
    assert json.loads(first)["serialNumber"] != made(kit)["serialNumber"]


def test_what_is_not_in_place_is_not_listed(kit: Kit) -> None:
    done = kit.verb("sbom")
    assert (done.code, done.codes, done.out) == (1, ["nothing_in_place"], "")
    kit.apply()
    path = kit.site / "demo_plugin/runner.py"
    path.write_text(path.read_text().replace("order = list(rows)", "order = rows"))
    done = kit.verb("sbom")
    assert (done.code, done.out) == (1, "")
    assert "edited_inside" in done.codes
