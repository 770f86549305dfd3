"""Spark streams for Kafka's tools: offsets committed to consumer groups, and lag as metrics.

    spark.streams.addListener(StreamProgress({"bootstrap.servers": "broker:9092"}, {"orders": "g"}))

The checkpoint alone says where a stream goes on. The group follows it: offsets are committed after
the batch that read up to them has ended, so a group may be behind its stream and is never ahead.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lakehead.connectors.runtime.kafka_clients import KafkaConfig, made_client
from lakehead.lake.positions import TopicPartition
from lakehead.lake.source.progress import progress_offsets

_log = logging.getLogger(__name__)
_TIMEOUT_S = 10.0


class StreamProgress(StreamingQueryListener, Collector):
    """A listener of the streaming queries of a session, and a collector of Prometheus.

    `groups` names the consumer group of each query, by the query's name (`queryName`): a group
    without members, that nothing else commits to. Without it nothing is committed. `kafka` are
    settings of librdkafka. A failed commit is logged, and the next batch commits again.

    Metric `lakehead_stream_offsets_behind{query, topic, partition}`: offsets that the stream has
    not read, of those known at its last batch; of queries that run, from Spark 4.2 on.
    """

    def __init__(self, kafka: KafkaConfig, groups: Mapping[str, str]) -> None:
        """Raises SettingsError for settings that librdkafka refuses."""
        self._behind: dict[str, tuple[str, Mapping[TopicPartition, int]]] = {}
        self._groups = dict(groups)
        self._admin: Any = made_client(AdminClient, kafka)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Take the offsets of a batch that has ended."""
        progress = event.progress
        query = progress.name or str(progress.id)
        ends: dict[TopicPartition, int] = {}
        latest: dict[TopicPartition, int] = {}
        for source in progress.sources:
            ends |= progress_offsets(source, "endOffset")
            latest |= progress_offsets(source, "latestOffset")
        behind = {id_: max(offset - ends.get(id_, 0), 0) for id_, offset in latest.items()}
        self._behind[str(progress.id)] = (query, behind)
        if ends and query in self._groups:
            self._commit(query, ends)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's
        """Forget the lag of a query."""
        self._behind.pop(str(event.id), None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metric."""
        gauge = GaugeMetricFamily(
            "lakehead_stream_offsets_behind",
            "Offsets that a Spark stream has not read, of those known at its last batch.",
            labels=["query", "topic", "partition"],
        )
        for query, behind in list(self._behind.values()):
            for id_, offsets in behind.items():
                gauge.add_metric([query, id_.topic, str(id_.partition)], offsets)
        yield gauge

    def _commit(self, query: str, ends: Mapping[TopicPartition, int]) -> None:
        places = [Place(*id_, end) for id_, end in ends.items()]
        request = [ConsumerGroupTopicPartitions(self._groups[query], places)]
        try:
            for future in self._admin.alter_consumer_group_offsets(
                request, request_timeout=_TIMEOUT_S
            ).values():
                for place in future.result().topic_partitions:
                    if place.error is not None:
                        raise KafkaException(place.error)
        except KafkaException as error:
            _log.warning("offsets of query %s are not committed: %s", query, error.args[0].str())
