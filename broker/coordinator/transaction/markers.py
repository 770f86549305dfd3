"""Send the markers of transactions to the leaders of partitions, as WriteTxnMarkers requests.

The markers of a transaction are done when every partition has its marker or is deleted, or when
this node does not coordinate the transaction any more: its new coordinator sends them again. A
marker that fails is sent again, to the leader that the partition has by then. One request to a node
is in flight at a time; markers that come meanwhile share the next.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.transaction.messages import TopicPartition
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.messages import entity
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import TaskScope

_KEY, _VERSION = 27, 2
_PARTITIONS_MAX = 1_000
"""Maximum markers of a request."""
_PAUSE_S = 0.1
"""Pause between attempts, in seconds."""
_SETTLED = frozenset(
    {
        ErrorCode.none,
        # The partition has a newer epoch of this producer: the transaction has ended there.
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unsupported_for_message_format,
    }
)
_log = structlog.get_logger(__name__)


class RequestSender(Protocol):
    """Sends requests to nodes: `lakehead.broker.cluster.inter_broker_client.InterBrokerClient`."""

    async def send(self, node_id: int, key: int, version: int, request: Any) -> Any:
        """Return the response of a node. Raises OSError, TimeoutError, MalformedFrame."""


class Leaders(Protocol):
    """The leaders of partitions: `lakehead.broker.cluster.metadata_image.MetadataCache`."""

    def exists(self, where: TopicPartition) -> bool:
        """Return true if the partition exists."""

    def leader(self, where: TopicPartition) -> int | None:
        """Return the id of the node that leads a partition, or None without a leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of a transaction, as its marker in each partition says it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    """The transaction version of the client whose transaction it is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingMarkers:
    """The markers of one transaction that are not written yet.

    `on_marked` is called with partitions as their markers are written. `is_wanted` turns false when
    this node does not coordinate the transaction any more.
    """

    marker: Marker
    is_wanted: Callable[[], bool]
    on_marked: Callable[[Collection[TopicPartition]], None]


class _MarkerEntry(NamedTuple):
    pending: PendingMarkers
    where: TopicPartition


class MarkerSender:
    """Sends the markers of this node's coordinators."""

    def __init__(self, client: RequestSender, leaders: Leaders, scope: TaskScope) -> None:
        self._client = client
        self._leaders = leaders
        self._scope = scope
        self._queues: dict[int, deque[_MarkerEntry]] = {}
        """By node. Each queue has a task that sends it."""
        self._waiting: deque[_MarkerEntry] = deque()
        """To be sent again after the pause."""
        self._is_pausing = False

    @property
    def waiting(self) -> int:
        """The number of markers to send."""
        return len(self._waiting) + sum(map(len, self._queues.values()))

    def send(self, pending: PendingMarkers, partitions: Iterable[TopicPartition]) -> None:
        """Start to send the markers of a transaction; `on_marked` may be called before this
        returns.
        """
        self._route([_MarkerEntry(pending, where) for where in partitions])

    def _route(self, entries: Iterable[_MarkerEntry]) -> None:
        gone: dict[PendingMarkers, list[TopicPartition]] = defaultdict(list)
        for entry in entries:
            if not entry.pending.is_wanted():
                continue
            if not self._leaders.exists(entry.where):
                gone[entry.pending].append(entry.where)
                continue
            node_id = self._leaders.leader(entry.where)
            if node_id is None:
                self._retry(entry)
                continue
            queue = self._queues.get(node_id)
            if queue is None:
                queue = self._queues[node_id] = deque()
                self._scope.spawn_apart(
                    self._drain(node_id, queue), name=f"markers to node {node_id}"
                )
            queue.append(entry)
        for pending, partitions in gone.items():
            pending.on_marked(partitions)

    def _retry(self, entry: _MarkerEntry) -> None:
        self._waiting.append(entry)
        self._begin_pause()

    def _begin_pause(self) -> None:
        if self._waiting and not self._is_pausing:
            self._is_pausing = True
            self._scope.spawn_apart(self._pause(), name="markers to be tried again")

    async def _pause(self) -> None:
        """Route the markers that wait, after a pause. While a node is away there may be very many:
        other work has its turn between them.
        """
        await asyncio.sleep(_PAUSE_S)
        left, some = len(self._waiting), list[_MarkerEntry]()
        try:
            while left:
                some = [self._waiting.popleft() for _ in range(min(left, _PARTITIONS_MAX))]
                left -= len(some)
                self._route(some)
                await asyncio.sleep(0)
        except Exception:
            self._waiting.extend(some)  # a marker may be written twice, but must be written
            self._is_pausing = False
            self._begin_pause()
            raise
        self._is_pausing = False
        self._begin_pause()

    def _retry_all(self, entries: Iterable[_MarkerEntry]) -> None:
        for entry in entries:
            self._retry(entry)

    async def _drain(self, node_id: int, queue: deque[_MarkerEntry]) -> None:
        await asyncio.sleep(0)  # markers of the same turn share a request
        batch: list[_MarkerEntry] = []
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), _PARTITIONS_MAX))]
                by_transaction: dict[PendingMarkers, list[TopicPartition]] = defaultdict(list)
                for pending, where in batch:
                    if pending.is_wanted():
                        by_transaction[pending].append(where)
                if by_transaction:
                    await self._send(node_id, by_transaction)
        except Exception:
            self._retry_all((*batch, *queue))  # a marker may be written twice, but must be written
            raise
        finally:
            del self._queues[node_id]

    async def _send(
        self, node_id: int, by_transaction: dict[PendingMarkers, list[TopicPartition]]
    ) -> None:
        try:
            response = await self._client.send(node_id, _KEY, _VERSION, _request(by_transaction))
            codes = _codes(response)
        except (OSError, TimeoutError, MalformedFrame, LakeheadError) as error:
            _log.info("markers_not_sent", node_id=node_id, error=repr(error))
            codes = []
        for position, (pending, partitions) in enumerate(by_transaction.items()):
            found = codes[position] if position < len(codes) else {}
            self._note(pending, {where: found.get(where) for where in partitions})

    def _note(self, pending: PendingMarkers, codes: dict[TopicPartition, ErrorCode | None]) -> None:
        if ErrorCode.transaction_coordinator_fenced in codes.values():
            return  # a newer coordinator sends them
        for where, code in codes.items():
            if code not in _SETTLED:
                self._retry(_MarkerEntry(pending, where))
        done = [where for where, code in codes.items() if code in _SETTLED]
        if done and pending.is_wanted():
            pending.on_marked(done)


def _request(by_transaction: dict[PendingMarkers, list[TopicPartition]]) -> Any:
    module = schema(_KEY, _VERSION).request_module
    markers = []
    for pending, partitions in by_transaction.items():
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, index in partitions:
            by_topic[topic].append(index)
        topics = [
            entity(module, "WritableTxnMarkerTopic", name=name, partition_indexes=indexes)
            for name, indexes in by_topic.items()
        ]
        markers.append(
            entity(
                module,
                "WritableTxnMarker",
                producer_id=pending.marker.producer_id,
                producer_epoch=pending.marker.producer_epoch,
                transaction_result=pending.marker.is_commit,
                topics=topics,
                coordinator_epoch=pending.marker.coordinator_epoch,
                transaction_version=pending.marker.transaction_version,
            )
        )
    return entity(module, "WriteTxnMarkersRequest", markers=markers)


def _codes(response: Any) -> list[dict[TopicPartition, ErrorCode]]:
    """Return the codes of each marker, in the order of the request."""
    return [
        {
            (topic.name, partition.partition_index): partition.error_code
            for topic in marker.topics
            for partition in topic.partitions
        }
        for marker in response.markers
    ]
