"""Transaction markers on their way to the leaders of partitions, as WriteTxnMarkers requests.

A job is one transaction's markers. It ends when every partition has its marker, or is no more, or
when nobody wants it any longer: the coordinator has moved, and its successor sends them again. What
fails is tried again, at whoever leads the partition by then. One request to a node is under way at
a time; what comes meanwhile shares the next.
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
"""Markers in a request."""
_PAUSE_S = 0.1
"""Between attempts."""
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
    """Who leads what."""

    def exists(self, where: TopicPartition) -> bool:
        """Whether there is such a partition."""

    def leader(self, where: TopicPartition) -> int | None:
        """The node that leads a partition, None when none does now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What is written to each partition of a transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    client_version: int
    """The transaction version of the client whose transaction it is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One transaction's markers; `on_marked` is called with the partitions that are done."""

    marker: Marker
    is_wanted: Callable[[], bool]
    on_marked: Callable[[Collection[TopicPartition]], None]


class _Errand(NamedTuple):
    job: Job
    where: TopicPartition


class MarkerSender:
    """Sends the markers of this node's coordinators."""

    def __init__(self, client: RequestSender, leaders: Leaders, scope: TaskScope) -> None:
        self._client = client
        self._leaders = leaders
        self._scope = scope
        self._queues: dict[int, deque[_Errand]] = {}
        """By node; one that is here has a task."""
        self._waiting: deque[_Errand] = deque()
        """To be tried again after the pause."""
        self._is_pausing = False

    @property
    def waiting(self) -> int:
        """Markers in the queues."""
        return len(self._waiting) + sum(map(len, self._queues.values()))

    def send(self, job: Job, partitions: Iterable[TopicPartition]) -> None:
        """Begin to send a transaction's markers; `on_marked` may be called before this returns."""
        self._route([_Errand(job, where) for where in partitions])

    def _route(self, errands: Iterable[_Errand]) -> None:
        gone: dict[Job, list[TopicPartition]] = defaultdict(list)
        for errand in errands:
            if not errand.job.is_wanted():
                continue
            if not self._leaders.exists(errand.where):
                gone[errand.job].append(errand.where)
                continue
            node_id = self._leaders.leader(errand.where)
            if node_id is None:
                self._again(errand)
                continue
            queue = self._queues.get(node_id)
            if queue is None:
                queue = self._queues[node_id] = deque()
                self._scope.spawn_apart(
                    self._drain(node_id, queue), name=f"markers to node {node_id}"
                )
            queue.append(errand)
        for job, partitions in gone.items():
            job.on_marked(partitions)

    def _again(self, errand: _Errand) -> None:
        self._waiting.append(errand)
        if not self._is_pausing:
            self._is_pausing = True
            self._scope.spawn_apart(self._pause(), name="markers to be tried again")

    async def _pause(self) -> None:
        await asyncio.sleep(_PAUSE_S)
        self._is_pausing = False
        errands, self._waiting = self._waiting, deque()
        try:
            self._route(errands)
        except Exception:
            self._all_again(errands)
            raise

    def _all_again(self, errands: Iterable[_Errand]) -> None:
        for errand in errands:
            self._again(errand)

    async def _drain(self, node_id: int, queue: deque[_Errand]) -> None:
        await asyncio.sleep(0)  # what is sent in the same moment goes together
        batch: list[_Errand] = []
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), _PARTITIONS_MAX))]
                by_job: dict[Job, list[TopicPartition]] = defaultdict(list)
                for job, where in batch:
                    if job.is_wanted():
                        by_job[job].append(where)
                if by_job:
                    await self._send(node_id, by_job)
        except Exception:
            self._all_again((*batch, *queue))  # a marker may be written twice, and never not at all
            raise
        finally:
            del self._queues[node_id]

    async def _send(self, node_id: int, by_job: dict[Job, list[TopicPartition]]) -> None:
        try:
            answer = await self._client.send(node_id, _KEY, _VERSION, _request(by_job))
            codes = _codes(answer)
        except (OSError, TimeoutError, MalformedFrame, LakeheadError) as error:
            _log.info("markers_not_sent", node_id=node_id, error=repr(error))
            codes = []
        for position, (job, partitions) in enumerate(by_job.items()):
            found = codes[position] if position < len(codes) else {}
            self._note(job, {where: found.get(where) for where in partitions})

    def _note(self, job: Job, codes: dict[TopicPartition, ErrorCode | None]) -> None:
        if ErrorCode.transaction_coordinator_fenced in codes.values():
            return  # a newer coordinator sends them
        for where, code in codes.items():
            if code not in _SETTLED:
                self._again(_Errand(job, where))
        done = [where for where, code in codes.items() if code in _SETTLED]
        if done and job.is_wanted():
            job.on_marked(done)


def _request(by_job: dict[Job, list[TopicPartition]]) -> Any:
    module = schema(_KEY, _VERSION).request_module
    markers = []
    for job, partitions in by_job.items():
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
                producer_id=job.marker.producer_id,
                producer_epoch=job.marker.producer_epoch,
                transaction_result=job.marker.is_commit,
                topics=topics,
                coordinator_epoch=job.marker.coordinator_epoch,
                transaction_version=job.marker.client_version,
            )
        )
    return entity(module, "WriteTxnMarkersRequest", markers=markers)


def _codes(answer: Any) -> list[dict[TopicPartition, ErrorCode]]:
    """Return the codes of each marker, in the order of the request."""
    return [
        {
            (topic.name, partition.partition_index): partition.error_code
            for topic in marker.topics
            for partition in topic.partitions
        }
        for marker in answer.markers
    ]
