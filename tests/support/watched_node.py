"""A node in a thread of this process whose event loop is watched for stalls.

A stall is measured in processor time, not by a clock on the wall, so that a busy machine causes
none: the time that the loop's own thread works between two beats of the loop, and the time that the
whole process works meanwhile, which also holds what other threads do while they keep the
interpreter's lock.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import uvloop

from lakehead.broker.node import Node, start_node
from lakehead.broker.process import tune_memory
from lakehead.broker.setting_sources import load

BEAT_S = 0.001
START_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest of each kind, in seconds: the loop's thread, the process, and on the wall."""

    loop_s: float
    process_s: float
    wall_s: float


class LoopWatch:
    """Beats on a loop and keeps the longest turn since `reset`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._longest = (0.0, 0.0, 0.0)
        self._last = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.thread_time(), time.process_time(), time.perf_counter()

    def beat(self) -> None:
        """Note the length of the turn that ends; called on the loop's thread."""
        now = self._now()
        turns = [after - before for before, after in zip(self._last, now, strict=True)]
        self._longest = tuple(map(max, self._longest, turns))  # type: ignore[assignment]
        self._last = now
        self._loop.call_later(BEAT_S, self.beat)

    def taken(self) -> Stall:
        """Return the longest turns so far and begin again."""
        longest, self._longest = self._longest, (0.0, 0.0, 0.0)
        return Stall(*longest)


class WatchedNode:
    """A node with a store and a write-ahead log of its own below `folder`."""

    _running = 0

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self._settings = {
            "store": str(folder / "store"),
            "wal": f"block:{folder / 'wal'}",
            "wal.size": "64m",
            "port": 0,
            "metrics.port": 0,
            **(settings or {}),
        }
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="watched node", daemon=True)

    def __enter__(self) -> Self:
        # As a node's process does (lakehead.broker.process): else the collector walks through all
        # that the tests have imported, on the loop.
        self._thresholds = gc.get_threshold()
        tune_memory()
        WatchedNode._running += 1
        self._thread.start()
        assert self._ready.wait(START_S_MAX), "the node did not start"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S_MAX)
        WatchedNode._running -= 1
        gc.unfreeze()
        gc.set_threshold(*self._thresholds)
        if WatchedNode._running:
            # What this node leaves is for the collector now, not later on the loop of another node.
            tune_memory()

    @property
    def port(self) -> int:
        return self.node.advertised_port

    @property
    def is_well(self) -> bool:
        """Return true if the node is still at work."""
        return self._thread.is_alive() and self.node.failure is None

    def longest_stall(self) -> Stall:
        """Return the longest stall since the last call, the turn that goes on included."""
        done: list[Stall] = []
        seen = threading.Event()

        def take() -> None:
            done.append(self.watch.taken())
            seen.set()

        def wait_for_beat() -> None:  # which ends the turn that this call is part of
            self.loop.call_later(2 * BEAT_S, take)

        self.loop.call_soon_threadsafe(wait_for_beat)
        assert seen.wait(START_S_MAX), "the loop does not turn"
        return done[0]

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # for the thread that waits
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.node: Node = await start_node(load(self._settings))
        self.watch = LoopWatch(self.loop)
        self.watch.beat()
        self._ready.set()
        await self._stop.wait()
        await self.node.close()
