"""A transactional producer over a connection to any broker, one request at a time, and what readers
of one topic are told: for tests that hold on Kafka too.
"""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.storage.format.record_batch import TRANSACTIONAL
from tests.support.node_client import LIMIT_S, Client
from tests.support.wire import Batch

Told = tuple[ErrorCode, int]

_PASSING = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.concurrent_transactions,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""What passes by itself, and is asked again."""


class WireProducer:
    """The producer of a transactional id; `producer_id` and `epoch` as it was told."""

    def __init__(self, client: Client, topic: str, transactional_id: str | None) -> None:
        self.client = client
        self.topic = topic
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = -1, -1

    async def _ask(self, key: int, version: int, name: str, /, **fields: Any) -> Any:
        module = schema(key, version).request_module
        return await self.client.ask(key, version, entity(module, name, **fields))

    async def initialize(self, version: int = 4) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                await self._ask(
                    *(10, 2, "FindCoordinatorRequest"), key=self.transactional_id, key_type=1
                )
                answer = await self._ask(
                    *(22, version, "InitProducerIdRequest"),
                    transactional_id=self.transactional_id,
                    transaction_timeout=60_000,
                    producer_id=-1,
                    producer_epoch=-1,
                )
                if answer.error_code not in _PASSING:
                    break
                await asyncio.sleep(0.02)
        assert answer.error_code is ErrorCode.none
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def add(self, *partitions: int) -> None:
        module, codes = schema(24, 3).request_module, {ErrorCode.concurrent_transactions}
        topic = entity(module, "AddPartitionsToTxnTopic", name=self.topic, partitions=partitions)
        async with asyncio.timeout(LIMIT_S):
            while codes & _PASSING:
                answer = await self._ask(
                    *(24, 3, "AddPartitionsToTxnRequest"),
                    v3_and_below_transactional_id=self.transactional_id,
                    v3_and_below_producer_id=self.producer_id,
                    v3_and_below_producer_epoch=self.epoch,
                    v3_and_below_topics=[topic],
                )
                results = answer.results_by_topic_v3_and_below[0].results_by_partition
                codes = {result.partition_error_code for result in results}
        assert codes == {ErrorCode.none}

    async def produce(self, sequence: int, **how: Any) -> Told:
        """Produce records; the code and the base offset."""
        version = how.pop("version", 10)
        partition, count = how.pop("partition", 0), how.pop("count", 1)
        fields = {"producer_id": self.producer_id, "producer_epoch": self.epoch, **how}
        fields.setdefault("attributes", TRANSACTIONAL)
        batch = Batch(values=(b"v",) * count, base_sequence=sequence, **fields).encode()
        told = (ErrorCode.not_enough_replicas, -1)
        async with asyncio.timeout(LIMIT_S):
            while told[0] in _PASSING:
                self.client.produce_to(
                    {partition: batch},
                    version=version,
                    transactional_id=self.transactional_id,
                    topic=self.topic,
                )
                told = (await self.client.produced_to())[partition]
        return told

    async def end(self, *, is_commit: bool, version: int = 3) -> None:
        """EndTxn, and wait for what it does."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                answer = await self._ask(
                    *(26, version, "EndTxnRequest"),
                    transactional_id=self.transactional_id,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    committed=is_commit,
                )
                if answer.error_code not in _PASSING:
                    break
            assert answer.error_code is ErrorCode.none
            if version >= 5:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            while not (await self.state()).startswith("Complete"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def state(self) -> str:
        """The state of the transaction, by its coordinator."""
        ids = (self.transactional_id,)
        answer = await self._ask(65, 0, "DescribeTransactionsRequest", transactional_ids=ids)
        return str(answer.transaction_states[0].transaction_state)

    async def mark(self, *, version: int = 1, **given: int) -> ErrorCode:
        """WriteTxnMarkers that abort, as an operator sends it."""
        module = schema(27, version).request_module
        index = given.get("partition", 0)
        topic = entity(
            module, "WritableTxnMarkerTopic", name=self.topic, partition_indexes=(index,)
        )
        marker = entity(
            module,
            "WritableTxnMarker",
            producer_id=given.get("producer_id", self.producer_id),
            producer_epoch=given.get("epoch", self.epoch),
            coordinator_epoch=given.get("coordinator_epoch", 0),
            transaction_version=given.get("transaction_version", 0),
            transaction_result=False,
            topics=[topic],
        )
        answer = await self._ask(27, version, "WriteTxnMarkersRequest", markers=[marker])
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    async def described(self, partition: int = 0) -> dict[int, tuple[int, int, int, int]]:
        """Epoch, last sequence, coordinator epoch and transaction start of each producer."""
        module = schema(61, 0).request_module
        topic = entity(module, "TopicRequest", name=self.topic, partition_indexes=(partition,))
        answer = await self._ask(61, 0, "DescribeProducersRequest", topics=[topic])
        found = answer.topics[0].partitions[0]
        assert found.error_code is ErrorCode.none
        return {
            one.producer_id: (
                one.producer_epoch,
                one.last_sequence,
                one.coordinator_epoch,
                one.current_txn_start_offset,
            )
            for one in found.active_producers
        }

    async def seen(self, offset: int = 0) -> tuple[int, int, set[tuple[int, int]]]:
        """High watermark, last stable offset, aborted transactions, for a committed reader."""
        module = schema(1, 11).request_module
        partition = entity(
            module,
            "FetchPartition",
            partition=0,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )
        topic = entity(module, "FetchTopic", topic=self.topic, partitions=[partition])
        answer = await self._ask(
            *(1, 11, "FetchRequest"),
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=1,
            session_id=0,
            session_epoch=-1,
            topics=[topic],
            forgotten_topics_data=(),
        )
        found = answer.responses[0].partitions[0]
        assert found.error_code is ErrorCode.none
        aborted = {(one.producer_id, one.first_offset) for one in found.aborted_transactions}
        return found.high_watermark, found.last_stable_offset, aborted
