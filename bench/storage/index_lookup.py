"""Finding an offset in a 256 MiB object: how many GETs cold and warm, and how much CPU."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure
from lakehead.storage.format.object_writer import ObjectWriter
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.block_cache import IndexCache
from lakehead.storage.tasks import TaskScope

PART = "index lookup"
MIB = 1 << 20
OBJECT_SIZE = 256 * MIB
BATCH = 16 * 1024
LOOKUPS = 20_000
GOAL_US = 50.0
SHAPES = ((1, "one stream"), (1000, "1,000 streams"), (10_000, "10,000 streams"))


class TailStore(MemoryStore):
    """Holds the end of objects only, and counts reads. The data before it is not needed."""

    def __init__(self) -> None:
        super().__init__()
        self.tails: dict[str, tuple[bytes, int]] = {}
        self.reads = 0

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        self.reads += 1
        tail, size = self.tails[key]
        return tail[-length:], size

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.reads += 1
        tail, size = self.tails[key]
        first = start - (size - len(tail))
        return tail[first : first + length]


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure; nothing is written to `folder`."""
    del folder, quick
    figures = []
    for streams, name in SHAPES:
        figures += await _measure(streams, name)
    return figures


async def _measure(streams: int, name: str) -> list[Figure]:
    store = TailStore()
    store.tails["o"] = _object(streams)
    scope = TaskScope(lambda _name, _error: None)
    # The engine's guess from the metadata: the object's size, and its number of streams.
    guess = 8192 + 50 * (OBJECT_SIZE // MIB + streams) + 300 * streams
    cache = IndexCache(store, scope, capacity=64 * MIB, suffix_size=lambda _: max(65_536, guess))
    began = time.process_time()
    index = await cache.get("o")
    cold_us = (time.process_time() - began) * 1e6
    cold_reads = store.reads
    rng = random.Random(3)
    per_stream = OBJECT_SIZE // BATCH // streams
    wanted = [(rng.randrange(streams), rng.randrange(per_stream)) for _ in range(LOOKUPS)]
    began = time.process_time()
    for stream_id, offset in wanted:
        index = await cache.get("o")
        index.item(index.find(stream_id, offset))
    warm_us = (time.process_time() - began) * 1e6 / LOOKUPS
    await scope.close()

    def figure(what: str, value: float, unit: str, goal: float | None) -> Figure:
        return Figure(
            part=PART,
            name=f"{name}: {what}",
            value=value,
            unit=unit,
            goal=goal,
            more_is_better=False,
        )

    return [
        figure("GETs, cold", cold_reads, "", 1),
        figure("GETs, warm", store.reads - cold_reads, "", 0),
        figure("CPU, warm", warm_us, "us", GOAL_US),
        figure("CPU, cold (fetch and parse)", cold_us, "us", None),
        figure("memory of the index", index.memory / 1024, "KiB", None),
    ]


def _object(streams: int) -> tuple[bytes, int]:
    """Return the end of an object of 256 MiB, and its size."""
    writer = ObjectWriter(
        kind="sso", cluster_id="c" * 32, node_id=0, node_epoch=0, writer_id="w", created_ms=0
    )
    payload = bytes(BATCH)
    for stream_id in range(streams):
        writer.begin_stream(
            StreamInfo(stream_id=stream_id, topic_id="t" * 32, topic="orders", partition=stream_id)
        )
        for offset in range(OBJECT_SIZE // BATCH // streams):
            writer.add(0, offset, 1, payload, offset)
    written = writer.finish()
    return b"".join(written.pieces[-3:]), written.size
