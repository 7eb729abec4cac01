"""The real profiles on the real upstream files: applied, confirmed, and refused at any changed byte."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from kit import REPO, Done, Kit, state

from fixpack import lock, registry, sources

PROFILES = (
    "gaudi2-v0.24.0",
    "gaudi2-v0.26.0",
    "gaudi2-v0.27.0rc0",
    "gb300-v0.30.0",
    "gb300-v0.31.0",
    "gb300-v0.33.0",
)


class RealKit(Kit):
    """A site folder of a real profile's releases, and the commands on it."""

    def __init__(self, folder: Path, profile: str) -> None:
        self.folder, self.profile, self.site, self.registry = folder, profile, folder / "site", REPO
        loaded = registry.load(str(REPO))
        releases = loaded.profile_releases(registry.find_profile(loaded, profile))
        missing = [sources.fetch_command(release) for release in releases if not sources.have(release)]
        if missing:
            pytest.skip(f"needs upstream sources: {'; '.join(missing)}")
        for release in releases:
            tree = Path(sources.tree(release)) / release.package
            keep = {path.partition("/")[2] for path in release.files}
            for path in keep:
                target = self.site / release.package / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tree / path, target)
            (self.site / release.package).mkdir(parents=True, exist_ok=True)
            (self.site / release.package / "__init__.py").touch()
        self.lock_data = lock.read(str(REPO), profile)

    def apply(self, *args: str) -> Done:
        """Everything that the profile has, opt-in fixes included."""
        opt_in = [name for name, fix in self.lock_data["fixes"].items() if fix["opt_in"]]
        return self.run("--profile", self.profile, "--site", str(self.site), *opt_in, *args)

    def touched(self) -> list[Path]:
        """Every file that the applied profile touched, added ones included."""
        return [self.site / path for release in self.lock_data["releases"].values() for path in release["files"]]


@pytest.fixture(params=PROFILES)
def real(request: pytest.FixtureRequest, tmp_path: Path, seal: None) -> RealKit:
    return RealKit(tmp_path, request.param)


def test_apply_confirm_and_refuse(real: RealKit) -> None:
    stock = {path: path.read_bytes() for path in real.touched() if path.exists()}
    refuse_flips(real, list(stock), 20)
    done = real.apply()
    assert (done.code, done.err) == (0, "")
    assert f"{real.profile}: applied: " in done.out
    before = state(real.site)
    done = real.apply("--json").json
    assert done["action"] == "confirmed"
    assert {fix["state"] for fix in done["fixes"]} == {"applied"}
    assert [fix["id"] for fix in done["fixes"]] == list(real.lock_data["fixes"])
    assert state(real.site) == before
    refuse_flips(real, real.touched(), 20)


def refuse_flips(real: RealKit, paths: list[Path], count: int) -> None:
    chance = random.Random(f"{real.profile} {len(paths)}")
    for _ in range(count):
        path = chance.choice(paths)
        right = path.read_bytes()
        wrong = bytearray(right)
        at = chance.randrange(len(wrong))
        wrong[at] ^= chance.randrange(1, 256)
        path.write_bytes(wrong)
        before = state(real.site)
        done = real.apply("--strict")  # without it, a change outside of every fixed scope is only reported
        assert done.code == 1, (path, at)
        assert str(path) in done.err
        assert state(real.site) == before
        path.write_bytes(right)


def test_what_a_release_has_of_its_own(tmp_path: Path, seal: None) -> None:
    """Stock 0.33.0 reads fewer layers; in 0.31.0 that is a fix."""
    states = {}
    for release in ("v0.31.0", "v0.33.0"):
        kit = RealKit(tmp_path / release, f"gb300-{release}")
        found = kit.verb("status", "--profile", kit.profile, "--json")
        assert found.code == 0
        states[release] = next(fix for fix in found.json["fixes"] if fix["id"] == "layer-truncation")
    assert states["v0.31.0"]["state"] == "pristine"
    assert states["v0.33.0"]["state"] == "superseded"
    assert states["v0.33.0"]["reason"].endswith("(https://github.com/vllm-project/vllm/pull/58184)")
