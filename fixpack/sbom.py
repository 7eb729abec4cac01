"""A CycloneDX document of what was fixed: components with their upstream and the patches in them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone

from cyclonedx.model import AttachedText, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import (
    Commit,
    Component,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.model.issue import IssueClassification, IssueType, IssueTypeSource
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from fixpack import __version__
from fixpack.difference import differences
from fixpack.errors import MismatchError, Problem
from fixpack.lock import Lock, dump, sha256
from fixpack.model import Fix, Registry, Release
from fixpack.survey import Survey
from fixpack.target import Target

#: how CycloneDX calls a fix's origin
TYPES = {
    "own": PatchClassification.UNOFFICIAL,
    "upstream-pr": PatchClassification.UNOFFICIAL,  # proposed upstream, not released by it
    "backport": PatchClassification.BACKPORT,
    "cherry-pick": PatchClassification.CHERRY_PICK,
}


def document(registry: Registry, lock: Lock, target: Target, found: Survey) -> str:
    """The document as JSON, for the fixes that are in place.

    The same target gives the same document, apart from its time, which SOURCE_DATE_EPOCH sets.

    :param found: the states; only fixes that are proven to be in place are listed.
    :raises MismatchError: if no fix is in place, or one is in another state than in place or absent.
    """
    odd = [fix for fix in found.fixes if fix.state not in ("applied", "pristine") or fix.half]
    if any(fix.edits for fix in odd) or not any(fix.state == "applied" for fix in found.fixes):
        problems = [problem for fix in odd for problem in fix.problems]
        none = Problem("nothing_in_place", "no fix is in place, so there is nothing to list", hint="apply first")
        raise MismatchError(*(problems or [none]))
    here = [fix.id for fix in found.fixes if fix.state == "applied"]
    components = []
    for release in registry.profile_releases(registry.profiles[lock["profile"]]):
        fixes = [registry.fixes[name] for name in here if registry.fixes[name].edits_for(release)]
        if fixes:
            components.append(_component(registry, lock, target, found, release, fixes))
    made = [f"{each.name} {each.version} {each.pedigree.notes if each.pedigree else ''}" for each in components]
    name = "\n".join((sha256(dump(lock)), *made))
    bom = Bom(
        components=components,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"fixpack:{name}"),
        metadata=BomMetaData(timestamp=_now(), tools=ToolRepository(components=[_tool()])),
        properties=[
            Property(name="fixpack:profile", value=lock["profile"]),
            Property(name="fixpack:lock:sha256", value=sha256(dump(lock))),
        ],
    )
    return JsonV1Dot6(bom).output_as_string(indent=1)


def _tool() -> Component:
    return Component(type=ComponentType.APPLICATION, name="fixpack", version=__version__, bom_ref="fixpack")


def _now() -> datetime:
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(epoch) if epoch.isdecimal() and len(epoch) < 12 else int(time.time())
    return datetime.fromtimestamp(seconds, timezone.utc)


def _component(
    registry: Registry, lock: Lock, target: Target, found: Survey, release: Release, fixes: Sequence[Fix]
) -> Component:
    """One distribution: what it was, and every patch in it."""
    located = target.located[release.distribution]
    version = located.version or release.version
    files = [file for file in found.files if file.distribution == release.distribution and file.fixes]
    properties = [Property(name="fixpack:commit", value=release.commit)]
    if len(release.commit) < 40 and release.sdist:  # abbreviated, as the archive names it: the archive is the pin
        properties.append(Property(name="fixpack:sdist:sha256", value=release.sdist.sha256))
    for file in files:
        data = found.seen[release.distribution, file.path].data
        properties.append(Property(name=f"fixpack:sha256:{file.path}", value=sha256(data or b"")))
    properties += [Property(name="fixpack:fix", value=f"{fix.id} r{fix.revision}") for fix in fixes]
    return Component(
        type=ComponentType.LIBRARY,
        name=release.distribution,
        version=version,
        bom_ref=f"{release.distribution}@{version}",
        purl=PackageURL("pypi", None, release.distribution, version),
        properties=properties,
        pedigree=Pedigree(
            ancestors=[_ancestor(release)],
            commits=[Commit(uid=release.commit, url=XsUri(f"{release.git}/commit/{release.commit}"))]
            if release.git
            else [Commit(uid=release.commit)],
            patches=[_patch(registry, lock, target, fix, release) for fix in fixes],
            notes="; ".join(f"{fix.id} r{fix.revision}: {fix.title}" for fix in fixes),
        ),
    )


def _ancestor(release: Release) -> Component:
    """The release as upstream published it."""
    source = {"vcs_url": f"git+{release.git}@{release.commit}"} if release.git else None
    return Component(
        type=ComponentType.LIBRARY,
        name=release.distribution,
        version=release.version,
        bom_ref=f"{release.ref} upstream",
        purl=PackageURL("pypi", None, release.distribution, release.version, source),
    )


def _patch(registry: Registry, lock: Lock, target: Target, fix: Fix, release: Release) -> Patch:
    """One fix: its diff against upstream's files, and the defect that it resolves."""
    inside = release.package + "/"
    diffs = [
        each.text for each in differences(registry, lock, [fix.id], target, alone=True) if each.path.startswith(inside)
    ]
    url = fix.upstream.url or fix.origin.url
    return Patch(
        type=TYPES[fix.origin.kind],
        diff=Diff(
            text=AttachedText(content="".join(diffs), content_type="text/x-diff"),
            url=XsUri(fix.origin.url) if fix.origin.url else None,
        ),
        resolves=[
            IssueType(
                type=IssueClassification.DEFECT,
                id=fix.id,
                name=fix.title,
                description=" ".join(fix.symptom.split()),
                source=IssueTypeSource(name="upstream", url=XsUri(url)) if url else None,
                references=[XsUri(url)] if url else None,
            )
        ],
    )
