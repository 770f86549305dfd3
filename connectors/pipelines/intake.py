"""From a source into a topic."""

from collections.abc import Callable, Mapping
from itertools import islice

from lakehead.connectors.pipelines.plan import Plan
from lakehead.connectors.pipelines.topics import dead_letter_topic, make_topics, transactions_of
from lakehead.connectors.runtime.dead_letters import DeadLetters
from lakehead.connectors.runtime.interfaces import ConnectFigures, Position, Progress, Source
from lakehead.connectors.runtime.kafka_clients import Cluster, KafkaConfig
from lakehead.connectors.runtime.positions import PositionTopic, default_topic
from lakehead.connectors.runtime.source_run import SourceRun
from lakehead.connectors.runtime.stop import Stop
from lakehead.connectors.settings import ConnectorSettings
from lakehead.storage.clock import Clock

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
    ) -> ConnectFigures:
        """See `Pipeline.run`."""
        cluster = Cluster(self._config, stop)
        sink = self._settings.sink
        letters = dead_letter_topic(self._settings)
        topics = [sink.topic, *([letters] if letters else [])]
        make_topics(self._settings, cluster, topics)
        positions = self._positions(cluster)
        positions.create()
        transactions = transactions_of(
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
