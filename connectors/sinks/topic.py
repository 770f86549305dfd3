"""A topic of the same cluster or of another: every record once, whatever is killed.

In the same cluster the offsets of the group are part of the transaction; in another they are
records of a compacted topic there, since a transaction cannot span clusters.
"""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place

from connectors.runtime.errors import BadInput, KafkaFailed
from connectors.runtime.kafka_clients import ANSWER_S, KafkaConfig, made_client
from connectors.runtime.positions import PositionTopic
from connectors.runtime.records import Record
from connectors.runtime.sink import Consumed, Offsets, TopicPartition
from connectors.runtime.transactions import RecordTooBig, Transactions
from storage.clock import Clock


class GroupOffsets:
    """Offsets of a group without members, kept in the transaction of the cluster that is read."""

    def __init__(self, config: KafkaConfig, group: str) -> None:
        self._group = group
        self._client: Any = made_client(
            Consumer, {**config, "group.id": group, "isolation.level": "read_committed"}
        )

    def load(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return what was committed. Raises KafkaFailed."""
        try:
            found = self._client.committed([Place(*at) for at in partitions], timeout=ANSWER_S)
        except KafkaException as error:
            raise KafkaFailed(
                f"cannot read the offsets of group {self._group}: {error.args[0].str()}"
            ) from None
        return {
            TopicPartition(one.topic, one.partition): one.offset for one in found if one.offset >= 0
        }

    def save(self, transactions: Transactions, offsets: Offsets) -> None:
        """Make offsets part of the transaction."""
        places = [Place(*at, offset) for at, offset in offsets.items()]
        transactions.send_offsets(places, self._client.consumer_group_metadata())

    def close(self) -> None:
        """Give up the client."""
        self._client.close()


class TargetPositions:
    """Offsets of another cluster's partitions, as records in the cluster that is written."""

    def __init__(
        self, positions: PositionTopic, cluster_id: str, clock: Clock, *, wait_s: float
    ) -> None:
        self._positions = positions
        self._cluster_id = cluster_id
        self._clock = clock
        self._wait_s = wait_s

    def load(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return what was committed. Raises KafkaFailed."""
        self._positions.load(self._clock, wait_s=self._wait_s)
        found = {at: self._positions(self._partition(at)) for at in partitions}
        return {at: int(one["offset"]) for at, one in found.items() if one is not None}

    def save(self, transactions: Transactions, offsets: Offsets) -> None:
        """Make offsets part of the transaction."""
        for at, offset in offsets.items():
            record = self._positions.record(self._partition(at), {"offset": offset})
            transactions.send(self._positions.topic, record)

    def close(self) -> None:
        """Nothing is open."""

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
        offsets: GroupOffsets | TargetPositions,
        target: str,
        *,
        keeps_partitions: bool,
    ) -> None:
        self._transactions = transactions
        self._offsets = offsets
        self._target = target
        self._keeps_partitions = keeps_partitions
        self._is_open = False

    def open(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """See `Sink.open`: the transactional id fences former runs."""
        if not self._is_open:
            self._transactions.open()
            self._is_open = True
        return self._offsets.load(partitions)

    def write(self, records: Sequence[Consumed]) -> None:
        """See `Sink.write`. Raises BadInput for a record that the target does not take."""
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
                raise BadInput(
                    f"offset {one.offset} of partition {one.at.partition} of {one.at.topic} has "
                    f"{record.size_bytes} bytes: raise max.message.bytes of topic {topic}"
                ) from None
        self._transactions.serve()

    def commit(self, offsets: Offsets) -> None:
        """See `Sink.commit`."""
        self._offsets.save(self._transactions, offsets)
        self._transactions.commit()

    def abort(self) -> None:
        """See `Sink.abort`."""
        self._transactions.abort()

    def close(self) -> None:
        """See `Sink.close`."""
        self._transactions.close()
        self._offsets.close()
