"""Verify that partitions are in transactions, whichever node coordinates those (KIP-890).

A partition accepts the first batch of a transaction only if the coordinator responds that the
partition is in it, or has just been added. Verifications at the same node that come in the same
turn, or while a request is in flight, share a request.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.shards import CoordinatorTopic, partition_of
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.coordinator.transaction.markers import Leaders, RequestSender
from lakehead.broker.coordinator.transaction.messages import (
    TV_2,
    Producer,
    TopicPartition,
)
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import KafkaError, MalformedFrame, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import TaskScope

_KEY, _VERSION = 24, 5
_ELEMENTS_MAX = 2_000
"""Maximum array elements of a request, which every node accepts. The partitions of one transaction
are never divided: they are partitions of the cluster, so a node accepts them all
(`lakehead.broker.api.turns`).
"""

Codes = Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Verification:
    transactional_id: str
    producer: Producer
    partitions: Collection[TopicPartition]
    is_adding: bool
    outcome: "asyncio.Future[Codes]"

    @property
    def elements(self) -> int:
        """The array elements that it adds to a request."""
        return 1 + len({topic for topic, _ in self.partitions}) + len(self.partitions)


class AddPartitionsToTxnManager:
    """Sends verifications to coordinators for the partitions of this node (`own_id`)."""

    def __init__(
        self,
        own_id: int,
        coordinator: TransactionCoordinator,
        topic: CoordinatorTopic,
        leaders: Leaders,
        client: RequestSender,
        scope: TaskScope,
    ) -> None:
        self._own_id = own_id
        self._coordinator = coordinator
        self._topic = topic
        self._leaders = leaders
        self._client = client
        self._scope = scope
        self._queues: dict[int, deque[_Verification]] = {}
        """By node. Each queue has a task that sends it."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        is_adding: bool,
    ) -> Codes:
        """Return the coordinator's code for each partition. With `is_adding` the coordinator adds
        partitions that are not in the transaction, which may begin it. Never raises: without a
        coordinator the code is COORDINATOR_NOT_AVAILABLE.
        """
        producer = Producer(producer_id, producer_epoch)
        count = self._topic.partition_count()
        node_id = None
        if count:
            where = self._topic.name, partition_of(transactional_id, count)
            node_id = self._leaders.leader(where)
        if node_id is None:
            return dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
        if node_id == self._own_id:
            return await self.verify_here(
                transactional_id, producer, partitions, is_adding=is_adding
            )
        verification = _Verification(
            transactional_id=transactional_id,
            producer=producer,
            partitions=partitions,
            is_adding=is_adding,
            outcome=asyncio.get_running_loop().create_future(),
        )
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues[node_id] = deque()
            self._scope.spawn_apart(
                self._drain(node_id, queue), name=f"transactions of node {node_id}"
            )
        queue.append(verification)
        return await verification.outcome

    async def verify_here(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        is_adding: bool,
    ) -> Codes:
        """Verify partitions at this node, which coordinates the transaction. Never raises."""
        try:
            if not is_adding:
                return await self._coordinator.verify(transactional_id, producer, partitions)
            await self._coordinator.add_partitions(transactional_id, producer, partitions, TV_2)
        except LakeheadError as error:
            return dict.fromkeys(partitions, error_code(error))
        return dict.fromkeys(partitions, ErrorCode.none)

    async def _drain(self, node_id: int, queue: deque[_Verification]) -> None:
        try:
            await asyncio.sleep(0)  # verifications of the same turn share a request
            while queue:
                await self._send(node_id, _next_batch(queue))
        finally:
            del self._queues[node_id]
            _settle(queue, {})

    async def _send(self, node_id: int, batch: dict[str, _Verification]) -> None:
        found: Mapping[str, Codes] = {}
        try:
            response = await self._client.send(node_id, _KEY, _VERSION, _request(batch))
            found = _codes(response)
        except (OSError, TimeoutError, MalformedFrame, KafkaError):
            pass
        finally:
            _settle(batch.values(), found)


def _next_batch(queue: deque[_Verification]) -> dict[str, _Verification]:
    """Take verifications off a queue for one request: the first, and others that fit."""
    batch: dict[str, _Verification] = {}
    elements = 0
    for _ in range(len(queue)):
        verification = queue.popleft()
        size = verification.elements
        # A response names the id only: two verifications of one id take two requests.
        if verification.transactional_id in batch or (batch and elements + size > _ELEMENTS_MAX):
            queue.append(verification)
        else:
            batch[verification.transactional_id] = verification
            elements += size
    return batch


def _settle(verifications: Iterable[_Verification], found: Mapping[str, Codes]) -> None:
    """Complete verifications with the codes of the coordinator. Partitions without a code get
    COORDINATOR_NOT_AVAILABLE.
    """
    unknown = ErrorCode.coordinator_not_available
    for verification in verifications:
        codes = found.get(verification.transactional_id, {})
        if not verification.outcome.done():  # done: its connection is gone
            verification.outcome.set_result(
                {where: codes.get(where, unknown) for where in verification.partitions}
            )


def _request(batch: dict[str, _Verification]) -> Any:
    module = schema(_KEY, _VERSION).request_module
    transactions = []
    for transactional_id, verification in batch.items():
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, index in verification.partitions:
            by_topic[topic].append(index)
        transactions.append(
            entity(
                module,
                "AddPartitionsToTxnTransaction",
                transactional_id=transactional_id,
                producer_id=verification.producer.producer_id,
                producer_epoch=verification.producer.epoch,
                verify_only=not verification.is_adding,
                topics=[
                    entity(module, "AddPartitionsToTxnTopic", name=name, partitions=indexes)
                    for name, indexes in by_topic.items()
                ],
            )
        )
    return entity(module, "AddPartitionsToTxnRequest", transactions=transactions)


def _codes(response: Any) -> dict[str, Codes]:
    """Return the codes by transactional id. Raises KafkaError for an error of the whole request."""
    if response.error_code is not ErrorCode.none:
        raise KafkaError(response.error_code)
    return {
        result.transactional_id: {
            (topic.name, partition.partition_index): partition.partition_error_code
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }
