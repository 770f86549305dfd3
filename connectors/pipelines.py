"""Pipelines: from a source into a topic, and from topics into topics of this cluster or another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from lakehead.connectors.runtime.dead_letters import DeadLetters, OnError
from lakehead.connectors.runtime.errors import KafkaFailed
from lakehead.connectors.runtime.interfaces import (
    ConnectResult,
    Offsets,
    Position,
    Progress,
    Source,
    TopicPartition,
    Work,
)
from lakehead.connectors.runtime.kafka_clients import Cluster, KafkaConfig, checked_config
from lakehead.connectors.runtime.positions import PositionTopic, default_topic
from lakehead.connectors.runtime.run_status import RunStatus
from lakehead.connectors.runtime.settings import dotted
from lakehead.connectors.runtime.sink_run import SinkRun
from lakehead.connectors.runtime.source_run import SourceRun
from lakehead.connectors.runtime.stop import Stop
from lakehead.connectors.runtime.transactions import Transactions
from lakehead.connectors.settings import ConnectorSettings, DeltaSettings, TopicsSettings
from lakehead.connectors.sinks import GroupOffsets, TargetPositions, TopicSink
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run, for `--dry-run`."""

    works: tuple[Work, ...]
    unit: str = "bytes"
    """Of the sizes of works: bytes, or offsets."""
    first_key: str | None = None
    """Of the first record that would be written; None if there is no record, or no key."""
    first_value: str | None = None
    """The beginning of its value."""
    first_trouble: str | None = None
    """The first record that is bad input."""


_CUT_TRANSACTION_S = 60.0
_WHOLE_TRANSACTION_S = 900.0


def dead_letter_topic(settings: ConnectorSettings) -> str:
    """Return the topic of what cannot be a record; empty where it is not kept."""
    sink = settings.sink
    if sink.on_error != OnError.DEAD_LETTER:
        return ""
    # Copies of several topics share one.
    return sink.dead_letter_topic or f"{sink.topic.replace('{topic}', settings.name)}.dead-letters"


def _make_topics(settings: ConnectorSettings, cluster: Cluster, topics: Sequence[str]) -> None:
    """Create the topics that are not there, if the user wants it. Raises KafkaFailed."""
    existing = cluster.topics()
    for topic in topics:
        if topic in existing:
            continue
        if settings.sink.partitions is None:
            raise KafkaFailed(
                f"there is no topic {topic} at {cluster.address}: create it with `lakehead topics "
                f"create {topic}`, or set sink.partitions to have it created"
            )
        cluster.create_topic(topic, settings.sink.partitions, {})


def _transactions_of(
    settings: ConnectorSettings,
    config: KafkaConfig,
    cluster: Cluster,
    topics: Sequence[str],
    clock: Clock,
    stop: Stop,
) -> Transactions:
    """Return the connector's transactions into these topics, not begun."""
    is_whole = isinstance(settings.source, DeltaSettings)
    usual = _WHOLE_TRANSACTION_S if is_whole else _CUT_TRANSACTION_S
    return Transactions(
        config,
        settings.name,
        clock,
        stop,
        timeout_s=settings.run.timeout_seconds or usual,
        retry_s=settings.run.retry_seconds,
        largest_record=cluster.largest_record(topics),
    )


_SHOWN_BYTES = 200
_TRIED_BATCHES = 3


class Intake:
    """Runs a source; positions are in a compacted topic of the same cluster."""

    def __init__(
        self, settings: ConnectorSettings, source: Source, config: KafkaConfig, clock: Clock
    ) -> None:
        self._settings = settings
        self._source = source
        self._config = config
        self._clock = clock

    def run(
        self, *, follow: bool, stop: Stop, on_progress: Callable[[Progress], None]
    ) -> ConnectResult:
        """See `Pipeline.run`."""
        cluster = Cluster(self._config, stop)
        sink = self._settings.sink
        letters = dead_letter_topic(self._settings)
        topics = [sink.topic, *([letters] if letters else [])]
        _make_topics(self._settings, cluster, topics)
        positions = self._positions(cluster)
        positions.create()
        transactions = _transactions_of(
            self._settings, self._config, cluster, topics, self._clock, stop
        )
        run = SourceRun(
            self._source,
            sink.topic,
            DeadLetters(transactions, sink.on_error, letters),
            positions,
            transactions,
            self._settings.run,
            self._clock,
            stop=stop,
            on_progress=on_progress,
        )
        try:
            with RunStatus(self._config, positions, self._clock, stop):
                return run.run(follow=follow)
        finally:
            self._source.close()

    def plan(self) -> Plan:
        """See `Pipeline.plan`."""
        positions = self._loaded()
        works = tuple(self._source.work(positions))
        if not works:
            return Plan(works=works)
        batches = self._source.read(works[0], positions(works[0].partition))
        tried = list(islice(batches, _TRIED_BATCHES))
        record = next((one for batch in tried for one in batch.records), None)
        letter = next((one for batch in tried for one in batch.letters), None)
        return Plan(
            works=works,
            first_key=_shown(record.key) if record else None,
            first_value=_shown(record.value) if record else None,
            first_trouble=f"{letter.place}: {letter.reason}" if letter else None,
        )

    def positions(self) -> Mapping[str, Position]:
        """See `Pipeline.positions`."""
        return self._loaded().all()

    def _loaded(self) -> PositionTopic:
        positions = self._positions(Cluster(self._config))
        positions.load(self._clock, wait_s=self._settings.run.retry_seconds)
        return positions

    def _positions(self, cluster: Cluster) -> PositionTopic:
        name = self._settings.name
        topic = self._settings.run.positions_topic or default_topic(name)
        return PositionTopic(self._config, cluster, topic, name)


def _shown(data: bytes | None) -> str | None:
    return None if data is None else data[:_SHOWN_BYTES].decode(errors="replace")


class TopicCopy:
    """Copies topics. The cluster that is written keeps how far it is."""

    def __init__(
        self,
        settings: ConnectorSettings,
        source: TopicsSettings,
        config: KafkaConfig,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._source = source
        self._config = config
        self._clock = clock
        self._group = default_topic(settings.name)
        other = dotted(settings.sink.kafka, "sink.kafka")
        self._target_config = checked_config(other, "sink.kafka") if other else config
        self._source_id = ""
        if not other:
            self._refuse_itself()

    def run(
        self, *, follow: bool, stop: Stop, on_progress: Callable[[Progress], None]
    ) -> ConnectResult:
        """See `Pipeline.run`."""
        cluster = Cluster(self._target_config, stop)
        is_same = self._is_same(cluster, stop)
        targets = sorted({self._target(topic) for topic in self._source.topics})
        letters = dead_letter_topic(self._settings)
        topics = [*targets, *([letters] if letters else [])]
        _make_topics(self._settings, cluster, topics)
        self._check_partitions(cluster, stop)
        positions = self._positions(cluster)
        positions.create()
        settings = self._settings
        transactions = _transactions_of(
            settings, self._target_config, cluster, topics, self._clock, stop
        )
        sink = TopicSink(
            transactions,
            DeadLetters(transactions, settings.sink.on_error, letters),
            self._offsets(positions, stop),
            GroupOffsets(self._config, self._group) if is_same else None,
            settings.sink.topic,
            keeps_partitions=settings.sink.keep_partitions,
        )
        run = SinkRun(
            sink,
            self._source.topics,
            self._config,
            self._group,
            settings.run,
            self._clock,
            start=self._source.start,
            when_lost=self._source.when_lost,
            stop=stop,
            on_progress=on_progress,
        )
        with RunStatus(self._target_config, positions, self._clock, stop):
            return run.run(follow=follow)

    def plan(self) -> Plan:
        """See `Pipeline.plan`."""
        known = self._known()
        ends = Cluster(self._config).ends(self._partitions(), committed=True)
        works = []
        for at, (low, high) in ends.items():
            fresh = low if self._source.start == "earliest" else high
            left = high - max(low, known[at].next if at in known else fresh)
            if left > 0:
                works.append(Work({}, f"{at.topic}-{at.partition}", left))
        return Plan(works=tuple(works), unit="offsets")

    def positions(self) -> Mapping[str, Position]:
        """See `Pipeline.positions`."""
        known = sorted(self._known().items())
        return {f"{at.topic}-{at.partition}": {"offset": offset.next} for at, offset in known}

    def _known(self) -> Offsets:
        cluster = Cluster(self._target_config)
        self._is_same(cluster)
        return self._offsets(self._positions(cluster)).load(self._partitions())

    def _is_same(self, target: Cluster, stop: Stop | None = None) -> bool:
        """Return whether the cluster is read and written, by whatever address. Raises SettingsError
        for a topic that would be copied into itself.
        """
        self._source_id = Cluster(self._config, stop).cluster_id()
        if self._source_id != target.cluster_id():
            return False
        self._refuse_itself()
        return True

    def _refuse_itself(self) -> None:
        if any(topic == self._target(topic) for topic in self._source.topics):
            raise SettingsError("sink.topic: a topic cannot be copied into itself")

    def _partitions(self) -> list[TopicPartition]:
        return Cluster(self._config).partitions(self._source.topics)

    def _offsets(self, positions: PositionTopic, stop: Stop | None = None) -> TargetPositions:
        return TargetPositions(
            positions,
            self._source_id,
            self._clock,
            wait_s=self._settings.run.retry_seconds,
            stop=stop,
        )

    def _positions(self, cluster: Cluster) -> PositionTopic:
        topic = self._settings.run.positions_topic or self._group
        return PositionTopic(self._target_config, cluster, topic, self._settings.name)

    def _target(self, topic: str) -> str:
        return self._settings.sink.topic.replace("{topic}", topic)

    def _check_partitions(self, cluster: Cluster, stop: Stop) -> None:
        """Raise KafkaFailed if a record's partition is not there in the target."""
        if not self._settings.sink.keep_partitions:
            return
        there = cluster.topics()
        here = Cluster(self._config, stop).topics()
        for topic in self._source.topics:
            target = self._target(topic)
            if here.get(topic, 0) > there.get(target, 0):
                raise KafkaFailed(
                    f"topic {target} has {there.get(target, 0)} partitions and {topic} has "
                    f"{here[topic]}: give it more, or set sink.keep_partitions = false"
                )
