"""The sink of topics: of the same cluster or of another, every record once, whatever is killed.

The offset to which each partition was read is a record of a compacted topic of the target cluster,
in the transaction of the records.
"""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from lakehead.connectors.runtime.dead_letters import DeadLetters
from lakehead.connectors.runtime.interfaces import (
    ConnectResult,
    Consumed,
    DeadLetter,
    Offsets,
    Record,
    SourceOffset,
    TopicPartition,
)
from lakehead.connectors.runtime.kafka_clients import KafkaConfig, made_client
from lakehead.connectors.runtime.positions import PositionTopic
from lakehead.connectors.runtime.stop import Stop
from lakehead.connectors.runtime.transactions import RecordTooBig, Transactions
from lakehead.storage.clock import Clock


class GroupOffsets:
    """Offsets of a group without members, for tools that show lag. Nothing is read from them: a
    cluster forgets them after `offsets.retention.minutes`, partition by partition.
    """

    def __init__(self, config: KafkaConfig, group: str) -> None:
        self._client: Any = made_client(
            Consumer, {**config, "group.id": group, "isolation.level": "read_committed"}
        )

    def save(self, transactions: Transactions, offsets: Offsets) -> None:
        """Make offsets part of the transaction."""
        places = [Place(*at, offset.next) for at, offset in offsets.items()]
        transactions.send_offsets(places, self._client.consumer_group_metadata())

    def close(self) -> None:
        """Give up the client."""
        self._client.close()


class TargetPositions:
    """Offsets of what is read, as records in the cluster that is written."""

    def __init__(
        self,
        positions: PositionTopic,
        cluster_id: str,
        clock: Clock,
        *,
        wait_s: float,
        stop: Stop | None,
    ) -> None:
        self._positions = positions
        self._cluster_id = cluster_id
        self._clock = clock
        self._wait_s = wait_s
        self._stop = stop

    def load(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return what was committed. Raises KafkaFailed, RunStopped."""
        self._positions.load(self._clock, wait_s=self._wait_s, stop=self._stop)
        found = {at: self._positions(self._partition(at)) for at in partitions}
        return {
            at: SourceOffset(int(one["offset"]), str(one.get("topic_id", "")))
            for at, one in found.items()
            if one is not None
        }

    def save(self, transactions: Transactions, offsets: Offsets) -> None:
        """Make offsets part of the transaction."""
        for at, offset in offsets.items():
            position = {"offset": offset.next, "topic_id": offset.topic_id}
            record = self._positions.record(self._partition(at), position)
            transactions.send(self._positions.topic, record)

    def _partition(self, at: TopicPartition) -> dict[str, str]:
        return {
            "cluster": self._cluster_id,
            "topic": at.topic,
            "partition": str(at.partition),
        }


class TopicSink:
    """Copies records: key, value, headers and timestamp as they are."""

    def __init__(
        self,
        transactions: Transactions,
        letters: DeadLetters,
        positions: TargetPositions,
        shown: GroupOffsets | None,
        target: str,
        *,
        keeps_partitions: bool,
    ) -> None:
        self._transactions = transactions
        self._letters = letters
        self._positions = positions
        self._shown = shown
        self._target = target
        self._keeps_partitions = keeps_partitions
        self._is_open = False

    def open(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """See `Sink.open`: the transactional id fences former runs."""
        if not self._is_open:
            self._transactions.open()
            self._is_open = True
        return self._positions.load(partitions)

    def write(self, records: Sequence[Consumed]) -> ConnectResult:
        """See `Sink.write`. Raises BadInput for a record that the target does not take."""
        letters = []
        for one in records:
            topic = self._target.replace("{topic}", one.at.topic)
            record = Record(
                one.value,
                one.key,
                one.headers,
                one.timestamp_ms,
                one.at.partition if self._keeps_partitions else None,
            )
            try:
                self._transactions.send(topic, record)
            except RecordTooBig:
                place = f"topic {one.at.topic}, partition {one.at.partition}, offset {one.offset}"
                reason = (
                    f"a record of {record.size_bytes} bytes is larger than topic {topic} allows "
                    "(max.message.bytes)"
                )
                letters.append(DeadLetter(place, reason, one.value or b""))
        result = self._letters.dispose(letters)
        self._transactions.serve()
        return result.plus(ConnectResult(records=len(records) - len(letters)))

    def commit(self, offsets: Offsets) -> None:
        """See `Sink.commit`."""
        self._positions.save(self._transactions, offsets)
        if self._shown is not None:
            self._shown.save(self._transactions, offsets)
        self._transactions.commit()

    def abort(self) -> None:
        """See `Sink.abort`."""
        self._transactions.abort()

    def close(self) -> None:
        """See `Sink.close`."""
        self._transactions.close()
        if self._shown is not None:
            self._shown.close()
