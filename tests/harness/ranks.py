"""Two worker processes under vLLM's real MultiprocExecutor, which do what a test tells each rank to do.

``executor()`` makes a live executor of two ranks; its processes, queues, monitor and shutdown are vLLM's own, the
worker class (made by the real WorkerProc in each process) is ``Worker`` below.  ``executor.sample_tokens(orders)`` is
one step; ``orders`` maps a rank to "raise" or "stick", other ranks reply with a number that counts their steps.

The worker processes are forks, and a process that already runs an engine must not be forked.  So all this belongs into
an interpreter of its own, in which ``Lab.run`` calls a test's function:

    with Lab() as lab:
        @lab.run
        def scenario():
            with executor() as (live, failed):
                ...
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import cloudpickle
import models

STUCK = 3600.0  # seconds
LIMIT = 300.0
_kept: list[Any] = []  # message queues: one that is collected as garbage waits for ever for readers that were killed
ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # the other ways import everything again in each process
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",  # for its workers to end by themselves
}


class RankError(Exception):
    """What a rank raises when it is told to."""


class Worker:
    """Stands where HPUWorker is."""

    def __init__(self, rank: int, **_: Any) -> None:
        self.rank = rank
        self.steps = 0
        self.block_teardown = False

    def init_device(self) -> None:
        """No device."""

    def load_model(self) -> None:
        """No model."""

    def check_health(self) -> str:
        return f"rank {self.rank} is well"

    def sample_tokens(self, orders: Mapping[int, str]) -> Any:
        """One step: the reply is the number of steps that this rank did, itself included."""
        order = orders.get(self.rank, "")
        if order == "raise":
            raise RankError(f"rank {self.rank} was told to")
        if order == "stick":  # as in a collective whose other side never comes
            time.sleep(STUCK)
        self.steps += 1
        return self.steps

    def look(self, orders: Mapping[int, str]) -> tuple[int, int]:
        """Rank and steps, from every rank."""
        if orders.get(self.rank) == "raise":
            raise RankError(f"rank {self.rank} was told to")
        return self.rank, self.steps

    def hold_teardown(self, rank: int) -> None:
        """That rank's ``shutdown`` will block, as the end of a process group does while peers are in a collective."""
        self.block_teardown = rank == self.rank

    def shutdown(self) -> None:
        if self.block_teardown:
            time.sleep(STUCK)


def raise_on_rank_1(worker: Any) -> Any:
    """A step that is sent as a function."""
    return worker.sample_tokens({1: "raise"})


class Failed:
    """Notes when the executor told the engine that it failed."""

    def __init__(self) -> None:
        self.told = False

    def __call__(self) -> None:
        self.told = True

    def within(self, seconds: float) -> bool:
        """Whether that happens within so many seconds."""
        end = time.monotonic() + seconds
        while not self.told and time.monotonic() < end:
            time.sleep(0.02)
        return self.told


def goes_on(executor: Any, rank: int) -> bool:
    """Whether that rank takes another call; False once the executor was shut down.  Other ranks need not answer."""
    reply = executor.workers[rank].worker_response_mq
    try:
        executor.rpc_broadcast_mq.enqueue(("look", ({},), {}, rank))
        reply.dequeue(timeout=60)
    except (AttributeError, RuntimeError):  # no queue any more, or one that was closed meanwhile
        return False
    return True


@contextmanager
def executor(async_scheduling: bool = False) -> Iterator[tuple[Any, Failed]]:
    """A live executor of two ranks, and whether it failed; no process is left at the end."""
    from vllm import EngineArgs
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    config = EngineArgs(
        model=models.path("llama"),
        skip_tokenizer_init=True,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        async_scheduling=async_scheduling,
        worker_cls=f"{__name__}.{Worker.__name__}",
        max_model_len=2048,
    ).create_engine_config()
    made = MultiprocExecutor(config)
    failed = Failed()
    made.register_failure_callback(failed)
    processes = [worker.proc for worker in made.workers]
    _kept.extend([made.rpc_broadcast_mq, *made.response_mqs])
    try:
        yield made, failed
    finally:
        for process in processes:
            process.kill()
        made.shutdown()
        for process in processes:
            process.join()


class Lab:
    """A fresh interpreter that runs functions; what they raise is raised here."""

    def __enter__(self) -> Lab:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,))
        self._process.start()
        other.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def run(self, scenario: Callable[[], None]) -> None:
        """Call the function there; it may be local to a test, but must not need the lab."""
        cloudpickle.register_pickle_by_value(sys.modules[scenario.__module__])
        self._pipe.send_bytes(cloudpickle.dumps(scenario))
        assert self._pipe.poll(LIMIT), f"no end after {LIMIT} seconds"
        error, trace = self._pipe.recv()
        if error is not None:
            print(trace)
            raise error


def _serve(pipe: Any) -> None:
    os.environ.update(ENVIRONMENT)
    while True:
        scenario = cloudpickle.loads(pipe.recv_bytes())
        try:
            scenario()
        except Exception as error:
            pipe.send((error, traceback.format_exc()))
        else:
            pipe.send((None, ""))
