"""Writes a topic as a broker would, by the stream engine, without a broker."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from lakehead.storage.clock import SystemClock
from lakehead.storage.format.record_batch import patch
from lakehead.storage.metadata.records import CreateStream, CreateTopic, Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import MemoryWal
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.wal_tools import opener

Value = bytes | None | TestRecord


def write_topic(
    root: Path,
    topic: str,
    values: Mapping[int, Sequence[Value]],
    *,
    partitions: int = 1,
    batch_records: int = 100,
    codec: str = "none",
    object_size: int = 1 << 30,
) -> None:
    """Append `values` to the partitions of a topic (made if it is not there) and upload them.

    A value is a record's value, or a whole record whose offset does not matter. Objects are cut at
    `object_size` bytes.
    """
    settings = StorageSettings(stream_object_size=object_size, object_size_max=object_size)
    asyncio.run(_write(root, topic, values, partitions, batch_records, codec, settings))


async def _write(
    root: Path,
    topic: str,
    values: Mapping[int, Sequence[Value]],
    partitions: int,
    batch_records: int,
    codec: str,
    settings: StorageSettings,
) -> None:
    failures: list[BaseException] = []
    scope = TaskScope(lambda _name, error: failures.append(error))
    store = FileStore(root)
    engine = await StreamEngine.open(
        store=store,
        open_wal=opener(MemoryWal()),
        node=NodeIdentity(node_id=0, host="localhost", port=1),
        clock=SystemClock(),
        rng=random.Random(topic),
        settings=settings,
        scope=scope,
    )

    def create(state: MetadataImage) -> list[Record]:
        if topic in state.topics:
            return []
        first = state.next_stream_id
        seed = f"{topic}{first or ''}"  # a topic that is made again has another id
        topic_id = f"{random.Random(seed).getrandbits(128):032x}"
        return [
            CreateTopic(name=topic, topic_id=topic_id),
            *(
                CreateStream(stream_id=first + number, topic_id=topic_id, partition=number)
                for number in range(partitions)
            ),
        ]

    try:
        state = await engine.metadata.commit_with(create)
        streams = await engine.open_streams(list(state.topics[topic].partitions))
        for partition, wanted in values.items():
            for start in range(0, len(wanted), batch_records):
                await _append(streams[partition], wanted[start : start + batch_records], codec)
        await engine.close()
        assert not failures, failures
    finally:
        await scope.close()
        await store.close()


async def _append(stream: Stream, values: Sequence[Value], codec: str) -> None:
    base = stream.next_offset
    records = []
    for number, value in enumerate(values):
        given = value if isinstance(value, TestRecord) else TestRecord(offset=0, value=value)
        records.append(
            TestRecord(
                offset=base + number,
                timestamp=given.timestamp,
                key=given.key,
                value=given.value,
                headers=given.headers,
            )
        )
    batch = bytearray(encode_batch(records, codec=codec))
    patch(batch, 0, base, stream.epoch)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(error: Exception | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    newest = max(record.timestamp for record in records)
    stream.append(memoryview(batch), count=len(records), max_timestamp=newest, on_done=on_done)
    await done
