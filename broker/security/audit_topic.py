"""Audit events as records of a topic: one JSON object a record, with the principal as its key.

Events gather in a queue, bounded in bytes, and are written in batches by a task: no request waits
for them. Events beyond the queue are dropped and counted, so are those that cannot be written. The
batch goes to a partition that this node leads, else to another node as a Produce request of a node,
which no rule is checked for: writing events makes no events.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.inter_broker_client import InterBrokerClient
from lakehead.broker.partition.partition import Partition, Topic
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.messages import entity
from lakehead.broker.services import Leaders, TopicAdmin
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.format.batch_writer import encode_batch

QUEUE_MAX = 1 << 20
"""Bytes of events that may wait."""
BATCH_MAX = 128 << 10
"""Bytes of events in one batch, of a message limit that is not set lower."""
_PRODUCE, _VERSION = 0, 9
_TRIES, _PAUSE_S = 5, 1.0
_TIMEOUT_MS = 5_000
_log = structlog.get_logger("broker.audit")
_encode = msgspec.json.Encoder().encode

Event = tuple[bytes, bytes]


class AuditTopic:
    """Writes the events of this node to a topic; `offer` is a sink of the `AuditLog`."""

    def __init__(
        self,
        name: str,
        admin: TopicAdmin,
        leaders: Leaders,
        client: InterBrokerClient,
        clock: Clock,
        *,
        node_id: int,
        is_writable: Callable[[], bool],
    ) -> None:
        self._name = name
        self._admin = admin
        self._leaders = leaders
        self._client = client
        self._clock = clock
        self._node_id = node_id
        self._is_writable = is_writable
        self._queue: deque[Event] = deque()
        self._queued = 0
        self._has_events = asyncio.Event()
        self.written_total = 0
        """Events that are durable."""
        self.dropped_total = 0
        """Events that were dropped."""

    def offer(self, event: Mapping[str, Any]) -> None:
        """Queue an event, or drop it if the queue is full."""
        record = {"timestamp_ms": self._clock.now_ms(), "node_id": self._node_id, **event}
        key = str(event.get("principal", event.get("user", ""))).encode()
        item = key, _encode(record)
        size = len(item[0]) + len(item[1])
        if self._queued + size > QUEUE_MAX:
            self.dropped_total += 1
            return
        self._queue.append(item)
        self._queued += size
        self._has_events.set()

    async def run(self) -> None:
        """Write events as they come, until this is cancelled."""
        while True:
            await self._has_events.wait()
            batch = self._take()
            if not await self._write(batch):
                self.dropped_total += len(batch)
                _log.warning("audit_events_dropped", topic=self._name, events=len(batch))
            else:
                self.written_total += len(batch)

    def _take(self) -> list[Event]:
        batch, size = list[Event](), 0
        while self._queue and size < BATCH_MAX:
            event = self._queue.popleft()
            batch.append(event)
            size += len(event[0]) + len(event[1])
        self._queued -= size
        if not self._queue:
            self._has_events.clear()
        return batch

    async def _write(self, events: list[Event]) -> bool:
        """Return true once the events are durable, false if they could not be written. After an
        error whose outcome is unknown they are written again: an event may be there twice.
        """
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(_PAUSE_S)
            try:
                if self._is_writable():
                    await self._try(events)
                    return True
            except (LakeheadError, OSError, TimeoutError, MalformedFrame):
                continue
        return False

    async def _try(self, events: list[Event]) -> None:
        topic = await self._admin.ensure(self._name)
        batch = encode_batch(events, self._clock.now_ms())
        here = _led(topic)
        if here is not None:
            await _append(here, batch)
            return
        for index in range(len(topic.partitions)):
            leader = self._leaders.leader((self._name, index))
            if leader is not None and leader != self._node_id:
                await self._send(leader, index, bytes(batch))
                return
        raise OSError(f"no partition of {self._name} has a leader")

    async def _send(self, node_id: int, index: int, batch: bytes) -> None:
        module = schema(_PRODUCE, _VERSION).request_module
        data = entity(module, "PartitionProduceData", index=index, records=batch)
        topic = entity(module, "TopicProduceData", name=self._name, partition_data=(data,))
        request = entity(
            module,
            "ProduceRequest",
            transactional_id=None,
            acks=-1,
            timeout=_TIMEOUT_MS,
            topic_data=(topic,),
        )
        response = await self._client.send(node_id, _PRODUCE, _VERSION, request)
        code = response.responses[0].partition_responses[0].error_code
        if code is not ErrorCode.none:
            raise OSError(f"node {node_id} refused audit events: {code.name}")


def _led(topic: Topic) -> Partition | None:
    """Return a partition that this node leads."""
    return next((one for one in topic.partitions if one is not None and one.stream.is_open), None)


async def _append(partition: Partition, batch: bytearray) -> None:
    """Append a batch and wait until it is durable. Raises LakeheadError."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    partition.append(memoryview(batch), finish)
    await done
