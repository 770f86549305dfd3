"""The topics that a connector writes to, and the transactions by which it does."""

from collections.abc import Sequence

from lakehead.connectors.runtime.dead_letters import OnError
from lakehead.connectors.runtime.errors import KafkaFailed
from lakehead.connectors.runtime.kafka_clients import Cluster, KafkaConfig
from lakehead.connectors.runtime.stop import Stop
from lakehead.connectors.runtime.transactions import Transactions
from lakehead.connectors.settings import ConnectorSettings, DeltaSettings
from lakehead.storage.clock import Clock

_CUT_TRANSACTION_S = 60.0
_WHOLE_TRANSACTION_S = 900.0


def dead_letter_topic(settings: ConnectorSettings) -> str:
    """Return the topic of what cannot be a record; empty where it is not kept."""
    sink = settings.sink
    if sink.on_error != OnError.DEAD_LETTER:
        return ""
    # Copies of several topics share one.
    return sink.dead_letter_topic or f"{sink.topic.replace('{topic}', settings.name)}.dead-letters"


def make_topics(settings: ConnectorSettings, cluster: Cluster, topics: Sequence[str]) -> None:
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


def transactions_of(
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
