"""From topics into topics, of the same cluster or of another."""

import threading
from collections.abc import Callable, Mapping

from connectors.pipelines.plan import Plan
from connectors.pipelines.topics import make_topics, transactions_of
from connectors.runtime.config_file import dotted
from connectors.runtime.errors import KafkaFailed
from connectors.runtime.figures import ConnectFigures, Progress
from connectors.runtime.kafka_clients import Cluster, KafkaConfig, checked_config
from connectors.runtime.positions import PositionTopic, default_topic
from connectors.runtime.records import Position, Work
from connectors.runtime.sink import TopicPartition
from connectors.runtime.sink_run import SinkRun
from connectors.settings import ConnectorSettings
from connectors.sinks.topic import GroupOffsets, TargetPositions, TopicSink
from connectors.sources.topics import TopicsSettings
from storage.clock import Clock
from storage.errors import SettingsError


class TopicCopy:
    """Copies topics. In the same cluster a group keeps the offsets, in another the target does."""

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
        self._is_same = not other
        if self._is_same and any(topic == self._target(topic) for topic in source.topics):
            raise SettingsError("sink.topic: a topic cannot be copied into itself")

    def run(
        self, *, follow: bool, stop: threading.Event, on_progress: Callable[[Progress], None]
    ) -> ConnectFigures:
        """See `Pipeline.run`."""
        cluster = Cluster(self._target_config)
        targets = sorted({self._target(topic) for topic in self._source.topics})
        make_topics(self._settings, cluster, targets)
        self._check_partitions(cluster)
        if not self._is_same:
            self._positions(cluster).create()
        settings = self._settings
        sink = TopicSink(
            transactions_of(settings, self._target_config, cluster, targets, self._clock),
            self._offsets(cluster),
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
        return run.run(follow=follow)

    def plan(self) -> Plan:
        """See `Pipeline.plan`."""
        known = self._known()
        ends = Cluster(self._config).ends(self._partitions(), committed=True)
        works = []
        for at, (low, high) in ends.items():
            fresh = low if self._source.start == "earliest" else high
            left = high - max(low, known.get(at, fresh))
            if left > 0:
                works.append(Work({}, f"{at.topic}-{at.partition}", left))
        return Plan(works=tuple(works), unit="offsets")

    def positions(self) -> Mapping[str, Position]:
        """See `Pipeline.positions`."""
        known = sorted(self._known().items())
        return {f"{at.topic}-{at.partition}": {"offset": offset} for at, offset in known}

    def _known(self) -> Mapping[TopicPartition, int]:
        offsets = self._offsets(Cluster(self._target_config))
        try:
            return offsets.load(self._partitions())
        finally:
            offsets.close()

    def _partitions(self) -> list[TopicPartition]:
        return Cluster(self._config).partitions(self._source.topics)

    def _offsets(self, cluster: Cluster) -> GroupOffsets | TargetPositions:
        if self._is_same:
            return GroupOffsets(self._config, self._group)
        return TargetPositions(
            self._positions(cluster),
            Cluster(self._config).cluster_id(),
            self._clock,
            wait_s=self._settings.run.retry_seconds,
        )

    def _positions(self, cluster: Cluster) -> PositionTopic:
        topic = self._settings.run.positions_topic or self._group
        return PositionTopic(self._target_config, cluster, topic, self._settings.name)

    def _target(self, topic: str) -> str:
        return self._settings.sink.topic.replace("{topic}", topic)

    def _check_partitions(self, cluster: Cluster) -> None:
        """Raise KafkaFailed if a record's partition is not there in the target."""
        if not self._settings.sink.keep_partitions:
            return
        there = cluster.topics()
        here = Cluster(self._config).topics()
        for topic in self._source.topics:
            target = self._target(topic)
            if here.get(topic, 0) > there.get(target, 0):
                raise KafkaFailed(
                    f"topic {target} has {there.get(target, 0)} partitions and {topic} has "
                    f"{here[topic]}: give it more, or set sink.keep_partitions = false"
                )
