"""Every kind of bad registry is one clear error with file and line; each test holds the whole report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit import Kit, registry_files, write

from fixpack import registry
from fixpack.errors import RegistryError, UsageError
from fixpack.outcome import problem_text
from fixpack.strictyaml import MAX_BYTES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sound registry without locks."""
    write(tmp_path, registry_files())
    return tmp_path


def report(root: Path) -> list[str]:
    """Every problem as a person reads it; empty if the registry loads."""
    try:
        registry.load(str(root))
    except RegistryError as error:
        return [problem_text(problem).removeprefix("error: ") for problem in error.problems]
    return []


def edit(root: Path, path: str, old: str, new: str) -> None:
    text = (root / path).read_text()
    assert text.count(old) == 1, (path, old)
    (root / path).write_bytes(text.replace(old, new).encode())


PLUGIN = "anchors/demo-plugin/v1.0.0.yaml"
ROWS = "fixes/rows-counted.yaml"
BENCH = "profiles/bench-v1.0.0.yaml"


def test_a_sound_registry(root: Path) -> None:
    assert report(root) == []
    loaded = registry.load(str(root))
    assert sorted(loaded.fixes) == ["core-guard", "long-share", "order-kept", "rows-counted", "wide-log"]
    assert sorted(loaded.releases) == ["demo-core@v1.0.0", "demo-plugin@v1.0.0", "demo-plugin@v2.0.0"]
    edits = loaded.fixes["rows-counted"].edits["demo-plugin"]
    assert [(each.op, each.anchor, each.path, each.code, each.where) for each in edits] == [
        ("replace", "step-count", "", "count.py", f"{ROWS}:12"),
        ("add-file", "", "demo_plugin/_fixpack/rows.py", "rows.py", f"{ROWS}:13"),
    ]
    anchor = loaded.releases["demo-plugin@v1.0.0"].find("step-add")
    assert anchor
    assert anchor[1].text == "self.batch.add(\n    first,\n    count,\n)"


#: what is changed: file, old, new; and the whole report
CASES: dict[str, tuple[str, str, str, list[str]]] = {
    "unknown key": (
        ROWS,
        "symptom:",
        "symptoms:",
        [
            f"rows-counted: {ROWS}:1: the fix lacks the key 'symptom' [registry_invalid]",
            f"rows-counted: {ROWS}:4: the fix has the unknown key 'symptoms' [registry_invalid]\n"
            "  next: did you mean 'symptom'?",
        ],
    ),
    "unknown key in an edit": (
        ROWS,
        "code: count.py",
        "code: count.py, fuzz: 2",
        [f"rows-counted: {ROWS}:12: edit 1 of demo-plugin has the unknown key 'fuzz' [registry_invalid]"],
    ),
    "duplicate key": (
        ROWS,
        "cause:",
        "title: again\ncause:",
        [f"{ROWS}:5: duplicate key 'title', first on line 3 [yaml_invalid]"],
    ),
    "wrong type": (
        ROWS,
        "revision: 1",
        'revision: "1"',
        [f"rows-counted: {ROWS}:2: 'revision' must be an integer, not a string [registry_invalid]"],
    ),
    "revision 0": (
        ROWS,
        "revision: 1",
        "revision: 0",
        [f"rows-counted: {ROWS}:2: 'revision' is 0, but must be at least 1 [registry_invalid]"],
    ),
    "alias": (
        ROWS,
        "title: count every row of a step\nsymptom: rows are lost",
        "title: &t rows\nsymptom: *t",
        [f"{ROWS}:3: aliases (*name) are not allowed in a registry file [yaml_invalid]"],
    ),
    "tag": (
        ROWS,
        "title: count",
        "title: !!python/name:os.system count",
        [
            f"{ROWS}:3: the tag 'tag:yaml.org,2002:python/name:os.system' is not allowed in a registry file "
            "[yaml_invalid]"
        ],
    ),
    "id is not the file's name": (
        ROWS,
        "id: rows-counted",
        "id: row-counted",
        [f"rows-counted: {ROWS}:1: 'id' is 'row-counted', but the file's name says 'rows-counted' [registry_invalid]"],
    ),
    "release is not the file's name": (
        PLUGIN,
        "release: v1.0.0",
        "release: v1.0.1",
        [f"{PLUGIN}:2: 'release' is 'v1.0.1', but the file's name says 'v1.0.0' [registry_invalid]"],
    ),
    "distribution is not the folder's name": (
        PLUGIN,
        "distribution: demo-plugin",
        "distribution: demo-core",
        [f"{PLUGIN}:1: 'distribution' is 'demo-core', but its folder says 'demo-plugin' [registry_invalid]"],
    ),
    "profile is not the file's name": (
        BENCH,
        "profile: bench-v1.0.0",
        "profile: bench",
        [f"{BENCH}:1: 'profile' is 'bench', but the file's name says 'bench-v1.0.0' [registry_invalid]"],
    ),
    "unknown operation": (
        ROWS,
        "op: replace",
        "op: replaced",
        [
            f"rows-counted: {ROWS}:12: 'op' is 'replaced', not one of insert-before, insert-after, replace, delete, "
            "append, add-file [registry_invalid]\n  next: did you mean 'replace'?",
            f"rows-counted: {ROWS}:12: edit 1 of demo-plugin has the unknown key 'anchor' [registry_invalid]",
            f"rows-counted: {ROWS}:12: edit 1 of demo-plugin has the unknown key 'code' [registry_invalid]",
        ],
    ),
    "no edits": (
        "fixes/core-guard.yaml",
        "  demo-core:\n    - {anchor: module-end, op: append, code: guard.py}\n",
        "  demo-core: []\n",
        ["core-guard: fixes/core-guard.yaml:11: 'demo-core' must be a list of at least one edit [registry_invalid]"],
    ),
    "nothing proven": (
        ROWS,
        'stock: {test_it: "a row was lost"}',
        "stock: {}",
        [
            f"rows-counted: {ROWS}:16: no test is declared to fail on stock, so nothing is proven [registry_invalid]",
        ],
    ),
    "a failure that is no expression": (
        ROWS,
        '"a row was lost"',
        '"a row (was lost"',
        [
            f"rows-counted: {ROWS}:16: 'test_it' is not a regular expression: missing ), unterminated subpattern at "
            "position 6 [registry_invalid]"
        ],
    ),
    "origin without proof": (
        ROWS,
        "{kind: own}",
        "{kind: backport}",
        [f"rows-counted: {ROWS}:6: an origin of kind 'backport' needs a url or a commit [registry_invalid]"],
    ),
    "upstream without reason": (
        ROWS,
        "{status: not-reported}",
        "{status: denied}",
        [f"rows-counted: {ROWS}:7: the status 'denied' needs a url or a reason [registry_invalid]"],
    ),
    "unknown status": (
        ROWS,
        "{status: not-reported}",
        "{status: submited}",
        [
            f"rows-counted: {ROWS}:7: 'status' is 'submited', not one of not-reported, pending, submitted, accepted, "
            "backport, denied, inappropriate [registry_invalid]\n  next: did you mean 'submitted'?",
        ],
    ),
    "unknown anchor": (
        ROWS,
        "anchor: step-count",
        "anchor: step-cont",
        [
            f"rows-counted: {ROWS}:12: rows-counted uses the anchor 'step-cont', which "
            f"anchors/demo-plugin/{release}.yaml does not define [unknown_anchor]\n"
            "  next: did you mean 'step-count' or 'step-begin'?"
            for release in ("v1.0.0", "v2.0.0")
        ],
    ),
    "anchor twice": (
        PLUGIN,
        "      batch-stale:",
        "      step-begin:",
        [
            f"{PLUGIN}:28: the anchor 'step-begin' is already in demo_plugin/runner.py; names are unique in a release "
            "[registry_invalid]"
        ],
    ),
    "anchor indented": (
        PLUGIN,
        "text: first = rows[0]",
        "text: '  first = rows[0]'",
        [
            f"{PLUGIN}:12: 'text' must start with its first line, not indented (the indentation is the file's) "
            "[registry_invalid]"
        ],
    ),
    "anchor with a tab": (
        PLUGIN,
        "text: first = rows[0]",
        'text: "first =\\trows[0]"',
        [f"{PLUGIN}:12: 'text' holds a tab [registry_invalid]"],
    ),
    "bad scope": (
        PLUGIN,
        "within: Runner.stop",
        "within: Runner..stop",
        [
            f"{PLUGIN}:24: 'within' is 'Runner..stop', which does not match "
            r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)* [registry_invalid]"
        ],
    ),
    "path out of the package": (
        PLUGIN,
        "demo_plugin/batch.py:",
        "demo_core/batch.py:",
        [f"{PLUGIN}:26: 'demo_core/batch.py' is not a Python file below demo_plugin/ [registry_invalid]"],
    ),
    "path that escapes": (
        PLUGIN,
        "demo_plugin/batch.py:",
        "demo_plugin/../../batch.py:",
        [
            f"{PLUGIN}:25: the key 'demo_plugin/../../batch.py' does not match "
            "[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+ [registry_invalid]"
        ],
    ),
    "absolute path": (
        ROWS,
        "path: demo_plugin/_fixpack/rows.py",
        "path: /etc/rows.py",
        [
            f"rows-counted: {ROWS}:13: 'path' is '/etc/rows.py', which does not match "
            "[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+ [registry_invalid]"
        ],
    ),
    "added file out of the package": (
        ROWS,
        "path: demo_plugin/_fixpack/rows.py",
        "path: demo_core/rows.py",
        [
            f"rows-counted: {ROWS}:13: rows-counted adds 'demo_core/rows.py', which is not a Python file below "
            "demo_plugin/ [bad_path]"
        ],
    ),
    "added file that is pinned": (
        ROWS,
        "path: demo_plugin/_fixpack/rows.py",
        "path: demo_plugin/batch.py",
        [
            f"rows-counted: {ROWS}:13: rows-counted adds demo_plugin/batch.py, which "
            f"anchors/demo-plugin/{release}.yaml pins as an existing file [bad_path]"
            for release in ("v1.0.0", "v2.0.0")
        ],
    ),
    "payload path that escapes": (
        ROWS,
        "code: count.py",
        "code: ../order-kept/keep.py",
        [
            f"rows-counted: {ROWS}:12: 'code' is '../order-kept/keep.py', which does not match [a-z0-9_]+\\.py "
            "[registry_invalid]",
        ],
    ),
    "payload that is missing": (
        ROWS,
        "code: count.py",
        "code: cont.py",
        [
            f"rows-counted: {ROWS}:12: the payload patches/rows-counted/cont.py does not exist [registry_invalid]\n"
            "  next: write patches/rows-counted/cont.py",
        ],
    ),
    "replace without a text": (
        PLUGIN,
        "        text: count = len(rows) - 1\n",
        "",
        [
            f"rows-counted: {ROWS}:12: replace needs an anchor with a text, but 'step-count' has none "
            f"({PLUGIN}:14) [bad_anchor]"
        ],
    ),
    "append with a text": (
        PLUGIN,
        "        within: Runner.stop\n",
        "        text: return count\n",
        [
            "wide-log: fixes/wide-log.yaml:12: append needs an anchor without a text, but 'stop-end' has one "
            f"({PLUGIN}:24) [bad_anchor]"
        ],
    ),
    "one place claimed twice": (
        "fixes/order-kept.yaml",
        "{anchor: batch-stale, op: delete}",
        "{anchor: step-count, op: delete}",
        [
            f"order-kept: fixes/order-kept.yaml:13: order-kept and rows-counted both delete at 'step-count' "
            f"(the other is {ROWS}:12) [overlap]\n  next: merge the two edits, or anchor one elsewhere"
        ],
    ),
    "one file added twice": (
        "fixes/long-share.yaml",
        "demo_plugin/_fixpack/share.py",
        "demo_plugin/_fixpack/rows.py",
        [
            "long-share: fixes/long-share.yaml:14: long-share and rows-counted both add-file at "
            f"'demo_plugin/_fixpack/rows.py' (the other is {ROWS}:13) [overlap]\n"
            "  next: merge the two edits, or anchor one elsewhere"
        ],
    ),
    "unknown requirement": (
        "fixes/order-kept.yaml",
        "requires: [rows-counted]",
        "requires: [row-counted]",
        [
            "order-kept: fixes/order-kept.yaml: order-kept requires 'row-counted', which is no fix [unknown_fix]\n"
            "  next: did you mean 'rows-counted'?"
        ],
    ),
    "unknown requirement with a distribution": (
        "fixes/order-kept.yaml",
        "requires: [rows-counted]",
        "requires-with: {demo-plugin: [row-counted]}",
        [
            "order-kept: fixes/order-kept.yaml: order-kept requires 'row-counted', which is no fix [unknown_fix]\n"
            "  next: did you mean 'rows-counted'?"
        ],
    ),
    "requirement with an unknown distribution": (
        "fixes/order-kept.yaml",
        "requires: [rows-counted]",
        "requires-with: {demo-plug: [rows-counted]}",
        [
            "order-kept: fixes/order-kept.yaml: order-kept requires fixes with 'demo-plug', for which there is no "
            "anchors file [unknown_distribution]\n  next: did you mean 'demo-plugin'?"
        ],
    ),
    "requirement here and everywhere": (
        "fixes/order-kept.yaml",
        "requires: [rows-counted]",
        "requires: [rows-counted]\nrequires-with: {demo-plugin: [rows-counted]}",
        [
            "order-kept: fixes/order-kept.yaml: order-kept requires rows-counted with demo-plugin, and everywhere "
            "[duplicate_fix]\n  next: name it below 'requires' or below 'requires-with'"
        ],
    ),
    "circle through a distribution": (
        ROWS,
        "requires: []",
        "requires-with: {demo-plugin: [order-kept]}",
        [
            f"rows-counted: {ROWS}: 'requires' runs in a circle: order-kept -> rows-counted -> order-kept "
            "[cyclic_requires]"
        ],
    ),
    "circle": (
        ROWS,
        "requires: []",
        "requires: [order-kept]",
        [
            f"rows-counted: {ROWS}: 'requires' runs in a circle: order-kept -> rows-counted -> order-kept "
            "[cyclic_requires]"
        ],
    ),
    "requires itself": (
        ROWS,
        "requires: []",
        "requires: [rows-counted]",
        [f"rows-counted: {ROWS}: 'requires' runs in a circle: rows-counted -> rows-counted [cyclic_requires]"],
    ),
    "unknown distribution": (
        "fixes/core-guard.yaml",
        "  demo-core:",
        "  demo-cor:",
        [
            "core-guard: fixes/core-guard.yaml: core-guard edits 'demo-cor', for which there is no anchors file "
            "[unknown_distribution]\n  next: did you mean 'demo-core'?",
            *(
                line
                for release in ("v1.0.0", "v2.0.0")
                for line in (
                    f"core-guard: profiles/bench-{release}.yaml: core-guard edits nothing in the releases that the "
                    "profile pins [unused_fix]",
                    f"core-guard: profiles/bench-{release}.yaml: core-guard edits demo-cor, which the profile does not "
                    "pin [unpinned_distribution]",
                )
            ),
        ],
    ),
    "profile with an unknown fix": (
        BENCH,
        "opt-in: [long-share, wide-log]",
        "opt-in: [long-shar]",
        [
            f"long-shar: {BENCH}: there is no fix 'long-shar' [unknown_fix]\n  next: did you mean 'long-share'?",
        ],
    ),
    "profile with a fix twice": (
        BENCH,
        "opt-in: [long-share, wide-log]",
        "opt-in: [long-share, core-guard]",
        [f"core-guard: {BENCH}: core-guard is listed twice (fixes and opt-in count as one list) [duplicate_fix]"],
    ),
    "profile without a requirement": (
        BENCH,
        "fixes: [rows-counted, order-kept, core-guard]\nopt-in: [long-share, wide-log]",
        "fixes: [order-kept, core-guard]\nopt-in: [long-share, rows-counted]",
        [
            f"order-kept: {BENCH}: order-kept requires rows-counted, which is not among this profile's fixes "
            "[missing_requirement]\n  next: list rows-counted as well"
        ],
    ),
    "profile without a requirement of its distribution": (
        "fixes/order-kept.yaml",
        "requires: [rows-counted]",
        "requires-with: {demo-plugin: [wide-log]}",
        [
            f"order-kept: profiles/bench-{release}.yaml: order-kept requires wide-log, which is not among this "
            "profile's fixes [missing_requirement]\n  next: list wide-log as well"
            for release in ("v1.0.0", "v2.0.0")
        ],
    ),
    "profile without fixes": (
        BENCH,
        "fixes: [rows-counted, order-kept, core-guard]\nopt-in: [long-share, wide-log]",
        "fixes: []",
        [f"{BENCH}: the profile bench-v1.0.0 has no fixes [empty_profile]"],
    ),
    "profile of an unknown release": (
        BENCH,
        "demo-core: v1.0.0",
        "demo-core: v1.0.1",
        [
            f"{BENCH}: there is no anchors file for demo-core@v1.0.1 [unknown_release]\n"
            "  next: did you mean 'demo-core@v1.0.0' or 'demo-plugin@v1.0.0'?"
        ],
    ),
    "release that is a number": (
        BENCH,
        "demo-core: v1.0.0",
        "demo-core: 1",
        [f"{BENCH}:4: 'demo-core' must name a release [registry_invalid]"],
    ),
    "alias of two profiles": (
        BENCH,
        "aliases: [v1.0.0]",
        "aliases: [v2.0.0]",
        ["profiles/bench-v2.0.0.yaml: the name 'v2.0.0' is also the profile bench-v1.0.0's [duplicate_profile]"],
    ),
    "variant of an unknown release": (
        "fixes/core-guard.yaml",
        "proof:\n",
        "variants:\n  demo-core@v9.0.0:\n    - {anchor: module-end, op: append, code: guard.py}\nproof:\n",
        [
            "core-guard: fixes/core-guard.yaml: core-guard has a variant for 'demo-core@v9.0.0', for which there is no "
            "anchors file [unknown_release]"
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad(root: Path, case: str) -> None:
    path, old, new, expected = CASES[case]
    edit(root, path, old, new)
    assert report(root) == expected


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("a = 1\r\n", "has carriage returns; use LF line ends"),
        ("a = '\0'\n", "holds a NUL or a byte order mark"),
        ("\ufeffa = 1\n", "holds a NUL or a byte order mark"),
        ("if a:\n\tb = 1\n", "holds a tab"),
        ("a = 1", "must hold code and end with a newline"),
        ("\n", "must hold code and end with a newline"),
        ("\na = 1\n", "must not start or end with an empty line"),
        ("a = 1\n\n", "must not start or end with an empty line"),
        ("  a = 1\n", "must start without indentation (the anchor's indentation is added)"),
        ("a = 1 \n", "has a line that ends in a space"),
        ("# fixpack begin x r1: y\n", "holds a fixpack marker"),
    ],
)
def test_bad_payload(root: Path, payload: str, message: str) -> None:
    (root / "patches/rows-counted/count.py").write_bytes(payload.encode())
    assert report(root) == [
        f"rows-counted: {ROWS}:12: the payload patches/rows-counted/count.py {message} [registry_invalid]"
    ]


def test_payload_that_is_not_utf8(root: Path) -> None:
    (root / "patches/rows-counted/count.py").write_bytes(b"a = '\xff'\n")
    assert report(root) == [
        f"rows-counted: {ROWS}:12: cannot read the payload patches/rows-counted/count.py: 'utf-8' codec can't decode "
        "byte 0xff in position 5: invalid start byte [registry_invalid]"
    ]


def test_symlinked_payload(root: Path, tmp_path: Path) -> None:
    payload = root / "patches/rows-counted/count.py"
    payload.rename(tmp_path / "elsewhere.py")
    payload.symlink_to(tmp_path / "elsewhere.py")
    assert report(root) == [
        f"rows-counted: {ROWS}:12: cannot read the payload patches/rows-counted/count.py: "
        "patches/rows-counted/count.py is not an ordinary file [registry_invalid]",
    ]


def test_symlinked_payload_folder(root: Path, tmp_path: Path) -> None:
    folder = root / "patches/core-guard"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert report(root) == [
        "core-guard: fixes/core-guard.yaml:12: patches/core-guard is a symbolic link [registry_invalid]",
        "patches/core-guard: patches/core-guard is not a folder [registry_invalid]",
    ]


def test_orphan_payload_and_folder(root: Path) -> None:
    write(root, {"patches/rows-counted/old.py": "a = 1\n", "patches/gone/old.py": "a = 1\n"})
    assert report(root) == [
        "patches/gone: patches/gone/ belongs to no fix [orphan_payload]",
        "rows-counted: patches/rows-counted/old.py: no edit of rows-counted uses old.py [orphan_payload]\n"
        "  next: name it in an edit's 'code', or remove it",
    ]


def test_unused_fix(root: Path) -> None:
    for release in ("v1.0.0", "v2.0.0"):
        edit(root, f"profiles/bench-{release}.yaml", "[long-share, wide-log]", "[long-share]")
    assert report(root) == [
        "wide-log: fixes/wide-log.yaml: no profile uses the fix wide-log [unused_fix]\n"
        "  next: list it in a profile's fixes or opt-in"
    ]


def test_case_clash(root: Path) -> None:
    shutil.copy(root / ROWS, root / "fixes/Rows-counted.yaml")
    assert report(root) == [
        "fixes/rows-counted.yaml: 'rows-counted.yaml' and 'Rows-counted.yaml' differ only in case [registry_invalid]",
        "Rows-counted: fixes/Rows-counted.yaml:1: 'id' is 'rows-counted', but the file's name says 'Rows-counted' "
        "[registry_invalid]",
        *(
            f"Rows-counted: fixes/Rows-counted.yaml:{line}: the payload patches/Rows-counted/{name} does not exist "
            f"[registry_invalid]\n  next: write patches/Rows-counted/{name}"
            for line, name in ((12, "count.py"), (13, "rows.py"))
        ),
    ]


def test_strange_entries(root: Path) -> None:
    write(root, {"fixes/notes.txt": "x", "profiles/x.lock": "x", "anchors/readme.md": "x", "fixes/deep/x.yaml": "x"})
    assert report(root) == [
        "anchors/readme.md: anchors/readme.md is not a folder [registry_invalid]",
        "fixes/deep: fixes/deep is not an ordinary file [registry_invalid]",
        "fixes/notes.txt: fixes/ holds 'notes.txt', which is not a .yaml file [registry_invalid]\n"
        "  next: remove it, or name it *.yaml",
        "profiles/x.lock: profiles/ holds 'x.lock', which is not a .yaml file [registry_invalid]\n"
        "  next: remove it, or name it *.yaml",
    ]


def test_huge_file(root: Path) -> None:
    (root / ROWS).write_bytes(b"#" * (MAX_BYTES + 1))
    assert report(root) == [
        f"{ROWS}: cannot read it: {ROWS} has {MAX_BYTES + 1} bytes; at most {MAX_BYTES} are allowed [registry_invalid]"
    ]


def test_missing_folders(root: Path) -> None:
    shutil.rmtree(root / "patches")
    shutil.rmtree(root / "anchors")
    assert report(root) == [
        f"{root}: the registry has no folder anchors/ [registry_missing]",
        f"{root}: the registry has no folder patches/ [registry_missing]",
    ]


def test_all_problems_in_one_run(root: Path) -> None:
    edit(root, ROWS, "revision: 1", "revision: 0")
    edit(root, PLUGIN, "package: demo_plugin\n", "")
    edit(root, BENCH, "hardware: a test bench", "hardwear: a test bench")
    assert report(root) == [
        f"{PLUGIN}:1: the anchors file lacks the key 'package' [registry_invalid]",
        f"rows-counted: {ROWS}:2: 'revision' is 0, but must be at least 1 [registry_invalid]",
        f"{BENCH}:1: the profile lacks the key 'hardware' [registry_invalid]",
        f"{BENCH}:3: the profile has the unknown key 'hardwear' [registry_invalid]\n  next: did you mean 'hardware'?",
    ]


def test_a_folder_that_cannot_be_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by permission: root would not notice."""
    import os

    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("fixes"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert report(root)[0] == "fixes: cannot be listed: Permission denied [registry_invalid]"


def test_find_profile(tmp_path: Path) -> None:
    loaded = registry.load(str(Kit(tmp_path).registry))
    assert registry.find_profile(loaded, "v2.0.0").name == "bench-v2.0.0"
    with pytest.raises(UsageError) as caught:
        registry.find_profile(loaded, "bench-v3.0.0")
    assert [(problem.message, problem.hint) for problem in caught.value.problems] == [
        ("there is no profile 'bench-v3.0.0'", "did you mean 'bench-v2.0.0' or 'bench-v1.0.0'?")
    ]


def test_default_root_is_the_checkout() -> None:
    assert Path(registry.default_root()) == Path(__file__).resolve().parent.parent
