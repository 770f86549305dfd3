"""Audit events as records of a topic: one JSON object a record, with the principal as its key.

Events gather in a queue, bounded in bytes, and are written in batches by a task: no request waits
for them. Events beyond the queue are dropped and counted, so are those that cannot be written. The
batch goes to a partition that this node leads, if there is one. No access rule is applied to it:
writing events makes no events.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from lakehead.broker.cluster.node_producer import NodeProducer
from lakehead.broker.partition.partition import Topic
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.services import Leaders, TopicAdmin
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.format.batch_writer import encode_batch

QUEUE_MAX = 1 << 20
"""Bytes of events that may wait."""
BATCH_MAX = 128 << 10
"""Bytes of events in one batch, of a message limit that is not set lower."""
_TRIES, _PAUSE_S = 5, 1.0
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
        producer: NodeProducer,
        clock: Clock,
        *,
        node_id: int,
        is_writable: Callable[[], bool],
    ) -> None:
        self._name = name
        self._admin = admin
        self._leaders = leaders
        self._producer = producer
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
        await self._producer.produce(topic, self._place(topic), batch)

    def _place(self, topic: Topic) -> int:
        """Return a partition that this node leads, else one that has a leader. Raises OSError."""
        indexes = range(len(topic.partitions))
        led = [self._leaders.leader((self._name, index)) for index in indexes]
        if self._node_id in led:
            return led.index(self._node_id)
        found = next((index for index in indexes if led[index] is not None), None)
        if found is None:
            raise OSError(f"no partition of {self._name} has a leader")
        return found
