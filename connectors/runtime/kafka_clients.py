"""Clients of a cluster by confluent-kafka, and what its errors mean."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from lakehead.connectors.runtime.errors import ConnectorFenced, KafkaAway, KafkaFailed, RunStopped
from lakehead.connectors.runtime.interfaces import TopicPartition
from lakehead.connectors.runtime.stop import Stop
from lakehead.storage.errors import SettingsError

_AWAY = frozenset(
    {
        *(KafkaError._TRANSPORT, KafkaError._TIMED_OUT),  # noqa: SLF001
        *(KafkaError._ALL_BROKERS_DOWN, KafkaError.REQUEST_TIMED_OUT),  # noqa: SLF001
    }
)
_LEADERLESS = frozenset(
    {
        *(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION),
        KafkaError._NOENT,  # noqa: SLF001 - librdkafka: no leaders found
    }
)
"""For a moment after a topic was created, or when its leader has changed."""
_NOT_ALLOWED = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)

KafkaConfig = Mapping[str, str | int | float | bool]
"""Settings of librdkafka."""

REQUEST_TIMEOUT_S = 30.0
_CONNECT_S = 25.0
"""Time for a first connection: a broker may be about to restart, or its machine be busy."""
_SLICE_S = 0.2
"""Interval at which a wait for a response checks for a stop."""
_OURS = frozenset(
    {
        *("transactional.id", "enable.idempotence", "group.id", "group.instance.id"),
        *("isolation.level", "enable.auto.commit", "enable.auto.offset.store"),
        *("auto.offset.reset", "enable.partition.eof", "transaction.timeout.ms", "acks"),
    }
)
_FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)


def checked_config(config: KafkaConfig, where: str) -> dict[str, str | int | float | bool]:
    """Return a user's settings of a cluster. Raises SettingsError: no bootstrap.servers, or a
    setting on which exactly-once rests.
    """
    if not config.get("bootstrap.servers"):
        raise SettingsError(f"{where}: bootstrap.servers is missing: HOST:PORT of a broker")
    for name in config:
        if name in _OURS:
            raise SettingsError(f"{where}: {name} is set by the connector itself: leave it out")
    return dict(config)


def silent_logger() -> logging.Logger:
    """Return where a client's chatter about connections goes; what matters comes as errors."""
    logger = logging.getLogger("lakehead.connect")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    return logger


def made_client(make: Any, config: KafkaConfig, **callbacks: Any) -> Any:
    """Return a client. Raises SettingsError for settings that librdkafka refuses."""
    try:
        return make({**config, **callbacks}, logger=silent_logger())
    except KafkaException as error:
        raise SettingsError(f"kafka: {error.args[0].str()}") from None


def kafka_failure(error: KafkaException | KafkaError, what: str, name: str) -> Exception:
    """Return the error of ours for one of a client; `name` is the connector's."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if cause.code() in _FENCED:
        return ConnectorFenced(
            f"another run of connector {name} has started and goes on where this one was: let one "
            "run, or give the other another name (or a transaction took more than "
            "run.timeout_seconds)"
        )
    return KafkaFailed(f"{what}: {cause.str()}")


def consumed(reader: Any, count: int, wait_s: float) -> Sequence[Any]:
    """Return what a consumer has, up to `count` messages and events. Raises KafkaFailed."""
    try:
        found: Sequence[Any] = reader.consume(count, wait_s)
    except KafkaException as error:
        raise KafkaFailed(f"cannot read: {error.args[0].str()}") from None
    return found


class Cluster:
    """A cluster as its administrator sees it. At a stop, calls raise RunStopped when the time for
    a cluster that does not respond is over; at once when nothing waits for the response
    (`is_needed`).
    """

    def __init__(
        self,
        config: KafkaConfig,
        stop: Stop | None = None,
        *,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._config = config
        self._stop = stop
        self._is_needed = is_needed
        self._admin: Any = made_client(AdminClient, config)

    @property
    def address(self) -> str:
        """The servers it was found by."""
        return str(self._config["bootstrap.servers"])

    def topics(self) -> dict[str, int]:
        """Return every topic with its number of partitions. Raises KafkaAway, KafkaFailed."""
        return {name: len(topic.partitions) for name, topic in self._metadata().topics.items()}

    def cluster_id(self) -> str:
        """Return the cluster's own id."""
        return str(self._metadata().cluster_id)

    def _metadata(self) -> Any:
        found: Future[Any] = Future()

        def look() -> None:
            try:
                found.set_result(self._admin.list_topics(timeout=_CONNECT_S))
            except KafkaException as error:
                found.set_exception(error)

        # A thread of its own, since the call cannot be cut short at a stop; it may outlive this.
        threading.Thread(target=look, daemon=True).start()
        try:
            return self._result(found)
        except KafkaException as error:
            self._check_stop()
            raise _kind(error)(
                f"no broker responds at {self.address} ({error.args[0].str()}): check the address, "
                "security.protocol and sasl.*"
            ) from None

    def _result(self, response: Any) -> Any:
        """Return what the cluster responds. Raises KafkaException, KafkaAway."""
        for _ in range(int(REQUEST_TIMEOUT_S / _SLICE_S) + 1):
            try:
                return response.result(_SLICE_S)
            except TimeoutError:
                self._check_stop()
        raise KafkaAway(f"no broker responds at {self.address}")

    def _check_stop(self) -> None:
        if self._stop is None or not self._stop.is_requested:
            return
        if self._stop.is_over or not self._is_needed():
            raise RunStopped(
                f"stopped: {self.address} did not respond within {self._stop.within_s:g} s; the "
                "next run reads uncommitted records again"
            )

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic unless it exists. Raises KafkaFailed."""
        topic = NewTopic(name, num_partitions=partitions, config=dict(configs))
        try:
            self._result(
                self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[name]
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise KafkaFailed(f"cannot create topic {name}: {error.args[0].str()}") from None

    def cleanup_policy(self, topic: str) -> str | None:
        """Return a topic's `cleanup.policy`; None if it may not be known. Raises KafkaFailed."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            found = self._admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
            return str(self._result(found[resource])["cleanup.policy"].value)
        except (KeyError, KafkaException) as error:
            cause = error.args[0]
            if isinstance(error, KeyError) or cause.code() in _NOT_ALLOWED:
                return None
            raise KafkaFailed(f"cannot read the settings of {topic}: {cause.str()}") from None

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the id of each topic, which a topic of the same name that is made later does not
        have; empty where the cluster has no ids (Kafka before 2.8). Raises KafkaFailed, KafkaAway.
        """
        if not topics:
            return {}
        try:
            wanted = TopicCollection(list(topics))
            found = self._admin.describe_topics(wanted, request_timeout=REQUEST_TIMEOUT_S)
            return {name: _text(self._result(one).topic_id) for name, one in found.items()}
        except KafkaException as error:
            raise _kind(error)(
                f"cannot read {', '.join(topics)} at {self.address}: {error.args[0].str()}"
            ) from None

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """Return every partition of topics. Raises KafkaFailed if one is not there, KafkaAway."""
        existing = self.topics()
        for topic in topics:
            if topic not in existing:
                raise KafkaFailed(f"there is no topic {topic} at {self.address}")
        return [TopicPartition(topic, p) for topic in topics for p in range(existing[topic])]

    def ends(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset and the one behind the last of each partition; `committed`: the
        last before what open transactions have there. Raises KafkaAway, KafkaFailed.
        """
        lows = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        highs = self._offsets(partitions, latest, committed=committed)
        return {at: (lows[at], highs[at]) for at in partitions}

    def _offsets(
        self, partitions: Sequence[TopicPartition], which: Any, *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        wanted = {Place(*at): which for at in partitions}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        for left in reversed(range(int(_CONNECT_S / _SLICE_S))):
            found = self._admin.list_offsets(
                wanted, isolation_level=level, request_timeout=REQUEST_TIMEOUT_S
            )
            try:
                return {
                    TopicPartition(at.topic, at.partition): int(self._result(one).offset)
                    for at, one in found.items()
                }
            except KafkaException as error:
                if error.args[0].code() in _LEADERLESS and left:
                    self._check_stop()
                    threading.Event().wait(_SLICE_S)
                    self._metadata()  # librdkafka keeps a topic without a leader for minutes
                    continue
                names = ", ".join(sorted({at.topic for at in partitions}))
                raise _kind(error)(f"cannot read {names}: {error.args[0].str()}") from None
        raise AssertionError

    def largest_record(self, topics: Sequence[str]) -> int | None:
        """Return the least `max.message.bytes` of these topics; None if it may not be known."""
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        try:
            found = self._admin.describe_configs(wanted, request_timeout=REQUEST_TIMEOUT_S)
            sizes = [self._result(one)["max.message.bytes"].value for one in found.values()]
        except (KafkaException, KeyError):
            return None
        return min(map(int, sizes))


def _kind(error: KafkaException) -> type[KafkaFailed]:
    return KafkaAway if error.args[0].code() in _AWAY | _LEADERLESS else KafkaFailed


def _text(topic_id: Any) -> str:
    """Return an id as 32 hexadecimal digits; empty for that of zeros, which is none."""
    mask = (1 << 64) - 1
    high = topic_id.get_most_significant_bits() & mask
    low = topic_id.get_least_significant_bits() & mask
    return f"{high:016x}{low:016x}" if high or low else ""
