"""The topics that a node serves, and how they come and go: through the metadata log, then here."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog
from kio.schema.errors import ErrorCode

from broker.partition.partition import open_partition
from broker.partition.topic import Topic, TopicRegistry, is_valid_name
from broker.protocol.errors import KafkaError
from broker.settings import Settings
from storage.clock import Clock
from storage.errors import TopicExists
from storage.metadata.records import CreateStream, CreateTopic, DeleteTopic, Record
from storage.metadata.state import ClusterState, TopicState
from storage.stream.engine import StreamEngine
from storage.stream.stream import Stream
from storage.tasks import TaskScope

T = TypeVar("T")

OPENINGS_MAX = 16
"""Partitions whose producer states are read at once."""
PARTITIONS_MAX = 100_000
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}

_log = structlog.get_logger("broker.catalog")


class TopicCatalog:
    """Creates, opens and deletes topics. One for each node."""

    def __init__(
        self,
        engine: StreamEngine,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
    ) -> None:
        self.topics = TopicRegistry()
        self.on_deleted: list[Callable[[set[str]], None]] = []
        """Called with the names of topics that are no more."""
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._scope = scope
        self._lock = asyncio.Lock()
        self._seen = engine.metadata.state.topics

    async def open_all(self) -> None:
        """Open every topic of the metadata on this node. Raises StorageError, UnsupportedFormat."""
        state = self._engine.metadata.state
        await self._open([state.topics[name] for name in sorted(state.topics)])
        self._engine.metadata.subscribe(self._changed)

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic and open it.

        Raises KafkaError (INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS), TopicExists, StorageError.
        """
        if not is_valid_name(name):
            raise KafkaError(ErrorCode.invalid_topic_exception, f"{name!r} is no topic name")
        if not 0 < partitions <= PARTITIONS_MAX:
            raise KafkaError(
                ErrorCode.invalid_partitions, f"a topic has 1 to {PARTITIONS_MAX} partitions"
            )
        return await self._to_the_end(self._create(name, partitions, dict(configs or {})))

    async def ensure(self, name: str) -> Topic:
        """Return a topic, created with the defaults when there is none. Raises as `create`."""
        topic = self.topics.by_name.get(name)
        while topic is None:
            try:
                if name == OFFSETS_TOPIC:
                    number = self._settings.offsets_topic_num_partitions
                    topic = await self.create(name, number, OFFSETS_CONFIGS)
                else:
                    topic = await self.create(name, self._settings.num_partitions)
            except TopicExists:
                topic = self.topics.by_name.get(name)
                if topic is None:
                    raise
        return topic

    async def delete(self, topic_id: str) -> None:
        """Delete a topic. Raises UnknownTopic, StorageError."""
        await self._to_the_end(self._delete(topic_id))

    async def _to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change, one at a time, even if the client that asked for it goes away.

        Otherwise a topic could be in the metadata and not be open here.
        """

        async def run() -> T:
            async with self._lock:
                return await change

        task = self._scope.spawn(run(), name="change topics", is_awaited=True)
        return await asyncio.shield(task)

    async def _delete(self, topic_id: str) -> None:
        await self._engine.metadata.commit_with(lambda _: [DeleteTopic(topic_id=topic_id)])
        topic = self.topics.by_id.get(bytes.fromhex(topic_id))
        if topic is not None:
            self._forget(topic)

    async def add_partitions(self, name: str, count: int) -> None:
        """Make a topic have `count` partitions. Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_PARTITIONS), StorageError.
        """
        await self._to_the_end(self._add_partitions(name, count))

    async def _add_partitions(self, name: str, count: int) -> None:
        def plan(state: ClusterState) -> Sequence[Record]:
            known = state.topics.get(name)
            if known is None:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            present, first = len(known.partitions), state.next_stream_id
            if not present < count <= PARTITIONS_MAX:
                raise KafkaError(ErrorCode.invalid_partitions)
            return [
                CreateStream(
                    stream_id=first + index - present, topic_id=known.topic_id, partition=index
                )
                for index in range(present, count)
            ]

        state = await self._engine.metadata.commit_with(plan)
        topic = self.topics.by_name[name]
        first = len(topic.partitions)
        added = state.topics[name].partitions[first:]
        streams = await self._engine.open_streams(added)
        topic.partitions.extend([None] * len(added))
        slots = asyncio.Semaphore(OPENINGS_MAX)
        for index, stream in enumerate(streams, first):
            await self._open_partition(topic, index, stream, slots)

    async def _create(self, name: str, partitions: int, configs: dict[str, str]) -> Topic:
        topic_id = f"{self._rng.getrandbits(128) | 1:032x}"

        def plan(state: ClusterState) -> Sequence[Record]:
            if name in state.topics:
                raise TopicExists(f"topic {name} exists")
            first = state.next_stream_id
            return [
                CreateTopic(name=name, topic_id=topic_id, configs=configs),
                *(
                    CreateStream(stream_id=first + index, topic_id=topic_id, partition=index)
                    for index in range(partitions)
                ),
            ]

        try:
            state = await self._engine.metadata.commit_with(plan)
        except TopicExists:
            if name not in self.topics.by_name:  # made, but an earlier attempt could not open it
                await self._open([self._engine.metadata.state.topics[name]])
            raise
        await self._open([state.topics[name]])
        _log.info("topic_created", topic=name, topic_id=topic_id, partitions=partitions)
        return self.topics.by_name[name]

    async def _open(self, states: Sequence[TopicState]) -> None:
        streams = await self._engine.open_streams(
            [stream_id for state in states for stream_id in state.partitions]
        )
        slots = asyncio.Semaphore(OPENINGS_MAX)
        opened = iter(streams)
        async with asyncio.TaskGroup() as group:
            for state in states:
                topic = Topic(state.name, state.topic_id, len(state.partitions))
                topic.configure(state.configs, self._settings.message_max_bytes)
                self.topics.add(topic)
                for index in range(len(state.partitions)):
                    group.create_task(self._open_partition(topic, index, next(opened), slots))

    async def _open_partition(
        self, topic: Topic, index: int, stream: Stream, slots: asyncio.Semaphore
    ) -> None:
        async with slots:
            topic.partitions[index] = await open_partition(topic, index, stream, self._clock)

    def _changed(self, state: ClusterState) -> None:
        """Follow what the metadata log says of topics that are open here."""
        if state.topics is self._seen:
            return
        self._seen = state.topics
        for topic in list(self.topics.by_name.values()):
            known = state.topics.get(topic.name)
            if known is None or known.topic_id != topic.topic_id:
                self._forget(topic)
            else:
                topic.configure(known.configs, self._settings.message_max_bytes)

    def _forget(self, topic: Topic) -> None:
        if self.topics.by_id.get(topic.id_bytes) is not topic:
            return
        self.topics.remove(topic)
        for index, partition in enumerate(topic.partitions):
            topic.partitions[index] = None
            if partition is not None:
                self._engine.close_deleted(partition.stream)
                partition.wake()
        _log.info("topic_deleted", topic=topic.name, topic_id=topic.topic_id)
        for callback in self.on_deleted:
            callback({topic.name})
