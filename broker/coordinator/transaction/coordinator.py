"""The transaction coordinator of a node: requests about the ids in `__transaction_state`.

Methods raise KafkaError: with the machine's refusals, and with NOT_COORDINATOR or
COORDINATOR_LOAD_IN_PROGRESS when this node does not coordinate the id, or not yet.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.log import CoordinatorLog
from lakehead.broker.coordinator.shards import CoordinatorTopic, Shards, durable
from lakehead.broker.coordinator.transaction.markers import MarkerSender
from lakehead.broker.coordinator.transaction.messages import (
    NO_EPOCH,
    TEXT_SIZE_MAX,
    Decision,
    NeedsProducerId,
    Producer,
    Refused,
    Settled,
    TopicPartition,
    Transaction,
    TransactionState,
)
from lakehead.broker.coordinator.transaction.shard import TransactionShard
from lakehead.broker.coordinator.transaction.state_machine import TransactionMachine, outcome
from lakehead.broker.producer_ids import ProducerIds
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock
from lakehead.storage.tasks import TaskScope

_log = structlog.get_logger(__name__)

_LOG_TIMEOUT_S = 5.0
_ADD_TIMEOUT_S = 0.1
"""Kafka's add.partitions.to.txn.retry.backoff.max.ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """The content of InitProducerId. `expected` is the previous identity of the producer, if it
    sends one.
    """

    transactional_id: str
    timeout_ms: int
    expected: Producer | None


class TransactionCoordinator:
    """Every transactional id that this node coordinates."""

    def __init__(
        self,
        topic: CoordinatorTopic,
        epoch_of: Callable[[int], int],
        settings: Settings,
        clock: Clock,
        scope: TaskScope,
        producer_ids: ProducerIds,
        sender: MarkerSender,
        is_current: Callable[[], Awaitable[bool]],
    ) -> None:
        """`is_current` returns whether this node was certainly not fenced while it slept: if it
        was, another node coordinates its transactions by now.
        """
        self._epoch_of = epoch_of
        self._settings = settings
        self._clock = clock
        self._scope = scope
        self._producer_ids = producer_ids
        self._sender = sender
        self._is_current = is_current
        self.shards: Shards[TransactionShard] = Shards(topic, clock, scope, self._new_shard)
        self.timed_out_total: int = 0
        """Transactions that were aborted because they were open for too long."""

    async def start(self) -> None:
        """Begin to load what this node holds, to time out transactions and to forget ids."""
        self.shards.load_all()
        self._scope.spawn_loop(self._tick_regularly, name="time out transactions")
        self._scope.spawn_loop(self._expire_regularly, name="expire transactional ids")

    # Requests of producers.

    async def init_producer_id(self, request: InitRequest) -> Producer:
        """Handle InitProducerId: fence the previous producer of the id, and return the new
        identity.
        """
        _check_id(request.transactional_id)
        if not 0 < request.timeout_ms <= self._settings.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.invalid_transaction_timeout)
        shard = await self._shard(request.transactional_id)
        if shard.find(request.transactional_id) is None:
            fresh_id = await self._producer_ids.take()
            shard = await self._shard(request.transactional_id)
            if shard.find(request.transactional_id) is None:
                shard.create(self._new_transaction(request, fresh_id))

        def decide(machine: TransactionMachine, fresh_id: int | None) -> Decision:
            now_ms = self._clock.now_ms()
            return machine.init_producer_id(request.expected, request.timeout_ms, now_ms, fresh_id)

        stored = await self._settle(request.transactional_id, decide)
        if isinstance(stored, Settled) or stored.state is not TransactionState.EMPTY:
            raise KafkaError(ErrorCode.concurrent_transactions)  # what was open is being aborted
        return Producer(stored.producer_id, stored.producer_epoch)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        transaction_version: int,
    ) -> None:
        """AddPartitionsToTxn and AddOffsetsToTxn; returns when it is durable. While the transaction
        before it is being completed it waits a little, rather than have the client do so.
        """

        def decide(machine: TransactionMachine, _fresh_id: int | None) -> Decision:
            now_ms = self._clock.now_ms()
            return machine.add_partitions(producer, partitions, transaction_version, now_ms)

        await self._settle(transactional_id, decide, timeout_s=_ADD_TIMEOUT_S)

    async def verify(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return true if partitions are in a transaction, as `TransactionMachine.verify`."""
        _, machine = await self._known(transactional_id)
        return machine.verify(producer, partitions)

    async def end(
        self,
        transactional_id: str,
        producer: Producer,
        transaction_version: int,
        *,
        is_commit: bool,
    ) -> Producer:
        """EndTxn; returns when the decision is durable, with what the producer is from now on."""

        def decide(machine: TransactionMachine, fresh_id: int | None) -> Decision:
            now_ms = self._clock.now_ms()
            was = machine.current
            made = machine.end(producer, transaction_version, now_ms, fresh_id, is_commit=is_commit)
            if isinstance(made, Refused) and made.code is ErrorCode.invalid_txn_state:
                # A client gives its producer up for this: an operator finds the reason here.
                _log.warning(
                    "transaction_end_refused",
                    transactional_id=transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    current_epoch=was.producer_epoch,
                    state=was.state.name,
                    is_commit=is_commit,
                )
            return made

        stored = await self._settle(transactional_id, decide)
        if isinstance(stored, Settled):
            return Producer(*stored)
        ended = outcome(stored, self._clock.now_ms())
        return Producer(ended.producer_id, ended.producer_epoch)

    # Administration.

    @property
    def markers_waiting(self) -> int:
        """Markers that are yet to be written."""
        return self._sender.waiting

    async def describe(self, transactional_id: str) -> Transaction:
        """Return what is known of an id. Raises TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST."""
        shard = await self._shard(transactional_id)
        machine = shard.find(transactional_id)
        if machine is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        return machine.current

    async def list_all(self) -> list[Transaction]:
        """Return every id that this node coordinates."""
        if not await self._is_current():
            raise KafkaError(ErrorCode.not_coordinator)
        return [
            machine.current
            for shard in await self.shards.every()
            for machine in shard.machines.values()
        ]

    # Inside.

    def _new_shard(self, index: int, log: CoordinatorLog) -> TransactionShard:
        return TransactionShard(log, self._clock, self._sender, lambda: self._epoch_of(index))

    def _new_transaction(self, request: InitRequest, producer_id: int) -> Transaction:
        return Transaction(
            transactional_id=request.transactional_id,
            producer_id=producer_id,
            producer_epoch=NO_EPOCH,
            timeout_ms=request.timeout_ms,
            updated_ms=self._clock.now_ms(),
        )

    async def _shard(self, transactional_id: str) -> TransactionShard:
        _check_id(transactional_id)
        if not await self._is_current():
            raise KafkaError(ErrorCode.not_coordinator)
        return await self.shards.of(transactional_id)

    async def _known(self, transactional_id: str) -> tuple[TransactionShard, TransactionMachine]:
        shard = await self._shard(transactional_id)
        machine = shard.find(transactional_id)
        if machine is None:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        return shard, machine

    async def _settle(
        self,
        transactional_id: str,
        decide: Callable[[TransactionMachine, int | None], Decision],
        timeout_s: float = 0.0,
    ) -> Transaction | Settled:
        """Let the machine decide, and return what it stored when that is durable."""
        fresh_id = None
        until = asyncio.get_running_loop().time() + timeout_s
        while True:
            shard, machine = await self._known(transactional_id)
            decision = decide(machine, fresh_id)
            if isinstance(decision, NeedsProducerId):
                fresh_id = await self._producer_ids.take()
            elif not (
                isinstance(decision, Refused)
                and decision.code is ErrorCode.concurrent_transactions
                and await _changes(shard, machine, until)
            ):
                break
        if isinstance(decision, Refused):
            raise KafkaError(decision.code)
        if isinstance(decision, Settled):
            return decision
        await durable(shard.perform(machine, decision), _LOG_TIMEOUT_S)
        return decision.transaction

    async def _tick_regularly(self) -> None:
        interval_ms = self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            self.shards.load_all()  # those that could not be read: their markers are waited for
            for shard in self.shards.loaded():
                for aborted in shard.tick():
                    self.timed_out_total += aborted
                    await asyncio.sleep(0)

    async def _expire_regularly(self) -> None:
        settings = self._settings
        interval_ms = settings.transaction_remove_expired_transaction_cleanup_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            before_ms = self._clock.now_ms() - settings.transactional_id_expiration_ms
            for shard in self.shards.loaded():
                for _ in shard.expire(before_ms):
                    await asyncio.sleep(0)


def _check_id(transactional_id: str) -> None:
    """Refuse an invalid id, and one that does not fit into a record, where its length has 16
    bits.
    """
    if not 0 < len(transactional_id.encode()) <= TEXT_SIZE_MAX:
        raise KafkaError(ErrorCode.invalid_request)


async def _changes(shard: TransactionShard, machine: TransactionMachine, until: float) -> bool:
    """Wait for something of a machine to be stored; False when that was not so in time."""
    try:
        async with asyncio.timeout_at(until):
            await shard.change(machine)
    except TimeoutError:
        return False
    return True
