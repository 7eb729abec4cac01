"""The prover proves what is proven and nothing else: a small invented upstream, real interpreters."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fixpack import prove_report
from fixpack.errors import MismatchError, Problem, SourceError, UsageError
from fixpack.model import Edit, Fix, Origin, Profile, Proof, Registry, Release, Upstream, UpstreamHas
from fixpack.proof_plan import plan
from fixpack.proof_run import Children, run_pytest
from fixpack.prove import Lab, ProfileResult, Verdict, prove_profile
from fixpack.prove_lab import select

UPSTREAM = "def count(items):\n    return len(items) - 1\n\n\ndef total(items):\n    return sum(items)\n"
FIXED = UPSTREAM.replace(" - 1", "")
#: A fix that mends the count and breaks the total.
CLUMSY = FIXED.replace("sum(items)", "sum(items) + 1")

PROPER = """
    from demo.rows import count, total
    def test_count():
        assert count([5, 5]) == 2, f"a row was lost: {count([5, 5])}"
    def test_total():
        assert total([1, 2]) == 3
"""
RED = {"test_count": "a row was lost: 1"}

#: fix -> its proof, what it declares, and the reasons that the prover must give (none: proven)
CASES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "proper": (PROPER, RED, []),
    "parameters": (
        """
        import pytest
        from demo.rows import count
        @pytest.mark.parametrize("n", [1, 2])
        def test_count(n):
            assert count([0] * n) == n, "a row was lost: 1"
        """,
        RED,
        [],
    ),
    "green-on-stock": (
        "def test_count():\n    pass\n",
        RED,
        ["stock: test_green_on_stock.py::test_count is green without the fix"],
    ),
    "other-reason": (
        "def test_count():\n    message = 'a row was lost: 1'\n    from demo.rows import count\n"
        "    if count([0, 0]) == 1:\n        raise KeyError('other')\n",
        RED,
        [
            "stock: test_other_reason.py::test_count fails for another reason than 'a row was lost: 1': "
            "KeyError: 'other'"
        ],
    ),
    "any-reason": (
        PROPER,
        {"test_count": ".*"},
        ["stock: test_any_reason.py::test_count declares '.*', which any failure matches"],
    ),
    "red-on-fixed": (
        "def test_count():\n    assert False, 'a row was lost: 1'\n",
        RED,
        [
            "alone:red-on-fixed: test_red_on_fixed.py::test_count failed: AssertionError: a row was lost: 1",
            "all: test_red_on_fixed.py::test_count failed: AssertionError: a row was lost: 1",
        ],
    ),
    "guard-red": (
        PROPER + "    def test_guard():\n        assert count([1]) == 1, 'guard'\n",
        RED,
        ["stock: the guard test_guard_red.py::test_guard failed: AssertionError: guard"],
    ),
    "skips": (
        PROPER + "    def test_skip():\n        import pytest\n        pytest.skip('not here')\n",
        RED,
        [
            "stock: the guard test_skips.py::test_skip skipped: ",
            "alone:skips: test_skips.py::test_skip skipped: ",
            "all: test_skips.py::test_skip skipped: ",
        ],
    ),
    "xfails": (
        "import pytest\nfrom demo.rows import count\n@pytest.mark.xfail(strict=False)\n"
        "def test_count():\n    assert count([0, 0]) == 2, 'a row was lost: 1'\n",
        RED,
        [
            "stock: test_xfails.py::test_count must fail, but was xfail",
            "alone:xfails: test_xfails.py::test_count xfail",
            "all: test_xfails.py::test_count xfail",
        ],
    ),
    "no-tests": (
        "x = 1\n",
        RED,
        [
            "stock: no test ran",
            "stock: test_count is declared, but there is no such test",
            "alone:no-tests: no test ran",
            "all: no test ran",
        ],
    ),
    "wrong-name": (
        PROPER,
        {"test_counts": "a row was lost"},
        [
            "stock: the guard test_wrong_name.py::test_count failed: AssertionError: a row was lost: 1",
            "stock: test_counts is declared, but there is no such test",
        ],
    ),
    "broken-import": (
        "import no_such_module\ndef test_count():\n    pass\n",
        RED,
        [
            "stock: collection failed: ImportError while importing test module",
            "stock: test_count is declared, but there is no such test",
            "alone:broken-import: collection failed: ImportError while importing test module",
            "all: collection failed: ImportError while importing test module",
        ],
    ),
    "module-skip": (
        "import pytest\npytest.skip('never', allow_module_level=True)\n",
        RED,
        [
            "stock: collection skipped: ",
            "stock: test_count is declared, but there is no such test",
            "alone:module-skip: collection skipped: ",
            "all: collection skipped: ",
        ],
    ),
    "setup-fails": (
        "import pytest\nfrom demo.rows import count\n@pytest.fixture\n"
        "def rows():\n    assert count([0, 0]) == 2, 'a row was lost: 1'\ndef test_count(rows):\n    pass\n",
        RED,
        ["stock: test_setup_fails.py::test_count must fail, but was error: AssertionError: a row was lost: 1"],
    ),
}


def make_fix(name: str, stock: Mapping[str, str], requires: tuple[str, ...] = ()) -> Fix:
    file = f"tests/fixes/test_{name.replace('-', '_')}.py"
    edit = Edit("replace", "count", "", "count.py", "", "fixes/x.yaml:1")
    return Fix(
        name, 1, "t", "s", "c", Origin("own", "", ""), Upstream("not-reported", "", ""), "never", "", requires,
        {"demo-dist": (edit,)}, {}, Proof(file, dict(stock)), f"fixes/{name}.yaml",
    )  # fmt: skip


def make_registry(root: Path, fixes: Sequence[Fix], opt_in: tuple[str, ...] = ()) -> tuple[Registry, Profile]:
    release = Release("demo-dist", "v1", "1", "demo", "a" * 40, (), "", None, {}, "anchors/demo-dist/v1.yaml")
    default = tuple(fix.id for fix in fixes if fix.id not in opt_in)
    profile = Profile("demo-v1", (), "none", False, {"demo-dist": "v1"}, default, opt_in, "profiles/demo-v1.yaml")
    return Registry(str(root), {fix.id: fix for fix in fixes}, {release.ref: release}, {profile.name: profile}), profile


def write_proof(root: Path, fix: Fix, text: str) -> None:
    file = root / fix.proof.test
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text), encoding="utf-8")


class DemoLab:
    """A cached tree and an engine that writes one file."""

    def __init__(self, root: Path, results: Mapping[str, str] | None = None) -> None:
        self.cached = root / "cache" / "demo-dist@v1"
        (self.cached / "demo").mkdir(parents=True)
        (self.cached / "demo" / "__init__.py").write_text("", encoding="utf-8")
        (self.cached / "demo" / "rows.py").write_text(UPSTREAM, encoding="utf-8")
        self.scratch = root / "cache" / "prove"
        self.results = results or {}
        self.applied: list[tuple[str, ...]] = []

    def apply(self, releases: Sequence[Release], fixes: Sequence[str], trees: Mapping[str, str]) -> None:
        self.applied.append(tuple(fixes))
        file = Path(trees["demo-dist"], "demo", "rows.py")
        file.unlink()
        # As an engine must: same size, same second, and Python would take the old bytecode for the new file's.
        shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)
        file.write_text(next((self.results[fix] for fix in fixes if fix in self.results), FIXED), encoding="utf-8")

    def env(self, trees: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "PYTHONPATH": trees["demo-dist"]}

    def lab(self) -> Lab:
        return Lab(
            str(self.scratch),
            lambda release: str(self.cached) if self.cached.is_dir() else "",
            lambda release: f"fetch {release.ref}",
            self.apply,
            self.env,
        )


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Registry, ProfileResult, DemoLab]:
    root = tmp_path_factory.mktemp("prove")
    fixes = [make_fix(name, stock) for name, (_, stock, _) in CASES.items()]
    for fix in fixes:
        write_proof(root, fix, CASES[fix.id][0])
    registry, profile = make_registry(root, fixes)
    lab = DemoLab(root)
    return registry, prove_profile(registry, profile, [fix.id for fix in fixes], lab.lab(), jobs=2), lab


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str, outcome: tuple[Registry, ProfileResult, DemoLab]) -> None:
    verdict = next(verdict for verdict in outcome[1].verdicts if verdict.fix == name)
    expected = CASES[name][2]
    assert verdict.status == ("failed" if expected else "proven")
    assert [reason[: len(start)] for reason, start in zip(verdict.reasons, expected, strict=False)] == expected
    assert len(verdict.reasons) == len(expected), verdict.reasons


def test_numbers(outcome: tuple[Registry, ProfileResult, DemoLab]) -> None:
    rows = {verdict.fix: prove_report.row(verdict) for verdict in outcome[1].verdicts}
    assert rows["proper"][1:5] == ("1/1", "1/1", "2/2", "2/2")
    assert rows["parameters"][1:5] == ("2/2", "0/0", "2/2", "2/2")
    assert rows["guard-red"][1:5] == ("1/1", "1/2", "3/3", "3/3")
    assert prove_report.last_line([outcome[1]]) == "2 proven, 0 skipped, 12 failed"


def test_the_cached_tree_and_the_scratch_folder_are_as_before(
    outcome: tuple[Registry, ProfileResult, DemoLab],
) -> None:
    lab = outcome[2]
    assert (lab.cached / "demo" / "rows.py").read_text(encoding="utf-8") == UPSTREAM
    assert sorted(path.name for path in lab.cached.rglob("*")) == ["__init__.py", "demo", "rows.py"]
    assert list(lab.scratch.iterdir()) == []


def test_the_record_says_what_the_proofs_saw(outcome: tuple[Registry, ProfileResult, DemoLab]) -> None:
    registry, result, _ = outcome
    record = json.loads(json.dumps(prove_report.record(registry, [result], "2026-01-01T00:00:00+00:00", 1.0)))

    def digest(rows: str) -> str:
        files = {"demo/__init__.py": "", "demo/rows.py": rows}
        lines = [f"{name}\0{hashlib.sha256(text.encode()).hexdigest()}\n" for name, text in sorted(files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    runs = {run["name"]: run for run in record["profiles"][0]["runs"]}
    assert runs["stock"]["trees"] == {"demo-dist@v1": digest(UPSTREAM)}
    assert runs["alone:proper"]["trees"] == runs["all"]["trees"] == {"demo-dist@v1": digest(FIXED)}
    assert record["counts"] == {"proven": 2, "skipped": 0, "failed": 12}
    assert record["profiles"][0]["releases"] == {"demo-dist@v1": {"version": "1", "commit": "a" * 40}}
    assert {fix["fix"]: fix["status"] for fix in record["profiles"][0]["fixes"]}["proper"] == "proven"


def test_a_fix_that_breaks_another_s_guard_fails_that_fix_where_both_are_applied(tmp_path: Path) -> None:
    fixes = [make_fix("proper", RED), make_fix("clumsy", RED)]
    registry, profile = make_registry(tmp_path, fixes)
    write_proof(tmp_path, fixes[0], PROPER)
    write_proof(tmp_path, fixes[1], PROPER.replace("test_total", "total_test"))
    result = prove_profile(registry, profile, ["proper", "clumsy"], DemoLab(tmp_path, {"clumsy": CLUMSY}).lab())
    assert [(verdict.status, verdict.reasons) for verdict in result.verdicts] == [
        ("failed", ("all: test_proper.py::test_total failed: AssertionError: assert 4 == 3",)),
        ("proven", ()),
    ]


def test_a_fix_that_cannot_be_applied_is_failed(tmp_path: Path) -> None:
    fix = make_fix("proper", RED)
    registry, profile = make_registry(tmp_path, [fix])
    write_proof(tmp_path, fix, PROPER)
    lab = DemoLab(tmp_path).lab()

    def refuse(releases: Sequence[Release], fixes: Sequence[str], trees: Mapping[str, str]) -> None:
        raise MismatchError(Problem("anchor_missing", "the anchor 'count' is not there"))

    result = prove_profile(registry, profile, ["proper"], lab._replace(apply=refuse))
    assert result.verdicts[0].reasons == (
        "alone:proper: cannot be applied: the anchor 'count' is not there",
        "all: cannot be applied: the anchor 'count' is not there",
    )


def test_a_missing_source_skips_with_the_command(tmp_path: Path) -> None:
    registry, profile = make_registry(tmp_path, [make_fix("proper", RED)])
    lab = DemoLab(tmp_path).lab()._replace(tree=lambda release: "")
    result = prove_profile(registry, profile, ["proper"], lab)
    assert result.verdicts == (
        Verdict("proper", "skipped", ("source missing: fetch demo-dist@v1",), (0, 0), (0, 0), (0, 0), (0, 0), 0.0),
    )
    assert prove_report.reasons(result) == [
        "skipped, because upstream sources are not in the cache; fetch them with",
        "  fetch demo-dist@v1",
    ]


def test_a_proof_that_writes_into_the_tree_is_failed(tmp_path: Path) -> None:
    fix = make_fix("writes", {"test_count": "a row was lost"})
    registry, profile = make_registry(tmp_path, [fix])
    more = "    import demo, pathlib\n    (pathlib.Path(demo.__file__).parent / 'x.py').touch()\n"
    write_proof(tmp_path, fix, PROPER + more)
    lab = DemoLab(tmp_path)
    result = prove_profile(registry, profile, ["writes"], lab.lab())
    assert result.verdicts[0].reasons == tuple(
        f"{run}: the proofs wrote into the tree of demo-dist@v1" for run in ("stock", "alone:writes", "all")
    )


def test_the_scratch_folder_is_beside_the_cached_trees(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where something lies about that is not the prover's; where it cannot be, that is said."""
    fix = make_fix("proper", RED)
    registry, profile = make_registry(tmp_path, [fix])
    write_proof(tmp_path, fix, PROPER)
    lab = DemoLab(tmp_path)
    lab.scratch.mkdir()
    (lab.scratch / "notes").write_text("mine")
    (lab.scratch / "prove-notes").write_text("mine")
    seen = []
    made = lab.lab()
    watched = made._replace(env=lambda trees: seen.append(trees["demo-dist"]) or lab.env(trees))
    prove_profile(registry, profile, ["proper"], watched)
    assert [tree.startswith(f"{lab.scratch}/prove-") for tree in seen] == [True] * 3
    assert capfd.readouterr().err == ""
    assert sorted(os.listdir(lab.scratch)) == ["notes", "prove-notes"]
    elsewhere = str(lab.scratch / "notes")
    assert prove_profile(registry, profile, ["proper"], made._replace(scratch=elsewhere)).verdicts[0].status == "proven"
    assert capfd.readouterr().err.startswith(f"no scratch folder in {elsewhere} (File exists); using ")


def test_a_cached_tree_that_a_proof_changed_through_the_hard_link_is_an_error(tmp_path: Path) -> None:
    fix = make_fix("writes", RED)
    registry, profile = make_registry(tmp_path, [fix])
    write_proof(tmp_path, fix, PROPER + "    import demo.rows, pathlib\n    open(demo.rows.__file__, 'a').write('#')\n")
    lab = DemoLab(tmp_path)
    with pytest.raises(SourceError) as caught:
        prove_profile(registry, profile, ["writes"], lab.lab())
    assert [problem.code for problem in caught.value.problems] == ["source_changed"]


@pytest.mark.parametrize(
    ("body", "timeout", "told"),
    [
        ("import os; os._exit(7)", 60, "the interpreter ended with 7 in tests/fixes/test_proper.py::test_count: "),
        ("import time; time.sleep(60)", 3, "no end after 3 s in tests/fixes/test_proper.py::test_count: "),
    ],
)
def test_a_dead_or_endless_interpreter_is_trouble(body: str, timeout: float, told: str, tmp_path: Path) -> None:
    fix = make_fix("proper", RED)
    write_proof(tmp_path, fix, f"def test_count():\n    {body}\n")
    folder = tmp_path / "run"
    env = {"PATH": os.environ["PATH"]}
    report = run_pytest([str(tmp_path / fix.proof.test)], env, str(tmp_path), str(folder), timeout, Children())
    assert [trouble.text[: len(told)] for trouble in report.troubles] == [told]
    assert [test.outcome for test in report.tests] == ["not-run"]


def test_stopping_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    children, codes = Children(), []
    command = [sys.executable, "-c", "import pathlib, time; pathlib.Path('up').touch(); time.sleep(60)"]
    thread = threading.Thread(target=lambda: codes.append(children.run(command, {}, str(tmp_path), 60)[0]))
    thread.start()
    while not (tmp_path / "up").exists():
        thread.join(0.01)
    children.stop()
    thread.join()
    assert codes == [-9]
    assert children.run(command, {}, str(tmp_path), 60) == (-15, "stopped")


def test_plan_covers_each_opt_in_alone_and_in_pairs(tmp_path: Path) -> None:
    fixes = [make_fix("a", RED), make_fix("b", RED, ("a",)), *(make_fix(name, RED) for name in ("x", "y", "z"))]
    registry, profile = make_registry(tmp_path, fixes, ("x", "y", "z"))
    assert [(run.name, "".join(run.fixes), "".join(run.proofs)) for run in plan(registry, profile, list("abxyz"))] == [
        ("stock", "", "abxyz"),
        ("alone:a", "a", "a"),
        ("alone:b", "ab", "b"),
        ("alone:x", "x", "x"),
        ("alone:y", "y", "y"),
        ("alone:z", "z", "z"),
        ("all", "ab", "ab"),
        ("all+x", "abx", "x"),
        ("all+y", "aby", "y"),
        ("all+z", "abz", "z"),
        ("all+x+y", "abxy", "xy"),
        ("all+x+z", "abxz", "xz"),
        ("all+y+z", "abyz", "yz"),
        ("all+x+y+z", "abxyz", "abxyz"),
    ]
    shared = (Edit("add-file", "", "demo/new.py", "new.py", "", "fixes/x.yaml:1"),)
    near = {name: registry.fixes[name]._replace(edits={"demo-dist": shared}) for name in "bx"}
    mixed = registry._replace(fixes={**registry.fixes, **near})
    proofs = {run.name: "".join(run.proofs) for run in plan(mixed, profile, list("abxyz"))}
    assert (proofs["all+x"], proofs["all+y"], proofs["all+x+y"]) == ("bx", "y", "xy")
    assert [run.name for run in plan(registry, profile, ["b"])] == ["stock", "alone:b", "all"]
    only_x = [run.name for run in plan(registry, profile, ["x"])]
    assert only_x == ["stock", "alone:x", "all+x", "all+x+y", "all+x+z", "all+x+y+z"]


def test_select_names_what_is_unknown(tmp_path: Path) -> None:
    registry, profile = make_registry(tmp_path, [make_fix("proper", RED), make_fix("other", RED)])
    assert select(registry, ["proper"], None, "") == [(profile, ("proper",))]
    assert select(registry, ["proper"], profile, "demo-dist@v1") == [(profile, ("proper",))]
    for fixes, release, hint in ((["propper"], "", "did you mean 'proper'?"), ([], "demo-dist@v2", "did you mean")):
        with pytest.raises(UsageError) as caught:
            select(registry, fixes, None, release)
        assert caught.value.problems[0].hint.startswith(hint)


def has(fix: Fix, *green: str) -> Fix:
    """The fix, of which upstream has these tests' part in the one release; none named: all of it."""
    found = UpstreamHas("https://example.org/1", "it counts every row", "count", green, "fixes/x.yaml:2")
    return fix._replace(upstream_has={"demo-dist@v1": found})


TWO = """
    from demo.rows import count, total
    def test_count():
        assert count([5, 5]) == 2, f"a row was lost: {count([5, 5])}"
    def test_total():
        assert total([1, 2]) == 3, "a sum was lost"
    def test_guard():
        assert count([]) <= 0
"""


def superseded(root: Path, green: Sequence[str], stock: Mapping[str, str], proof: str = TWO) -> Verdict:
    """The verdict on a fix that its profile does without; another one is in the profile."""
    gone, kept = has(make_fix("gone", stock), *green), make_fix("kept", RED)
    write_proof(root, gone, proof)
    write_proof(root, kept, PROPER)
    registry, profile = make_registry(root, [kept])
    registry = registry._replace(fixes={"kept": kept, "gone": gone})
    [(_, names)] = select(registry, [], profile, "")
    assert names == ("kept", "gone")
    assert [run.proofs for run in plan(registry, profile, names)] == [names, ("kept",), names]
    result = prove_profile(registry, profile, names, DemoLab(root).lab())
    assert result.verdicts[0].status == "proven"
    return result.verdicts[1]


def test_what_upstream_has_is_green_on_stock(tmp_path: Path) -> None:
    verdict = superseded(tmp_path, (), {"test_total": "a sum was lost"}, TWO.replace("== 2, f", "< 3, f"))
    assert (verdict.status, verdict.reasons, verdict.red, verdict.guards) == ("superseded", (), (0, 0), (3, 3))
    assert verdict.alone == (0, 0)


def test_the_part_that_upstream_lacks_is_still_red(tmp_path: Path) -> None:
    verdict = superseded(tmp_path, ["test_total"], {**RED, "test_total": "a sum was lost"})
    assert (verdict.status, verdict.reasons, verdict.red, verdict.guards) == ("superseded", (), (1, 1), (2, 2))
    assert (verdict.alone, verdict.together) == ((0, 0), (2, 2))


def test_what_upstream_is_wrongly_said_to_have(tmp_path: Path) -> None:
    verdict = superseded(tmp_path, (), {**RED, "test_total": "a sum was lost"})
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "stock: upstream is said to have it, but test_gone.py::test_count failed: "
        "AssertionError: a row was lost: 1",
    )


def test_a_fix_of_which_upstream_has_a_part(tmp_path: Path) -> None:
    """It stays in the profile, and its tests are red only where upstream lacks something."""
    fix = has(make_fix("half", {**RED, "test_total": "a sum was lost"}), "test_total")
    write_proof(tmp_path, fix, TWO)
    registry, profile = make_registry(tmp_path, [fix])
    assert registry.superseded(profile) == {}
    verdict = prove_profile(registry, profile, ["half"], DemoLab(tmp_path).lab()).verdicts[0]
    assert (verdict.status, verdict.reasons, verdict.red, verdict.guards) == ("proven", (), (1, 1), (2, 2))
    assert prove_report.last_line([ProfileResult(profile, (verdict,), (), ())]) == "1 proven, 0 skipped, 0 failed"
