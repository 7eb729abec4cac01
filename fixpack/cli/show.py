"""``fixpack show``: everything the registry knows of one fix."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from fixpack.cli import target_options

HELP = "what a fix changes, why, and when it goes away"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of show."""
    parser.add_argument("fix", metavar="FIX", help="its name")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")
    parser.add_argument("--registry", metavar="DIR", help="use this registry (default: the one beside the engine)")


def run(args: argparse.Namespace) -> int:
    """Print one fix; returns 0."""
    from fixpack.docs_fix import releases_of
    from fixpack.errors import UsageError
    from fixpack.registry import load, unknown

    registry = load(target_options.registry_root(args))
    fix = registry.fixes.get(args.fix)
    if fix is None:
        raise UsageError(unknown("fix", args.fix, registry.fixes))
    edits = []
    for release in releases_of(registry, fix):
        for edit in fix.edits_for(release):
            found = release.find(edit.anchor) if edit.anchor else None
            if edit.anchor and found is None:
                continue
            edits.append(
                {
                    "release": release.ref,
                    "op": edit.op,
                    "path": found[0].path if found else edit.path,
                    "within": found[1].within if found else "",
                    "anchor": edit.anchor,
                    "text": found[1].text if found else "",
                    "code": f"patches/{fix.id}/{edit.code}" if edit.code else "",
                    "upstream_form": edit.upstream_form,
                }
            )
    profiles = {
        profile.name: "opt-in" if fix.id in profile.opt_in else "default"
        for profile in registry.profiles.values()
        if fix.id in (*profile.fixes, *profile.opt_in)
    }
    payloads = {
        f"patches/{fix.id}/{edit.code}": edit.payload for each in fix.edits.values() for edit in each if edit.code
    }
    for variant in fix.variants.values():
        payloads.update({f"patches/{fix.id}/{edit.code}": edit.payload for edit in variant if edit.code})
    body = {
        "id": fix.id,
        "revision": fix.revision,
        "title": fix.title,
        "symptom": fix.symptom,
        "cause": fix.cause,
        "limits": fix.limits,
        "origin": fix.origin._asdict(),
        "upstream": fix.upstream._asdict(),
        "upstream_has": {
            ref: {"url": has.url, "reason": has.reason, "green": list(has.green)}
            for ref, has in fix.upstream_has.items()
        },
        "retires_when": fix.retires_when,
        "requires": list(fix.requires),
        "requires_with": {name: list(others) for name, others in fix.requires_with.items()},
        "profiles": profiles,
        "proof": fix.proof.test,
        "edits": edits,
        "payloads": payloads,
        "history": [{"revision": each.number, "reason": each.reason} for each in fix.history],
    }
    print(json.dumps({"schema_version": 1, **body}, indent=1) if args.json else as_text(body))
    return 0


def as_text(fix: dict[str, Any]) -> str:
    """The fix for people."""
    lines = [f"{fix['id']} r{fix['revision']}: {fix['title']}"]
    for title, key in (
        ("without it", "symptom"),
        ("why", "cause"),
        ("limits", "limits"),
        ("retires when", "retires_when"),
    ):
        if fix[key]:
            lines += ["", f"{title}:", *_wrapped(fix[key])]
    origin = " ".join(part for part in fix["origin"].values() if part)
    upstream = fix["upstream"]
    lines += ["", f"origin: {origin}", f"upstream: {upstream['status']} {upstream['url']}".rstrip()]
    lines += _wrapped(upstream["reason"]) if upstream["reason"] else []
    for ref, has in fix["upstream_has"].items():
        lines += [f"{ref} has {'a part of it' if has['green'] else 'it'}: {has['url']}".rstrip(": ")]
        lines += _wrapped(has["reason"])
    required = [*fix["requires"], *(f"with {dist}: {', '.join(each)}" for dist, each in fix["requires_with"].items())]
    lines.append(f"requires: {', '.join(required) or 'nothing'}")
    lines.append("profiles: " + ", ".join(f"{name} ({kind})" for name, kind in fix["profiles"].items()))
    lines.append(f"proof: {fix['proof']}")
    lines += [f"revision {each['revision']}: {each['reason']}" for each in fix["history"]]
    lines += ["", "edits:"]
    release = ""
    for edit in fix["edits"]:
        if edit["release"] != release:
            release = edit["release"]
            lines.append(f"  {release}")
        where = f"{edit['path']} {edit['within']}".rstrip()
        lines.append(f"    {edit['op']} {edit['anchor']}  in {where}".replace("add-file   in", "add-file"))
        lines += [f"      | {line}" for line in edit["text"].splitlines()]
        lines += [f"      + {edit['code']}"] if edit["code"] else []
    for path, text in fix["payloads"].items():
        lines += ["", f"{path}:", *(f"    {line}".rstrip() for line in text.splitlines())]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 98, initial_indent="  ", subsequent_indent="  ")
