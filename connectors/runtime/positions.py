"""Positions of a source as records of a compacted topic, in Kafka Connect's format.

Key: JSON `["connector", {partition}]`; value: JSON of the position; a tombstone forgets one. They
are written in the transaction that holds what was read, so a reader of committed records sees both
or neither.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Place

from lakehead.connectors.runtime.errors import KafkaFailed, RunStopped
from lakehead.connectors.runtime.interfaces import Partition, Position, Record, TopicPartition
from lakehead.connectors.runtime.kafka_clients import Cluster, KafkaConfig, consumed, made_client
from lakehead.connectors.runtime.stop import Stop
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError

_STATUS = b"status-connector-"
"""Beginning of the keys of statuses, which are no positions."""
_POLL_S = 0.1
_AT_ONCE = 500


def default_topic(name: str) -> str:
    """Return the topic in which a connector keeps its positions."""
    return f"lakehead-connect-{name}"


class PositionTopic:
    """The positions of one connector, as of the last `load` and `keep` since."""

    def __init__(self, config: KafkaConfig, cluster: Cluster, topic: str, name: str) -> None:
        self.topic = topic
        self._config = config
        self._cluster = cluster
        self._name = name
        self._known: dict[bytes, Position] = {}
        self.former_starts = 0
        """Runs that former statuses name (`lakehead.connectors.runtime.run_status`), as of the last
        `load`.
        """
        self.run_started_ms = -1
        """The time at which the run that uses this has begun, in ms since the epoch."""

    @property
    def status_key(self) -> bytes:
        """The key of the record with the status of the connector's runs."""
        return _STATUS + self._name.encode()

    def create(self) -> None:
        """Create the topic unless it is there. Raises SettingsError for one that would lose
        positions, since what has no position is read again from its beginning.

        Raises KafkaFailed.
        """
        self._cluster.create_topic(self.topic, 1, {"cleanup.policy": "compact"})
        policy = self._cluster.cleanup_policy(self.topic)
        if policy not in {None, "compact"}:
            raise SettingsError(
                f"topic {self.topic} has cleanup.policy={policy}, which removes positions, so "
                "their input would be read again: set it to compact, or name another topic with "
                "run.positions_topic"
            )

    def load(self, clock: Clock, *, wait_s: float, stop: Stop | None = None) -> None:
        """Read every position that was committed before now.

        A transaction that another connector has open is waited for: behind it may lie positions of
        ours. Raises KafkaFailed; RunStopped at a stop, since nothing is read yet.
        """
        partitions = self._cluster.topics().get(self.topic, 0)
        if not partitions:
            self._known = {}
            return
        ends = self._ends(partitions)
        reader: Any = made_client(
            Consumer,
            {
                "enable.auto.commit": False,
                **self._config,
                "group.id": default_topic(self._name),
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            },
        )
        found: dict[bytes, bytes | None] = {}
        try:
            reader.assign([Place(self.topic, p, 0) for p in ends])
            deadline = clock.monotonic() + wait_s
            while ends:
                for message in consumed(reader, _AT_ONCE, _POLL_S):
                    self._take(message, ends, found)
                if stop is not None and stop.is_requested and ends:
                    raise RunStopped("stopped before the positions were known: nothing was read")
                if clock.monotonic() > deadline:
                    raise KafkaFailed(
                        f"topic {self.topic} could not be read to its end in {wait_s:.0f} s: "
                        "another transaction is open in it, or a broker is away; try again"
                    )
        finally:
            reader.close()
        self._known = {
            key: _position(value, self.topic)
            for key, value in found.items()
            if value and not key.startswith(_STATUS)
        }

    def __call__(self, partition: Partition) -> Position | None:
        """Return how far a partition was read."""
        return self._known.get(self._key(partition))

    def all(self) -> Mapping[str, Position]:
        """Return every position of this connector by its partition, as JSON."""
        mine = {}
        for key, position in self._known.items():
            name, partition = msgspec.json.decode(key)
            if name == self._name:
                mine[msgspec.json.encode(partition).decode()] = position
        return mine

    def record(self, partition: Partition, position: Position) -> Record:
        """Return the record that keeps a position."""
        value = msgspec.json.encode(position)
        return Record(value, self._key(partition), place="a position")

    def keep(self, partition: Partition, position: Position) -> None:
        """Know a position that was committed."""
        self._known[self._key(partition)] = position

    def _key(self, partition: Partition) -> bytes:
        return msgspec.json.encode([self._name, dict(sorted(partition.items()))])

    def _ends(self, partitions: int) -> dict[int, int]:
        """Return the high watermark of each partition that holds anything."""
        wanted = [TopicPartition(self.topic, partition) for partition in range(partitions)]
        ends = {at.partition: high for at, (_, high) in self._cluster.ends(wanted).items()}
        return {partition: end for partition, end in ends.items() if end > 0}

    def _take(self, message: Any, ends: dict[int, int], found: dict[bytes, bytes | None]) -> None:
        error = message.error()
        if error is None:
            found[message.key() or b""] = message.value()
            if message.key() == self.status_key:
                self._take_status(message.value() or b"")
        elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            if not error.retriable() and error.fatal():
                raise KafkaFailed(f"cannot read topic {self.topic}: {error.str()}")
            return
        reached = message.offset() + (error is None)
        if reached >= ends.get(message.partition(), reached + 1):
            del ends[message.partition()]

    def _take_status(self, value: bytes) -> None:
        """Know the number of former runs; the run that loads may have left statuses, too."""
        with suppress(msgspec.DecodeError):
            status = msgspec.json.decode(value, type=_Status)
            if status.started_ms != self.run_started_ms:
                self.former_starts = max(self.former_starts, status.starts)


class _Status(msgspec.Struct):
    """The fields of a status that are read."""

    starts: int = 0
    started_ms: int = -1


def _position(value: bytes, topic: str) -> Position:
    try:
        found: dict[str, Any] = msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"topic {topic} holds other records than positions ({error}): "
            "name another with positions_topic"
        ) from None
    return found
