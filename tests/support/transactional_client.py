"""A transactional producer in kio's messages, in the versions one likes, that asks nodes in this
process past the network.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.protocol.messages import entity
from tests.support.api_client import ApiClient
from tests.support.node_cluster import NodeCluster

_PAUSE_S = 0.005
STATES = "__transaction_state"
Place = tuple[str, int]


class TransactionalClient:
    """One producer of a transactional id; `producer` is (id, epoch) as it knows them."""

    def __init__(self, transactional_id: str, nodes: NodeCluster | ApiClient) -> None:
        self.transactional_id = transactional_id
        self.producer = (-1, -1)
        self._nodes = nodes

    def coordinator(self) -> ApiClient:
        """The node that coordinates the id now; any, while there is none."""
        if isinstance(self._nodes, ApiClient):
            return self._nodes
        first = next(iter(self._nodes.nodes.values()))
        topic = first.topics.by_name.get(STATES)
        count = 0 if topic is None else len(topic.partitions)
        where = STATES, partition_of(self.transactional_id, count) if count else 0
        node_id = first.metadata_cache.leader(where)
        return self._nodes.client(first.node_id if node_id is None else node_id)

    def move(self, nodes: NodeCluster | ApiClient) -> None:
        """Go on with these nodes."""
        self._nodes = nodes

    async def find(self) -> ErrorCode:
        """Have the coordinator's topic made."""

        def build(module: Any) -> Any:
            keys = [self.transactional_id]
            return entity(module, "FindCoordinatorRequest", key_type=1, coordinator_keys=keys)

        answer = (await self.coordinator().ask(10, 4, build)).coordinators[0]
        return ErrorCode(answer.error_code)

    async def initialize(
        self, version: int = 4, *, timeout_ms: int = 60_000, is_fresh: bool = True
    ) -> ErrorCode:
        """InitProducerId; not `is_fresh`: as what it is."""
        known = (-1, -1) if is_fresh else self.producer

        def build(module: Any) -> Any:
            return entity(
                module,
                "InitProducerIdRequest",
                transactional_id=self.transactional_id,
                transaction_timeout=timeout_ms,
                producer_id=known[0],
                producer_epoch=known[1],
            )

        answer = await self.coordinator().ask(22, version, build)
        if answer.error_code is ErrorCode.none:
            self.producer = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    async def initialize_at_last(self, **how: Any) -> ErrorCode:
        """InitProducerId, again while something is being ended."""
        code = ErrorCode.concurrent_transactions
        while code is ErrorCode.concurrent_transactions:
            code = await self.initialize(**how)
            await asyncio.sleep(_PAUSE_S)
        return code

    async def add(self, places: Iterable[Place], version: int = 3) -> list[ErrorCode]:
        """AddPartitionsToTxn as a producer sends it."""

        def build(module: Any) -> Any:
            topics = [
                entity(module, "AddPartitionsToTxnTopic", name=name, partitions=[index])
                for name, index in places
            ]
            return entity(
                module,
                "AddPartitionsToTxnRequest",
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer[0],
                v3_and_below_producer_epoch=self.producer[1],
                v3_and_below_topics=topics,
            )

        answer = await self.coordinator().ask(24, version, build)
        return [
            ErrorCode(partition.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        ]

    async def add_offsets(self, group_id: str, version: int = 3) -> ErrorCode:
        """AddOffsetsToTxn."""

        def build(module: Any) -> Any:
            return entity(
                module,
                "AddOffsetsToTxnRequest",
                transactional_id=self.transactional_id,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                group_id=group_id,
            )

        return ErrorCode((await self.coordinator().ask(25, version, build)).error_code)

    async def commit_offset(
        self, group: ApiClient, group_id: str, place: Place, offset: int, version: int = 3
    ) -> ErrorCode:
        """TxnOffsetCommit, to the group's coordinator."""

        def build(module: Any) -> Any:
            partition = entity(
                module,
                "TxnOffsetCommitRequestPartition",
                partition_index=place[1],
                committed_offset=offset,
                committed_metadata="",
            )
            topic = entity(
                module, "TxnOffsetCommitRequestTopic", name=place[0], partitions=[partition]
            )
            return entity(
                module,
                "TxnOffsetCommitRequest",
                transactional_id=self.transactional_id,
                group_id=group_id,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                topics=[topic],
            )

        answer = await group.ask(28, version, build)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def end(self, version: int = 3, *, is_commit: bool = True) -> ErrorCode:
        """EndTxn."""

        def build(module: Any) -> Any:
            return entity(
                module,
                "EndTxnRequest",
                transactional_id=self.transactional_id,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                committed=is_commit,
            )

        answer = await self.coordinator().ask(26, version, build)
        if answer.error_code is ErrorCode.none and version >= 5:
            self.producer = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    async def describe(self) -> Any:
        """DescribeTransactions."""

        def build(module: Any) -> Any:
            ids = [self.transactional_id]
            return entity(module, "DescribeTransactionsRequest", transactional_ids=ids)

        return (await self.coordinator().ask(65, 0, build)).transaction_states[0]

    async def state(self) -> str:
        """The state's name."""
        return str((await self.describe()).transaction_state)

    async def until(self, *states: str) -> None:
        """Wait until the id is in one of these states."""
        while await self.state() not in states:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(_PAUSE_S)
