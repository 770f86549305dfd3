"""Metadata from a thousand objects to a million: opening a cluster, committing, checkpoints.

A cluster is generated as a checkpoint and a tail of entries in a folder, with a stream for every
ten objects; nine objects of ten hold one stream, the tenth holds eight. It is opened by a process
of its own, whose memory is then known.
"""

import asyncio
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from bench.figures import Figure
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.checkpoint import Checkpoint, Columns, encode
from lakehead.storage.format.columns import Flags, Longs, Texts, Words
from lakehead.storage.format.feature_level import BASE_LEVEL
from lakehead.storage.metadata.checkpoints import catalog_tables
from lakehead.storage.metadata.layout import checkpoint_key
from lakehead.storage.metadata.log import MetadataLog, Plan
from lakehead.storage.metadata.log_reader import in_steps
from lakehead.storage.metadata.records import (
    ClusterCreated,
    CommitObjects,
    CommittedObject,
    CommittedRange,
    CreateStream,
    CreateTopic,
    Entry,
    OpenStream,
    Record,
    RegisterNode,
)
from lakehead.storage.metadata.rules import apply_entry
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore

PART = "metadata"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
OPENED_WITHIN_S = 5.0
RSS_MAX_GB = 1.5
COMMITS_PER_S = 200
CALLERS = 50
PARTITIONS = 100
TAIL = 100
COMMITS = 2_000


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure every size."""
    figures: list[Figure] = []
    for objects in SIZES[:2] if quick else SIZES:
        place = folder / str(objects)
        figures += await _measure(place, objects)
    return figures


async def _measure(place: Path, objects: int) -> list[Figure]:
    largest = objects == SIZES[-1]
    size = await _generate(FileStore(place), objects)
    opened = _opened(place)
    what = f"{objects:,} objects, {opened['streams']:,.0f} streams"
    log = await _open(place)
    rate, slowest = await _commit(log)
    began = time.perf_counter()
    await log.maintain(1)  # the first round makes the boundary, the second the checkpoint
    await log.maintain(1)
    took = time.perf_counter() - began

    def figure(name: str, value: float, unit: str, goal: float | None, more: bool) -> Figure:
        goal = goal if largest else None
        return Figure(
            part=PART,
            name=f"{name}, {what}",
            value=value,
            unit=unit,
            goal=goal,
            more_is_better=more,
        )

    return [
        figure("opening", opened["seconds"], "s", OPENED_WITHIN_S, False),
        figure("memory of the process", opened["rss"] / 1e9, "GB", RSS_MAX_GB, False),
        figure(f"commits by {CALLERS} callers", rate, "commits/s", COMMITS_PER_S, True),
        figure("slowest commit", slowest * 1000, "ms", None, False),
        figure("a checkpoint with its cleaning", took, "s", None, False),
        figure("size of the checkpoint", size / 1e6, "MB", None, False),
    ]


def _opened(place: Path) -> dict[str, float]:
    """Open the cluster in another process, and return its output."""
    command = [sys.executable, "-m", "bench.storage.metadata", str(place)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def _open(place: Path) -> MetadataLog:
    return await MetadataLog.open(
        FileStore(place), writer_id="bench", clock=SystemClock(), rng=random.Random(1)
    )


async def _commit(log: MetadataLog) -> tuple[float, float]:
    """Commit an object of one range at a time by each of many callers; return the rate, and the
    longest that one took.
    """
    slowest = 0.0
    left = iter(range(COMMITS))

    async def caller(stream_id: int) -> None:
        nonlocal slowest
        for number in left:
            began = time.perf_counter()
            await log.commit_with(_upload(f"bench-{number}", stream_id))
            slowest = max(slowest, time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for stream_id in range(CALLERS):
            group.create_task(caller(stream_id))
    return COMMITS / (time.perf_counter() - began), slowest


def _upload(name: str, stream_id: int) -> Plan:
    """Plan the commit of an object with the next hundred offsets of a stream."""

    def plan(state: MetadataImage) -> list[Record]:
        start = state.streams[stream_id].end_offset
        span = CommittedRange(
            stream_id=stream_id,
            epoch=0,
            start_offset=start,
            end_offset=start + 100,
            max_timestamp=start,
            size=100_000,
        )
        committed = CommittedObject(
            key=f"data/00/{name}", kind="so", size=100_000, created_ms=1, ranges=(span,)
        )
        return [CommitObjects(node_id=0, node_epoch=0, objects=(committed,))]

    return plan


async def _generate(store: FileStore, objects: int) -> int:
    """Write a checkpoint of `objects` objects and a tail; return the checkpoint's size."""
    state = _topics(max(1, objects // 10 // PARTITIONS))
    checkpoint = _checkpoint(state, objects)
    pieces = await in_steps(encode(checkpoint))
    await store.create(checkpoint_key(checkpoint.number), pieces)
    log = await MetadataLog.open(store, writer_id="tail", clock=SystemClock(), rng=random.Random(2))
    for number in range(TAIL):
        await log.commit_with(_upload(f"tail-{number}", number))
    return sum(map(len, pieces))


def _topics(count: int) -> MetadataImage:
    state = MetadataImage()
    register = RegisterNode(node_id=0, epoch=0, incarnation="i", host="h", port=1)
    for number in range(count):
        first, topic = number * PARTITIONS, f"{number:032x}"
        streams = range(first, first + PARTITIONS)
        records: list[Record] = [] if number else [ClusterCreated(cluster_id="c"), register]
        records.append(CreateTopic(name=f"topic-{number}", topic_id=topic))
        for partition, stream_id in enumerate(streams):
            records += [
                CreateStream(stream_id=stream_id, topic_id=topic, partition=partition),
                OpenStream(stream_id=stream_id, epoch=0, node_id=0, node_epoch=0),
            ]
        entry = Entry(version=BASE_LEVEL, writer="w", nonce="n", time_ms=0, records=tuple(records))
        state = apply_entry(state, entry)
    return state


def _checkpoint(state: MetadataImage, objects: int) -> Checkpoint:
    rng, streams = random.Random(3), len(state.streams)
    keys = sorted(
        f"data/{crc32c(b'%d' % number) & 0xFF:02x}/0-0-{number}" for number in range(objects)
    )
    held = [
        sorted({rng.randrange(streams) for _ in range(1 if row % 10 else 8)})
        for row in range(objects)
    ]
    by_stream: list[list[int]] = [[] for _ in range(streams)]
    for row, stream_ids in enumerate(held):
        for stream_id in stream_ids:
            by_stream[stream_id].append(row)
    extents = [
        (stream_id, index * 100, row)
        for stream_id, rows in enumerate(by_stream)
        for index, row in enumerate(rows)
    ]
    ids = range(streams)
    tables: dict[str, Columns] = {
        **catalog_tables(state),
        "objects": {
            "object": Longs(range(objects)),
            "key": Texts.of(keys),
            "kind": Words.of("so" if row % 10 else "sso" for row in range(objects)),
            "size": Longs(rng.randrange(1 << 26) for _ in range(objects)),
            "node_id": Longs([0] * objects),
            "node_epoch": Longs([0] * objects),
            "created_ms": Longs(range(objects)),
            "unreferenced_ms": Longs([-1] * objects),
        },
        "references": {
            "object": Longs(row for row in range(objects) for _ in held[row]),
            "stream_id": Longs(stream_id for row in range(objects) for stream_id in held[row]),
        },
        "streams": {
            "stream_id": Longs(ids),
            "topic_id": Texts.of(f"{n // PARTITIONS:032x}" for n in ids),
            "partition": Longs(n % PARTITIONS for n in ids),
            "stream_epoch": Longs([0] * streams),
            "node_id": Longs([0] * streams),
            "is_open": Flags([1] * streams),
            "start_offset": Longs([0] * streams),
            "end_offset": Longs(len(by_stream[n]) * 100 for n in ids),
        },
        "epochs": {
            "stream_id": Longs(ids),
            "stream_epoch": Longs([0] * streams),
            "start_offset": Longs([0] * streams),
        },
        "extents": {
            "stream_id": Longs(extent[0] for extent in extents),
            "start_offset": Longs(extent[1] for extent in extents),
            "end_offset": Longs(extent[1] + 100 for extent in extents),
            "object": Longs(extent[2] for extent in extents),
            "max_timestamp": Longs(extent[1] for extent in extents),
            "size": Longs(rng.randrange(1 << 20) for _ in extents),
        },
    }
    return Checkpoint(number=state.next_entry, tables=tables)


def _show_opening(place: Path) -> None:
    """Open the cluster and print the time and its memory."""
    began = time.perf_counter()
    state = asyncio.run(_open(place)).state
    found = {
        "seconds": time.perf_counter() - began,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "streams": len(state.streams),
        "objects": len(state.objects),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    _show_opening(Path(sys.argv[1]))
