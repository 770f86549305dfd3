"""A partition with very many producers: what uploads take of its state, the cap, and how long the
event loop is held, from the first batch to the next leader.
"""

import asyncio
import random
import struct
import time

import pytest

from lakehead.broker.coordinator.log import CoordinatorLog
from lakehead.broker.partition.partition import Partition
from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.broker.partition.producer_table import LIMITS, WINDOW
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.control_batch import Marker
from lakehead.storage.format.partition_state import (
    PackedState,
    PartitionState,
    ProducerBatch,
    ProducerRecord,
    decode_packed,
    decode_state,
    encode_packed,
    encode_state,
    newest,
    open_transactions,
    pack_producer,
    unpack_producer,
)
from lakehead.storage.format.record_batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.tasks import TaskScope
from tests.property.test_coordinator_log import ListPartition, crash, settled
from tests.support.loop_watch import watched_loop
from tests.support.processor_time import check_within, measured
from tests.support.stored_states import StoredStates
from tests.support.wire import Batch
from tests.unit.test_takeover import PLACES, Place
from tests.unit.test_transaction_lives import leading

STALL_S = 0.05
UPLOAD_MAX = 1024 * 1024
_PRODUCER_ID_AT = 43


def header(producer_id: int, sequence: int, attributes: int = 0) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, attributes, 0, 0, 0, producer_id, 0, sequence, 1)


class Log:
    """Producer states and the offsets of what they were told; all of it is durable."""

    def __init__(self, stored: StoredStates) -> None:
        self.stored, self.states, self.end = stored, stored.states(), 0

    def produce(self, producer_id: int, sequence: int, now_ms: int = 5) -> None:
        assert self.states.check(producer_id, 0, sequence, 1) is None
        self.states.add(header(producer_id, sequence), self.end, self.end, now_ms)
        self.end += 1

    def upload(self) -> None:
        self.stored.upload(self.states, self.end)


def test_an_upload_has_what_changed_and_a_share_of_the_rest() -> None:
    """However often, and wherever, what is kept makes the same producers."""
    log, rng, sequences = Log(StoredStates()), random.Random(7), dict[int, int]()
    for producer_id in range(30_000):
        log.produce(producer_id, 0)
        sequences[producer_id] = 0
    log.upload()
    assert len(log.stored.kept) == 1
    first = log.stored.sizes[0]
    for number in range(200):
        for _ in range(3):
            one = rng.randrange(30_000)
            sequences[one] += 1
            log.produce(one, sequences[one])
        log.upload()
        if not number % 50:
            log.stored.merge(1, 10)
    later = log.stored.sizes[1:]
    assert max(later) < 100 * 1024 < first
    assert sum(later) < 12 * first
    assert len(log.stored.kept) < 100, "older ones are let go of"
    restored = log.stored.restore()
    assert len(restored) == 30_000
    for producer_id, sequence in sequences.items():
        assert restored.check(producer_id, 0, sequence, 1) is not None
        assert restored.check(producer_id, 0, sequence + 1, 1) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_later_record_of_a_producer_counts_among_states(seed: int) -> None:
    """Whatever their sizes, in one state or in several; and its open transaction with it."""
    rng = random.Random(seed)
    expected: dict[int, bytes] = {}
    states = []
    for _ in range(rng.randrange(6)):
        records = []
        for _ in range(rng.randrange(200)):
            batches = [ProducerBatch(n, n, n, n + 1) for n in range(rng.randrange(7))]
            producer_id, start = rng.randrange(-50, 50) << rng.choice([0, 40]), rng.randrange(-1, 3)
            records.append(pack_producer(ProducerRecord(producer_id, 1, 5, batches, 2, start)))
            expected[producer_id] = records[-1]
        states.append(PackedState(b"".join(records)))
    assert dict(newest(states).records()) == expected
    found = {one: unpack_producer(data).transaction_start for one, data in expected.items()}
    assert sorted(open_transactions(states)) == sorted(
        (start, one) for one, start in found.items() if start >= 0
    )
    restored = ProducerStates.restore([encode_packed(state) for state in states])
    assert {one: entry.packed(one, 100) for one, entry in restored} == {
        one: unpack_to_window(data) for one, data in expected.items()
    }


def unpack_to_window(data: bytes) -> bytes:
    """Return a record with the batches that a table keeps."""
    record = unpack_producer(data)
    return pack_producer(record._replace(batches=record.batches[-WINDOW:]))


def test_a_small_state_is_whole_in_each_upload() -> None:
    log = Log(StoredStates())
    for producer_id in range(900):
        log.produce(producer_id, 0)
        log.upload()
        assert len(log.stored.kept) == 1
    assert len(log.stored.restore()) == 900


def test_aborted_transactions_go_round_with_the_producers() -> None:
    log = Log(StoredStates())
    for number in range(20_000):
        for attributes, marker in (
            (TRANSACTIONAL, None),
            (TRANSACTIONAL | CONTROL, Marker(is_commit=number % 2 == 0, coordinator_epoch=0)),
        ):
            one = header(number % 100, -1, attributes)
            log.states.add(one, log.end, log.end, 5, marker)
            log.end += 1
        if number % 1000 == 999:
            log.upload()
    aborted = log.states.transactions.aborted_among(0, log.end)
    assert len(aborted) == 10_000
    for _ in range(30):
        log.produce(1_000, log.end)
        log.upload()
    assert max(log.stored.sizes) < 200 * 1024
    assert len(log.stored.kept) < 20
    assert log.stored.restore().transactions.aborted_among(0, log.end) == aborted


def test_beyond_the_cap_an_idle_producer_makes_room() -> None:
    """One that sends, or has a transaction open, is not forgotten; nor one whose batch is on its
    way.
    """
    log = Log(StoredStates(LIMITS._replace(producers=5_000, whole_bytes=0)))
    log.states.add(header(1_000_000, -1, TRANSACTIONAL), log.end, log.end, 0)
    log.end += 1
    for producer_id in range(20_000):
        log.produce(producer_id, 0, producer_id)
        if not producer_id % 20:
            log.produce(2_000_000, producer_id // 20, producer_id)
        if not producer_id % 1_000:
            log.upload()
    assert len(log.states) == 5_000
    assert log.states.replaced == 20_002 - 5_000
    assert log.states.is_in_transaction(1_000_000, 0)
    assert log.states.find(2_000_000, 0, 999, 1) is not None
    known = [one for one in range(20_000) if log.states.get(one) is not None]
    assert min(known[100:]) > 12_000, "those that have been idle longest go first"
    log.upload()
    restored = log.stored.restore()
    assert len(restored) <= 5_001, "the next leader keeps the cap, though states have more"
    assert restored.is_in_transaction(1_000_000, 0)
    assert restored.find(2_000_000, 0, 999, 1) is not None


def test_a_producer_with_a_batch_on_its_way_does_not_make_room() -> None:
    states = ProducerStates(limits=LIMITS._replace(producers=2))
    for offset in range(40):
        states.add(header(offset, 0), offset, 0, offset)
    assert len(states) == 40
    assert all(states.find(one, 0, 0, 1) is not None for one in range(40))
    states.add(header(40, 0), 40, 40, 40)
    states.add(header(41, 0), 41, 41, 41)
    assert states.replaced


def test_states_of_every_version_are_read() -> None:
    """Bytes as they were written: version 2 by the releases before incremental states."""
    batches = [ProducerBatch(3, 5, 10, 13), ProducerBatch(2**31 - 1, 1, 20, 23)]
    state = PartitionState([ProducerRecord(7, 1, 99, batches, 4, 20)], bytes(32))
    old = bytes.fromhex("93029196070163929403050a0d94ce7fffffff0114170414c420") + bytes(32)
    record = "0000000000000007 0001 0000000000000063 00000004 0000000000000014 02"
    sent = "00000003 000000000000000a 00000003 7fffffff 0000000000000014 00000003"
    new = bytes.fromhex(f"9303c43f {record} {sent} c420") + bytes(32)
    packed = PackedState(pack_producer(state.producers[0]), bytes(32))
    assert encode_state(state) == old
    assert encode_packed(packed) == new
    assert decode_state(old) == decode_state(new) == state
    assert decode_packed(old) == decode_packed(new) == packed
    with pytest.raises(ValueError, match="cut short"):
        list(PackedState(packed.producers[:-1]).records())


async def produce(partition: Partition, first: int, count: int) -> None:
    """Let so many producers send their first batch."""
    template = Batch(producer_id=0, producer_epoch=0, base_sequence=0).encode()
    for producer_id in range(first, first + count):
        batch = bytearray(template)
        struct.pack_into(">q", batch, _PRODUCER_ID_AT, producer_id)
        records = memoryview(batch)
        partition.perform(partition.plan(records, read_header(records)), None)
        if not producer_id % 200:
            await asyncio.sleep(0)


async def upload_sizes(engine: StreamEngine, partition: Partition, count: int) -> list[int]:
    """Upload one batch at a time; return the sizes of the objects."""
    sizes = []
    for number in range(count):
        await produce(partition, 10**9 + number, 1)
        await engine.wait_durable()
        before = set(engine.metadata.state.objects)
        await engine.upload_now()
        objects = engine.metadata.state.objects
        sizes += [objects[key].size for key in set(objects) - before]
    return sizes


async def state_sizes(engine: StreamEngine) -> list[int]:
    """Return how much state of the partition each object has."""
    sizes = []
    for key in engine.metadata.state.objects:
        state = (await engine.reader.index(key)).streams[0].state
        sizes.append(len(state or b""))
    return sizes


@measured
@pytest.mark.parametrize("many", [60_000, pytest.param(990_000, marks=pytest.mark.slow)])
async def test_many_producers_hold_the_loop_neither_in_uploads_nor_at_a_takeover(
    many: int,
) -> None:
    store, place = MemoryStore(), Place("records")
    async with leading(
        store, place, 0, is_clean=False, settings=StorageSettings(upload_age_s=3600)
    ) as (engine, partition):
        with watched_loop() as watch:
            for first in range(0, many, 60_000):
                await produce(partition, first, min(60_000, many - first))
                await engine.upload_now()
            flood = await state_sizes(engine)
            sizes = await upload_sizes(engine, partition, 20)
            for _ in partition.producers.expire(0):
                await asyncio.sleep(0)
        watch.check(STALL_S)
        assert max(flood) < UPLOAD_MAX, "new producers begin an upload before there are too many"
        assert len(flood) < 3 + many / 8_000
        assert max(sizes) < UPLOAD_MAX, "a batch costs little, whatever came before"
        await produce(partition, 2 * 10**9, 1000)  # left in the log
        await engine.wait_durable()
    with watched_loop() as watch:
        began = time.process_time()
        async with leading(store, place, 1, is_clean=False) as (engine, partition):
            took = time.process_time() - began
            check_within(took, 3)
            assert len(partition.producers) == many + 20 + 1000
            for producer_id in (0, many // 3, many - 1, 10**9 + 7, 2 * 10**9 + 999):
                assert partition.producers.find(producer_id, 0, 0, 1) is not None
            assert max(await upload_sizes(engine, partition, 3)) < UPLOAD_MAX
    watch.check(STALL_S)


@pytest.mark.parametrize("name", PLACES)
async def test_each_leader_knows_all_producers_whatever_was_uploaded_ahead(name: str) -> None:
    """Uploads of the partition alone, some of them one after the other, and of everything."""
    store, place, rng = MemoryStore(), Place(name), random.Random(3)
    limits = LIMITS._replace(
        whole_bytes=0, share_bytes=600, changed_bytes=6_000, upload_bytes=8_000, active=8
    )
    known, uploads = 0, 0
    for node_id in range(4):
        async with leading(store, place, node_id, is_clean=False, limits=limits) as (
            engine,
            partition,
        ):
            assert len(partition.producers) == known
            for producer_id in range(known):
                assert partition.producers.find(producer_id, 0, 0, 1) is not None
            for _ in range(10):
                count = rng.randrange(10, 150)
                await produce(partition, known, count)
                known += count
                if rng.random() < 0.7:
                    await engine.wait_durable()
                if rng.random() < 0.1:
                    await engine.upload_now()
            await engine.wait_durable()
            uploads += engine.uploader.stats.upload_sets
    assert uploads > 10


@measured
async def test_a_coordinators_snapshot_is_written_in_pieces_while_others_append() -> None:
    scope, partition = TaskScope(crash), ListPartition()
    log = CoordinatorLog(partition, SystemClock(), scope, name="log", snapshot_min_records=60_000)
    outcomes: list[Exception | None] = []
    for number in range(590):  # 10,000 keys, each about six times
        few = [(b"%d" % (100 * (number % 100) + one), b"%d" % number) for one in range(100)]
        log.append(few, outcomes.append)
        partition.stream.confirm(10**6)
    log.append([(b"%d" % one, None) for one in range(50)], outcomes.append)
    await asyncio.sleep(0)
    assert 59_000 < log.record_count < 60_000
    with watched_loop() as watch:
        log.append([(b"%d" % one, b"590") for one in range(1000, 2000)], outcomes.append)
        for number in range(100):
            log.append([(b"late %d" % number, b"x"), (b"9999", b"%d" % number)], outcomes.append)
            partition.stream.confirm(10**6)
            await asyncio.sleep(0)
        await settled(partition.stream)
    assert log.record_count < 15_000, "the log was trimmed"
    watch.check(STALL_S)
    again = CoordinatorLog(partition, SystemClock(), scope, name="log")
    with watched_loop() as watch:
        await again.replay()
        assert [item async for item in again.values()] == list(again.latest.items())
    assert dict(again.latest) == dict(log.latest)
    assert again.latest[b"9999"] == b"99"
    assert b"0" not in again.latest
    watch.check(STALL_S)
    await scope.close()
