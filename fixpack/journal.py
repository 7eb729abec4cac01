"""Where the journal lies, apart from the code that writes it: a confirm run only looks whether there is one."""

from __future__ import annotations

import os

JOURNAL = ".fixpack-journal"

#: the journal while it is being written
NEW_JOURNAL = ".fixpack-new-journal"


def pending(root: str) -> bool:
    """Whether a run is under way in a target's folder, or was killed there."""
    return any(os.path.lexists(os.path.join(root, name)) for name in (JOURNAL, NEW_JOURNAL))
