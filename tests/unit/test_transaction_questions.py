"""What partitions ask another node about transactions: no request has more elements than every
node takes, and every question is answered.
"""

import asyncio
import io
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from lakehead.broker.api.turns import ELEMENTS_AT_ONCE_MAX
from lakehead.broker.coordinator.transaction.add_partitions_manager import AddPartitionsToTxnManager
from lakehead.broker.coordinator.transaction.messages import TopicPartition
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.messages import entity
from lakehead.storage.tasks import TaskScope

KEY, VERSION, OWN, OTHER = 24, 5, 0, 1


class Topic:
    """`__transaction_state`, whose one partition the other node leads."""

    name = "__transaction_state"

    def partition_count(self) -> int:
        return 1

    def leader(self, _where: TopicPartition) -> int:
        return OTHER


class OtherNode:
    """Takes so many elements, and says of each partition that it is in the transaction."""

    def __init__(self, elements_max: int) -> None:
        self.transactions: list[int] = []
        self._elements_max = elements_max

    async def send(self, node_id: int, key: int, version: int, request: Any) -> Any:
        assert (node_id, key, version) == (OTHER, KEY, VERSION)
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        known = decode(type(request), memoryview(body.getvalue()), 0, self._elements_max)
        self.transactions.append(len(known.transactions))
        await asyncio.sleep(0)
        module = schema(key, version).response_module
        results = [
            entity(
                module,
                "AddPartitionsToTxnResult",
                transactional_id=one.transactional_id,
                topic_results=[_done(module, topic) for topic in one.topics],
            )
            for one in known.transactions
        ]
        return entity(
            module,
            "AddPartitionsToTxnResponse",
            error_code=ErrorCode.none,
            results_by_transaction=results,
        )


def _done(module: Any, topic: Any) -> Any:
    results = [
        entity(
            module,
            "AddPartitionsToTxnPartitionResult",
            partition_index=index,
            partition_error_code=ErrorCode.none,
        )
        for index in topic.partitions
    ]
    return entity(
        module, "AddPartitionsToTxnTopicResult", name=topic.name, results_by_partition=results
    )


@pytest.mark.parametrize(
    ("transactions", "topics", "partitions", "cluster"),
    [
        (600, 1, 1, 0),
        (600, 3, 40, 120),  # 74,400 elements together
        (50, 100, 1, 100),
        (3, 1, 20_000, 20_000),  # each alone above what is sent together
        (1, 1, 20_000, 20_000),
    ],
)
async def test_questions_of_many_transactions_are_within_what_the_other_node_takes(
    transactions: int, topics: int, partitions: int, cluster: int
) -> None:
    other = OtherNode(ELEMENTS_AT_ONCE_MAX + 2 * cluster)
    failures: list[Any] = []
    scope = TaskScope(lambda *failure: failures.append(failure))
    topic: Any = Topic()
    asker = AddPartitionsToTxnManager(OWN, topic, topic, topic, other, scope)
    places = [(f"t{n}", index) for n in range(topics) for index in range(partitions)]
    asked = (
        asker.verify(f"id-{n}", n, 0, places, is_adding=bool(n % 2)) for n in range(transactions)
    )
    for codes in await asyncio.gather(*asked):
        assert codes == dict.fromkeys(places, ErrorCode.none)
    assert sum(other.transactions) == transactions
    small = transactions * (1 + topics + topics * partitions)
    assert len(other.transactions) <= 2 + small // (ELEMENTS_AT_ONCE_MAX // 2)
    assert not failures
    await scope.close()


async def test_two_questions_about_one_transaction_take_two_requests() -> None:
    other, topic = OtherNode(ELEMENTS_AT_ONCE_MAX), Topic()
    scope = TaskScope(lambda *_: None)
    wide: Any = topic
    asker = AddPartitionsToTxnManager(OWN, wide, wide, wide, other, scope)
    first, second, third = await asyncio.gather(
        asker.verify("id", 1, 0, [("t", 0)], is_adding=False),
        asker.verify("id", 1, 0, [("t", 1)], is_adding=False),
        asker.verify("other", 2, 0, [("t", 0)], is_adding=False),
    )
    assert (first, second) == ({("t", 0): ErrorCode.none}, {("t", 1): ErrorCode.none})
    assert third == {("t", 0): ErrorCode.none}
    assert other.transactions == [2, 1]
    await scope.close()
