"""A transaction times out whatever the clocks of its coordinators say: at the latest when a
coordinator has known it for its timeout.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import cast

import pytest

from lakehead.broker.coordinator.log import CoordinatorLog, OnDone
from lakehead.broker.coordinator.transaction.markers import PendingMarkers
from lakehead.broker.coordinator.transaction.messages import (
    TV_0,
    TV_2,
    Producer,
    Store,
    TopicPartition,
    Transaction,
    TransactionState,
)
from lakehead.broker.coordinator.transaction.record_formats import encode_key, encode_value
from lakehead.broker.coordinator.transaction.shard import TransactionShard
from lakehead.broker.coordinator.transaction.state_machine import TransactionMachine
from lakehead.storage.format.batch_writer import KeyValue

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TIMEOUT_MS = 10_000
PLACE = ("t", 0)


class Clock:
    """Both times as a test sets them."""

    def __init__(self) -> None:
        self.wall_ms = NOW_MS
        self.seconds = 100.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.seconds += milliseconds / 1000


class Log:
    """A log that is durable at once, with one transactional id in it."""

    def __init__(self, transaction: Transaction) -> None:
        self._stored = encode_key("id"), encode_value(transaction)

    async def replay(self) -> None:
        """Nothing is left to read."""

    async def values(self) -> AsyncIterator[tuple[bytes, bytes]]:
        yield self._stored

    def append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        on_done(None)


class Sender:
    """Sends no marker."""

    def send(self, job: PendingMarkers, partitions: Collection[TopicPartition]) -> None:
        """See `MarkerSender.send`."""


def known(**changes: object) -> Transaction:
    fields = {
        "transactional_id": "id",
        "producer_id": 5,
        "producer_epoch": 1,
        "timeout_ms": TIMEOUT_MS,
        "updated_ms": NOW_MS,
        **changes,
    }
    return Transaction(**fields)  # type: ignore[arg-type]


async def loaded(transaction: Transaction, clock: Clock) -> TransactionShard:
    log = cast(CoordinatorLog, Log(transaction))
    shard = TransactionShard(log, clock, Sender(), lambda: 0)
    await shard.load()
    return shard


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, 2 * HOUR_MS])
async def test_a_start_by_another_clock(ahead_ms: int) -> None:
    start_ms = NOW_MS + ahead_ms
    open_one = known(
        state=TransactionState.ONGOING, partitions=frozenset({PLACE}), start_ms=start_ms
    )
    clock = Clock()
    shard = await loaded(open_one, clock)
    machine = shard.machines["id"]
    assert sum(shard.tick()) == (ahead_ms < 0)
    clock.advance(TIMEOUT_MS - 1)
    assert sum(shard.tick()) == 0
    assert (machine.current.state is TransactionState.ONGOING) == (ahead_ms >= 0)
    clock.advance(3)
    assert sum(shard.tick()) == (ahead_ms >= 0)
    assert machine.current.state is TransactionState.PREPARE_ABORT


async def test_a_clock_that_is_set_back() -> None:
    clock = Clock()
    shard = await loaded(known(state=TransactionState.EMPTY), clock)
    machine = shard.machines["id"]
    clock.advance(HOUR_MS)  # the time before the transaction does not count
    decision = machine.add_partitions(Producer(5, 1), [PLACE], TV_2, clock.now_ms())
    assert isinstance(decision, Store)
    shard.perform(machine, decision)
    clock.wall_ms -= 2 * HOUR_MS
    clock.advance(TIMEOUT_MS - 1)
    assert sum(shard.tick()) == 0
    clock.advance(3)
    assert sum(shard.tick()) == 1
    assert machine.current.state is TransactionState.PREPARE_ABORT


async def test_a_transaction_that_begins_amid_the_look_at_all_has_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakehead.broker.coordinator.transaction.shard._AT_ONCE", 1)
    clock, producer = Clock(), Producer(5, 1)
    shard = await loaded(known(), clock)
    machine = shard.create(known(transactional_id="second"))

    def store(one: TransactionMachine, decision: object) -> None:
        assert isinstance(decision, Store)
        shard.perform(one, decision)

    for one in (shard.machines["id"], machine):
        store(one, one.add_partitions(producer, [PLACE], TV_0, clock.now_ms()))
    clock.advance(TIMEOUT_MS)
    pieces = shard.tick()
    assert next(pieces) == 0
    store(machine, machine.end(producer, TV_0, clock.now_ms(), None, is_commit=True))
    store(machine, machine.marked([PLACE], clock.now_ms()))
    store(machine, machine.add_partitions(producer, [PLACE], TV_0, clock.now_ms()))
    clock.advance(1)
    assert sum(pieces) == 0
    assert machine.current.state is TransactionState.ONGOING


async def test_ids_expire_a_thousand_at_a_time_and_one_that_is_used_meanwhile_stays() -> None:
    clock = Clock()
    shard = await loaded(known(), clock)
    for number in range(2_999):
        shard.create(known(transactional_id=f"id{number}"))
    steps = shard.expire(NOW_MS)
    expired = [next(steps)]
    used = known(transactional_id="id2500", updated_ms=NOW_MS + 1)
    shard.machines["id2500"] = TransactionMachine(used)
    assert [*expired, *steps] == [1_000, 1_000, 999]
    assert list(shard.machines) == ["id2500"]


async def test_requests_that_gave_up_leave_nothing_while_markers_are_waited_for() -> None:
    """A client repeats its request many times while a partition has no leader."""
    shard = await loaded(known(state=TransactionState.PREPARE_ABORT, partitions={PLACE}), Clock())
    machine = shard.machines["id"]
    patient = asyncio.ensure_future(shard.change(machine))
    for _ in range(100):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await shard.change(machine)
    assert [len(waiters) for waiters in shard._waiters.values()] == [1]
    ended = machine.marked([PLACE], NOW_MS)
    assert isinstance(ended, Store)
    await shard.perform(machine, ended)
    await patient
    assert not shard._waiters
