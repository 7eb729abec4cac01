"""Hold the entries of ``--cpu-offload-params`` against the parameters that the offloader sees.

An entry is a run of whole name segments.  One that matches nothing offloads nothing, and the model then does not fit:
so it is an error, at the first wrapped module if a parameter is there that the entry must have meant, else when the
model has been constructed.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

from vllm.logger import init_logger

logger = init_logger(__name__)

#: the level between an expert layer and its weights; older names of parameters did not have it
_LEVEL = ".routed_experts."
_SHOWN = 3


class Entries:
    """What each entry has matched so far, and what it was near to."""

    def __init__(self, entries: Collection[str]) -> None:
        self._entries = sorted(entries)
        self._matched: set[str] = set()
        self._near: dict[str, list[str]] = {}
        self._names: dict[str, None] = {}
        self._legacy = False

    def accept_legacy(self) -> None:
        """Let an entry that leaves out the level of the routed experts match as if it were written in full."""
        self._legacy = True

    def note(self, name: str, matches: bool) -> bool:
        """Take in a parameter, and say whether it is to be offloaded.

        :param name: its name, from the wrapped module or tower on.
        :param matches: whether the offloader itself found an entry for it.
        """
        self._names[name] = None
        for entry in self._entries:
            if _within(entry, name):
                self._matched.add(entry)
            elif _wraps(name, entry):
                if self._legacy and _within(entry, _shortened(name)):
                    self._warn_once(entry, name)
                    self._matched.add(entry)
                    matches = True
                else:
                    self._near.setdefault(entry, []).append(name)
        return matches

    def end_of_module(self) -> None:
        """After each wrapped module.

        :raises ValueError: if an entry has matched nothing, and this module has a parameter that it must have meant.
        """
        missed = [entry for entry in self._entries if entry in self._near and entry not in self._matched]
        if missed:
            raise ValueError("\n".join(self._told(entry) for entry in missed))

    def end_of_model(self, exhausted: bool) -> None:
        """After the whole model has been constructed.

        :param exhausted: whether the offload budget is used up, so that some parameters were not looked at.
        :raises ValueError: if an entry has matched nothing, unless the budget explains it; then it is a warning.
        """
        missed = [entry for entry in self._entries if entry not in self._matched]
        if missed and exhausted:
            logger.warning(
                "The budget of --cpu-offload-gb was used up before %s of --cpu-offload-params matched a parameter.",
                ", ".join(map(repr, missed)),
            )
        elif missed:
            raise ValueError("\n".join(self._told(entry) for entry in missed))

    def _told(self, entry: str) -> str:
        near = self._near.get(entry) or difflib.get_close_matches(entry, self._names, _SHOWN, cutoff=0.3)
        text = f"--cpu-offload-params: {entry!r} matches no parameter, so nothing would be offloaded for it"
        if not self._names:
            return f"{text}; in fact the offloader was given no parameters at all. Remove the entry, or the offload."
        if not near:
            return f"{text}. An entry is a run of whole segments of a name, as in {next(iter(self._names))!r}."
        shown = ", ".join(map(repr, list(dict.fromkeys(near))[:_SHOWN]))
        return f"{text}; nearest: {shown}. Write {_tail(near[0], entry.count('.') + 1)!r} instead."

    def _warn_once(self, entry: str, name: str) -> None:
        if entry not in self._matched:
            logger.warning(
                "--cpu-offload-params: %r is an old name; it is taken for %r.", entry, _tail(name, entry.count(".") + 1)
            )


def check_model() -> None:
    """The last check of the offloader that is in use, if it has entries.

    :raises ValueError: see ``Entries.end_of_model``.
    """
    from vllm.model_executor.offloader import get_offloader

    offloader = get_offloader()
    entries = getattr(offloader, "_fixpack_entries", None)
    if entries is not None:
        entries.end_of_model(offloader.cpu_offload_bytes >= offloader.cpu_offload_max_bytes)


def _within(entry: str, name: str) -> bool:
    return f".{entry}." in f".{name}."


def _shortened(name: str) -> str:
    return f".{name}".replace(_LEVEL, ".", 1)


def _wraps(name: str, entry: str) -> bool:
    """Whether a name has the entry's segments in their order and the same last one, with others between them.

    Neither a layer without experts nor a tower of another modality has such a name, so neither counts as a mistake.
    """
    segments, wanted = name.split("."), entry.split(".")
    rest = iter(segments)
    return segments[-1] == wanted[-1] and all(each in rest for each in wanted[:-1])


def _tail(name: str, count: int) -> str:
    return ".".join(name.split(".")[-count:])
