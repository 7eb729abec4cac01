"""A progress bar on stderr, for what takes more than a second; nothing where stderr is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

#: Called with what is done and the total (0 while unknown).
Advance = Callable[[float, float], None]


@contextlib.contextmanager
def bar(label: str) -> Iterator[Advance | None]:
    """Yields a function that moves the bar, or None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)
