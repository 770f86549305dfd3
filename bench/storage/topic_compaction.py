"""Log compaction of one large partition: bytes for each second of CPU time, and its memory.

Records of 100 bytes with keys of 16, in uncompressed batches of 16 KiB as producers send them by
default; two million keys, so that most records are superseded. The compaction is a process of its
own, as on the machine of a node. `COMPACTION_GB` is the size of the partition (default 1).
"""

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from crc32c import crc32c

from bench.figures import Figure
from lakehead.storage.clock import SystemClock
from lakehead.storage.compaction.log_compaction import LogCompaction, LogCompactionSettings
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, patch
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CreateStream, CreateTopic
from lakehead.storage.object_store import open_store
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import MemoryWal, WalOwner, WriteAheadLog

PART = "compaction by keys"
GOAL_MB_PER_S = 300.0
MIB, GB = 1 << 20, 1_000_000_000
RECORDS, KEY_SIZE, VALUE_SIZE = 150, 16, 84
KEYS = 2_000_000
UPLOAD_SIZE = 64 * MIB
TOPIC = "0" * 31 + "1"


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Make the partition, compact it in a process, return the cost."""
    size = 0.1 if quick else float(os.environ.get("COMPACTION_GB", "1"))
    await _fill(folder, int(size * GB))
    command = [sys.executable, "-m", "bench.storage.topic_compaction", str(folder)]
    done = await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.PIPE)
    took = json.loads(done.stdout)
    what = f"{size:g} GB, {KEYS // 1_000_000} million keys"
    moved = took["bytes_before"] / 1e6
    return [
        _figure(f"{what}: per second of CPU", moved / took["cpu_s"], "MB/s", GOAL_MB_PER_S),
        _figure(f"{what}: per second", moved / took["wall_s"], "MB/s"),
        _figure(f"{what}: memory at most", took["peak_mb"], "MB", is_more_better=False),
        _figure(f"{what}: left of it", took["bytes_after"] / took["bytes_before"] * 100, "%"),
    ]


def _figure(
    name: str, value: float, unit: str, goal: float | None = None, *, is_more_better: bool = True
) -> Figure:
    return Figure(
        part=PART, name=name, value=value, unit=unit, goal=goal, more_is_better=is_more_better
    )


def _batches(rng: np.random.Generator) -> Iterator[memoryview]:
    """Yield batches whose keys are drawn from all."""
    places = [b"%016d" % number for number in range(RECORDS)]
    template = encode_batch([(key, bytes(VALUE_SIZE)) for key in places], 1_700_000_000_000)
    at = np.array([template.index(key) for key in places])[:, None] + np.arange(KEY_SIZE)
    while True:
        batch = np.frombuffer(bytes(template), dtype=np.uint8).copy()
        keys = np.zeros((RECORDS, 2), dtype=np.uint64)
        keys[:, 1] = rng.integers(0, KEYS, RECORDS)
        batch[at] = keys.view(np.uint8).reshape(RECORDS, KEY_SIZE)
        crc = crc32c(batch.data[ATTRIBUTES_POSITION:])
        batch[CRC_POSITION:ATTRIBUTES_POSITION] = np.frombuffer(crc.to_bytes(4, "big"), np.uint8)
        yield batch.data


async def _fill(folder: Path, size: int) -> None:
    async def open_wal(_: WalOwner) -> WriteAheadLog:
        return MemoryWal(capacity=16 * UPLOAD_SIZE)

    scope = TaskScope(_crashed)
    engine = await StreamEngine.open(
        store=open_store(f"file:{folder}"),
        open_wal=open_wal,
        node=NodeIdentity(node_id=0, host="h", port=1),
        clock=SystemClock(),
        rng=random.Random(1),
        settings=StorageSettings(
            upload_size=1 << 40, upload_age_s=3600, cache_size=4 * UPLOAD_SIZE
        ),
        scope=scope,
    )
    topic = CreateTopic(name="t", topic_id=TOPIC)
    created = CreateStream(stream_id=0, topic_id=TOPIC, partition=0)
    await engine.metadata.commit([topic, created])
    (stream,) = await engine.open_streams([0])
    appended = waiting = 0
    for batch in _batches(np.random.default_rng(1)):
        patch(batch, 0, stream.next_offset, stream.epoch)
        stream.append(batch, count=RECORDS, max_timestamp=1_700_000_000_000)
        appended += len(batch)
        waiting += len(batch)
        if waiting >= UPLOAD_SIZE or appended >= size:
            await engine.wait_durable()
            await engine.upload_now()
            waiting = 0
        if appended >= size:
            break
    await engine.close()
    await scope.close()


def _crashed(name: str, error: BaseException) -> None:
    raise SystemExit(f"{name}: {error!r}")


async def _compact(folder: str) -> None:
    store, clock, rng = open_store(f"file:{folder}"), SystemClock(), random.Random()
    metadata = await MetadataLog.open(store, writer_id="bench", clock=clock, rng=rng)
    began, used = time.monotonic(), time.process_time()
    result = await LogCompaction(
        store,
        metadata,
        clock,
        rng,
        stream_id=0,
        settings=LogCompactionSettings(until_ms=1 << 62, delete_retention_ms=86_400_000),
    ).run()
    took = {
        "wall_s": time.monotonic() - began,
        "cpu_s": time.process_time() - used,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
    }
    print(json.dumps(took))


if __name__ == "__main__":
    asyncio.run(_compact(sys.argv[1]))
