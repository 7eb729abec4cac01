"""What a running server routes: a counter that CUDA graphs can hold, and snapshots of it in a file.

Counted are steps of at most ``decode_max`` tokens.  The buffers are made once, before any graph is captured; a step
neither waits for the device nor allocates what depends on data.

A captured step may be padded.  Its padded tokens have no slot in the KV cache (-1 in the step's slot mapping, a buffer
that a graph reads anew at each replay), and get the weight 0.  A step without a slot mapping is no request's (warm-up,
profiling) and is not counted.  A negative expert id goes to a column of its own, which no snapshot shows.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.logger import init_logger

logger = init_logger(__name__)
NO_SLOT = -1  # what vLLM's v1 block tables put for padding
QUIET = 60.0  # seconds without a capture, before the device is read from another thread


class Counter:
    """Routed tokens per layer and expert, of decode steps, since ``since``."""

    def __init__(self, layers: Sequence[int], experts: int, top_k: int, decode_max: int, device: torch.device) -> None:
        self.layers = tuple(layers)
        self.experts, self.top_k, self.decode_max = experts, top_k, decode_max
        self.counts = torch.zeros(len(self.layers), experts + 1, dtype=torch.int64, device=device)
        # How often each (token, choice) of the step counts; the first layer of a step fills it for all.
        self.weights = torch.zeros(decode_max * top_k, dtype=torch.int64, device=device)
        self.since = _now()
        self.captured_at = -QUIET

    def count(self, row: int, topk_ids: torch.Tensor) -> None:
        """Add one layer's choices, [tokens, top_k], of the step that runs now."""
        tokens = topk_ids.shape[0]
        if tokens > self.decode_max:
            return
        slots = _slots(tokens)
        if slots is None:
            return
        if topk_ids.is_cuda and torch.cuda.is_current_stream_capturing():
            self.captured_at = time.monotonic()
        if row == 0:
            live = (slots != NO_SLOT).unsqueeze(1).expand(tokens, self.top_k)
            self.weights[: tokens * self.top_k].view(tokens, self.top_k).copy_(live)
        ids = topk_ids.reshape(-1)
        ids = torch.where(ids < 0, self.experts, ids)
        self.counts[row].index_add_(0, ids, self.weights[: ids.numel()])

    def document(self, meta: dict[str, Any]) -> dict[str, Any]:
        """The counts so far as JSON values; waits for the device."""
        rows = self.counts[:, : self.experts].to("cpu").tolist()
        decode = {str(layer): row for layer, row in zip(self.layers, rows, strict=True)}
        note = f"routed tokens of steps with at most {self.decode_max} tokens; padding is not counted"
        return {"live": {"decode": decode}, "meta": {"since": self.since, "at": _now(), "note": note, **meta}}


def _slots(tokens: int) -> torch.Tensor | None:
    """The KV slots of the running step's tokens; None if it is no request's."""
    if not is_forward_context_available():
        return None
    mapping = get_forward_context().slot_mapping
    if isinstance(mapping, list):  # one per microbatch
        mapping = mapping[0] if len(mapping) == 1 else {}
    slots = next(iter(mapping.values()), None)
    return None if slots is None or slots.shape[0] < tokens else slots[:tokens]


def write(path: str, document: dict[str, Any]) -> None:
    """Put a JSON document where ``path`` says, whole or not at all, whatever happens meanwhile.

    :raises OSError: if the folder does not take it; what was there stays.
    """
    folder, name = os.path.split(os.path.abspath(path))
    handle, scratch = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


class Snapshots(threading.Thread):
    """Writes the counter to a file from time to time; a snapshot that fails is logged, and the next one is tried."""

    def __init__(self, counter: Counter, path: str, seconds: float, meta: dict[str, Any]) -> None:
        super().__init__(name="hotsplit-snapshots", daemon=True)
        self.counter, self.path, self.seconds, self.meta = counter, path, seconds, meta
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self.seconds):
            while time.monotonic() - self.counter.captured_at < QUIET:
                # Reading the device while the main thread captures a graph would break the capture.
                if self._ended.wait(QUIET / 4):
                    return
            self.save()

    def save(self) -> bool:
        """Write one snapshot now; False where it failed, which is logged."""
        try:
            write(self.path, self.counter.document(self.meta))
        except (OSError, RuntimeError) as error:
            logger.error("hotsplit: no snapshot in %s: %s: %s", self.path, type(error).__name__, error)
            return False
        return True

    def end(self) -> None:
        """Stop; returns when the thread is gone."""
        self._ended.set()
        self.join()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
