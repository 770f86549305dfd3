"""What partitions ask about transactions, wherever those are coordinated (KIP-890).

A partition takes the first batch of a transaction only when the coordinator says that the partition
is in it, or has just been added. Questions to another node that come in the same moment, or while
it is being asked, share a request.
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
    CLIENT_VERSION_2,
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
"""Array elements in a request: what every node takes, whatever the partitions that it knows of. One
transaction's partitions are never divided: each is one of the cluster's, so a node takes them all
(`lakehead.broker.api.turns`).
"""

Codes = Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Question:
    transactional_id: str
    producer: Producer
    partitions: Collection[TopicPartition]
    is_adding: bool
    answer: "asyncio.Future[Codes]"

    @property
    def elements(self) -> int:
        """Array elements of the request that it is in, for its sake."""
        return 1 + len({topic for topic, _ in self.partitions}) + len(self.partitions)


class Transactions:
    """Asks coordinators for the partitions of this node (`own_id`)."""

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
        self._queues: dict[int, deque[_Question]] = {}
        """By node; one that is here has a task."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        is_adding: bool,
    ) -> Codes:
        """Return the coordinator's code for each partition; with `is_adding` those that are not in
        the transaction are added, which may begin it. Never raises; nobody to ask is
        COORDINATOR_NOT_AVAILABLE.
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
            return await self.answer(transactional_id, producer, partitions, is_adding=is_adding)
        question = _Question(
            transactional_id=transactional_id,
            producer=producer,
            partitions=partitions,
            is_adding=is_adding,
            answer=asyncio.get_running_loop().create_future(),
        )
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues[node_id] = deque()
            self._scope.spawn_apart(
                self._drain(node_id, queue), name=f"transactions of node {node_id}"
            )
        queue.append(question)
        return await question.answer

    async def answer(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        is_adding: bool,
    ) -> Codes:
        """Answer such a question here, where the transaction is coordinated. Never raises."""
        try:
            if not is_adding:
                return await self._coordinator.verify(transactional_id, producer, partitions)
            await self._coordinator.add_partitions(
                transactional_id, producer, partitions, CLIENT_VERSION_2
            )
        except LakeheadError as error:
            return dict.fromkeys(partitions, error_code(error))
        return dict.fromkeys(partitions, ErrorCode.none)

    async def _drain(self, node_id: int, queue: deque[_Question]) -> None:
        try:
            await asyncio.sleep(0)  # what is asked in the same moment goes together
            while queue:
                await self._ask(node_id, _next_batch(queue))
        finally:
            del self._queues[node_id]
            _settle(queue, {})

    async def _ask(self, node_id: int, batch: dict[str, _Question]) -> None:
        found: Mapping[str, Codes] = {}
        try:
            response = await self._client.send(node_id, _KEY, _VERSION, _request(batch))
            found = _codes(response)
        except (OSError, TimeoutError, MalformedFrame, KafkaError):
            pass
        finally:
            _settle(batch.values(), found)


def _next_batch(queue: deque[_Question]) -> dict[str, _Question]:
    """Take questions off a queue for one request: the first, and others that fit beside it."""
    batch: dict[str, _Question] = {}
    elements = 0
    for _ in range(len(queue)):
        question = queue.popleft()
        size = question.elements
        # An answer names the id only: two questions about one take two requests.
        if question.transactional_id in batch or (batch and elements + size > _ELEMENTS_MAX):
            queue.append(question)
        else:
            batch[question.transactional_id] = question
            elements += size
    return batch


def _settle(questions: Iterable[_Question], found: Mapping[str, Codes]) -> None:
    """Answer questions by what the coordinator said; of what it left out nothing is known."""
    unknown = ErrorCode.coordinator_not_available
    for question in questions:
        codes = found.get(question.transactional_id, {})
        if not question.answer.done():  # done: its connection is gone
            question.answer.set_result(
                {where: codes.get(where, unknown) for where in question.partitions}
            )


def _request(batch: dict[str, _Question]) -> Any:
    module = schema(_KEY, _VERSION).request_module
    transactions = []
    for transactional_id, question in batch.items():
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, index in question.partitions:
            by_topic[topic].append(index)
        transactions.append(
            entity(
                module,
                "AddPartitionsToTxnTransaction",
                transactional_id=transactional_id,
                producer_id=question.producer.producer_id,
                producer_epoch=question.producer.epoch,
                verify_only=not question.is_adding,
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
