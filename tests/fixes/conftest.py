"""Proofs under pytest go the prover's way: one item per fix and profile, whose outcome is the prover's verdict.

The prover itself runs the proof files with FIXPACK_PROOF=1, and then they are collected as ordinary tests.
With FIXPACK_REQUIRE_PROOFS=1 a profile whose sources are in the cache must have been proven in full.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

INNER = os.environ.get("FIXPACK_PROOF") == "1"

if not INNER:
    from fixpack import prove_lab, registry, sources
    from fixpack.errors import FixpackError
    from fixpack.model import Profile, Registry
    from fixpack.prove import ProfileResult, RunResult, Verdict, prove_profile
    from fixpack.prove_report import last_line, run_line

    class Bench:
        """What is shared by all items of a session: the registry, and one prover's call per profile."""

        def __init__(self) -> None:
            self.registry: Registry = registry.load(registry.default_root())
            self.results: dict[str, ProfileResult] = {}
            self.errors: dict[str, FixpackError] = {}

        def verdict(self, item: ProofItem) -> Verdict:
            """The verdict on one item; the first of a profile proves all that are selected."""
            name = item.profile.name
            if name in self.errors:
                raise self.errors[name]
            if name not in self.results:
                others = [each for each in item.session.items if isinstance(each, ProofItem)]
                wanted = [each.fix for each in others if each.profile.name == name]
                try:
                    self.results[name] = self._prove(item.config, item.profile, wanted)
                except FixpackError as error:
                    self.errors[name] = error
                    raise
            return next(verdict for verdict in self.results[name].verdicts if verdict.fix == item.fix)

        def _prove(self, config: pytest.Config, profile: Profile, wanted: list[str]) -> ProfileResult:
            absent = prove_lab.missing_modules()
            if absent:
                reason = f"needs {', '.join(absent)}: python3 bootstrap.py test installs the pinned versions"
                nothing = (0, 0)
                skipped = (Verdict(fix, "skipped", (reason,), *(nothing,) * 4, 0.0) for fix in wanted)
                return ProfileResult(profile, tuple(skipped), (), ())
            prove_lab.select(self.registry, wanted, profile, "")
            jobs = min(2, os.cpu_count() or 1)
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            capture = config.pluginmanager.get_plugin("capturemanager")
            one_at_a_time = threading.Lock()

            def told(result: RunResult) -> None:
                """Say on the terminal that a run ended: all of them together take minutes."""
                if not reporter:
                    return
                with one_at_a_time, capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                    reporter.ensure_newline()
                    reporter.write_line(f"  {profile.name} {run_line(result)}")

            lab = prove_lab.real_lab(self.registry)
            return prove_profile(self.registry, profile, wanted, lab, jobs, done=told)

        def unproven(self) -> Iterator[str]:
            """Fixes whose sources are in the cache and that nevertheless have no verdict of this session."""
            for profile in self.registry.profiles.values():
                if not all(sources.have(release) for release in self.registry.profile_releases(profile)):
                    continue
                result = self.results.get(profile.name)
                verdicts = {verdict.fix: verdict for verdict in result.verdicts} if result else {}
                for fix in (*profile.fixes, *profile.opt_in, *self.registry.superseded(profile)):
                    if fix not in verdicts:
                        yield f"{fix}[{profile.name}] did not run"
                    elif verdicts[fix].status == "skipped":
                        yield f"{fix}[{profile.name}] was skipped: {'; '.join(verdicts[fix].reasons)}"

    BENCH = pytest.StashKey[Bench]()

    class NotProven(Exception):
        """The prover's reasons."""

    class ProofItem(pytest.Item):
        """One fix in one profile."""

        fix: str
        profile: Profile

        def runtest(self) -> None:
            verdict = self.config.stash[BENCH].verdict(self)
            if verdict.status == "skipped":
                pytest.skip("; ".join(verdict.reasons))
            if verdict.status == "failed":
                raise NotProven("\n".join(verdict.reasons))

        def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
            if isinstance(excinfo.value, FixpackError):
                return "\n".join(f"{each.message} {each.hint}".strip() for each in excinfo.value.problems)
            if isinstance(excinfo.value, NotProven):
                return f"{self.name} is not proven:\n{excinfo.value}"
            return str(super().repr_failure(excinfo))

        def reportinfo(self) -> tuple[Path, None, str]:
            return self.path, None, self.name

    class ProofFile(pytest.File):
        """A proof file, seen from outside."""

        def collect(self) -> Iterator[ProofItem]:
            bench = self.config.stash.setdefault(BENCH, None) or Bench()
            self.config.stash[BENCH] = bench
            here = self.path.relative_to(bench.registry.root).as_posix()
            fixes = [fix.id for fix in bench.registry.fixes.values() if fix.proof.test == here]
            if not fixes:
                raise self.CollectError(f"{here} is the proof of no fix")
            for profile in bench.registry.profiles.values():
                for fix in fixes:
                    if fix in (*profile.fixes, *profile.opt_in, *bench.registry.superseded(profile)):
                        item = ProofItem.from_parent(self, name=f"{fix}[{profile.name}]")
                        item.fix, item.profile = fix, profile
                        yield item

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector:
        return ProofFile.from_parent(parent, path=module_path)  # type: ignore[no-any-return]

    def pytest_sessionfinish(session: pytest.Session) -> None:
        if os.environ.get("FIXPACK_REQUIRE_PROOFS") != "1" or session.config.option.collectonly:
            return
        bench = session.config.stash.get(BENCH, None)
        left = list(bench.unproven()) if bench else ["no proof file was collected"]
        if left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            reporter = session.config.pluginmanager.get_plugin("terminalreporter")
            for line in left if reporter else ():
                reporter.write_line(f"\nrequired proof: {line}", red=True)

    def pytest_unconfigure(config: pytest.Config) -> None:
        bench = config.stash.get(BENCH, None)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if bench and bench.results and reporter:
            reporter.write_line(f"fixes: {last_line(list(bench.results.values()))}")
