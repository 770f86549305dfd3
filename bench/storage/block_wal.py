"""The block WAL on a file, compared with fio on that file with the same block size and depth.

Both write past the page cache into space that is allocated already. The WAL's writes are `O_DSYNC`
as well, since an acknowledgement is a promise; fio is run both ways. The goal of throughput is
against the fio that promises nothing, that of latency against the same promise.

Half load is half of the WAL's throughput just before, for both, and arrivals do not wait for the
device: a stall counts for all that arrives meanwhile. fio has as many writes in flight at most as
the WAL may have pending, for else it would stop to submit while the device stalls.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from bench.figures import Figure
from bench.new_space import wait_filled
from bench.storage.fio import FioResult, sequential_writes
from lakehead.storage.wal import BlockWal, BlockWalSettings, open_wal

PART = "block WAL"
MIB = 1024 * 1024
SIZE = 1024 * MIB
GROUP = MIB
DEPTH = 4
RECORD = bytes(16 * 1024)
PENDING = 2 * DEPTH * GROUP
TICK_S = 0.001
PENDING_MAX = 64 * MIB
TRIM_EVERY = SIZE // 8


class Clocked:
    """A listener that takes the time from append to release of every record."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.waiting: deque[tuple[int, float]] = deque()
        self.released_position = 0
        self.error: Exception | None = None
        self._changed = asyncio.Event()

    def released(self, position: int) -> None:
        now = time.perf_counter()
        waiting = self.waiting
        while waiting and waiting[0][0] <= position:
            self.latencies_s.append(now - waiting.popleft()[1])
        self.released_position = position
        self._changed.set()

    def failed(self, error: Exception) -> None:
        self.error = error
        self._changed.set()

    async def wait_released(self, position: int) -> None:
        while self.released_position < position:
            if self.error is not None:
                raise self.error
            self._changed.clear()
            await self._changed.wait()


async def _open(path: Path, epoch: int) -> tuple[BlockWal, Clocked]:
    wal = await open_wal(
        f"block:{path}?size={SIZE}",
        rng=random.Random(1),
        settings=BlockWalSettings(block_size=GROUP, writes_in_flight_max=DEPTH),
    )
    assert isinstance(wal, BlockWal)
    await asyncio.to_thread(wait_filled, path)
    async for _ in wal.recover():
        pass
    listener = Clocked()
    await wal.start(epoch=epoch, listener=listener)
    return wal, listener


async def _close(wal: BlockWal) -> None:
    await wal.trim(wal.released_position)
    await wal.close()


async def bandwidth(path: Path, epoch: int, seconds: float) -> float:
    """Return MB/s of payload with groups that are always full."""
    wal, listener = await _open(path, epoch)
    began, written, end = time.perf_counter(), 0, 0
    trimming: asyncio.Task[None] | None = None
    while time.perf_counter() - began < seconds:
        group_end = written + GROUP
        while written < group_end:
            end = wal.append(1, 1, written, 1, RECORD)
            written += len(RECORD)
        if wal.released_position - wal.trimmed_position > TRIM_EVERY and (
            trimming is None or trimming.done()
        ):
            trimming = asyncio.create_task(wal.trim(wal.released_position))
        if wal.pending_bytes < PENDING:
            await asyncio.sleep(0)  # as connections take turns
        else:
            await listener.wait_released(end - PENDING + GROUP)
    await listener.wait_released(wal.next_position)
    took = time.perf_counter() - began
    if trimming is not None:
        await trimming
    await _close(wal)
    return written / took / 1e6


async def latency(path: Path, epoch: int, seconds: float, mb_per_second: float) -> list[float]:
    """Return seconds from when an append was due to its release, sorted, under a steady load."""
    wal, listener = await _open(path, epoch)
    began, written = time.perf_counter(), 0
    trimming: asyncio.Task[None] | None = None
    while (passed := time.perf_counter() - began) < seconds:
        # Due appends that do not fit wait, and their wait counts; that of the tick does not.
        while written < passed * mb_per_second * 1e6 and wal.pending_bytes < PENDING_MAX:
            due = began + written / (mb_per_second * 1e6)
            now = time.perf_counter()
            stamp = due if now - due > 2 * TICK_S else now
            listener.waiting.append((wal.append(1, 1, written, 1, RECORD), stamp))
            written += len(RECORD)
            if not written % GROUP:
                await asyncio.sleep(0)  # as connections take turns
        if wal.released_position - wal.trimmed_position > TRIM_EVERY and (
            trimming is None or trimming.done()
        ):
            trimming = asyncio.create_task(wal.trim(wal.released_position))
        await asyncio.sleep(TICK_S)
    await listener.wait_released(wal.next_position)
    if trimming is not None:
        await trimming
    await _close(wal)
    return sorted(listener.latencies_s)


async def append_cost(path: Path, epoch: int) -> float:
    """Return microseconds of a call of `append` with 16 KiB, the copy and both checksums in it."""
    wal, listener = await _open(path, epoch)
    taken, end = [], 0
    for _ in range(60):
        began = time.perf_counter()
        for number in range(50):
            end = wal.append(1, 1, number, 1, RECORD)
        taken.append((time.perf_counter() - began) / 50)
        await listener.wait_released(end)
    await _close(wal)
    return median(taken) * 1e6


async def run(folder: Path, quick: bool) -> list[Figure]:
    """Measure in turns, so that both meet the same moods of the disk."""
    path = folder / "wal"
    seconds, rounds = (1.0, 3) if quick else (3.0, 5)
    peer = partial(sequential_writes, path, start=MIB, size=SIZE // 2, block_size=GROUP)
    epochs = iter(range(1, 1000))
    await bandwidth(path, next(epochs), 0.5)
    ours, direct, synced = [], [], []
    for _ in range(rounds):
        direct.append(peer(seconds=seconds, depth=DEPTH))
        ours.append(await bandwidth(path, next(epochs), seconds))
        synced.append(peer(seconds=seconds, depth=DEPTH, is_synced=True))
    half = median(ours) / 2
    steady = partial(peer, seconds=seconds, depth=PENDING_MAX // GROUP, rate_mb_per_second=half)
    waited, peers, synced_peers = [], [], []
    for _ in range(rounds):
        peers.append(steady())
        synced_peers.append(steady(is_synced=True))
        waited.append(await latency(path, next(epochs), seconds, half))
    cost = await append_cost(path, next(epochs))
    p50, p99 = (median(one[len(one) * percent // 100] for one in waited) for percent in (50, 99))
    return [
        _throughput(median(ours), "fio O_DIRECT", direct, goal=0.8),
        _throughput(median(ours), "fio O_DIRECT O_DSYNC", synced),
        _wait("p99", half, p99, "O_DIRECT", peers),
        _wait("p50", half, p50, "O_DIRECT", peers),
        _wait("p99", half, p99, "O_DIRECT O_DSYNC", synced_peers, goal=3.0),
        _wait("p50", half, p50, "O_DIRECT O_DSYNC", synced_peers),
        Figure(part=PART, name="append of 16 KiB, CPU", value=cost, unit="us"),
    ]


def _throughput(
    value: float, peer: str, results: Sequence[FioResult], goal: float | None = None
) -> Figure:
    return Figure(
        part=PART,
        name=f"1 MiB groups, {DEPTH} in flight",
        value=value,
        unit="MB/s",
        peer=peer,
        peer_value=median(result.mb_per_second for result in results),
        goal=goal,
    )


def _wait(
    which: str,
    load: float,
    seconds: float,
    flags: str,
    results: Sequence[FioResult],
    goal: float | None = None,
) -> Figure:
    return Figure(
        part=PART,
        name=f"append to release, {which}, at {load:.0f} MB/s",
        value=seconds * 1e3,
        unit="ms",
        peer=f"fio {flags}, ms",
        peer_value=median(result.p99_ms if which == "p99" else result.p50_ms for result in results),
        goal=goal,
        more_is_better=False,
    )
