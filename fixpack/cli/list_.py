"""``fixpack list``: what the registry holds."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fixpack.model import Release

HELP = "profiles, releases and fixes of the registry"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of list."""
    parser.add_argument("--profile", metavar="P", help="the fixes of one profile")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")
    parser.add_argument("--registry", metavar="DIR", help="use this registry")


def run(args: argparse.Namespace) -> int:
    """Print the profiles, or one profile's fixes."""
    from fixpack.registry import default_root

    return show(args.registry or default_root(), args.profile, args.json)


def show(root: str, profile: str | None, as_json: bool) -> int:
    """Print the profiles of a registry, or the fixes of one."""
    from fixpack import registry

    loaded = registry.load(root)
    chosen = [registry.find_profile(loaded, profile)] if profile else list(loaded.profiles.values())
    rows = []
    for each in chosen:
        pins = [
            {"distribution": one.distribution, "release": one.name, "commit": one.commit, "pins": _pins(one)}
            for one in loaded.profile_releases(each)
        ]
        fixes = [
            {"id": name, "revision": loaded.fixes[name].revision, "title": loaded.fixes[name].title, "opt_in": opt_in}
            for opt_in, names in ((False, each.fixes), (True, each.opt_in))
            for name in names
        ]
        rows.append(
            {
                "profile": each.name,
                "aliases": list(each.aliases),
                "hardware": each.hardware,
                "experimental": each.experimental,
                "releases": pins,
                "fixes": fixes,
            }
        )
    print(json.dumps({"schema_version": 1, "profiles": rows}, indent=1) if as_json else _text(rows))
    return 0


def _pins(release: Release) -> dict[str, str]:
    return {path: file.sha256 for path, file in release.files.items()}


def _text(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        names = ", ".join(row["aliases"])
        note = "  experimental" if row["experimental"] else ""
        lines.append(f"{row['profile']}{f' (also {names})' if names else ''}  {row['hardware']}{note}")
        lines += [
            f"  on {pin['distribution']} {pin['release']}, commit {pin['commit'][:12]}" for pin in row["releases"]
        ]
        width = max(len(fix["id"]) for fix in row["fixes"])
        for fix in row["fixes"]:
            kind = "opt-in " if fix["opt_in"] else "default"
            lines.append(f"  {kind}  {fix['id']:<{width}}  r{fix['revision']}  {fix['title']}")
    return "\n".join(lines)
