"""Uploads: CPU seconds per GB for building objects, indexes and commits, without any client of a
store.

A store that drops its objects replaces it, so the engine's own work remains:
planning, headers, checksums, index, extension, metadata entry.
"""

import asyncio
import random
import resource
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.records import CreateStream, CreateTopic
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import MemoryWal, WalOwner, WriteAheadLog

PART = "upload"
MIB, GIB = 1 << 20, 1 << 30
TOPIC = "0" * 31 + "1"
GOAL = 0.5
SHAPES = (
    ("4 streams, 16 KiB batches", 4, 16 * 1024),
    ("1000 streams, 16 KiB batches", 1000, 16384),
)
SMALL = ("4 streams, 1 KiB batches", 4, 1024)


class Sink(MemoryStore):
    """Keeps metadata, and of data only that it was there."""

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        await super().create(key, () if key.startswith("data/") else pieces)


async def run(folder: Path, quick: bool) -> list[Figure]:
    """Measure; nothing is written to `folder`."""
    del folder
    size = 128 * MIB if quick else 512 * MIB
    figures = [
        Figure(
            part=PART,
            name=name,
            value=await cpu_per_gb(streams, batch, size),
            unit="CPU s/GB",
            goal=GOAL,
            more_is_better=False,
        )
        for name, streams, batch in SHAPES
    ]
    name, streams, batch = SMALL
    small = await cpu_per_gb(streams, batch, size // 4)
    return [*figures, Figure(part=PART, name=name, value=small, unit="CPU s/GB")]


async def cpu_per_gb(stream_count: int, batch_size: int, size: int) -> float:
    """Append `size` bytes to the log cache, then count the CPU of uploading and committing them."""
    scope = TaskScope(_crashed)
    wal = MemoryWal(capacity=8 * GIB)

    async def open_wal(_: WalOwner) -> WriteAheadLog:
        return wal

    engine = await StreamEngine.open(
        store=Sink(),
        open_wal=open_wal,
        node=NodeIdentity(node_id=0, host="localhost", port=1),
        clock=SystemClock(),
        rng=random.Random(1),
        settings=StorageSettings(
            upload_size=4 * GIB, upload_age_s=3600, cache_size=4 * GIB, wal_pending_max=GIB
        ),
        scope=scope,
    )
    made = [CreateStream(stream_id=n, topic_id=TOPIC, partition=n) for n in range(stream_count)]
    await engine.metadata.commit([CreateTopic(name="t", topic_id=TOPIC), *made])
    streams = await engine.open_streams(range(stream_count))
    payload = memoryview(random.Random(2).randbytes(batch_size))
    last = size // batch_size - 1
    cached = asyncio.Event()
    for number in range(last + 1):
        on_done = (lambda _: cached.set()) if number == last else None
        streams[number % stream_count].append(
            payload, count=1, max_timestamp=number, on_done=on_done
        )
    await cached.wait()
    before = _cpu()
    await engine.upload_now()
    spent = _cpu() - before
    await engine.close()
    await scope.close()
    return spent / (size / GIB)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _crashed(name: str, error: BaseException) -> None:
    raise SystemExit(f"{name}: {error!r}")
