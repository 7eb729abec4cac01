"""The records of the registry: plain, frozen, without behaviour beyond small look-ups.

NamedTuples rather than dataclasses: ``import dataclasses`` costs a confirm run a quarter of its
time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # an apply needs no launch rules
    from fixpack.launch_rules import RuleFile

#: Edit operations.  ``add-file`` names a path, all others name an anchor.
OPS = ("insert-before", "insert-after", "replace", "delete", "append", "add-file")

#: Yocto's Upstream-Status vocabulary, lower-cased, and ``not-reported``.
UPSTREAM_STATUS = ("not-reported", "pending", "submitted", "accepted", "backport", "denied", "inappropriate")

ORIGIN_KINDS = ("own", "backport", "cherry-pick", "upstream-pr")


class Anchor(NamedTuple):
    """A name for one place in a file of a release."""

    name: str
    within: str  # dotted scope, "Class.method"; "" for the whole file
    text: str  # whole lines, dedented, joined by "\n", no final newline; "" only for `append`
    where: str  # "anchors/….yaml:LINE"


class SourceFile(NamedTuple):
    """A pinned file of a release and its anchors."""

    path: str  # relative to the folder that holds the package, e.g. "vllm_gaudi/utils.py"
    sha256: str
    anchors: dict[str, Anchor]


class Sdist(NamedTuple):
    """The source archive of a release on the Python package index."""

    filename: str
    sha256: str


class Release(NamedTuple):
    """One pinned state of a distribution."""

    distribution: str  # "vllm-gaudi"
    name: str  # "v0.26.0"
    version: str  # "0.26.0", only to explain; bytes decide
    package: str  # import package, "vllm_gaudi"
    commit: str  # 40 hex digits; fewer, from 9 on, if the archive that `sdist` pins names no more
    also_commits: tuple[str, ...]  # other commits whose touched files have the same bytes
    git: str  # address of the git repository, "" if none
    sdist: Sdist | None
    files: dict[str, SourceFile]
    where: str  # the registry file, relative to the registry's root

    @property
    def ref(self) -> str:
        """``NAME@RELEASE`` as the command line spells it."""
        return f"{self.distribution}@{self.name}"

    def find(self, anchor: str) -> tuple[SourceFile, Anchor] | None:
        """The file and anchor of that name; anchor names are unique in a release."""
        for file in self.files.values():
            if anchor in file.anchors:
                return file, file.anchors[anchor]
        return None


class Edit(NamedTuple):
    """One operation of a fix on one distribution."""

    op: str
    anchor: str  # "" for add-file
    path: str  # only for add-file: the new file, relative to the folder that holds the package
    code: str  # payload file below patches/<fix>/; "" for delete
    payload: str  # its text; "" for delete
    where: str  # "fixes/….yaml:LINE"
    upstream_form: str = ""  # upstream's own lines for this edit, dedented; "" if upstream has none


class PastEdit(NamedTuple):
    """An edit of an older revision: enough to recognise it and to take it out."""

    op: str
    anchor: str  # "" for add-file
    path: str  # only for add-file
    sha256: str  # of the payload; "" for delete


class Revision(NamedTuple):
    """An older revision of a fix."""

    number: int
    reason: str  # why it was replaced
    edits: dict[str, tuple[PastEdit, ...]]  # by distribution, or by "distribution@release" where that differs

    def edits_for(self, release: Release) -> tuple[PastEdit, ...]:
        """The edits that this revision made to one release."""
        return self.edits.get(release.ref, self.edits.get(release.distribution, ()))


class Proof(NamedTuple):
    """The regression test of a fix and what it does on stock."""

    test: str  # path of the test file, relative to the registry's root
    stock: dict[str, str]  # test function -> regular expression that its failure on stock must match


class Origin(NamedTuple):
    """Where a fix comes from."""

    kind: str
    url: str
    commit: str


class Upstream(NamedTuple):
    """What upstream knows of the defect."""

    status: str
    url: str
    reason: str


class UpstreamHas(NamedTuple):
    """That a release has a fix, wholly or in part, and where its own code says so."""

    url: str
    reason: str  # what upstream does there
    anchor: str  # of upstream's own line
    green: tuple[str, ...]  # declared tests that pass on its stock; empty: all
    where: str  # "fixes/….yaml:LINE"


class Fix(NamedTuple):
    """A named correction."""

    id: str
    revision: int
    title: str
    symptom: str
    cause: str
    origin: Origin
    upstream: Upstream
    retires_when: str
    limits: str  # what the fix does not cover; "" if nothing is known
    requires: tuple[str, ...]  # wherever this fix goes in
    edits: dict[str, tuple[Edit, ...]]  # by distribution
    variants: dict[str, tuple[Edit, ...]]  # by "distribution@release": replaces the distribution's edits there
    proof: Proof
    where: str
    history: tuple[Revision, ...] = ()  # older revisions that may be in the field
    upstream_has: Mapping[str, UpstreamHas] = {}  # by "distribution@release"; nobody writes to it
    requires_with: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # distribution -> only where it is pinned

    def required(self, pinned: Collection[str]) -> tuple[str, ...]:
        """The fixes without which this one is wrong where these distributions are pinned."""
        more = (name for dist, names in self.requires_with.items() if dist in pinned for name in names)
        return tuple(dict.fromkeys((*self.requires, *more)))

    def past(self, number: int) -> Revision | None:
        """An older revision, if the history knows it."""
        return next((each for each in self.history if each.number == number), None)

    def edits_for(self, release: Release) -> tuple[Edit, ...]:
        """The edits for one release: its own variant if there is one, else the distribution's."""
        return self.variants.get(release.ref, self.edits.get(release.distribution, ()))

    def green_on(self, releases: Iterable[Release]) -> frozenset[str]:
        """The declared tests that pass on the stock of these releases, because upstream has what they ask for."""
        found: set[str] = set()
        for release in releases:
            if has := self.upstream_has.get(release.ref):
                found.update(has.green or self.proof.stock)
        return frozenset(found)


class Profile(NamedTuple):
    """Hardware, one release per distribution, and the fixes."""

    name: str
    aliases: tuple[str, ...]
    hardware: str
    experimental: bool
    releases: dict[str, str]  # distribution -> release name
    fixes: tuple[str, ...]
    opt_in: tuple[str, ...]
    where: str
    launch: tuple[str, ...] = ()  # files of rules for the serve command: launch/<name>.yaml


class Registry(NamedTuple):
    """Everything that was loaded, and where from."""

    root: str
    fixes: dict[str, Fix]
    releases: dict[str, Release]  # by "distribution@release"
    profiles: dict[str, Profile]  # by name, not by alias
    launch: Mapping[str, RuleFile] = MappingProxyType({})  # by name

    def rule_files(self, profile: Profile) -> tuple[RuleFile, ...]:
        """The rules for the serve command of a profile, in its order."""
        return tuple(self.launch[name] for name in profile.launch)

    def profile_releases(self, profile: Profile) -> tuple[Release, ...]:
        """The pinned releases of a profile, in its order."""
        return tuple(self.releases[f"{dist}@{name}"] for dist, name in profile.releases.items())

    def superseded(self, profile: Profile) -> dict[str, tuple[Release, UpstreamHas]]:
        """The fixes that a profile does without, because a release that it pins has them."""
        found = {}
        for fix in self.fixes.values():
            for release in self.profile_releases(profile):
                if release.ref in fix.upstream_has and fix.id not in (*profile.fixes, *profile.opt_in):
                    found[fix.id] = (release, fix.upstream_has[release.ref])
        return found
