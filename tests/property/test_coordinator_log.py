"""A coordinator's log is a map: whatever was appended, trimmed and read again, the last value
counts.
"""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.coordinator.log import CoordinatorLog, OnDone
from lakehead.broker.partition.partition import Plan
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import OffsetOutOfRange, WalFull
from lakehead.storage.format.control_batch import Marker, encode_marker
from lakehead.storage.format.record_batch import BatchHeader, patch, read_header
from lakehead.storage.tasks import TaskScope
from tests.support.processor_time import check_within, measured
from tests.support.repetitions import examples

KEYS = [b"a", b"b", b"c", b"d"]
keys = st.sampled_from(KEYS)
records = st.tuples(keys, st.none() | st.binary(max_size=8))
events = st.lists(st.lists(records, min_size=1, max_size=4), max_size=40)


class ListStream:
    """A stream as a list of batches that become durable late, in order."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.confirmed_offset = 0
        self.next_offset = 0
        self.batches: list[tuple[int, memoryview]] = []
        self.waiting: list[tuple[int, OnDone | None]] = []
        self.is_full = False
        self.is_scattered = False

    @property
    def object_count(self) -> int:
        return len(self.batches) if self.is_scattered else 1

    async def fetch(self, offset: int, max_bytes: int) -> list[memoryview]:
        if not self.start_offset <= offset <= self.confirmed_offset:
            raise OffsetOutOfRange(str(offset))
        whole = [batch for end, batch in self.batches if offset < end <= self.confirmed_offset]
        return whole[:2]

    async def trim(self, offset: int) -> None:
        assert offset <= self.confirmed_offset
        self.start_offset = max(self.start_offset, offset)
        self.batches = [(end, batch) for end, batch in self.batches if end > self.start_offset]

    def confirm(self, count: int) -> None:
        for _ in range(min(count, len(self.waiting))):
            end, on_done = self.waiting.pop(0)
            self.confirmed_offset = end
            if on_done is not None:
                on_done(None)


class ListPartition:
    def __init__(self) -> None:
        self.stream = ListStream()

    def plan(self, records: memoryview, header: BatchHeader) -> Plan:
        return Plan(records, header, -1, -1)

    def perform(self, plan: Plan, on_done: OnDone | None) -> None:
        self.append(plan.records, on_done)

    def append(self, batch: memoryview, on_done: OnDone | None = None) -> None:
        stream = self.stream
        if stream.is_full:
            raise WalFull("full")
        patch(batch, 0, stream.next_offset, 0)
        stream.next_offset = read_header(batch).end_offset
        stream.batches.append((stream.next_offset, batch))
        stream.waiting.append((stream.next_offset, on_done))

    def left(self) -> "ListPartition":
        """Return what a crash would leave now."""
        copied = ListPartition()
        stream, left = self.stream, copied.stream
        left.start_offset, left.confirmed_offset = stream.start_offset, stream.confirmed_offset
        left.next_offset = stream.confirmed_offset
        left.batches = [one for one in stream.batches if one[0] <= stream.confirmed_offset]
        return copied


def crash(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error


def open_log(
    partition: ListPartition, scope: TaskScope, snapshot_min_records: int = 12
) -> CoordinatorLog:
    return CoordinatorLog(
        partition, SystemClock(), scope, name="log", snapshot_min_records=snapshot_min_records
    )


async def run(batches: Sequence[list[tuple[bytes, bytes | None]]], seed: int) -> None:
    rng = random.Random(seed)
    scope = TaskScope(crash)
    partition = ListPartition()
    stream = partition.stream
    log = open_log(partition, scope)
    expected: dict[bytes, bytes] = {}
    outcomes: list[Exception | None] = []
    for batch in batches:
        log.append(batch, outcomes.append)
        for key, value in batch:
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
        assert dict(log.latest) == expected
        stream.confirm(rng.randrange(4))
        await asyncio.sleep(0)
        if rng.random() < 0.3:  # what a crash would leave now: the durable records, last ones win
            await check_durable(partition, scope, batches)
    await settled(stream)
    assert outcomes == [None] * len(batches)
    again = open_log(partition, scope)
    await again.replay()
    assert dict(again.latest) == expected
    assert log.record_count < 12 + 4 * 4 + 8 + sum(len(batch) for batch in batches[-12:])
    await scope.close()


async def settled(stream: ListStream) -> None:
    """Let everything become durable, and snapshots that are under way end."""
    while True:
        stream.confirm(10**6)
        before = stream.next_offset, stream.start_offset
        for _ in range(5):
            await asyncio.sleep(0)
        if (stream.next_offset, stream.start_offset) == before:
            return


async def check_durable(
    partition: ListPartition,
    scope: TaskScope,
    batches: Sequence[list[tuple[bytes, bytes | None]]],
) -> None:
    again = open_log(partition.left(), scope)
    await again.replay()
    states: list[dict[bytes, bytes]] = [{}]
    for batch in batches:
        state = dict(states[-1])
        for key, value in batch:
            state.pop(key, None)
            if value is not None:
                state[key] = value
        states.append(state)
    assert dict(again.latest) in states, "the log shows a state that never was"


@settings(deadline=None, max_examples=examples(150))
@given(events, st.integers(0, 2**16))
def test_the_last_value_counts_at_every_prefix(
    batches: list[list[tuple[bytes, bytes | None]]], seed: int
) -> None:
    asyncio.run(run(batches, seed))


async def test_a_log_that_cannot_be_written_says_so_at_once() -> None:
    scope = TaskScope(crash)
    partition = ListPartition()
    partition.stream.is_full = True
    outcomes: list[Exception | None] = []
    open_log(partition, scope).append([(b"a", b"1")], outcomes.append)
    assert [type(outcome) for outcome in outcomes] == [WalFull]
    await scope.close()


class Wanted:
    """What the log should say: each record at its place in the order, if it counts."""

    def __init__(self) -> None:
        self.plain: dict[bytes, tuple[int, bytes | None]] = {}
        self.open: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}
        self.count = 0

    def write(self, records: list[tuple[bytes, bytes | None]], producer_id: int | None) -> None:
        target = self.plain if producer_id is None else self.open.setdefault(producer_id, {})
        for key, value in records:
            self.count += 1
            target[key] = self.count, value

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        for key, record in self.open.pop(producer_id, {}).items():
            if is_commit and record[0] > self.plain.get(key, (0, None))[0]:
                self.plain[key] = record

    def latest(self) -> dict[bytes, bytes]:
        return {key: value for key, (_, value) in self.plain.items() if value is not None}


async def write(seed: int) -> None:
    """Two producers and plain commits, markers that are known late, snapshots among them."""
    rng, scope, partition = random.Random(seed), TaskScope(crash), ListPartition()
    log, wanted, outcomes = open_log(partition, scope, 8), Wanted(), list[Exception | None]()
    ending: set[int] = set()
    followed = open_log(partition, scope)

    def end(producer_id: int, *, is_commit: bool) -> None:
        def known(_: Exception | None) -> None:
            ending.discard(producer_id)
            log.end_transaction(producer_id, is_commit=is_commit)
            wanted.end(producer_id, is_commit=is_commit)

        ending.add(producer_id)
        marker = Marker(is_commit, 0)
        batch = encode_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=0)
        partition.append(memoryview(batch), known)

    async def check() -> None:
        partition.stream.confirm(10**6)
        again = open_log(partition.left(), scope)
        await again.replay()
        assert dict(again.latest) == wanted.latest()

    async def follow() -> None:
        """Read what is new, as a standby does; it is as if all had been read at once."""
        nonlocal followed
        if not followed.goes_on(partition):
            followed = open_log(partition, scope)
        await followed.replay()
        again = open_log(partition.left(), scope)
        await again.replay()
        assert dict(followed.latest) == dict(again.latest)
        open_places = [sorted(one.pending_transactional()) for one in (followed, again)]
        assert open_places[0] == open_places[1]

    for _ in range(80):
        producer_id = rng.choice([None, None, 7, 8])
        few = [(rng.choice(KEYS), rng.choice([None, b"%d" % rng.randrange(9)]))]
        if producer_id is None:
            wanted.write(few, None)
            log.append(few, outcomes.append)
        elif producer_id in ending:
            continue  # a producer waits until its marker is known
        elif producer_id in wanted.open and rng.random() < 0.5:
            end(producer_id, is_commit=rng.random() < 0.7)
        else:
            wanted.write(few, producer_id)
            log.append_transactional(few, producer_id, 0, outcomes.append)
        assert dict(log.latest) == wanted.latest()
        partition.stream.confirm(rng.randrange(3))
        await asyncio.sleep(0)
        if rng.random() < 0.3:
            await follow()
        if rng.random() < 0.1:
            await check()
    await check()
    await follow()
    assert not any(outcomes)
    again = open_log(partition, scope)
    await again.replay()
    for producer_id in list(wanted.open):  # what is open is decided after the restart
        again.end_transaction(producer_id, is_commit=True)
        wanted.end(producer_id, is_commit=True)
        assert dict(again.latest) == wanted.latest()
    await scope.close()


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_records_of_transactions_count_at_their_place_once_committed(seed: int) -> None:
    asyncio.run(write(seed))


async def test_a_log_is_not_trimmed_by_a_map_that_lacks_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unexpected error came between the log and the map."""

    def broken(*_: object) -> None:
        raise MemoryError

    partition, scope = ListPartition(), TaskScope(crash)
    log = open_log(partition, scope)
    log.append([(b"kept", b"old")], lambda _: None)
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(log, "_keep", broken)
        log.append([(b"kept", b"new")], lambda _: None)
    for number in range(100):
        log.append([(b"other", b"%d" % number)], lambda _: None)
        await settled(partition.stream)
    again = open_log(partition, scope)
    await again.replay()
    assert dict(again.latest) == {b"kept": b"new", b"other": b"99"}
    await scope.close()


async def test_a_log_of_few_keys_never_lies_in_many_objects() -> None:
    """Each upload leaves a few records in an object of its own, and a load reads them all."""
    scope, partition = TaskScope(crash), ListPartition()
    partition.stream.is_scattered = True
    log = open_log(partition, scope, snapshot_min_records=20_000)
    most = 0
    for number in range(2_000):
        log.append([(KEYS[number % 4], b"%d" % number)], crash_if)
        partition.stream.confirm(10)
        await asyncio.sleep(0)
        most = max(most, partition.stream.object_count)
    await settled(partition.stream)
    assert most < 80
    again = open_log(partition, scope)
    await again.replay()
    assert sorted(again.latest.values()) == [b"1996", b"1997", b"1998", b"1999"]
    await scope.close()


async def test_a_log_of_transactions_alone_is_kept_short() -> None:
    """Of a group that processes exactly once, and rebalances once a month."""
    scope, partition = TaskScope(crash), ListPartition()
    log, most = open_log(partition, scope, snapshot_min_records=12), 0

    def ended(_: Exception | None) -> None:
        log.end_transaction(7, is_commit=True)

    for number in range(500):
        log.append_transactional([(KEYS[number % 4], b"%d" % number)], 7, 0, crash_if)
        marker = Marker(is_commit=True, coordinator_epoch=0)
        batch = encode_marker(marker, producer_id=7, producer_epoch=0, timestamp_ms=0)
        partition.append(memoryview(batch), ended)
        partition.stream.confirm(10)
        await asyncio.sleep(0)
        most = max(most, log.record_count)
    await settled(partition.stream)
    assert most < 60
    again = open_log(partition, scope)
    await again.replay()
    assert dict(again.latest) == dict(log.latest)
    assert sorted(again.latest.values()) == [b"496", b"497", b"498", b"499"]
    await scope.close()


async def test_a_snapshot_is_as_large_as_its_records_however_many_transactions_are_open() -> None:
    """Else a log with many producers is never shortened: its snapshot does not fit in a batch."""
    scope, partition = TaskScope(crash), ListPartition()
    log = open_log(partition, scope, snapshot_min_records=4_000)
    for number in range(3_000):
        log.append([(b"plain %d" % (number % 900), b"%d" % number)], crash_if)
    for producer_id in range(900):
        log.append_transactional([(b"open %d" % producer_id, b"1")], producer_id, 0, crash_if)
    size = sum(len(batch) for _, batch in partition.stream.batches)
    for number in range(900):
        log.append([(b"plain %d" % number, b"last")], crash_if)
    await settled(partition.stream)
    assert partition.stream.start_offset > 0
    assert sum(len(batch) for _, batch in partition.stream.batches) < size
    again = open_log(partition, scope)
    await again.replay()
    for producer_id in range(0, 900, 2):
        again.end_transaction(producer_id, is_commit=True)
    assert again.latest[b"plain 7"] == b"last"
    assert len(again.latest) == 900 + 450
    await scope.close()


@measured
async def test_records_cost_no_more_while_many_transactions_are_open() -> None:
    scope, partition = TaskScope(crash), ListPartition()
    log = open_log(partition, scope, snapshot_min_records=10**6)
    for producer_id in range(5_000):
        log.append_transactional([(b"%d" % producer_id, b"1")], producer_id, 0, crash_if)
    began = time.thread_time()
    for number in range(50):
        log.append([(b"other %d" % index, b"%d" % number) for index in range(100)], crash_if)
        log.end_transaction(number, is_commit=True)
    check_within(time.thread_time() - began, 0.2)
    await scope.close()


def crash_if(error: Exception | None) -> None:
    assert error is None
