"""From topics into topics, of the same cluster or of another."""

from collections.abc import Callable, Mapping

from lakehead.connectors.pipelines.plan import Plan
from lakehead.connectors.pipelines.topics import dead_letter_topic, make_topics, transactions_of
from lakehead.connectors.runtime.dead_letters import DeadLetters
from lakehead.connectors.runtime.errors import KafkaFailed
from lakehead.connectors.runtime.interfaces import (
    ConnectFigures,
    Offsets,
    Position,
    Progress,
    TopicPartition,
    Work,
)
from lakehead.connectors.runtime.kafka_clients import Cluster, KafkaConfig, checked_config
from lakehead.connectors.runtime.positions import PositionTopic, default_topic
from lakehead.connectors.runtime.settings import dotted
from lakehead.connectors.runtime.sink_run import SinkRun
from lakehead.connectors.runtime.stop import Stop
from lakehead.connectors.settings import ConnectorSettings, TopicsSettings
from lakehead.connectors.sinks import GroupOffsets, TargetPositions, TopicSink
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError


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
    ) -> ConnectFigures:
        """See `Pipeline.run`."""
        cluster = Cluster(self._target_config, stop)
        is_same = self._is_same(cluster, stop)
        targets = sorted({self._target(topic) for topic in self._source.topics})
        letters = dead_letter_topic(self._settings)
        topics = [*targets, *([letters] if letters else [])]
        make_topics(self._settings, cluster, topics)
        self._check_partitions(cluster, stop)
        self._positions(cluster).create()
        settings = self._settings
        transactions = transactions_of(
            settings, self._target_config, cluster, topics, self._clock, stop
        )
        sink = TopicSink(
            transactions,
            DeadLetters(transactions, settings.sink.on_error, letters),
            self._offsets(cluster, stop),
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
        return self._offsets(cluster).load(self._partitions())

    def _is_same(self, target: Cluster, stop: Stop | None = None) -> bool:
        """Whether the cluster is read and written, by whatever address. Raises SettingsError for a
        topic that would be copied into itself.
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

    def _offsets(self, cluster: Cluster, stop: Stop | None = None) -> TargetPositions:
        return TargetPositions(
            self._positions(cluster),
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
