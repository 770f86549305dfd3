"""The object WAL: against memory for its own cost, against a local S3 server for the rest, and
below a broker under Kafka's own ProducerPerformance.

The server is versitygw on the local disk; added latency is a wait before each call, so it adds no
work. The throughput by puts in flight shows that the log keeps them all busy: with groups of
256 KiB, and a fixed number of puts.
"""

import asyncio
import os
import random
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import workloads
from bench.apache_kafka.jars import jars_directory
from bench.figures import Figure
from bench.lakehead_server import lakehead_server
from bench.loads import Kind, Load
from bench.s3_server import S3Server, running_server
from bench.storage.block_wal import Clocked
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.object_store import MemoryStore, ObjectMeta, ObjectStore, open_store
from lakehead.storage.object_store.protocol import Buffer, Owns, every_key
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import ObjectWal, ObjectWalSettings, WalOwner
from lakehead.storage.wal.object import BatchingSettings
from lakehead.storage.wal.protocol import WalFloor

PART = "object WAL"
MIB = 1024 * 1024
RECORD = bytes(16 * 1024)
STREAMS = 4
LATENCY_S = 0.02
TAIL_S, TAIL_SHARE = 0.5, 0.01
LOAD_MB_PER_S = 20.0
PENDING = 64 * MIB
TICK_S = 0.001
TRIM_EVERY = 64 * MIB
SETTINGS = ObjectWalSettings(batching=BatchingSettings())
IN_FLIGHT = (1, 2, 4, 8)


class Delayed:
    """A store whose puts take longer by `latency_s`, and a share of them by `tail_s`."""

    def __init__(
        self, inner: ObjectStore, latency_s: float, *, tail_s: float = 0.0, tail_share: float = 0.0
    ) -> None:
        self.uri = inner.uri
        self._inner = inner
        self._latency_s = latency_s
        self._tail_s = tail_s
        self._tail_share = tail_share
        self._rng = random.Random(1)

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        is_slow = self._rng.random() < self._tail_share
        await asyncio.sleep(self._tail_s if is_slow else self._latency_s)
        await self._inner.create(key, pieces)

    async def get(self, key: str) -> bytes:
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        return await self._inner.get_range(key, start, length)

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        await self._inner.get_range_into(key, start, target)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        return await self._inner.get_suffix(key, length)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        return await self._inner.list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        return await self._inner.abort_uploads(before_ms=before_ms, owns=owns)

    async def close(self) -> None:
        await self._inner.close()


class Blackhole(MemoryStore):
    """Takes bytes and keeps none: the log's own work remains."""

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.objects[key] = b"".join(pieces[:0])


class Run:
    """One log, from its start to its end, on a node id of its own."""

    _last_node = 0

    def __init__(self, store: ObjectStore, settings: ObjectWalSettings = SETTINGS) -> None:
        Run._last_node += 1
        self.scope = TaskScope(self._crashed)
        self.listener = Clocked()
        owner = WalOwner(
            cluster_id="bench",
            node_id=Run._last_node,
            incarnation="bench",
            store=store,
            describe=lambda stream_id: StreamInfo(stream_id=stream_id, topic="bench"),
            clock=SystemClock(),
            rng=random.Random(1),
            scope=self.scope,
        )
        self.wal = ObjectWal(store, owner, settings, are_shared=True)
        self._next = 0

    async def __aenter__(self) -> "Run":
        await self.wal.seal(WalFloor(0, 0), before=0)
        await self.wal.start(epoch=0, listener=self.listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.wal.trim(self.wal.released_position)
        await self.wal.close()
        await self.scope.close()

    def append(self) -> int:
        """Append one record to the stream whose turn it is; return its end."""
        turn, stream_id = divmod(self._next, STREAMS)
        self._next += 1
        return self.wal.append(stream_id, 0, turn, 1, RECORD)

    async def breathe(self) -> None:
        """Drop the released bytes, and let the loop turn."""
        wal = self.wal
        if wal.released_position - wal.trimmed_position > TRIM_EVERY:
            await wal.trim(wal.released_position)
        await asyncio.sleep(0)

    def _crashed(self, name: str, error: BaseException) -> None:
        self.listener.failed(RuntimeError(f"{name}: {error!r}"))


async def throughput(
    store: ObjectStore, seconds: float, settings: ObjectWalSettings = SETTINGS
) -> tuple[float, float]:
    """Append as fast as it goes; return MB/s and the CPU seconds of this process per GB."""
    async with Run(store, settings) as run:
        began, cpu = time.perf_counter(), _cpu_seconds()
        written, end = 0, 0
        while time.perf_counter() - began < seconds:
            for _ in range(16):
                end = run.append()
                written += len(RECORD)
            await run.breathe()
            if run.wal.pending_bytes > PENDING:
                await run.listener.wait_released(end - PENDING + MIB)
        await run.listener.wait_released(end)
        took, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    return written / took / 1e6, cpu / (written / 1e9)


async def latency(
    store: ObjectStore, seconds: float, mb_per_second: float
) -> tuple[list[float], float]:
    """Return seconds from append to release, sorted, under a steady load, and puts per MiB."""
    async with Run(store) as run:
        began, written, end = time.perf_counter(), 0, 0
        while (passed := time.perf_counter() - began) < seconds:
            while written < passed * mb_per_second * 1e6 and run.wal.pending_bytes < PENDING:
                due = began + written / (mb_per_second * 1e6)
                now = time.perf_counter()
                end = run.append()
                run.listener.waiting.append((end, due if now - due > 2 * TICK_S else now))
                written += len(RECORD)
            await run.breathe()
            await asyncio.sleep(TICK_S)
        await run.listener.wait_released(end)
        return sorted(run.listener.latencies_s), run.wal.stats.puts_per_mib


async def append_cost() -> float:
    """Return microseconds of CPU for a record of 16 KiB, its share of the object included."""
    _, cpu_per_gb = await throughput(Blackhole(), 1.0)
    return cpu_per_gb / 1e9 * len(RECORD) * 1e6


def produced(server: S3Server, folder: Path, records: int) -> workloads.Figures:
    """ProducerPerformance against a broker whose store and log are in the S3 server."""
    jars_directory()
    flags = ("--store", f"{server.uri}/broker", "--wal", "object:")
    load = Load(name="object-wal", kind=Kind.PRODUCE)
    with lakehead_server(folder, *flags, environment=server.environment) as broker:
        workloads.create_topic(broker, "warm", {})
        workloads.produce(broker, "warm", load, records // 10)
        workloads.create_topic(broker, "bench", {})
        return workloads.produce(broker, "bench", load, records)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def run(folder: Path, quick: bool) -> list[Figure]:
    """Measure against memory, the server, the server with latency, and below a broker."""
    seconds, rounds = (1.0, 1) if quick else (5.0, 3)
    figures = [
        _figure("append of 16 KiB and its share of the object, CPU", await append_cost(), "us")
    ]
    with running_server(folder / "s3") as server:
        os.environ.update(server.environment)
        figures += await _on_server(server, folder, seconds, rounds)
    return figures


async def _on_server(server: S3Server, folder: Path, seconds: float, rounds: int) -> list[Figure]:
    store = open_store(f"{server.uri}/raw")
    await throughput(store, 0.5)
    plain = [await throughput(store, seconds) for _ in range(rounds)]
    delayed = Delayed(store, LATENCY_S)
    waited = [await latency(delayed, seconds, LOAD_MB_PER_S) for _ in range(rounds)]
    tailed = Delayed(store, LATENCY_S, tail_s=TAIL_S, tail_share=TAIL_SHARE)
    raced = [await latency(tailed, seconds, LOAD_MB_PER_S) for _ in range(rounds)]
    by_slots = []
    for slots in IN_FLIGHT:
        batching = BatchingSettings(
            object_size=MIB // 4,
            object_size_max=MIB // 4,
            in_flight_max=slots,
            in_flight_start=slots,
        )
        speed, _ = await throughput(delayed, seconds, replace(SETTINGS, batching=batching))
        by_slots.append(speed)
    await store.close()
    records = 40_000 if rounds == 1 else 1_000_000
    loop = asyncio.get_running_loop()
    made = await loop.run_in_executor(None, produced, server, folder, records)
    assert made.mb_per_second is not None
    at_load = f"at {LOAD_MB_PER_S:.0f} MB/s, {LATENCY_S * 1e3:.0f} ms added"
    return [
        _figure("16 KiB records, S3 server", statistics.median(s for s, _ in plain), "MB/s"),
        _figure("the same, CPU", statistics.median(c for _, c in plain), "s/GB"),
        _figure(f"append to release, p50, {at_load}", _rank(waited, 50), "ms", goal=45.0),
        _figure(f"append to release, p99, {at_load}", _rank(waited, 99), "ms", goal=120.0),
        _figure(f"puts, {at_load}", statistics.median(p for _, p in waited), "/MiB"),
        _figure(f"p50, {at_load}, 1 % by 500 ms", _rank(raced, 50), "ms", goal=45.0),
        _figure(f"p99, {at_load}, 1 % by 500 ms", _rank(raced, 99), "ms", goal=90.0),
        *(
            _figure(f"256 KiB groups, 20 ms added, {slots} in flight", speed, "MB/s")
            for slots, speed in zip(IN_FLIGHT, by_slots, strict=True)
        ),
        _figure(
            "ProducerPerformance, batch.size=16384, S3 server",
            made.mb_per_second * MIB / 1e6,
            "MB/s",
            goal=60.0,
            more_is_better=True,
        ),
        _figure("the same, CPU of the broker", made.cpu_seconds_per_gb or 0.0, "s/GB"),
    ]


def _rank(runs: Sequence[tuple[list[float], float]], percent: int) -> float:
    return statistics.median(s[len(s) * percent // 100] for s, _ in runs) * 1e3


def _figure(
    name: str, value: float, unit: str, *, goal: float | None = None, more_is_better: bool = False
) -> Figure:
    return Figure(
        part=PART, name=name, value=value, unit=unit, goal=goal, more_is_better=more_is_better
    )
