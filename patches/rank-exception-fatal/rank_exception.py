"""End a worker process whose exception nobody would hear of.

A step is sent to all ranks, and one of them replies.  When another one fails, its exception is logged and dropped, and
the rank takes the next step: from then on it has another state than its peers, or they wait for it in a collective.
"""

from __future__ import annotations

import contextlib
import os
import sys

from vllm.logger import init_logger

logger = init_logger(__name__)


def end_unreported(rank: int, output_rank: int | None, method: str | bytes) -> None:
    """End this process, with exit code 1, unless this rank replies to the call that has just failed.

    ``output_rank`` is the rank that replies, None if all do; ``method`` is the name of the call, or a pickled function.
    The executor's monitor sees the process end, shuts the other ranks down and tells the engine.

    The process ends at once: the orderly way tears process groups down, and that can wait for peers for ever.
    """
    if output_rank is None or rank == output_rank:
        return
    name = method if isinstance(method, str) else "a function"
    logger.critical("Rank %d failed in %s, and only rank %d replies to it: the process of rank %d ends, so that the "
                    "engine stops instead of going on with a rank that is out of step.", rank, name, output_rank, rank)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)
