"""Leaves the records of a run while it goes on (`lakehead.storage.jobs.run_record`)."""

import asyncio
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError, ObjectExists
from lakehead.storage.jobs.job import Runner
from lakehead.storage.jobs.run_record import (
    INTERVAL_S,
    PREFIX,
    Run,
    RunKey,
    RunState,
    one_line,
    outdated,
    plain_result,
)
from lakehead.storage.metadata.layout import CHECKPOINTS, ENTRIES
from lakehead.storage.object_store.protocol import ObjectStore

Item = TypeVar("Item")
Result = TypeVar("Result")
_END_S = 2.0
"""Longest wait of a run for its last record: a store that does not respond holds no job up."""
_log = logging.getLogger(__name__)


class RunRecorder:
    """The progress of one run, from any thread; `run_until_end` writes it, in a thread of its own.

    With `first_s`, a run that ends well within this time leaves no record.
    """

    def __init__(
        self,
        job: str,
        holder: str,
        clock: Clock,
        rng: random.Random,
        *,
        first_s: float = 0.0,
        interval_s: float = INTERVAL_S,
    ) -> None:
        now = clock.now_ms()
        self._id = f"{now:013d}-{rng.getrandbits(64):016x}"
        self._run = Run(job=job, holder=one_line(holder), started_ms=now, updated_ms=now)
        self._clock = clock
        self._first_s = first_s
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._written = self._kept = 0
        """The number of the next record, and of the first that may not have been deleted."""

    def at(self, doing: str) -> None:
        """Note the part of the job that is being done."""
        self._change(doing=one_line(doing))

    def progress(self, done: int, total: int) -> None:
        """Note that `done` of `total` bytes are done (`lakehead.storage.jobs.job.Progress`)."""
        self._change(done_bytes=done, total_bytes=total)

    def units(self, done: int, total: int) -> None:
        """Note that more units of work are done, and that there are more of them."""
        with self._lock:
            run = self._run
            self._run = replace(
                run, done_units=run.done_units + done, total_units=run.total_units + total
            )

    def count(self, done: int, total: int) -> None:
        """Note that `done` of `total` units of work are done."""
        self._change(done_units=done, total_units=total)

    def counting(self, runner: Runner) -> Runner:
        """Return a runner that notes the items that it has done."""

        def run(
            work: Callable[[Item], Result], items: Sequence[Item]
        ) -> Iterator[tuple[Item, Result]]:
            self.units(0, len(items))
            for found in runner(work, items):
                self.units(1, 0)
                yield found

        return run

    def found(self, result: Mapping[str, Any]) -> None:
        """Note the result."""
        self._change(result=plain_result(result))

    def failed(self, reason: str) -> None:
        """Note the reason that the run is a failure, though it ends without an error."""
        self._change(reason=one_line(reason))

    def end(self, error: BaseException | None) -> None:
        """Note the end of the run: by an error, or without one."""
        if error is not None:
            self.failed(_reason(error))
        with self._lock:
            state = RunState.FAILED if self._run.reason else RunState.SUCCEEDED
            self._run = replace(self._run, state=state, doing="")
        self._ended.set()

    def _change(self, **values: Any) -> None:
        with self._lock:
            self._run = replace(self._run, **values)

    def run_until_end(self, open_store: Callable[[], ObjectStore]) -> None:
        """Write records until the end. Blocks; nothing is raised."""
        if self._first_s and self._ended.wait(self._first_s):
            with self._lock:
                if self._run.state is RunState.SUCCEEDED:
                    return
        try:
            with asyncio.Runner() as loop:
                store = loop.run(_opened(open_store))
                try:
                    self._write_all(loop, store)
                finally:
                    loop.run(store.close())
        except Exception as error:  # noqa: BLE001  # no work rests on records
            _log.debug("the run leaves no records: %s", error)

    def _write_all(self, loop: asyncio.Runner, store: ObjectStore) -> None:
        is_cluster = is_pruned = False
        while True:
            # A wrong place is to stay as it is, and an import makes its cluster.
            is_cluster = is_cluster or loop.run(_holds_cluster(store))
            with self._lock:
                state = self._run.state
            if is_cluster:
                state = loop.run(self._write(store))
            if state is not RunState.RUNNING:
                return
            if is_cluster and not is_pruned:
                loop.run(_prune(store))
                is_pruned = True
            self._ended.wait(self._interval_s)

    async def _write(self, store: ObjectStore) -> RunState:
        """Write a record; return the state that it has, also where it could not be written."""
        with self._lock:
            run = self._run = replace(self._run, updated_ms=self._clock.now_ms())
        try:
            while not await self._created(store, run):
                self._written += 1
        except LakeheadError as error:
            _log.debug("a record of the run is not written: %s", error)
            return run.state
        older = [RunKey(self._id, one).key for one in range(self._kept, self._written)]
        self._kept = self._written
        self._written += 1
        if older:
            with suppress(LakeheadError):  # the next run deletes them
                await store.delete(older)
        return run.state

    async def _created(self, store: ObjectStore, run: Run) -> bool:
        """Write the next record. Return false if it is there: an earlier try, whose response was
        lost, has left an older state.
        """
        try:
            await store.create(RunKey(self._id, self._written).key, [run.body()])
        except ObjectExists:
            return False
        return True


async def _opened(open_store: Callable[[], ObjectStore]) -> ObjectStore:
    return open_store()  # some stores take the loop that runs


async def _holds_cluster(store: ObjectStore) -> bool:
    """Return true if there is a cluster."""
    return bool(await store.list(CHECKPOINTS) or await store.list(ENTRIES))


async def _prune(store: ObjectStore) -> None:
    with suppress(LakeheadError):  # the next run does it
        if gone := outdated(await store.list(PREFIX)):
            await store.delete(gone)


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return "stopped"
    words = one_line(str(error))
    if isinstance(error, LakeheadError) and words:
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def this_process() -> str:
    """Return the name of this process for people: the host and the process id."""
    return f"{socket.gethostname()}, process {os.getpid()}"


@contextmanager
def recorded(
    open_store: Callable[[], ObjectStore],
    job: str,
    *,
    clock: Clock,
    rng: random.Random,
    holder: str = "",
    first_s: float = 0.0,
    interval_s: float = INTERVAL_S,
) -> Iterator[RunRecorder]:
    """Record the run of a job, which is the block: its beginning, its progress, and its end with
    the reason of an error. `open_store` is called in a thread, in which the store is used.
    """
    recorder = RunRecorder(
        job, holder or this_process(), clock, rng, first_s=first_s, interval_s=interval_s
    )
    writer = threading.Thread(
        target=recorder.run_until_end, args=(open_store,), name="run-records", daemon=True
    )
    writer.start()
    try:
        yield recorder
    except BaseException as error:
        recorder.end(error)
        raise
    else:
        recorder.end(None)
    finally:
        writer.join(_END_S)
