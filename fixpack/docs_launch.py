"""The part of a profile's page about the launch command."""

from __future__ import annotations

from fixpack.markdown import fenced
from fixpack.model import Profile


def launch_sections(profile: Profile) -> list[str]:
    """The launch command, and the rules for it: Markdown blocks below a heading of their own."""
    return [
        "## Launch",
        "In front of the server, the same command only confirms; the server starts only if every fix is in place:",
        fenced(f"python apply_all.py --profile {profile.name} && exec vllm serve MODEL …", language="sh"),
    ]


def launch_prohibitions(profile: Profile) -> list[str]:
    """What the rules forbid, one item of Markdown each."""
    return []
