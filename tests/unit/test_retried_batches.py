"""Batches that an idempotent producer sends again: one offset each, one truth, before and after."""

import asyncio
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import Partition, Topic, open_partition
from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.partition.validation import check_batch
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import StorageError, StreamClosed
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.stream import Stream
from lakehead.storage.wal import MemoryWal
from tests.support.wire import Batch
from tests.unit.test_storage_promises import HeldWal
from tests.unit.test_stream_engine import TOPIC, running

Answers = list[tuple[int, Exception | None]]


async def partition_of(stream: Stream) -> Partition:
    topic = Topic("t", TOPIC)
    return await open_partition(topic, 0, stream, SystemClock())


def produce(partition: Partition, sequence: int, answers: Answers, *, epoch: int = 0) -> None:
    """Produce two records as the broker does; note what is answered, when it is."""
    batch = Batch(
        values=(b"a", b"b"), producer_id=7, producer_epoch=epoch, base_sequence=2 * sequence
    ).encode()
    records = memoryview(bytearray(batch))
    header = check_batch(records, version=9, rules=RecordRules(), now_ms=1 << 60)
    plan = partition.plan(records, header)
    base = plan.known_offset

    def answer(error: Exception | None) -> None:
        answers.append((base, error))

    if plan.known_offset >= 0:
        partition.when_confirmed(plan.known_end, answer)
    else:
        base = partition.perform(plan, answer)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - another task's work
            await asyncio.sleep(0)


def hold(wal: HeldWal) -> None:
    wal.is_held = True
    wal._release_is_due = True


async def test_a_repetition_is_answered_with_the_first_and_not_before() -> None:
    wal = HeldWal()
    async with running(MemoryStore(), wal) as (_, streams):
        partition, answers = await partition_of(streams[0]), Answers()
        produce(partition, 0, answers)
        await until(lambda: len(answers) == 1)
        hold(wal)
        for _ in range(3):
            produce(partition, 1, answers)
        produce(partition, 0, answers)
        assert answers == [(0, None)] * 2, "what is durable is confirmed at once, and only that"
        assert partition.log_end_offset == 4
        wal.is_held = False
        wal._release()
        assert answers[2:] == [(2, None)] * 3


@pytest.mark.parametrize("is_uploaded", [True, False])
async def test_a_repetition_is_known_after_an_unexpected_error_behind_the_append(
    is_uploaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is in the log, and not in the state: the next life of the node has both."""

    def broken(*_: object) -> None:
        raise MemoryError

    store, wal, answers = MemoryStore(), MemoryWal(), Answers()
    async with running(store, wal, clean=False) as (engine, streams):
        partition = await partition_of(streams[0])
        produce(partition, 0, answers)
        await until(lambda: len(answers) == 1)
        with monkeypatch.context() as patched:
            patched.setattr(partition.producers, "add", broken)
            with pytest.raises(MemoryError):
                produce(partition, 1, answers)
        with pytest.raises(StreamClosed):
            produce(partition, 1, answers)
        await until(lambda: wal.pending_bytes == 0)
        if is_uploaded:
            with pytest.raises(StorageError, match="MemoryError"):
                await engine.upload_now()
    async with running(store, wal.reopen()) as (_, streams):
        partition = await partition_of(streams[0])
        for sequence in (1, 2):
            produce(partition, sequence, answers)
        await until(lambda: len(answers) == 4)
        assert answers[2:] == [(2, None), (4, None)]


async def test_a_repetition_is_not_acknowledged_when_the_first_never_was() -> None:
    wal = HeldWal()
    async with running(MemoryStore(), wal, clean=False) as (_, streams):
        partition, answers = await partition_of(streams[0]), Answers()
        hold(wal)
        produce(partition, 0, answers)
        produce(partition, 0, answers)
        wal.break_with(OSError("EIO"))
        assert [error for _, error in answers if error is None] == []
        assert partition.high_watermark == 0


@pytest.mark.parametrize("uploaded", range(9))
async def test_after_a_crash_the_last_five_batches_are_known_wherever_they_lie(
    uploaded: int,
) -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, clean=False) as (engine, streams):
        partition, answers = await partition_of(streams[0]), Answers()
        for sequence in range(8):
            if sequence == uploaded:
                await engine.upload_now()
            produce(partition, sequence, answers)
            await until(lambda count=sequence: len(answers) > count)  # type: ignore[misc]
        if uploaded == 8:
            await engine.upload_now()
    async with running(store, wal.reopen(), clean=False) as (_, streams):
        partition, answers = await partition_of(streams[0]), Answers()
        for sequence in (3, 7, 5, 4, 6):
            produce(partition, sequence, answers)
        assert answers == [(2 * sequence, None) for sequence in (3, 7, 5, 4, 6)]
        assert partition.log_end_offset == 16
        with pytest.raises(KafkaError) as refused:
            produce(partition, 9, answers)
        assert refused.value.code is ErrorCode.out_of_order_sequence_number
        produce(partition, 8, answers)
        await until(lambda: answers[-1] == (16, None))
        produce(partition, 0, answers, epoch=1)
        with pytest.raises(KafkaError) as fenced:
            produce(partition, 9, answers)
        assert fenced.value.code is ErrorCode.invalid_producer_epoch


async def test_what_was_kept_for_producers_goes_when_they_expire() -> None:
    """All records deleted: their object stays while a producer may repeat its last batches."""
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal) as (engine, streams):
        partition = await partition_of(streams[0])
        answers: Answers = []
        produce(partition, 0, answers)
        await until(lambda: len(answers) == 1)
        await streams[0].trim(2)
        await partition.expire_producers(0)
        assert not engine.metadata.state.unreferenced
    async with running(store, wal.reopen()) as (engine, streams):
        partition = await partition_of(streams[0])
        produce(partition, 0, answers)
        assert answers == [(0, None), (0, None)]  # it is known
        await partition.expire_producers(1 << 60)
        state = engine.metadata.state
        assert set(state.unreferenced) == set(state.objects)
        assert (state.streams[0].state_from, len(state.streams[0].state_sources)) == (-1, 0)
        produce(partition, 1, answers)
        await until(lambda: len(answers) == 3)
        await engine.upload_now()
        await streams[0].trim(4)
        await partition.expire_producers(0)  # somebody came anew: nothing goes
        assert len(engine.metadata.state.streams[0].state_extents) == 1
    async with running(store, wal.reopen()) as (_, streams):
        produce(await partition_of(streams[0]), 1, answers)
        assert answers[-1] == (2, None)
