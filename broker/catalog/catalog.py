"""The topics of the cluster as one node sees them, and how they come and go: through the metadata
log.

Every topic is known on every node; a partition is open only where it is led (see `leadership`).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.catalog.arrivals import Arrivals
from lakehead.broker.catalog.duties import EVERYTHING, News, news_of
from lakehead.broker.catalog.leaders import leader_of
from lakehead.broker.catalog.leadership import Leadership
from lakehead.broker.catalog.placement import as_assigned, new_streams, spread
from lakehead.broker.configs.entries import broker_values, record_rules
from lakehead.broker.partition.partition import Partition
from lakehead.broker.partition.producer_table import LIMITS
from lakehead.broker.partition.topic import Topic, TopicRegistry, is_valid_name
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock
from lakehead.storage.errors import TopicExists
from lakehead.storage.metadata.records import CreateTopic, DeleteTopic, Entry, Record
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.tasks import TaskScope

PARTITIONS_MAX = 100_000
_YIELD_EVERY = 250
OPENING_S = 10.0
"""How long whoever makes partitions waits until they are led."""
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
TRANSACTIONS_TOPIC = "__transaction_state"
TRANSACTIONS_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": "104857600",
    "unclean.leader.election.enable": "false",
}

_log = structlog.get_logger("broker.catalog")


class TopicCatalog:
    """Creates, follows and deletes topics. One for each node."""

    def __init__(
        self,
        engine: StreamEngine,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
    ) -> None:
        self.topics = TopicRegistry()
        self.leadership = Leadership(
            engine,
            self.topics,
            clock,
            rng,
            scope,
            limits=LIMITS._replace(producers=settings.max_producer_ids_per_partition),
        )
        self.arrivals = Arrivals(lambda: engine.metadata.state, settings.node_id, clock)
        self.leadership.on_opened.append(self.arrivals.arrived)
        self.on_deleted: list[Callable[[set[str]], None]] = []
        """Called with the names of topics that are no more."""
        self.ready_nodes: Callable[[], Collection[int]] = tuple
        """The nodes that are known to serve: new partitions go to them rather than to others that
        are only not fenced.
        """
        self._engine = engine
        self._settings = settings
        self._rng = rng

    async def open_all(self) -> None:
        """Know every topic, open what is assigned to this node, and follow from now on.

        Raises StorageError, UnsupportedFormat.
        """
        metadata = self._engine.metadata
        self._note(metadata.state, EVERYTHING)
        metadata.follow(self._follow)
        await self.leadership.start()

    async def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        replicas: Sequence[tuple[int, ...]] = (),
        *,
        check: Callable[[ClusterState], None] = lambda _state: None,
    ) -> Topic:
        """Create a topic; return when it is led everywhere, or after `OPENING_S`.

        `replicas` names nodes for each partition, the leader first; none: nodes in turn. `check`
        raises what refuses the topic in the state that it is added to. Raises KafkaError
        (INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT), TopicExists,
        StorageError.
        """
        if not is_valid_name(name):
            raise KafkaError(ErrorCode.invalid_topic_exception, f"{name!r} is no topic name")
        if not 0 < partitions <= PARTITIONS_MAX:
            raise KafkaError(
                ErrorCode.invalid_partitions, f"a topic has 1 to {PARTITIONS_MAX} partitions"
            )
        topic_id = f"{self._rng.getrandbits(128) | 1:032x}"

        def plan(state: ClusterState) -> Sequence[Record]:
            if name in state.topics:
                raise TopicExists(f"topic {name} exists")
            check(state)
            return [
                CreateTopic(name=name, topic_id=topic_id, configs=dict(configs or {})),
                *self._new_streams(state, topic_id, range(partitions), replicas),
            ]

        await self._engine.metadata.commit_with(plan)
        topic = self.topics.by_id.get(bytes.fromhex(topic_id))
        if topic is None:  # deleted as soon as it was there
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        await self.wait_led(topic.stream_ids)
        _log.info("topic_created", topic=name, topic_id=topic_id, partitions=partitions)
        return topic

    def _new_streams(
        self,
        state: ClusterState,
        topic_id: str,
        partitions: range,
        replicas: Sequence[tuple[int, ...]],
    ) -> Sequence[Record]:
        ready = self.ready_nodes()
        if replicas:
            leaders = as_assigned(state, replicas, ready)
        else:
            leaders = spread(state, len(partitions), ready)
        return new_streams(state, topic_id, partitions, leaders)

    async def ensure(
        self, name: str, *, check: Callable[[ClusterState], None] = lambda _state: None
    ) -> Topic:
        """Return a topic, created with the defaults when there is none and `check` allows it.
        Raises as `create`.
        """
        topic = self.topics.by_name.get(name)
        while topic is None:
            try:
                if name == OFFSETS_TOPIC:
                    number = self._settings.offsets_topic_num_partitions
                    topic = await self.create(name, number, OFFSETS_CONFIGS)
                elif name == TRANSACTIONS_TOPIC:
                    number = self._settings.transaction_state_log_num_partitions
                    topic = await self.create(name, number, TRANSACTIONS_CONFIGS)
                else:
                    topic = await self.create(name, self._settings.num_partitions, check=check)
            except TopicExists:
                topic = self.topics.by_name.get(name)
                if topic is not None:
                    await self.wait_led(topic.stream_ids)
        return topic

    async def delete(self, topic_id: str) -> None:
        """Delete a topic. Raises UnknownTopic, StorageError."""
        await self._engine.metadata.commit([DeleteTopic(topic_id=topic_id)])

    async def add_partitions(
        self, name: str, count: int, replicas: Sequence[tuple[int, ...]] = ()
    ) -> None:
        """Make a topic have `count` partitions; return as `create` does. Raises KafkaError
        (UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT), StorageError.
        """

        def plan(state: ClusterState) -> Sequence[Record]:
            known = state.topics.get(name)
            if known is None:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            present = len(known.partitions)
            if not present < count <= PARTITIONS_MAX:
                raise KafkaError(ErrorCode.invalid_partitions)
            return self._new_streams(state, known.topic_id, range(present, count), replicas)

        state = await self._engine.metadata.commit_with(plan)
        known = state.topics.get(name)  # it may have been deleted since
        await self.wait_led(() if known is None else known.partitions)

    async def wait_led(
        self, stream_ids: Iterable[int], timeout_s: float = OPENING_S
    ) -> Collection[int]:
        """Wait until each stream is led by the node it is assigned to, and open if that is here;
        return those that are not in time. Streams that are deleted meanwhile are not waited for.
        """
        missing = list(stream_ids)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while missing and not self.leadership.is_stopped:
                    if self._is_led(missing[-1]):
                        missing.pop()
                        if not len(missing) % _YIELD_EVERY:
                            await asyncio.sleep(0)
                    else:
                        await self.leadership.wait()
        return [one for one in missing if not self._is_led(one)]

    async def wait_empty(self) -> None:
        """Wait until this node leads nothing."""
        while self.leadership.held and not self.leadership.is_stopped:
            await self.leadership.wait()

    def led(self) -> Iterator[Partition]:
        """Yield the partitions that are open here."""
        for topic in self.topics.by_name.values():
            yield from (partition for partition in topic.partitions if partition is not None)

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

    # Following.

    def _follow(self, state: ClusterState, entry: Entry | None) -> None:
        self._note(state, news_of(entry))

    def _note(self, state: ClusterState, news: News) -> None:
        topic_ids: Iterable[str] = news.topic_ids
        if news.is_everything:
            known = (topic.topic_id for topic in self.topics.by_name.values())
            topic_ids = dict.fromkeys([*known, *state.topic_names])
        for topic_id in topic_ids:
            self._note_topic(state, topic_id)
        self.leadership.note(state, news)

    def _note_topic(self, state: ClusterState, topic_id: str) -> None:
        known = state.topic_by_id(topic_id)
        topic = self.topics.by_id.get(bytes.fromhex(topic_id))
        if known is None:
            if topic is not None:
                self._forget(topic)
            return
        if topic is None:
            topic = Topic(known.name, topic_id)
            self.topics.add(topic)
        topic.rules = record_rules(known.configs, broker_values(state, self._settings))
        topic.extend(known.partitions)

    def _forget(self, topic: Topic) -> None:
        self.topics.remove(topic)
        self.leadership.forget(topic)
        self.arrivals.forget(topic)
        _log.info("topic_deleted", topic=topic.name, topic_id=topic.topic_id)
        for callback in self.on_deleted:
            callback({topic.name})
