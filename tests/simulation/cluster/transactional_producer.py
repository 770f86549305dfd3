"""A transactional producer as Kafka's clients are: sequence numbers, retries, fencing.

One of transaction version 2 (KIP-890) leaves it to the broker to add partitions, and gets an epoch
with each transaction. One of version 0 adds partitions itself. Like Kafka's client it takes a new
epoch after a batch whose outcome it does not know; and this one does so as well after a request to
end a transaction that it had to repeat, since a late repetition would end the next one (that is
what KIP-890 is about).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.storage.format.record_batch import TRANSACTIONAL
from tests.simulation.cluster.client_wire import ClientWire, encoded
from tests.simulation.ledger import Violation
from tests.support.wire import Batch

LIMIT_S = 20.0
"""A client gives up what has not succeeded for so long."""
LATE_S = (0.3, 2.0, 10.0)
"""Delays of requests that arrive late."""
GROUP, TRANSACTION = 0, 1
"""Types of keys that have a coordinator."""
_PRODUCE, _FIND, _INIT, _ADD, _ADD_OFFSETS, _END, _COMMIT = 0, 10, 22, 24, 25, 26, 28
_TIMESTAMP = 1_600_000_000_000
"""Of all records: the clocks of nodes differ, and none is so far behind."""

_AGAIN = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.concurrent_transactions,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
    }
)
_CERTAIN = frozenset({ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress})
"""Of these, those after which a request has certainly changed nothing."""
_FENCED = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
    }
)
_ABORTABLE = frozenset(
    {
        ErrorCode.transaction_abortable,
        ErrorCode.invalid_txn_state,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.operation_not_attempted,
    }
)


class Fenced(Exception):
    """Another producer of the id, or its coordinator, has ended this one."""


class Abortable(Exception):
    """The transaction can only be aborted."""


class GaveUp(Exception):
    """A request had no success in time; its outcome is unknown."""


class TransactionalProducer:
    """One life of a producer. A request that succeeds returns; else it raises what is left to the
    client: Fenced, Abortable, GaveUp.
    """

    def __init__(
        self,
        wire: ClientWire,
        rng: random.Random,
        transactional_id: str,
        topic: str,
        *,
        is_new: bool,
        timeout_ms: int,
    ) -> None:
        self.is_unsure = False
        """True if the last request to a coordinator may have been handled more than once, or
        later.
        """
        self._wire = wire
        self._rng = rng
        self._id = transactional_id
        self._topic = topic
        self._is_new = is_new
        self._timeout_ms = timeout_ms
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[int, int] = defaultdict(int)
        self._added: set[int] = set()
        self._must_renew = False
        self._coordinator: Address | None = None

    async def initialize(self, *, is_fresh: bool = True) -> None:
        """InitProducerId: as a new producer, or as what this one is."""
        response = await self._coordinated(
            *(_INIT, 5, "InitProducerIdRequest", lambda response: response.error_code),
            transactional_id=self._id,
            transaction_timeout=self._timeout_ms,
            producer_id=-1 if is_fresh else self._producer_id,
            producer_epoch=-1 if is_fresh else self._epoch,
        )
        self._become(response.producer_id, response.producer_epoch)
        self._must_renew = False

    async def begin(self) -> None:
        """Begin a transaction."""
        self._added.clear()
        if self._must_renew:
            await self.initialize(is_fresh=False)

    async def add(self, partitions: Sequence[int]) -> None:
        """AddPartitionsToTxn, which a new client leaves to the broker."""
        if self._is_new:
            return
        module = schema(_ADD, 3).request_module
        topic = entity(
            module, "AddPartitionsToTxnTopic", name=self._topic, partitions=list(partitions)
        )
        await self._coordinated(
            *(_ADD, 3, "AddPartitionsToTxnRequest", _added_code),
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic],
        )

    async def produce(self, partition: int, values: Sequence[str]) -> None:
        """Send one batch until it is acknowledged. Sometimes an attempt, or a repetition of it,
        arrives much later on another connection.
        """
        frame = self._batch(partition, values)
        self._sequences[partition] += len(values)
        where: Address | None = None
        deadline = asyncio.get_running_loop().time() + LIMIT_S / 2
        while asyncio.get_running_loop().time() < deadline:
            where = where or self._wire.leader(self._topic, partition)
            if where is not None:
                fate = self._rng.random()
                if fate < 0.1:
                    self._wire.send_late(where, frame, self._rng.choice(LATE_S))
                if fate < 0.03:
                    break  # the client has no patience, and the batch is on its way
                if not 0.03 <= fate < 0.06 and await self._is_taken(where, frame):
                    return
            where = None
            await asyncio.sleep(self._rng.choice([0.05, 0.2, 0.5]))
        self._must_renew = True
        raise Abortable(f"a batch for partition {partition} is not acknowledged")

    async def add_offsets(self, group_id: str) -> None:
        """AddOffsetsToTxn, which a new client leaves to the broker."""
        if self._is_new:
            return
        await self._coordinated(
            *(_ADD_OFFSETS, 3, "AddOffsetsToTxnRequest", lambda response: response.error_code),
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            group_id=group_id,
        )

    async def commit_offset(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        """TxnOffsetCommit of one partition, to the group's coordinator. A request that an old
        client had to repeat costs its epoch: a late one would count in its next transaction.
        """
        version = 5 if self._is_new else 3
        module = schema(_COMMIT, version).request_module
        place = entity(
            module,
            "TxnOffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=offset,
            committed_metadata="",
        )
        offsets = entity(module, "TxnOffsetCommitRequestTopic", name=topic, partitions=[place])
        deadline = asyncio.get_running_loop().time() + LIMIT_S / 2
        while asyncio.get_running_loop().time() < deadline:
            where = await self._find(group_id, GROUP)
            if where is not None:
                code = ErrorCode.request_timed_out
                try:
                    response = await self._wire.send(
                        *(where, _COMMIT, version, "TxnOffsetCommitRequest"),
                        transactional_id=self._id,
                        group_id=group_id,
                        producer_id=self._producer_id,
                        producer_epoch=self._epoch,
                        topics=[offsets],
                    )
                    code = response.topics[0].partitions[0].error_code
                except (OSError, TimeoutError):
                    pass
                if code is ErrorCode.none:
                    return
                self._judge(code)
                self._must_renew = True
            await asyncio.sleep(self._rng.choice([0.05, 0.2, 0.5]))
        self._must_renew = True
        raise Abortable(f"offset {offset} of partition {partition} is not committed")

    async def end(self, *, is_commit: bool) -> None:
        """EndTxn. That of a new client sometimes arrives once more, in the next transaction."""
        version = 5 if self._is_new else 4
        fields: dict[str, Any] = {
            "transactional_id": self._id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
            "committed": is_commit,
        }
        if self._is_new and self._coordinator is not None and self._rng.random() < 0.1:
            frame = encoded(_END, version, "EndTxnRequest", **fields)
            self._wire.send_late(self._coordinator, frame, self._rng.choice(LATE_S))
        response = await self._coordinated(
            *(_END, version, "EndTxnRequest", lambda response: response.error_code), **fields
        )
        if self._is_new:
            self._become(response.producer_id, response.producer_epoch)
            self._must_renew = False
        elif self.is_unsure:
            self._must_renew = True

    def renew(self) -> None:
        """Take a new epoch before the next transaction."""
        self._must_renew = True

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._sequences.clear()
        self._producer_id, self._epoch = producer_id, epoch

    def _batch(self, partition: int, values: Sequence[str]) -> bytes:
        version = 12 if self._is_new else 11
        module = schema(_PRODUCE, version).request_module
        batch = Batch(
            values=tuple(value.encode() for value in values),
            attributes=TRANSACTIONAL,
            timestamp=_TIMESTAMP,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequences[partition],
        ).encode()
        data = entity(module, "PartitionProduceData", index=partition, records=batch)
        topic = entity(module, "TopicProduceData", name=self._topic, partition_data=[data])
        return encoded(
            *(_PRODUCE, version, "ProduceRequest"),
            transactional_id=self._id,
            acks=-1,
            timeout=30_000,
            topic_data=[topic],
        )

    async def _is_taken(self, where: Address, frame: bytes) -> bool:
        """Send a batch once; return whether it was acknowledged."""
        version = int.from_bytes(frame[6:8], "big")
        try:
            response = await self._wire.exchange(where, frame)
        except (OSError, TimeoutError):
            return False
        found = decode(schema(_PRODUCE, version).response_class, response, 5)
        code = found.responses[0].partition_responses[0].error_code
        if code is ErrorCode.none:
            return True
        self._judge(code)
        return False

    async def _coordinated(
        self,
        key: int,
        version: int,
        name: str,
        code_of: Callable[[Any], ErrorCode],
        **fields: Any,
    ) -> Any:
        """Send a request to the coordinator, wherever it is, until it succeeds."""
        self.is_unsure = False
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while asyncio.get_running_loop().time() < deadline:
            where = self._coordinator or await self._find(self._id, TRANSACTION)
            if where is not None:
                self._coordinator = where
                code = ErrorCode.request_timed_out
                try:
                    response = await self._wire.send(where, key, version, name, **fields)
                except (OSError, TimeoutError):
                    pass
                else:
                    code = code_of(response)
                    if code is ErrorCode.none:
                        return response
                self._judge(code)
                if code not in _CERTAIN:
                    self.is_unsure = True
                if code is not ErrorCode.concurrent_transactions:
                    self._coordinator = None
            await asyncio.sleep(self._rng.choice([0.05, 0.2, 0.5]))
        self.is_unsure = True
        raise GaveUp(f"{name} of {self._id}")

    async def _find(self, key: str, key_type: int) -> Address | None:
        return await find_coordinator(self._wire, self._rng, key, key_type)

    @staticmethod
    def _judge(code: ErrorCode) -> None:
        """Raise what an error means to a client, unless it sends the request again."""
        if code in _FENCED:
            raise Fenced(code.name)
        if code in _ABORTABLE:
            raise Abortable(code.name)
        if code not in _AGAIN:
            raise Violation(f"a transactional producer got {code.name}")


async def find_coordinator(
    wire: ClientWire, rng: random.Random, key: str, key_type: int
) -> Address | None:
    """FindCoordinator, of any node; None where none is known."""
    nodes = [node for node in wire.state.nodes.values() if not node.is_fenced]
    if not nodes:
        return None
    node = rng.choice(nodes)
    try:
        response = await wire.send(
            *(Address(node.host, node.port), _FIND, 4, "FindCoordinatorRequest"),
            key_type=key_type,
            coordinator_keys=[key],
        )
    except (OSError, TimeoutError):
        return None
    found = response.coordinators[0]
    return Address(found.host, found.port) if found.error_code is ErrorCode.none else None


def _added_code(response: Any) -> ErrorCode:
    results = response.results_by_topic_v3_and_below[0].results_by_partition
    codes = {result.partition_error_code for result in results}
    return ErrorCode(max(codes, key=lambda code: code is not ErrorCode.operation_not_attempted))
