"""Batches of a node's own for partitions of topics, wherever these are led.

A partition that this node leads is appended to by the rules of its topic. Else its leader gets a
Produce request of a node, which no access rule and no quota is applied to.
"""

import asyncio
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.inter_broker_client import InterBrokerClient
from lakehead.broker.partition.partition import Partition, Topic
from lakehead.broker.partition.record_checks import check_records
from lakehead.broker.partition.validation import check_contents
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.services import Leaders
from lakehead.storage.clock import Clock
from lakehead.storage.format.record_batch import HEADER_SIZE, read_header, stamp

_PRODUCE, _VERSION = 0, 9
_TIMEOUT_MS = 5_000


class NodeProducer:
    """Produces batches that have no producer id."""

    def __init__(
        self, client: InterBrokerClient, leaders: Leaders, clock: Clock, *, node_id: int
    ) -> None:
        self._client = client
        self._leaders = leaders
        self._clock = clock
        self._node_id = node_id

    async def produce(self, topic: Topic, index: int, batch: bytearray) -> None:
        """Append an uncompressed batch to a partition; return when it is durable.

        Raises KafkaError (NOT_LEADER_OR_FOLLOWER without a leader, and the codes of Produce), the
        errors of `Stream.append`, and OSError, TimeoutError, MalformedFrame: it may be there then.
        """
        partition = topic.partitions[index]
        if partition is not None and partition.stream.is_open:
            await self._append(partition, batch)
            return
        leader = self._leaders.leader((topic.name, index))
        if leader is None or leader == self._node_id:
            raise KafkaError(
                ErrorCode.not_leader_or_follower, f"{topic.name}-{index} has no leader"
            )
        response = await self._client.send(
            leader, _PRODUCE, _VERSION, _request(topic, index, batch)
        )
        result = response.responses[0].partition_responses[0]
        if result.error_code is not ErrorCode.none:
            raise KafkaError(result.error_code, result.error_message)

    async def _append(self, partition: Partition, batch: bytearray) -> None:
        topic, now_ms = partition.topic, self._clock.now_ms()
        view, header = memoryview(batch), read_header(batch)
        check_contents(view, header, topic.rules, now_ms)
        if topic.rules.reads_records:
            check = partial(
                check_records, view[HEADER_SIZE:], header, topic, partition.index, now_ms
            )
            await asyncio.get_running_loop().run_in_executor(None, check)
        if topic.rules.is_log_append_time:
            stamp(batch, topic.append_time(now_ms))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        partition.append(view, finish)
        await done


def _request(topic: Topic, index: int, batch: bytearray) -> Any:
    module = schema(_PRODUCE, _VERSION).request_module
    data = entity(module, "PartitionProduceData", index=index, records=bytes(batch))
    named = entity(module, "TopicProduceData", name=topic.name, partition_data=(data,))
    return entity(
        module,
        "ProduceRequest",
        transactional_id=None,
        acks=-1,
        timeout=_TIMEOUT_MS,
        topic_data=(named,),
    )
