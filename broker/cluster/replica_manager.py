"""The partitions that one node leads: elections, resignations, and requests that wait for them.

The manager follows the metadata log. Each entry's delta names topics and streams; for each stream
`transition_of` decides what this node has to do. Two tasks do that in batches: one opens streams
and loads their partitions (election), one hands streams over to the next leader (resignation).
Every topic is known on every node; a partition is open only on its leader, from the moment that its
producer states are loaded until its stream is handed over.

Life of a leadership: `AssignStreams` names the next leader. The present leader hands the stream
over and closes it; then, and only then, the assigned node opens it under the next epoch. A stream
that a dead node had open may be opened once that node's write-ahead log is recovered.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Protocol

import structlog

from lakehead.broker.cluster.metadata_image import (
    EVERYTHING,
    MetadataDelta,
    delta_of,
    leader_of,
    topics_delta,
)
from lakehead.broker.configs.entries import broker_values, record_rules
from lakehead.broker.partition.partition import Topic, TopicRegistry, open_partition
from lakehead.broker.partition.producer_table import LIMITS
from lakehead.broker.settings import Settings
from lakehead.storage.backoff import Backoff
from lakehead.storage.clock import Clock
from lakehead.storage.errors import EntryRejected, LakeheadError, OutcomeUnknown
from lakehead.storage.metadata.records import Entry
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope, task_group

OPENING_S = 10.0
"""Default time that a request for new partitions waits for their leaders."""
LOADS_MAX = 16
"""Partitions whose producer states are read at the same time."""
OPENED_AT_ONCE = 500
"""Streams that one metadata entry opens."""
HANDED_OVER_AT_ONCE = 100
"""Streams that are handed over together. Each waits for the last writes of all of them."""
DELAY_S = 0.5
"""Total time that requests wait for one partition to arrive."""

_PAUSE_S = 0.1
_PAUSE_MAX_S = 30.0
_LOADED_BETWEEN_YIELDS = 64
_CHECKED_BETWEEN_YIELDS = 250

_log = structlog.get_logger("broker.replica_manager")


class Transition(Enum):
    """The leadership transition of one stream that a node has to make."""

    NONE = auto()
    BECOME_LEADER = auto()
    RESIGN = auto()
    """This node, or an earlier life of it, has the stream open, and another node is to lead it."""
    AWAIT_NODES = auto()
    """Wait until a node is fenced, registered or recovered; then decide again."""


def transition_of(
    state: MetadataImage, stream: StreamState, node_id: int, *, is_held: bool
) -> Transition:
    """Return the transition that node `node_id` has to make. Pure. `is_held`: the node has the
    stream open in its present life.
    """
    if is_held:
        if stream.assigned in {-1, node_id}:
            return Transition.NONE
        target = state.nodes.get(stream.assigned)
        # A node that is fenced cannot open the stream, so handing it over would only stop service.
        is_lost = target is None or target.is_fenced
        return Transition.AWAIT_NODES if is_lost else Transition.RESIGN
    was_here = stream.node_id == node_id
    is_mine = stream.assigned == node_id or (stream.assigned == -1 and was_here)
    if stream.is_open and was_here:
        return Transition.BECOME_LEADER if is_mine else Transition.RESIGN
    if not is_mine:
        return Transition.NONE
    owner = state.nodes.get(stream.node_id)
    if stream.is_open and owner is not None and not owner.is_recovered:
        return Transition.AWAIT_NODES
    return Transition.BECOME_LEADER


class LeadershipListener(Protocol):
    """A part of the node that follows elections, such as the shards of a coordinator."""

    def on_election(self, topic: Topic, index: int) -> None:
        """This node leads the partition from now on."""

    def on_resignation(self, topic: Topic, index: int) -> None:
        """This node does not lead the partition any more."""


class ReplicaManager:
    """Leads the partitions that the metadata assigns to this node. One for each node."""

    def __init__(
        self,
        topics: TopicRegistry,
        engine: StreamEngine,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
    ) -> None:
        self.topics = topics
        """Every topic of the cluster."""
        self.held: dict[int, Stream] = {}
        """The streams that are open here, by id. Their partitions may not be loaded yet."""
        self.delayed = DelayedRequests(lambda: engine.metadata.state, settings.node_id, clock)
        self.is_stopped = False
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._scope = scope
        self._followed = engine.metadata.state
        self._limits = LIMITS._replace(producers=settings.max_producer_ids_per_partition)
        self._listeners: list[LeadershipListener] = []
        self._deletion_callbacks: list[Callable[[set[str]], None]] = []
        self._due: dict[Transition, dict[int, None]] = {
            one: {} for one in Transition if one is not Transition.NONE
        }
        self._may_open = asyncio.Event()
        self._may_resign = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._batch_size = OPENED_AT_ONCE

    def add_listener(self, listener: LeadershipListener) -> None:
        """Report elections and resignations to `listener` from now on."""
        self._listeners.append(listener)

    def on_deleted(self, callback: Callable[[set[str]], None]) -> None:
        """Call `callback` with the names of topics as they are deleted."""
        self._deletion_callbacks.append(callback)

    async def start(self) -> None:
        """Register every topic, lead what is assigned to this node, and follow the log from now on.
        On a standby a partition whose objects are being replaced in the copy is loaded later.

        Raises StorageError, UnsupportedFormat.
        """
        metadata = self._engine.metadata
        self._followed = metadata.state
        self._apply(metadata.state, EVERYTHING)
        metadata.follow(self._follow)
        while self._due[Transition.BECOME_LEADER]:
            await self._load_all(await self._open_some(), retries=self._settings.standby)
        self._scope.spawn(self._keep_opening(), name="open partitions")
        self._scope.spawn(self._keep_resigning(), name="hand partitions over")

    def stop(self) -> None:
        """Make no further transition, and end every `wait`: the node ends."""
        self.is_stopped = True
        self._wake_waiters()

    # Waiting.

    async def wait(self) -> None:
        """Wait until a transition was made or became due here."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future

    async def wait_led(
        self, stream_ids: Iterable[int], timeout_s: float = OPENING_S
    ) -> Collection[int]:
        """Wait until each stream is led by its assigned node; if that is this one, until its
        partition is loaded. Return the streams that are not led in time. A stream that is deleted
        counts as led.
        """
        missing = list(stream_ids)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while missing and not self.is_stopped:
                    if self._is_led(missing[-1]):
                        missing.pop()
                        if not len(missing) % _CHECKED_BETWEEN_YIELDS:
                            await asyncio.sleep(0)
                    else:
                        await self.wait()
        return [one for one in missing if not self._is_led(one)]

    def _is_led(self, stream_id: int) -> bool:
        state = self._engine.metadata.state
        stream = state.streams.get(stream_id)
        if stream is None:
            return True
        leader = leader_of(state, stream)
        if leader is None or leader.node.node_id != stream.assigned:
            return False
        if leader.node.node_id != self._engine.node.node_id:
            return True
        topic = self.topics.by_id[bytes.fromhex(stream.topic_id)]
        return topic.partitions[stream.partition] is not None

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    # Applying deltas.

    def _follow(self, state: MetadataImage, entry: Entry | None) -> None:
        if self._settings.standby:  # of a copy there are states, and no entries
            self._apply(state, topics_delta(self._followed, state))
        else:
            self._apply(state, delta_of(entry))
        self._followed = state

    def _apply(self, state: MetadataImage, delta: MetadataDelta) -> None:
        topic_ids: Iterable[str] = delta.topic_ids
        stream_ids: Iterable[int] = delta.stream_ids
        if delta.is_everything:
            known = (topic.topic_id for topic in self.topics.by_name.values())
            topic_ids = dict.fromkeys([*known, *state.topic_names])
        for topic_id in topic_ids:
            self._apply_topic(state, topic_id)
        if delta.is_everything:
            due = (stream_id for due in self._due.values() for stream_id in due)
            stream_ids = {*state.streams, *self.held, *due}
        elif delta.has_nodes:
            waiting = (*self._due[Transition.AWAIT_NODES], *self._due[Transition.RESIGN])
            stream_ids = {*stream_ids, *waiting}
        self._decide(state, stream_ids)
        self._wake_waiters()

    def _apply_topic(self, state: MetadataImage, topic_id: str) -> None:
        known = state.topic_by_id(topic_id)
        topic = self.topics.by_id.get(bytes.fromhex(topic_id))
        if known is None:
            if topic is not None:
                self._delete(topic)
            return
        if topic is None:
            topic = Topic(known.name, topic_id)
            self.topics.add(topic)
        topic.rules = record_rules(known.configs, broker_values(state, self._settings))
        topic.extend(known.partitions)

    def _delete(self, topic: Topic) -> None:
        self.topics.remove(topic)
        for index, stream_id in enumerate(topic.stream_ids):
            for due in self._due.values():
                due.pop(stream_id, None)
            stream = self.held.pop(stream_id, None)
            if stream is not None:
                self._engine.close_deleted(stream)
                self._close_partition(topic, index)
        self.delayed.complete_topic(topic)
        _log.info("topic_deleted", topic=topic.name, topic_id=topic.topic_id)
        for callback in self._deletion_callbacks:
            callback({topic.name})

    def _decide(self, state: MetadataImage, stream_ids: Iterable[int]) -> None:
        for stream_id in stream_ids:
            for due in self._due.values():
                due.pop(stream_id, None)
            stream = state.streams.get(stream_id)
            if stream is None:
                continue
            is_held = stream_id in self.held
            transition = transition_of(state, stream, self._engine.node.node_id, is_held=is_held)
            if transition is not Transition.NONE:
                self._due[transition][stream_id] = None
            if transition is Transition.BECOME_LEADER:
                self._may_open.set()
            elif transition is Transition.RESIGN:
                self._may_resign.set()

    # Election: open streams, then load their partitions.

    async def _keep_opening(self) -> None:
        while True:
            await self._may_open.wait()
            self._may_open.clear()
            while self._due[Transition.BECOME_LEADER] and not self.is_stopped:
                streams = await self._open_some()
                if streams:
                    loading = self._load_all(streams, retries=True)
                    self._scope.spawn_apart(loading, name="load partitions")

    async def _open_some(self) -> Sequence[Stream]:
        """Open due streams in one entry; return them, or nothing if the rules refuse the entry.

        Raises StorageError, but not EntryRejected.
        """
        due = self._due[Transition.BECOME_LEADER]
        batch = list(islice(due, self._batch_size))
        try:
            streams = await self._engine.open_streams(batch)
        except OutcomeUnknown:
            return ()  # the state says whether they are open, and the transitions follow from it
        except EntryRejected as error:
            # The log has moved on, and what is due with it; or the rules refuse one stream. That
            # one is found by halving, and waits for nodes, so that the others need not.
            self._batch_size = max(1, len(batch) // 2)
            if len(batch) == 1 and batch[0] in due:
                _log.warning("stream_not_opened", stream_id=batch[0], error=str(error))
                del due[batch[0]]
                self._due[Transition.AWAIT_NODES][batch[0]] = None
            return ()
        self._batch_size = OPENED_AT_ONCE
        self._hold(streams)
        return streams

    def _hold(self, streams: Sequence[Stream]) -> None:
        state = self._engine.metadata.state
        for stream in streams:
            if stream.stream_id in state.streams:
                self.held[stream.stream_id] = stream
            else:  # deleted while it was being opened
                self._engine.close_deleted(stream)
        self._decide(state, [stream.stream_id for stream in streams])

    async def _load_all(self, streams: Sequence[Stream], *, retries: bool) -> None:
        queue = iter(streams)

        async def load_some() -> None:
            for number, stream in enumerate(queue, 1):
                await self._load(stream, retries=retries)
                if not number % _LOADED_BETWEEN_YIELDS:
                    await asyncio.sleep(0)

        async with task_group() as group:
            for _ in range(min(LOADS_MAX, len(streams))):
                group.create_task(load_some())

    async def _load(self, stream: Stream, *, retries: bool, backoff: Backoff | None = None) -> None:
        """Load a partition, and serve it if it is still held here. With `retries` a failure is
        logged and tried again later, and other partitions go first.
        """
        if not self._is_held(stream):
            return
        topic, index = self._partition_of(stream.stream_id)
        try:
            partition = await open_partition(topic, index, stream, self._clock, limits=self._limits)
        except Exception as error:
            if not retries:
                raise
            where = f"{topic.name}-{index}"
            if not isinstance(error, LakeheadError):
                self._scope.on_failure(f"load {where}", error)
            if self._is_held(stream):
                _log.error("partition_not_loaded", partition=where, error=str(error))
                again = self._load_later(stream, backoff or self._backoff())
                self._scope.spawn_apart(again, name=f"load {where}")
            return
        if self._is_held(stream):
            topic.partitions[index] = partition
            self._wake_waiters()
            self.delayed.complete(topic, index)
            for listener in self._listeners:
                listener.on_election(topic, index)

    async def _load_later(self, stream: Stream, backoff: Backoff) -> None:
        await backoff.wait()
        await self._load(stream, retries=True, backoff=backoff)

    def _backoff(self) -> Backoff:
        return Backoff(self._rng, first_s=_PAUSE_S, most_s=_PAUSE_MAX_S)

    def _is_held(self, stream: Stream) -> bool:
        return stream.is_open and self.held.get(stream.stream_id) is stream

    # Resignation: hand streams over.

    async def _keep_resigning(self) -> None:
        backoff = self._backoff()
        due = self._due[Transition.RESIGN]
        while True:
            await self._may_resign.wait()
            self._may_resign.clear()
            while due and not self.is_stopped:
                batch = list(islice(due, HANDED_OVER_AT_ONCE))
                try:
                    await self._resign(batch)
                    backoff.reset()
                except LakeheadError as error:
                    _log.error("resignation_failed", partitions=len(batch), error=str(error))
                    await backoff.wait()

    async def _resign(self, stream_ids: Sequence[int]) -> None:
        await self._engine.hand_over(stream_ids)
        for stream_id in stream_ids:
            stream = self.held.get(stream_id)
            if stream is None or stream.is_open:
                continue  # left open by an earlier life of this node, or deleted meanwhile
            del self.held[stream_id]
            self._close_partition(*self._partition_of(stream_id))
        self._decide(self._engine.metadata.state, stream_ids)
        self._wake_waiters()

    def _partition_of(self, stream_id: int) -> tuple[Topic, int]:
        """Return the topic and the index of a stream's partition, which is not deleted."""
        stream = self._engine.metadata.state.streams[stream_id]
        return self.topics.by_id[bytes.fromhex(stream.topic_id)], stream.partition

    def _close_partition(self, topic: Topic, index: int) -> None:
        partition = topic.partitions[index]
        topic.partitions[index] = None
        if partition is not None:
            partition.wake()
            for listener in self._listeners:
                listener.on_resignation(topic, index)


class DelayedRequests:
    """Requests for partitions that node `node_id` is about to lead: a purgatory, in Kafka's words.

    A producer that the old leader redirected arrives here before the partition does. If this node
    refused it, the producer would retry only after its back-off, which doubles with each refusal
    (librdkafka: 100 ms, then 200 ms), and a hand-over of milliseconds would cost it hundreds. But a
    request that waits blocks its connection. So the requests of one partition wait for `wait_s` in
    all, counted from the first of them, and not again until the partition has arrived.

    `state` returns the newest image.
    """

    def __init__(self, state: Callable[[], MetadataImage], node_id: int, clock: Clock) -> None:
        self._state = state
        self._node_id = node_id
        self._clock = clock
        self.wait_s = DELAY_S
        self._until: dict[int, float] = {}
        self._callbacks: dict[int, dict[Callable[[], None], None]] = {}

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return sum(map(len, self._callbacks.values()))

    def should_wait(self, topic: Topic, index: int) -> bool:
        """Return true if a request should wait: the partition is not served here yet, and soon will
        be. The time of the partition runs from the first call.
        """
        if not 0 <= index < len(topic.partitions) or topic.partitions[index] is not None:
            return False
        state = self._state()
        stream = state.streams.get(topic.stream_ids[index])
        if stream is None or not is_arriving(state, stream, self._node_id):
            return False
        now = self._clock.monotonic()
        return now < self._until.setdefault(stream.stream_id, now + self.wait_s)

    def add(self, stream_id: int, callback: Callable[[], None]) -> None:
        """Call `callback` once the stream's partition is served here, unless `remove`d before."""
        self._callbacks.setdefault(stream_id, {})[callback] = None

    def remove(self, stream_id: int, callback: Callable[[], None]) -> None:
        """Do not call `callback` any more. A callback that was never added is ignored."""
        callbacks = self._callbacks.get(stream_id, {})
        callbacks.pop(callback, None)
        if not callbacks:
            self._callbacks.pop(stream_id, None)

    def complete(self, topic: Topic, index: int) -> None:
        """Resume the requests that wait for a partition, which is served from now on."""
        stream_id = topic.stream_ids[index]
        self._until.pop(stream_id, None)
        for callback in self._callbacks.pop(stream_id, {}):
            callback()

    def complete_topic(self, topic: Topic) -> None:
        """Resume the requests that wait for any partition of a deleted topic."""
        for index in range(len(topic.stream_ids)):
            self.complete(topic, index)


def is_arriving(state: MetadataImage, stream: StreamState, node_id: int) -> bool:
    """Return true if a node is about to lead a stream, and need not wait for the recovery of
    another node's log first.
    """
    if stream.assigned != node_id:
        return False
    owner = state.nodes.get(stream.node_id)
    return not stream.is_open or owner is None or not owner.is_fenced or owner.is_recovered
