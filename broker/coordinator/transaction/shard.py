"""The transactional ids of one partition of `__transaction_state`: their machines, and their log.

A shard is used by one event loop, between `load` and `close`. A decision of a machine is stored,
and its request completes when it is durable. The markers of a prepared transaction are sent, again
after every load; the transaction completes when all of them are written.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Protocol, TypeAlias

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.log import CoordinatorLog
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.coordinator.transaction.markers import Marker, PendingMarkers
from lakehead.broker.coordinator.transaction.messages import (
    IDLE,
    PREPARED,
    Decision,
    Store,
    TopicPartition,
    Transaction,
    TransactionState,
)
from lakehead.broker.coordinator.transaction.record_formats import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from lakehead.broker.coordinator.transaction.state_machine import TransactionMachine
from lakehead.storage.clock import Clock

Outcome: TypeAlias = asyncio.Future[Exception | None]
_AT_ONCE = 1_000
"""Ids that are looked at in one turn of the event loop."""
_log = structlog.get_logger(__name__)


class Sender(Protocol):
    """Sends markers: `MarkerSender`."""

    def send(self, job: PendingMarkers, partitions: Collection[TopicPartition]) -> None:
        """Begin to send a transaction's markers."""


class TransactionShard:
    """One partition's transactional ids. `epoch` is the coordinator's: its partition's."""

    def __init__(
        self, log: CoordinatorLog, clock: Clock, sender: Sender, epoch: Callable[[], int]
    ) -> None:
        self.machines: dict[str, TransactionMachine] = {}
        self._busy: dict[TransactionMachine, float] = {}
        """Those with a transaction that is open, or being ended, in the order of their starts; with
        the time (monotonic seconds) since which this shard knows that.
        """
        self._log = log
        self._clock = clock
        self._sender = sender
        self._epoch = epoch
        self._waiters: dict[TransactionMachine, set[asyncio.Future[None]]] = {}
        self._is_closed = False

    async def load(self) -> None:
        """Read the log, and go on with what was being ended."""
        await self._log.replay()
        async for key, value in self._log.values():
            try:
                transactional_id = decode_key(key)
                transaction = decode_value(transactional_id, value)
            except UnknownRecord as error:
                _log.warning("transaction_record_unknown", error=str(error))
            else:
                machine = self.machines[transactional_id] = TransactionMachine(transaction)
                self._note(machine)
        for machine in list(self._busy):
            self._end(machine)

    def close(self, _error: ErrorCode, /) -> None:
        """Accept no more requests, and drop every marker. Requests that wait for the log get an
        error.
        """
        self._is_closed = True
        for machine in list(self._waiters):
            self._wake(machine)
        self.machines.clear()
        self._busy.clear()

    def find(self, transactional_id: str) -> TransactionMachine | None:
        """Return the machine of a transactional id, None when there is none."""
        return self.machines.get(transactional_id)

    def create(self, transaction: Transaction) -> TransactionMachine:
        """Make the machine of an id that is new. It is in the log once something is stored."""
        machine = self.machines[transaction.transactional_id] = TransactionMachine(transaction)
        return machine

    def perform(self, machine: TransactionMachine, decision: Store) -> Outcome:
        """Store a decision; the future gets the outcome."""
        outcome: Outcome = asyncio.get_running_loop().create_future()
        transaction = decision.transaction

        def on_done(error: Exception | None) -> None:
            machine.stored(is_durable=error is None)
            if error is None:
                self._note(machine)
                self._end(machine)
            if not outcome.done():
                outcome.set_result(error)
            self._wake(machine)

        key = encode_key(transaction.transactional_id)
        self._log.append([(key, encode_value(transaction))], on_done)
        return outcome

    async def change(self, machine: TransactionMachine) -> None:
        """Wait until something of this machine is stored, or the shard is closed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(machine, set())
        waiters.add(waiter)
        try:
            await waiter
        finally:  # a request that gives up: markers may be waited for as long as a node is away
            waiters.discard(waiter)
            if not waiters and self._waiters.get(machine) is waiters:
                del self._waiters[machine]

    def _wake(self, machine: TransactionMachine) -> None:
        for waiter in self._waiters.pop(machine, ()):
            if not waiter.done():
                waiter.set_result(None)

    def tick(self) -> Iterator[int]:
        """Abort the transactions whose time is up; complete those that the log had no room for.
        Yields how many were aborted, after each piece of the work.
        """
        busy = iter(list(self._busy))
        while some := list(islice(busy, _AT_ONCE)):
            yield sum(map(self._tick, some))

    def _tick(self, machine: TransactionMachine) -> bool:
        """Do what is due for one transaction; return true if it is aborted."""
        since = self._busy.get(machine)
        if since is None:  # it has ended since the look at all of them began
            return False
        now_ms = self._now_ms(machine, since)
        if machine.current.state in PREPARED:
            self._complete(machine, machine.marked((), now_ms))
            return False
        decision = machine.time_out(now_ms)
        if not isinstance(decision, Store):
            return False
        known = decision.transaction
        _log.info(
            "transaction_timed_out",
            transactional_id=known.transactional_id,
            producer_id=known.producer_id,
        )
        self.perform(machine, decision)
        return True

    def expire(self, before_ms: int) -> Iterator[int]:
        """Delete the ids that were not used since. Yields how many, after each piece of the
        work.
        """
        names = iter(list(self.machines))
        while some := list(islice(names, _AT_ONCE)):
            found = ((name, self.machines.get(name)) for name in some)
            old = [name for name, one in found if one is not None and one.is_expired(before_ms)]
            for transactional_id in old:
                del self.machines[transactional_id]
            if old:
                self._log.append([(encode_key(name), None) for name in old], _ignore)
            yield len(old)

    def _now_ms(self, machine: TransactionMachine, since: float) -> int:
        """Return the time by which a transaction is judged. Its start is by the clock of another
        coordinator, which may be ahead of this one by hours: a transaction is at least as old as
        this shard knows it.
        """
        known_ms = int((self._clock.monotonic() - since) * 1000)
        return max(self._clock.now_ms(), machine.current.start_ms + known_ms)

    def _note(self, machine: TransactionMachine) -> None:
        if machine.current.state in IDLE:
            self._busy.pop(machine, None)
        elif not self._is_closed:
            self._busy.setdefault(machine, self._clock.monotonic())

    def _end(self, machine: TransactionMachine) -> None:
        """Send the markers of a transaction that is prepared; complete it when they are written."""
        prepared = machine.current
        if self._is_closed or prepared.state not in PREPARED:
            return

        def on_marked(partitions: Collection[TopicPartition]) -> None:
            self._complete(machine, machine.marked(partitions, self._clock.now_ms()))

        def is_wanted() -> bool:
            return not self._is_closed and machine.current is prepared

        marker = Marker(
            producer_id=prepared.producer_id,
            producer_epoch=prepared.producer_epoch,
            coordinator_epoch=self._epoch(),
            is_commit=prepared.state is TransactionState.PREPARE_COMMIT,
            transaction_version=prepared.transaction_version,
        )
        if prepared.partitions:
            job = PendingMarkers(marker=marker, is_wanted=is_wanted, on_marked=on_marked)
            self._sender.send(job, sorted(prepared.partitions))
        else:
            on_marked(())

    def _complete(self, machine: TransactionMachine, decision: Decision | None) -> None:
        if isinstance(decision, Store) and not self._is_closed:
            self.perform(machine, decision)


def _ignore(_error: Exception | None) -> None:
    """An id whose end is not in the log is there again after the next load, and expires then."""
