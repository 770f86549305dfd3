"""The partitions that this node serves to consumers of its zone, though other nodes lead them
(KIP-392).

A read replica is opened by the first Fetch for it, from committed objects: it has the state of the
partition as its leader would load it, and with that the last stable offset and the aborted
transactions. It advances in two ways. When the leader has committed objects, the metadata say so,
and the replica reads their headers. Before that, if `replica.read.tail` is `leader`, it copies the
tail from the leader by Fetch: once for this node, for any number of consumers. If it is `wal`, and
the leader's log is in the cluster's store, it reads the tail there, and the leader sends nothing.
Each way brings only what is durable.

A replica belongs to one leader epoch. When the metadata name another, it is closed, and its tail is
dropped. The metadata that this node knows are as old as its session allows: without a current
session Fetch refuses.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.inter_broker_client import InterBrokerClient
from lakehead.broker.partition.partition import (
    Partition,
    Topic,
    follow_committed,
    restore_producers,
)
from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import KafkaError, MalformedFrame
from lakehead.broker.protocol.messages import entity
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError, StorageError
from lakehead.storage.format.producer_headers import state_batch
from lakehead.storage.format.record_batch import iter_headers
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.records import Entry, ReplaceObjects
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.stream.log_cache import CachedBatch
from lakehead.storage.stream.read_replica import ReadReplicaServices
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.object.tail import ObjectWalTail
from lakehead.storage.wal.protocol import WalFloor

REPLICAS_MAX = 2_000
"""Partitions that a node serves beside those that it leads; more are read from their leaders."""
IDLE_S = 60.0
"""A replica that no consumer has read for so long is closed."""
_FETCH, _VERSION = 1, 13
_PARTITIONS_AT_ONCE = 500
_COPIED_AT_ONCE = 512 << 10
_PER_PARTITION = 128 << 10
_WAIT_MS = 250
_PAUSE_S = 0.5
_OBJECT_WAL = "object:"
_LOG_POLL_S, _LOG_POLL_MAX_S = 0.01, 0.25
"""Pauses between looks for the next object of a log. Each costs a GET, idle or not."""
_log = structlog.get_logger("broker.read_replicas")


class TailSource(StrEnum):
    """The source of records that no committed object holds: `replica.read.tail`."""

    LEADER = "leader"
    WAL = "wal"
    """The leader's log in the cluster's store; the leader, if its log is elsewhere."""
    OBJECTS = "objects"
    """None: such records are not served."""


OnOpen = Callable[[], None]


class ReadReplica:
    """One partition. `partition` is None until it is open."""

    __slots__ = (
        "index",
        "is_catching_up",
        "leader_id",
        "partition",
        "producers",
        "stream",
        "topic",
        "used_at",
        "waiting",
    )

    def __init__(self, topic: Topic, index: int, stream: Stream, leader_id: int) -> None:
        self.topic = topic
        self.index = index
        self.stream = stream
        self.leader_id = leader_id
        self.partition: Partition | None = None
        self.producers: ProducerStates | None = None
        self.used_at = 0.0
        self.waiting: dict[OnOpen, None] = {}
        self.is_catching_up = False


class ReadReplicas:
    """Every read replica of a node. `store` is the cluster's, with the logs of nodes that write
    there.
    """

    def __init__(
        self,
        services: ReadReplicaServices,
        client: InterBrokerClient,
        clock: Clock,
        scope: TaskScope,
        *,
        node_id: int,
        tail: TailSource,
        store: ObjectStore,
    ) -> None:
        self._services = services
        self._client = client
        self._clock = clock
        self._scope = scope
        self._node_id = node_id
        self._tail = tail
        self._store = store
        self._rewound: set[int] = set()
        """Leaders of whose logs a replica needs what was read before it came."""
        self._known: dict[int, ReadReplica] = {}
        self._copying: set[int] = set()
        self.opened_total = 0
        """Replicas opened."""
        self.copied_bytes_total = 0
        """Bytes copied from leaders, before they were committed."""
        self.log_bytes_total = 0
        """Bytes read from leaders' logs, before they were committed."""
        services.metadata.follow(self._follow)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def tail_bytes(self) -> int:
        """Memory of tails."""
        return self._services.cache.size

    def get(self, topic: Topic, index: int, on_open: OnOpen) -> Partition | None:
        """Return a partition, as of now. None while it is being opened: `on_open` is called then.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (this node leads it or
        will, or serves too many).
        """
        replica = self._replica(topic, index)
        replica.used_at = self._clock.monotonic()
        if replica.partition is None:
            replica.waiting[on_open] = None
        return replica.partition

    def find(self, topic: Topic, index: int) -> Partition | None:
        """Return a partition that is open."""
        known = topic.stream_ids[index] if 0 <= index < len(topic.stream_ids) else -1
        replica = self._known.get(known)
        return None if replica is None else replica.partition

    def stop_waiting(self, topic: Topic, index: int, on_open: OnOpen) -> None:
        """Do not call `on_open` any more. Harmless if it does not wait."""
        known = topic.stream_ids[index] if 0 <= index < len(topic.stream_ids) else -1
        replica = self._known.get(known)
        if replica is not None:
            replica.waiting.pop(on_open, None)

    async def run(self) -> None:
        """Close replicas that are not read any more, until this is cancelled."""
        while True:
            await asyncio.sleep(IDLE_S / 4)
            oldest = self._clock.monotonic() - IDLE_S
            for replica in list(self._known.values()):
                if replica.used_at < oldest:
                    self._close(replica)

    def expire_producers(self, before_ms: int) -> Iterable[int]:
        """Forget producers of replicas, as `ProducerStates.expire`. Yields after each piece of the
        work.
        """
        for replica in list(self._known.values()):
            if replica.producers is not None:
                yield from replica.producers.expire(before_ms)

    def close(self) -> None:
        """Close every replica."""
        for replica in list(self._known.values()):
            self._close(replica)

    # Opening.

    def _replica(self, topic: Topic, index: int) -> ReadReplica:
        if not 0 <= index < len(topic.stream_ids):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        stream_id = topic.stream_ids[index]
        state = self._services.metadata.state.streams.get(stream_id)
        if state is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        replica = self._known.get(stream_id)
        if replica is not None and replica.stream.epoch == state.epoch:
            return replica
        if replica is not None:
            self._close(replica)
        is_ours = self._node_id in {state.node_id, state.assigned}
        if is_ours or state.epoch < 0 or len(self._known) >= REPLICAS_MAX:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        replica = ReadReplica(topic, index, self._services.stream(stream_id), state.node_id)
        self._known[stream_id] = replica
        self._scope.spawn_apart(self._open(replica), name=f"open replica of stream {stream_id}")
        return replica

    async def _open(self, replica: ReadReplica) -> None:
        """Load the state of a partition, up to the end of what is committed."""
        stream = replica.stream
        try:
            stored = await stream.load_state()
            producers = replica.producers = await restore_producers(stored)
            await follow_committed(stream, producers, stored.end_offset, self._clock)
        except LakeheadError as error:
            where = f"{replica.topic.name}-{replica.index}"
            _log.warning("read_replica_not_opened", partition=where, error=str(error))
            self._close(replica)
            return
        if not self._is_known(replica):
            return
        replica.partition = Partition(replica.topic, replica.index, stream, producers, self._clock)
        self.opened_total += 1
        for on_open in list(replica.waiting):
            on_open()
        replica.waiting.clear()
        self._rewound.add(replica.leader_id)
        self._advance(replica)

    def _close(self, replica: ReadReplica) -> None:
        """Forget a replica; requests that wait for it look again."""
        stream_id = replica.stream.stream_id
        if self._known.get(stream_id) is not replica:
            return
        del self._known[stream_id]
        replica.stream.close()
        self._services.cache.forget(stream_id)
        for on_open in list(replica.waiting):
            on_open()
        if replica.partition is not None:
            replica.partition.wake()

    def _is_known(self, replica: ReadReplica) -> bool:
        return self._known.get(replica.stream.stream_id) is replica

    # Advancing.

    def _follow(self, state: MetadataImage, entry: Entry | None) -> None:
        known = self._known
        if not known:
            return
        for record in () if entry is None else entry.records:
            if isinstance(record, ReplaceObjects) and record.forgets >= 0:
                for span in (span for one in record.objects for span in one.ranges):
                    self._services.cache.committed(span.stream_id, span.end_offset)
        for stream_id in known.keys() & _changed(entry) if entry is not None else list(known):
            replica, now = known[stream_id], state.streams.get(stream_id)
            if now is None or now.epoch != replica.stream.epoch:
                self._close(replica)
            elif replica.partition is not None:
                self._advance(replica)

    def _advance(self, replica: ReadReplica) -> None:
        """Go on to what is committed by now, and to the leader's tail."""
        stream = replica.stream
        committed = stream.committed_offset
        if committed > stream.confirmed_offset:
            if not replica.is_catching_up:
                replica.is_catching_up = True
                work = self._catch_up(replica)
                self._scope.spawn_apart(work, name=f"follow stream {stream.stream_id}")
            return
        self._services.cache.committed(stream.stream_id, committed)
        if replica.producers is not None:
            replica.producers.transactions.trim(stream.start_offset)
        self._copy_from(replica.leader_id)

    async def _catch_up(self, replica: ReadReplica) -> None:
        stream, producers = replica.stream, replica.producers
        assert producers is not None
        try:
            await follow_committed(stream, producers, stream.confirmed_offset, self._clock)
        except LakeheadError as error:
            where = f"{replica.topic.name}-{replica.index}"
            _log.warning("read_replica_closed", partition=where, error=str(error))
            self._close(replica)
            return
        replica.is_catching_up = False
        self._rewound.add(replica.leader_id)
        if self._is_known(replica) and replica.partition is not None:
            replica.partition.wake()
            self._advance(replica)

    # The tails of leaders.

    def _copy_from(self, leader_id: int) -> None:
        if self._tail is not TailSource.OBJECTS and leader_id not in self._copying:
            self._copying.add(leader_id)
            work = self._copy(leader_id)
            self._scope.spawn_apart(work, name=f"copy tails of node {leader_id}")

    async def _copy(self, leader_id: int) -> None:
        try:
            while replicas := self._open_of(leader_id):
                node = self._services.metadata.state.nodes.get(leader_id)
                if not self._services.cache.has_room:
                    await asyncio.sleep(_PAUSE_S)  # until the leader commits
                elif self._tail is TailSource.WAL and node is not None and node.wal == _OBJECT_WAL:
                    await self._read_log(node)
                elif not await self._fetch(leader_id, replicas):
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self._copying.discard(leader_id)

    async def _fetch(self, leader_id: int, replicas: list[ReadReplica]) -> bool:
        """Copy what the leader has; false if it does not send it. A response has room for some of
        the partitions: those that got records come last in the next request, and those that are
        not in this one come first.
        """
        named = replicas[:_PARTITIONS_AT_ONCE]
        self._put_last(named)
        try:
            response = await self._client.send(leader_id, _FETCH, _VERSION, _request(named))
        except (OSError, TimeoutError, MalformedFrame):
            return False
        return await self._take(named, response)

    def _put_last(self, replicas: Iterable[ReadReplica]) -> None:
        for replica in replicas:
            if self._is_known(replica):
                stream_id = replica.stream.stream_id
                self._known[stream_id] = self._known.pop(stream_id)

    async def _read_log(self, node: NodeState) -> None:
        """Read a leader's log as it grows, in one epoch of the leader."""
        metadata, pause_s = self._services.metadata, _LOG_POLL_S
        tail = ObjectWalTail(
            self._store,
            cluster_id=metadata.state.cluster_id,
            node_id=node.node_id,
            epoch=node.epoch,
            incarnation=node.incarnation,
        )
        self._rewound.add(node.node_id)
        while replicas := self._open_of(node.node_id):
            now = metadata.state.nodes.get(node.node_id)
            if now is None or now.epoch != node.epoch or not self._services.cache.has_room:
                return
            floor = WalFloor(now.wal_epoch, now.wal_floor)
            if node.node_id in self._rewound:
                self._rewound.discard(node.node_id)
                tail.rewind_to(floor)
            tail.skip_to(floor)
            by_stream = {one.stream.stream_id: one for one in replicas}
            try:
                found = await tail.next(frozenset(by_stream))
            except StorageError as error:
                _log.warning("log_of_leader_not_read", node_id=node.node_id, error=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            if found is None:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LOG_POLL_MAX_S)
                continue
            pause_s = _LOG_POLL_S
            for stream_id, records in groupby(found, key=lambda one: one.stream_id):
                replica = by_stream[stream_id]
                size = sum(
                    self._add(replica, one.payload)
                    for one in records
                    if one.epoch == replica.stream.epoch
                )
                self.log_bytes_total += size
            await asyncio.sleep(0)

    def _open_of(self, leader_id: int) -> list[ReadReplica]:
        """Return the replicas to copy tails for, in the order of their turns."""
        return [
            replica
            for replica in self._known.values()
            if replica.leader_id == leader_id
            and replica.partition is not None
            and not replica.is_catching_up
        ]

    async def _take(self, replicas: list[ReadReplica], response: Any) -> bool:
        """Add what a leader sent; false if it sent an error."""
        by_place = {(replica.topic.uuid, replica.index): replica for replica in replicas}
        is_well = response.error_code is ErrorCode.none
        for of_topic in response.responses:
            for result in of_topic.partitions:
                replica = by_place.get((of_topic.topic_id, result.partition_index))
                if replica is None:
                    continue
                is_well = is_well and result.error_code is ErrorCode.none
                if result.error_code is ErrorCode.none and result.records:
                    self.copied_bytes_total += self._add(replica, memoryview(result.records))
                    self._put_last((replica,))
                    await asyncio.sleep(0)
        return is_well

    def _add(self, replica: ReadReplica, records: memoryview) -> int:
        """Add whole batches to a tail that they continue, and return their bytes; what does not
        continue it comes again.
        """
        stream, partition, producers = replica.stream, replica.partition, replica.producers
        if not self._is_known(replica) or partition is None or producers is None:
            return 0
        if replica.is_catching_up:
            return 0
        size = 0
        now_ms = self._clock.now_ms()
        for position, header in iter_headers(records):
            if header.base_offset != stream.confirmed_offset:
                if header.end_offset <= stream.confirmed_offset:
                    continue
                break
            batch = memoryview(bytes(records[position : position + header.size]))
            marker = state_batch(batch).marker
            producers.add(header, header.base_offset, header.end_offset, now_ms, marker)
            cached = CachedBatch(
                header.base_offset, header.end_offset, stream.epoch, header.max_timestamp, batch
            )
            self._services.cache.add(stream.stream_id, cached)
            size += len(batch)
            stream.next_offset = header.end_offset
            stream.confirm(header.end_offset)
        if size:
            partition.wake()
        return size


def _changed(entry: Entry) -> set[int]:
    """Return the streams whose owner, or whose committed end, an entry changes."""
    found: set[int] = set()
    for record in entry.records:
        match record:
            case r.CommitObjects() | r.InheritTail():
                found.update(span.stream_id for one in record.objects for span in one.ranges)
            case r.OpenStream() | r.CloseStream() | r.DeleteStream() | r.TrimStream():
                found.add(record.stream_id)
            case _:
                pass
    return found


def _request(replicas: Iterable[ReadReplica]) -> Any:
    """Return a Fetch request for what follows the ends of replicas."""
    module = schema(_FETCH, _VERSION).request_module
    topics: dict[UUID, list[Any]] = {}
    for replica in replicas:
        stream = replica.stream
        topics.setdefault(replica.topic.uuid, []).append(
            entity(
                module,
                "FetchPartition",
                partition=replica.index,
                current_leader_epoch=stream.epoch,
                fetch_offset=stream.confirmed_offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=_PER_PARTITION,
            )
        )
    return entity(
        module,
        "FetchRequest",
        replica_id=-1,
        max_wait=timedelta(milliseconds=_WAIT_MS),
        min_bytes=1,
        max_bytes=_COPIED_AT_ONCE,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            entity(module, "FetchTopic", topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        forgotten_topics_data=[],
        rack_id="",
    )
