"""``fixpack try``: the fixes of a profile on a scratch copy of what it pins; nothing installed is touched."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from fixpack import registry, sources, trial
from fixpack.cache import failed_write
from fixpack.errors import Problem, SourceError, UsageError
from fixpack.model import Fix, Profile, Registry, Release
from fixpack.text import did_you_mean, plural

HELP = "apply a profile to a scratch copy of the pinned releases"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of try."""
    parser.description = (
        "Get the releases that a profile pins (from the cache, the package index or their git address), lay a "
        "scratch folder out like site-packages, and run the very same apply on it, then once more to confirm. "
        "Nothing that is installed is touched."
    )
    parser.add_argument("fixes", nargs="*", metavar="FIX", help="opt-in fixes to add to the profile's own")
    parser.add_argument("--profile", metavar="P", required=True, help="the profile, by name or alias")
    parser.add_argument("--dir", metavar="DIR", help="the scratch folder, empty or new (default: a temporary one)")
    parser.add_argument(
        "--from",
        dest="origins",
        metavar="NAME=PATH_OR_URL",
        action="append",
        default=[],
        help="where to get a distribution that is not in the cache, for example vllm-gaudi=DIR; repeatable",
    )
    parser.add_argument("--registry", metavar="DIR", help="use this registry (default: the one beside the engine)")


def run(args: argparse.Namespace) -> int:
    """Try a profile; out: the exit code of the apply, or of its confirmation."""
    loaded = registry.load(args.registry or registry.default_root())
    profile = registry.find_profile(loaded, args.profile)
    origins = _origins(args.origins, profile)
    releases = loaded.profile_releases(profile)
    _obtain(profile, releases, origins)
    with _scratch(args.dir) as site:
        laid = trial.lay_out(releases, site)
        names = ", ".join(release.ref for release in releases)
        print(f"{profile.name} ({profile.hardware}) on a scratch copy of {names}")
        print(f"  {plural(len(laid), 'file')} in {site}", flush=True)
        command = _command(args.registry, profile, args.fixes, site)
        for confirm in ([], ["--check"]):
            print(f"\n$ {shlex.join([*command, *confirm])}", flush=True)
            code = subprocess.run([*command, *confirm], check=False).returncode
            if code:
                print(f"\nthe scratch folder is kept: {site}", file=sys.stderr)
                return code
        print()
        print("\n".join(_report(loaded, releases, site, laid, profile, args.fixes)))
    return 0


@contextlib.contextmanager
def _scratch(chosen: str | None) -> Iterator[str]:
    """The folder to work in.  A trial that does not come to its end removes one that it made, and names another."""
    if chosen:
        site = trial.prepare(chosen)
    else:
        try:
            site = tempfile.mkdtemp(prefix="fixpack-try-")
        except OSError as error:
            where = "the folder for temporary files"
            raise SourceError(failed_write(error, where)._replace(hint="name a folder with --dir")) from error
    try:
        yield site
    except BaseException as error:
        if chosen or isinstance(error, BrokenPipeError):  # it came to its end, only nobody reads what it says
            print(f"the scratch folder is kept: {site}", file=sys.stderr)
        else:
            shutil.rmtree(site, ignore_errors=True)
            if os.path.lexists(site):
                print(f"the scratch folder is left: {site}", file=sys.stderr)
        raise


def _origins(given: Sequence[str], profile: Profile) -> dict[str, str]:
    """The origins by distribution.  Raises: UsageError."""
    origins: dict[str, str] = {}
    for item in given:
        name, sign, origin = item.partition("=")
        if not sign or not origin or name in origins:
            raise UsageError(Problem("bad_usage", f"--from needs NAME=PATH_OR_URL, each name once, not {item!r}"))
        if name not in profile.releases:
            hint = did_you_mean(name, profile.releases) or f"it has: {', '.join(profile.releases)}"
            raise UsageError(Problem("bad_usage", f"--from: profile {profile.name} has no {name!r}", hint=hint))
        origins[name] = origin
    return origins


def _obtain(profile: Profile, releases: Sequence[Release], origins: dict[str, str]) -> None:
    """Have every release in the cache; a failed one does not keep the others from being tried."""
    problems: list[Problem] = []
    for release in releases:
        origin = origins.get(release.distribution)
        if sources.have(release):
            if origin:
                print(f"{release.ref} is in the cache; --from {release.distribution}=… is not used", file=sys.stderr)
            continue
        print(f"getting {release.ref}", file=sys.stderr)
        try:
            sources.fetch(release, origin)
        except SourceError as error:
            line = f"fixpack try --profile {profile.name} --from {release.distribution}=PATH_OR_URL"
            hint = f"with a copy of your own: {line}"
            problems += [
                problem._replace(hint=hint) if "--from" in problem.hint else problem for problem in error.problems
            ]
    if problems:
        raise SourceError(*problems)


def _command(root: str | None, profile: Profile, fixes: Sequence[str], site: str) -> list[str]:
    """The line that does the work: the one that an image build uses, with a folder of ours."""
    script = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "apply_all.py")
    start = [sys.executable, script] if os.path.isfile(script) else [sys.executable, "-m", "fixpack", "apply"]
    chosen = ["--registry", os.path.abspath(root)] if root else []
    return [*start, "--profile", profile.name, *fixes, "--site", site, *chosen]


def _report(
    loaded: Registry,
    releases: Sequence[Release],
    site: str,
    laid: dict[str, str],
    profile: Profile,
    extra: Sequence[str],
) -> list[str]:
    """What changed, fix by fix, and where to look."""
    changed, regions = trial.changes(releases, site, laid)
    lines = ["what each fix put in:"]
    for fix in (*profile.fixes, *extra):
        lines += _fix_lines(loaded.fixes[fix], [region for region in regions if region.fix == fix])
    new = sum(file.new for file in changed)
    same = len(laid) - (len(changed) - new)
    lines += [
        "",
        f"{plural(len(changed) - new, 'file')} changed, {new} new, {same} of the packages' files as they were:",
    ]
    for file in changed:
        lines.append(
            f"  {file.path}  " + (f"new, {file.added} lines" if file.new else f"+{file.added} -{file.removed}")
        )
    lines += ["", "look at it:"]
    touched = [r for r in releases if any(file.path.startswith(f"{r.package}/") for file in changed)]
    lines += [f"  diff -ruN {_quoted(sources.tree(r), r.package)} {_quoted(site, r.package)}" for r in touched]
    lines += [f"remove it:\n  rm -r {shlex.quote(site)}", "on a real image, in its Dockerfile:"]
    lines.append("  COPY . /opt/fixpack")
    lines.append(f"  RUN {shlex.join(['python', '/opt/fixpack/apply_all.py', '--profile', profile.name, *extra])}")
    return lines


def _fix_lines(fix: Fix, regions: Sequence[trial.Region]) -> list[str]:
    """One fix: its title, then a line per region."""
    lines = [f"  {fix.id} r{fix.revision}: {fix.title}"]
    for region in regions:
        what = "a module of its own" if region.anchor == "file" else f"at {region.anchor}"
        lines.append(f"    {region.path}:{region.line}  {plural(region.lines, 'line')} {what}")
    return lines


def _quoted(folder: str, package: str) -> str:
    return shlex.quote(os.path.join(folder, package))
