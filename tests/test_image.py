"""Real images: a stock base with the real releases, the Dockerfile built on it by buildah, and what is inside then.

Skipped, with the reason, where no image can be built; see README, Proofs.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import imagekit
import pytest
from imagekit import INSTALL, SITE, Images
from workbench import REGISTRY, REPO

from fixpack import confirm, lock

pytestmark = pytest.mark.image

PROFILE = REGISTRY.profiles["gaudi2-v0.26.0"]
OPT_IN = "swa-prefill-window-edge"
LOCK = lock.read(str(REPO), PROFILE.name)
FIXES = (*PROFILE.fixes, OPT_IN)
EXPECTED = {path: entry for (_, path), entry in confirm.expected(LOCK, FIXES).items()}
CHANGED = [path for path, entry in EXPECTED.items() if entry["base"] and entry["base"] != entry["sha256"]]
ADDED = [path for path, entry in EXPECTED.items() if not entry["base"]]
INFO = ("vllm-0.26.0.dist-info", "vllm_gaudi-0.26.0.dist-info")
EPOCH = 1700000000
CHECK = f"python3 -B /opt/fixpack/apply_all.py --check --profile {PROFILE.name} {OPT_IN}"
VERIFY = f"PYTHONPATH=/opt/fixpack python3 -B -m fixpack verify --profile {PROFILE.name} {OPT_IN}"
NOT_COPIED = ("Dockerfile", "dockerignore", "gitignore")
RUNNER = f"{SITE}/vllm_gaudi/v1/worker/hpu_model_runner.py"

#: Runs in an image: what an import would run of each file, by Python's own loader, and whether that is the source.
LOAD = """
import sys
from importlib.machinery import SourceFileLoader
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        source = compile(file.read(), path, "exec", dont_inherit=True)
    if SourceFileLoader("module", path).get_code("module") != source:
        sys.exit(f"{path}: other code than its source")
"""


class World:
    """The images of this module."""

    def __init__(self, images: Images) -> None:
        self.images = images
        modes = ("timestamp", "unchecked-hash")  # the second is run without a look at the source, until it is removed
        stale = {path: modes[number % 2] for number, path in enumerate(CHANGED)}
        self.wheels = imagekit.make_base(self.images, REGISTRY.profile_releases(PROFILE), stale, "stock")
        self.checkout = imagekit.make_checkout(images.folder / "checkout", REPO)

    def build(self, base: str, tag: str, *more: str, checkout: Path | None = None) -> subprocess.CompletedProcess[str]:
        """The documented command."""
        where = ("--base", self.images.reference(base), "--builder", "buildah", "--tag", tag, "--run")
        words = (sys.executable, "-m", "fixpack", "image", "--profile", PROFILE.name, *where, *more, OPT_IN)
        return self.images.run(*words, cwd=checkout or self.checkout)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, real_cache: Path) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIXPACK_SOURCES", str(real_cache))
        imagekit.needs(REGISTRY.profile_releases(PROFILE))
        images = Images(tmp_path_factory.mktemp("images"))
        try:
            yield World(images)
        finally:
            images.drop()


@pytest.fixture(scope="module")
def fixed(world: World) -> str:
    """The image on the stock base; its build's output is checked here, once."""
    done = world.build("stock", "fixed")
    assert done.returncode == 0, done.stderr[-4000:]
    count = f"{len(FIXES)} fixes in {len(EXPECTED)} files"
    assert f"{PROFILE.name}: applied: {count}" in done.stdout
    assert f"{PROFILE.name}: confirmed: {count}" in done.stdout
    return "fixed"


@pytest.fixture(scope="module")
def container(world: World, fixed: str) -> str:
    """A container of it in which tests only read, or write bytecode."""
    return world.images.container(fixed)


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_every_fix_is_proven_in_place(world: World, container: str, user: str) -> None:
    done = world.images.inside(container, f"{CHECK} --strict --json", user)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["action"] == "confirmed"
    assert {fix["id"]: fix["state"] for fix in found["fixes"]} == dict.fromkeys(FIXES, "applied")
    assert world.images.inside(container, VERIFY, user).returncode == 0
    root = world.images.root(container)
    for path, entry in EXPECTED.items():
        assert hashlib.sha256((root / SITE / path).read_bytes()).hexdigest() == entry["sha256"], path


def test_receipts(world: World, container: str) -> None:
    root = world.images.root(container)
    for info in INFO:
        receipt = json.loads((root / SITE / info / "fixpack.json").read_bytes())
        assert receipt["profile"] == PROFILE.name
        assert receipt["time"] == "2023-11-14T22:13:20Z"
        assert receipt["location"]["root"] == f"/{SITE}"
        assert receipt["lock_sha256"] == hashlib.sha256(lock_file().read_bytes()).hexdigest()
        files = {path for path in EXPECTED if path.startswith(info.partition("-")[0] + "/")}
        assert set(receipt["files"]) == files


def lock_file() -> Path:
    return REPO / "profiles" / f"{PROFILE.name}.lock.json"


def test_labels_and_configuration(world: World, fixed: str) -> None:
    """The labels say what was built from what; everything else is as the base has it."""
    stock = world.images.layer("stock").config["config"]
    found = world.images.layer(fixed).config
    labels = found["config"].pop("Labels")
    del labels["io.buildah.version"]
    revision = world.images.out("git", "-C", str(world.checkout), "rev-parse", "HEAD")
    name, _, digest = world.images.reference("stock").partition("@")
    assert labels == {
        "org.opencontainers.image.base.name": name,
        "org.opencontainers.image.base.digest": digest,
        "org.opencontainers.image.revision": revision,
        "fixpack.profile": PROFILE.name,
        "fixpack.fixes": " ".join(f"{fix}@{REGISTRY.fixes[fix].revision}" for fix in FIXES),
        "fixpack.lock": f"sha256:{hashlib.sha256(lock_file().read_bytes()).hexdigest()}",
    }
    stock.pop("Labels", None)
    assert found["config"] == {**stock, "User": "root"}  # a stock configuration without a user means root
    assert found["created"] == "2023-11-14T22:13:20Z"


def test_no_stray_files(world: World, fixed: str) -> None:
    """The layer holds what was committed, the fixed and added files, RECORDs and receipts; old bytecode goes."""
    layer = world.images.layer(fixed)
    committed = world.images.out("git", "-C", str(world.checkout), "ls-files").splitlines()
    engine = {f"opt/fixpack/{path}" for path in committed if path.strip(".") not in NOT_COPIED}
    installed = {f"{SITE}/{path}" for path in (*CHANGED, *ADDED)}
    records = {f"{SITE}/{info}/{name}" for info in INFO for name in ("RECORD", "fixpack.json")}
    gone = {str(bytecode(Path(SITE, path), ".wh.")) for path in CHANGED}
    files = engine | installed | records | gone
    folders = {str(parent) for path in files for parent in Path(path).parents} - {"."}
    assert set(layer.entries) == files | folders
    assert {entry.mtime for entry in layer.entries.values()} == {EPOCH}
    assert {(entry.uid, entry.gid) for entry in layer.entries.values()} == {(0, 0)}
    assert {f"{layer.entries[path].mode:o}" for path in engine} == {"100755"}
    assert {f"{layer.entries[path].mode:o}" for path in installed | records} == {"100644"}


def bytecode(path: Path, prefix: str = "") -> Path:
    return path.parent / "__pycache__" / f"{prefix}{path.stem}.cpython-311.pyc"


def test_bytecode_is_fresh(world: World, container: str) -> None:
    """What Python runs of a changed module is its source: the base's bytecode is not; and once more with its own."""
    root = world.images.root(container)
    files = " ".join(f"/{SITE}/{path}" for path in CHANGED)
    assert not [path for path in CHANGED if bytecode(root / SITE / path).exists()]
    for _ in ("makes it", "uses it"):
        done = world.images.inside(container, f"python3 - {files} <<'END'\n{LOAD}END\n")
        assert (done.returncode, done.stderr) == (0, "")
        assert all(bytecode(root / SITE / path).exists() for path in CHANGED)
    stock = world.images.container("stock")
    stale = world.images.root(stock) / SITE / CHANGED[1]
    stale.write_bytes((root / SITE / CHANGED[1]).read_bytes())
    done = world.images.inside(stock, f"python3 - /{SITE}/{CHANGED[1]} <<'END'\n{LOAD}END\n")
    assert f"/{SITE}/{CHANGED[1]}: other code than its source" in done.stderr  # so the check can fail


def test_a_second_build_is_the_same(world: World, fixed: str) -> None:
    """From another checkout, made later and with other modes: the same layer, the same image."""
    other = imagekit.make_checkout(world.images.folder / "other", REPO, umask=0o077)
    done = world.build("stock", "again", checkout=other)
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = world.images.layer(fixed), world.images.layer("again")
    assert second.digest == first.digest
    assert second.config == first.config


def test_another_base_stops_the_build(world: World) -> None:
    """One byte, in a comment: the build fails and its last lines say why."""
    stock = world.images.container("stock")
    runner = world.images.root(stock) / RUNNER
    data = runner.read_bytes()
    at = data.index(b"#") + 1
    runner.write_bytes(data[:at] + b"!" + data[at + 1 :])
    world.images.commit(stock, "other-base")
    done = world.build("other-base", "never")
    assert done.returncode != 0
    last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
    assert f"/{RUNNER}" in last
    assert "[base_sha_unknown]" in last
    assert "nothing was changed" in last
    assert world.images.run("buildah", "inspect", "--type", "image", "never").returncode != 0


def test_a_reinstalled_package_is_not_verified(world: World, fixed: str) -> None:
    """As a later line of somebody's Dockerfile would do it."""
    later = world.images.container(fixed)
    wheel = world.wheels["vllm-gaudi"]
    world.images.out("cp", str(wheel), str(world.images.root(later) / "tmp"))
    done = world.images.inside(later, f"{INSTALL} --force-reinstall /tmp/{wheel.name}")
    assert done.returncode == 0, done.stderr
    done = world.images.inside(later, VERIFY)
    assert done.returncode == 1
    assert "+ prompt-order " in done.stdout
    assert "= rank-exception-fatal " in done.stdout  # vLLM was left alone


def test_a_base_with_a_user(world: World, fixed: str) -> None:
    """Its user stays, and nothing else depends on him or on PYTHONDONTWRITEBYTECODE: the layer is the same."""
    stock = world.images.container("stock")
    world.images.out("buildah", "config", "--user", "1000:1000", "--env", "PYTHONDONTWRITEBYTECODE=1", stock)
    world.images.commit(stock, "rootless")
    done = world.build("rootless", "never")
    assert done.returncode != 0
    assert "the base image runs as another user than BASE_USER says" in done.stderr
    assert "--user 1000:1000" in done.stderr
    done = world.build("rootless", "fixed-rootless", "--user", "1000:1000")
    assert done.returncode == 0, done.stderr[-4000:]
    layer = world.images.layer("fixed-rootless")
    assert layer.config["config"]["User"] == "1000:1000"
    assert layer.digest == world.images.layer(fixed).digest
