"""The effect of uploads on appends: latencies of appends during uploads, and without any.

A real block WAL and a real object store, both files of one disk, so that an upload without a limit
of speed would delay every append. Appends are record batches: an upload takes random bytes for
control batches, and copies each of them.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.record_batch import patch
from lakehead.storage.metadata.records import CreateStream, CreateTopic
from lakehead.storage.object_store import FileStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import WalOwner, WriteAheadLog, open_wal

PART = "smooth uploads"
MIB = 1 << 20
BATCH = 64 * 1024
LOAD_MB_PER_S = 40.0
STREAMS = 4
UPLOAD_SIZE = 64 * MIB
TOPIC = "0" * 31 + "1"


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    seconds = 4.0 if quick else 12.0
    await _latencies(folder / "warming-up", 2.0, uploads=True)
    quiet, _ = await _latencies(folder / "quiet", seconds, uploads=False)
    beside, uploaded = await _latencies(folder / "beside", seconds, uploads=True)

    def figure(name: str, share: float, goal: float | None) -> Figure:
        return Figure(
            part=PART,
            name=f"{name} of appends during uploads",
            value=_at(beside, share),
            unit="ms",
            peer="without",
            peer_value=_at(quiet, share),
            goal=goal,
            more_is_better=False,
        )

    return [
        Figure(part=PART, name="uploaded meanwhile", value=uploaded / MIB, unit="MB"),
        figure("p50", 0.5, None),
        figure("p99", 0.99, 2.0),
        figure("p99.9", 0.999, 2.0),
    ]


def _at(latencies_ms: list[float], share: float) -> float:
    return sorted(latencies_ms)[int(len(latencies_ms) * share)]


async def _latencies(folder: Path, seconds: float, *, uploads: bool) -> tuple[list[float], int]:
    """Append at a steady rate; return how long each append took, and the bytes uploaded."""
    rng = random.Random(1)
    scope = TaskScope(_crashed)
    store = FileStore(folder / "store")  # makes the folder, too
    await store.create("bench/begun", [b"."])

    async def open_own_wal(owner: WalOwner) -> WriteAheadLog:
        return await open_wal(
            f"block:{folder}/wal?size=2GiB",
            rng=rng,
            node_id=owner.node_id,
            cluster_id=owner.cluster_id,
            owner=owner,
        )

    engine = await StreamEngine.open(
        store=store,
        open_wal=open_own_wal,
        node=NodeIdentity(node_id=0, host="localhost", port=1),
        clock=SystemClock(),
        rng=rng,
        settings=StorageSettings(
            upload_size=UPLOAD_SIZE if uploads else 1 << 40,
            upload_age_s=5.0 if uploads else 3600.0,
            cache_size=1024 * MIB,
        ),
        scope=scope,
    )
    made = [CreateStream(stream_id=n, topic_id=TOPIC, partition=n) for n in range(STREAMS)]
    await engine.metadata.commit([CreateTopic(name="t", topic_id=TOPIC), *made])
    latencies = await _produce(await engine.open_streams(range(STREAMS)), seconds)
    uploaded = engine.uploader.stats.bytes
    await engine.close()
    await scope.close()
    await store.close()
    return latencies, uploaded


async def _produce(streams: list[Stream], seconds: float) -> list[float]:
    latencies: list[float] = []
    batch = encode_batch([(None, random.Random(2).randbytes(BATCH))], timestamp_ms=0)
    interval = BATCH / (LOAD_MB_PER_S * MIB)
    began = due = time.perf_counter()
    number = 0
    while due < began + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        sent = due  # a sender that is late has been kept waiting, too

        def on_done(error: Exception | None, sent: float = sent) -> None:
            if error is not None:
                raise error
            latencies.append((time.perf_counter() - sent) * 1000)

        stream = streams[number % len(streams)]
        payload = batch.copy()
        patch(payload, 0, stream.next_offset, stream.epoch)
        stream.append(memoryview(payload), count=1, max_timestamp=0, on_done=on_done)
        number += 1
        due += interval
    return latencies


def _crashed(name: str, error: BaseException) -> None:
    raise SystemExit(f"{name}: {error!r}")
