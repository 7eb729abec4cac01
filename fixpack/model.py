"""The records of the registry: plain, frozen, without behaviour beyond small look-ups.

NamedTuples rather than dataclasses: ``import dataclasses`` costs a confirm run a quarter of its
time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

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
    commit: str  # 40 hex digits
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


class Registry(NamedTuple):
    """Everything that was loaded, and where from."""

    root: str
    fixes: dict[str, Fix]
    releases: dict[str, Release]  # by "distribution@release"
    profiles: dict[str, Profile]  # by name, not by alias

    def profile_releases(self, profile: Profile) -> tuple[Release, ...]:
        """The pinned releases of a profile, in its order."""
        return tuple(self.releases[f"{dist}@{name}"] for dist, name in profile.releases.items())
