"""Stores the states of share-partitions with their share coordinators, on this node or others.

A request is sent to the node that coordinates the share-partition now. One that fails in between
(the coordinator moves, or cannot be reached) is sent again for some seconds: the coordinator takes
the same state twice, and epochs fence those that come too late. Requests to a node that begin in
the same turn share a message. The first of several states that are read has one of its own, as in
Kafka: members get records of its partition before the others are there.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.partition.partition import SHARE_STATES_TOPIC
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import KafkaError, MalformedFrame
from lakehead.broker.protocol.messages import entity
from lakehead.broker.share.record_state import RecordState, ShareState, StateBatch
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import TaskScope

_INITIALIZE = (83, 0, "InitializeShareGroupState")
_READ = (84, 0, "ReadShareGroupState")
_WRITE = (85, 1, "WriteShareGroupState")
_DELETE = (86, 0, "DeleteShareGroupState")
_SUMMARY = (87, 1, "ReadShareGroupStateSummary")

_PAUSE_S = 0.05
"""Pause before a request is sent again, in seconds."""
_PARTITIONS_MAX = 1_000
"""Maximum share-partitions of a message."""
_PASSING = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
    }
)
_log = structlog.get_logger(__name__)


class RequestSender(Protocol):
    """Sends requests to nodes: `lakehead.broker.cluster.inter_broker_client.InterBrokerClient`."""

    async def send(self, node_id: int, key: int, version: int, request: Any) -> Any:
        """Return the response of a node. Raises OSError, TimeoutError, MalformedFrame."""


class Coordinators(Protocol):
    """Finds coordinators: by the topic of their states."""

    def partition_count(self) -> int:
        """Partitions of the topic; 0 while it does not exist."""

    async def create(self) -> None:
        """Create the topic if it does not exist."""


class Leaders(Protocol):
    """The leaders of partitions: `lakehead.broker.cluster.metadata_image.MetadataCache`."""

    def leader(self, where: tuple[str, int]) -> int | None:
        """Return the id of the node that leads a partition, or None without a leader."""


class _Call(NamedTuple):
    """A request about one share-partition, and the future of its response."""

    api: tuple[int, int, str]
    key: SharePartitionKey
    fields: dict[str, Any]
    outcome: asyncio.Future[Any]
    until: float


class Persister:
    """The share coordinators, as the leaders of partitions and group coordinators see them.

    Methods raise KafkaError: the code of the coordinator, or COORDINATOR_NOT_AVAILABLE where none
    responded within `timeout_s`; the request may have been handled then.
    """

    def __init__(
        self,
        client: RequestSender,
        topic: Coordinators,
        leaders: Leaders,
        scope: TaskScope,
        *,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._topic = topic
        self._leaders = leaders
        self._scope = scope
        self._timeout_s = timeout_s
        self._queues: dict[tuple[int, tuple[int, int, str]], list[_Call]] = {}
        """By node and API. Each queue has a task that sends it."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begin a new state."""
        await self._call(
            _INITIALIZE, key, {"state_epoch": state_epoch, "start_offset": start_offset}
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state, for the leader of this epoch; leaders before it are fenced."""
        found = await self._call(_READ, key, {"leader_epoch": leader_epoch})
        return ShareState(
            found.start_offset,
            found.state_epoch,
            leader_epoch,
            batches=tuple(
                StateBatch(
                    one.first_offset,
                    one.last_offset,
                    RecordState(one.delivery_state),
                    one.delivery_count,
                )
                for one in found.state_batches
            ),
        )

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        """Add the batches of a state to what is stored, and move the start offset; of a state that
        is not initialized any more, or of a leader that is fenced, nothing.
        """
        module = schema(*_WRITE[:2]).request_module
        batches = [
            entity(
                module,
                "StateBatch",
                first_offset=one.first_offset,
                last_offset=one.last_offset,
                delivery_state=one.state,
                delivery_count=one.delivery_count,
            )
            for one in state.batches
        ]
        fields = {
            "state_epoch": state.state_epoch,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start_offset,
            "delivery_complete_count": state.delivery_complete_count,
            "state_batches": batches,
        }
        await self._call(_WRITE, key, fields)

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete a state. There need not be one."""
        await self._call(_DELETE, key, {})

    async def summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> ShareState:
        """Return a state without its batches; without start offset if there is none."""
        found = await self._call(_SUMMARY, key, {"leader_epoch": leader_epoch})
        return ShareState(
            found.start_offset, found.state_epoch, found.leader_epoch, found.delivery_complete_count
        )

    # Sending.

    async def _call(
        self, api: tuple[int, int, str], key: SharePartitionKey, fields: dict[str, Any]
    ) -> Any:
        """Return the result of one share-partition."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        if not self._topic.partition_count():
            await self._topic.create()
        while True:
            node_id = self._leaders.leader(
                (SHARE_STATES_TOPIC, partition_of(key.text, self._topic.partition_count()))
            )
            result = None
            if node_id is not None:
                call = _Call(api, key, fields, loop.create_future(), until)
                self._enqueue(node_id, call)
                result = await call.outcome
            if result is not None and result.error_code not in _PASSING:
                break
            if loop.time() + _PAUSE_S > until:
                raise KafkaError(ErrorCode.coordinator_not_available)
            await asyncio.sleep(_PAUSE_S)
        if result.error_code is not ErrorCode.none:
            raise KafkaError(result.error_code, result.error_message)
        return result

    def _enqueue(self, node_id: int, call: _Call) -> None:
        queue = self._queues.get((node_id, call.api))
        if queue is None:
            queue = self._queues[node_id, call.api] = []
            self._scope.spawn_apart(
                self._drain(node_id, call.api, queue), name=f"share states to node {node_id}"
            )
        queue.append(call)

    async def _drain(self, node_id: int, api: tuple[int, int, str], queue: list[_Call]) -> None:
        await asyncio.sleep(0)  # requests of the same turn share a message
        calls: list[_Call] = []
        most = 1 if api == _READ else _PARTITIONS_MAX
        try:
            while queue:
                calls, queue[:] = queue[:most], queue[most:]
                most = _PARTITIONS_MAX
                await self._send(node_id, api, calls)
        finally:
            del self._queues[node_id, api]
            for call in (*calls, *queue):
                if not call.outcome.done():
                    call.outcome.set_result(None)

    async def _send(self, node_id: int, api: tuple[int, int, str], calls: list[_Call]) -> None:
        """Send calls, a message for each group, and give each its result: None if there is none."""
        key, version, name = api
        by_group: dict[str, list[_Call]] = defaultdict(list)
        for call in calls:
            by_group[call.key.group_id].append(call)
        for group_id, group in by_group.items():
            found: dict[tuple[bytes, int], Any] = {}
            try:
                response = await self._client.send(
                    node_id, key, version, _request(api, group_id, group)
                )
                found = {
                    (topic.topic_id.bytes, one.partition): one
                    for topic in response.results
                    for one in topic.partitions
                }
            except (OSError, TimeoutError, MalformedFrame, LakeheadError) as error:
                _log.info("share_state_not_sent", api=name, node_id=node_id, error=repr(error))
            for call in group:
                if not call.outcome.done():
                    call.outcome.set_result(found.get((call.key.topic_id, call.key.partition)))


def _request(api: tuple[int, int, str], group_id: str, calls: Iterable[_Call]) -> Any:
    key, version, name = api
    module = schema(key, version).request_module
    by_topic: dict[bytes, list[Any]] = defaultdict(list)
    for call in calls:
        by_topic[call.key.topic_id].append(
            entity(module, "PartitionData", partition=call.key.partition, **call.fields)
        )
    topics = [
        entity(
            module,
            f"{name.replace('ShareGroup', '')}Data",
            topic_id=UUID(bytes=topic_id),
            partitions=partitions,
        )
        for topic_id, partitions in by_topic.items()
    ]
    return entity(module, f"{name}Request", group_id=group_id, topics=topics)
