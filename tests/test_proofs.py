"""Recorded proofs: kept by fix, outdated by any change that matters, refused when damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kit import Kit, write

from fixpack import proofs, prove_report, registry
from fixpack.errors import FixpackError, RegistryError, UsageError
from fixpack.model import Registry
from fixpack.prove import ProfileResult, Verdict

TESTS = {f"tests/fixes/test_{name}.py": f"# {name}\n" for name in ("rows_counted", "order_kept", "core_guard")}


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    made = Kit(tmp_path)
    write(made.registry, {**TESTS, "docs/README.md": ""})
    return made


def load(kit: Kit) -> Registry:
    return registry.load(str(kit.registry))


def verdict(fix: str, status: str = "proven") -> Verdict:
    return Verdict(fix, status, (), (2, 2), (1, 1), (3, 3), (6, 6), 1.25)


def record(kit: Kit, *verdicts: Verdict, date: str = "2026-11-29", profile: str = "bench-v1.0.0") -> Path:
    loaded = load(kit)
    result = ProfileResult(loaded.profiles[profile], verdicts, (), ())
    path = kit.registry / proofs.PATH
    proofs.write(loaded, str(path), prove_report.recorded(loaded, [result], date))
    return path


def test_what_is_written_is_read(kit: Kit) -> None:
    path = record(kit, verdict("order-kept"))
    found = proofs.read(str(kit.registry))
    assert list(found) == ["bench-v1.0.0"]
    assert found["bench-v1.0.0"].releases == {"demo-plugin@v1.0.0": "1" * 39 + "a", "demo-core@v1.0.0": "c" * 40}
    result = found["bench-v1.0.0"].fixes["order-kept"]
    assert result._replace(digest="", versions={}) == proofs.Result(
        1, "", "2026-11-29", "proven", (2, 2), (1, 1), (3, 3), (6, 6), 1.25, {}
    )
    assert {"python", "fixpack", "torch"} <= result.versions.keys()
    assert sum("order-kept" in line for line in path.read_text().splitlines()) == 1


def test_other_fixes_and_profiles_stay(kit: Kit) -> None:
    record(kit, verdict("order-kept"), verdict("core-guard"), date="2026-01-01")
    record(kit, verdict("core-guard"), profile="bench-v2.0.0")
    record(kit, verdict("core-guard", "failed"), verdict("order-kept", "skipped"))
    found = proofs.read(str(kit.registry))
    assert {
        (profile, fix): (result.status, result.date)
        for profile, each in found.items()
        for fix, result in each.fixes.items()
    } == {
        ("bench-v1.0.0", "order-kept"): ("proven", "2026-01-01"),
        ("bench-v1.0.0", "core-guard"): ("failed", "2026-11-29"),
        ("bench-v2.0.0", "core-guard"): ("proven", "2026-11-29"),
    }


def test_what_is_gone_goes(kit: Kit) -> None:
    path = record(kit, verdict("order-kept"), verdict("core-guard"))
    data = json.loads(path.read_text())
    fixes = data["profiles"]["bench-v1.0.0"]["fixes"]
    fixes["left"] = fixes["order-kept"]
    data["profiles"]["old"] = data["profiles"]["bench-v1.0.0"]
    path.write_text(json.dumps(data))
    record(kit, verdict("core-guard"))
    assert {name: list(each.fixes) for name, each in proofs.read(str(kit.registry)).items()} == {
        "bench-v1.0.0": ["order-kept", "core-guard"]
    }


CHANGES = {
    "test file": ("tests/fixes/test_order_kept.py", "# order_kept", "# order_kept, better"),
    "payload": ("patches/order-kept/keep.py", "list(rows)", "tuple(rows)"),
    "payload of a required fix": ("patches/rows-counted/rows.py", "len(rows)", "sum(1 for _ in rows)"),
    "declared failure": ("fixes/order-kept.yaml", "a row was lost", "a row was gone"),
    "pin": ("anchors/demo-core/v1.0.0.yaml", "c" * 40, "d" * 40),
    "anchor": ("anchors/demo-plugin/v1.0.0.yaml", "within: Batch.add", "within: Batch.swap"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_outdates(change: str, kit: Kit) -> None:
    loaded = load(kit)
    before = proofs.digest(loaded, loaded.profiles["bench-v1.0.0"], loaded.fixes["order-kept"])
    kit.edit(*CHANGES[change])
    loaded = load(kit)
    assert proofs.digest(loaded, loaded.profiles["bench-v1.0.0"], loaded.fixes["order-kept"]) != before


def test_words_do_not_outdate(kit: Kit) -> None:
    loaded = load(kit)
    before = proofs.digest(loaded, loaded.profiles["bench-v1.0.0"], loaded.fixes["order-kept"])
    kit.edit("fixes/order-kept.yaml", "symptom: rows are lost", "symptom: rows are gone")
    kit.edit("patches/core-guard/guard.py", "[1]) == [1]", "[2]) == [2]")
    loaded = load(kit)
    assert proofs.digest(loaded, loaded.profiles["bench-v1.0.0"], loaded.fixes["order-kept"]) == before


DAMAGED: dict[str, str | bytes] = {
    "no JSON": "{",
    "nested": "[" * 100_000,
    "thousands of digits": '{"schema_version": ' + "1" * 5000 + "}",
    "not UTF-8": b"\xff",
    "another version": '{"schema_version": 2, "profiles": {}}',
    "another form": '{"schema_version": 1, "profiles": {"x": {"releases": {}, "fixes": {"y": {}}}}}',
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_record(case: str, kit: Kit) -> None:
    path = kit.registry / proofs.PATH
    text = DAMAGED[case]
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(data)
    with pytest.raises(RegistryError) as caught:
        proofs.read(str(kit.registry))
    assert [(each.code, each.file) for each in caught.value.problems] == [("record_invalid", proofs.PATH)]
    with pytest.raises(FixpackError):
        record(kit, verdict("order-kept"))
    assert path.read_bytes() == data


def test_a_pipe_for_a_record(kit: Kit) -> None:
    """Refused, and not waited for."""
    os.mkfifo(kit.registry / proofs.PATH)
    with pytest.raises(RegistryError, match="not a record of proofs: it is not an ordinary file"):
        proofs.read(str(kit.registry))
    with pytest.raises(FixpackError):
        record(kit, verdict("order-kept"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [('"red": [2, 2]', '"red": [2, 2, 2]', "two counts"), ('"2026-11-29"', '"| today |"', "a date")],
)
def test_a_value_that_cannot_be(old: str, new: str, said: str, kit: Kit) -> None:
    path = record(kit, verdict("order-kept"))
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(RegistryError, match=said):
        proofs.read(str(kit.registry))


def test_a_folder_that_is_not_there_is_found_first(kit: Kit) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        proofs.check(load(kit), str(kit.folder / "nowhere" / "proofs.json"))
