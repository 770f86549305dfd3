"""Transactions of a partition over the lives of its leaders: every node that opens it knows what is
open and what was aborted, however it was left, and whatever of it had been uploaded.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lakehead.broker.partition.partition import Partition, Topic, open_partition
from lakehead.broker.partition.producer_table import LIMITS, ProducerLimits
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.record_batch import TRANSACTIONAL, read_header
from lakehead.storage.format.stream_object import AbortedTransaction
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import StorageSettings
from tests.support.wire import Batch
from tests.unit.test_object_wal_recovery import LAZY, running
from tests.unit.test_stream_engine import TOPIC
from tests.unit.test_takeover import PLACES, Place, fence

# What is written, in order: producer and kind; the offset of each is its number.
SCRIPT = (
    (1, "data"),
    (2, "data"),
    (1, "abort"),
    (3, "data"),
    (1, "data"),
    (2, "data"),
    (3, "abort"),
    (2, "commit"),
    (4, "data"),
    (1, "data"),
    (4, "abort"),
    (2, "data"),
    (1, "abort"),
    (5, "data"),
)
ABORTED = (
    AbortedTransaction(1, 0, 2, 1),
    AbortedTransaction(3, 3, 6, 1),
    AbortedTransaction(4, 8, 10, 4),
    AbortedTransaction(1, 4, 12, 11),
)


def stable_after(count: int) -> int:
    """The first offset that is not decided by the first `count` of the script, or their end."""
    open_now: dict[int, int] = {}
    for offset, (producer_id, kind) in enumerate(SCRIPT[:count]):
        if kind == "data":
            open_now.setdefault(producer_id, offset)
        else:
            del open_now[producer_id]
    return min(open_now.values(), default=count)


async def write(partition: Partition, number: int) -> None:
    producer_id, kind = SCRIPT[number]
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    if kind != "data":
        partition.end_transaction(
            producer_id, 0, 0, is_commit=kind == "commit", on_done=done.set_result
        )
    else:
        sequence = sum(one == (producer_id, kind) for one in SCRIPT[:number])
        batch = Batch(
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        records = memoryview(bytearray(batch.encode()))
        partition.perform(partition.plan(records, read_header(records)), done.set_result)
    async with asyncio.timeout(30):
        assert await done is None


def check(partition: Partition, count: int) -> None:
    """Compare what a partition knows with what the script says."""
    assert partition.high_watermark == count
    assert partition.last_stable_offset == stable_after(count)
    aborted = [entry for entry in ABORTED if entry.last_offset < count]
    assert list(partition.aborted_among(0, count)) == aborted
    for start in range(count):
        touching = [e for e in aborted if e.last_offset >= start and e.first_offset <= start]
        assert set(touching) <= set(partition.aborted_among(start, start + 1))


@asynccontextmanager
async def leading(
    store: MemoryStore,
    place: Place,
    node_id: int,
    *,
    is_clean: bool,
    settings: StorageSettings = LAZY,
    limits: ProducerLimits = LIMITS,
) -> AsyncIterator[tuple[StreamEngine, Partition]]:
    """A node that leads the partition; those before it have ended, or are fenced."""
    async with running(
        store, place.own, node_id=node_id, partitions=0 if node_id else 1, seed=node_id,
        clean=is_clean, settings=settings,
    ) as (engine, streams):  # fmt: skip
        if node_id:
            if not is_clean:
                await engine.take_over(await fence(engine, node_id - 1), place.left)
            streams = await engine.open_streams([0])
        topic = Topic("t", TOPIC)
        yield engine, await open_partition(topic, 0, streams[0], SystemClock(), limits=limits)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("upload_every", [1, 3, 100])
async def test_each_leader_knows_all_transactions(
    name: str, is_clean: bool, upload_every: int
) -> None:
    store, place = MemoryStore(), Place(name)
    for node_id, first in enumerate(range(0, len(SCRIPT), 2)):
        async with leading(store, place, node_id, is_clean=is_clean) as (engine, partition):
            check(partition, first)
            for number in range(first, first + 2):
                await write(partition, number)
                check(partition, number + 1)
                if not (number + 1) % upload_every:
                    await engine.upload_now()


async def test_the_stable_end_is_never_below_the_start() -> None:
    """Records of an open transaction are deleted, and the transaction goes on being open."""
    store, place = MemoryStore(), Place("records")
    async with leading(store, place, 0, is_clean=False) as (_, partition):
        for number in range(6):
            await write(partition, number)
        await partition.stream.trim(3)
        assert (partition.log_start_offset, partition.last_stable_offset) == (3, 3)
    async with leading(store, place, 1, is_clean=False) as (_, partition):
        assert (partition.log_start_offset, partition.last_stable_offset) == (3, 3)
        for number in range(6, len(SCRIPT)):
            await write(partition, number)
        assert partition.last_stable_offset == stable_after(len(SCRIPT))
        assert list(partition.aborted_among(3, 14)) == list(ABORTED[1:]), "the first is below"


async def test_a_snapshot_has_nothing_of_a_marker_that_is_not_durable() -> None:
    store, place = MemoryStore(), Place("records")
    async with leading(store, place, 0, is_clean=False) as (engine, partition):
        for number in range(2):
            await write(partition, number)
        partition.end_transaction(1, 0, 0, is_commit=False, on_done=None)
        assert partition.last_stable_offset == 0
        assert partition.producers.get(1).transaction_start < 0  # type: ignore[union-attr]
        blob = partition.producers.snapshot(0, 2).data
        await engine.wait_durable()
        assert partition.last_stable_offset == 1
    restored = type(partition.producers).restore([blob])
    assert restored.is_in_transaction(1, 0)
    assert restored.transactions.last_stable_offset(2) == 0
    assert restored.transactions.aborted_among(0, 2) == []
