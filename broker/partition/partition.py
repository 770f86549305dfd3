"""Topics, and the partitions of them that this node leads.

A `Partition` is a synchronous state machine over one stream. It owns the producer states, with
their transactions, and the callbacks that wait for the high watermark. `plan` checks a batch and
changes nothing; `perform` appends the planned batch. No await stands between them. Only the event
loop of the node may call in here. Every topic of the cluster is known on every node.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from uuid import UUID

import msgspec
import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.broker.partition.producer_table import LIMITS, ProducerLimits
from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.partition.verification import Verification
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.clock import Clock
from lakehead.storage.format.control_batch import Marker, encode_marker
from lakehead.storage.format.record_batch import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    patch,
    read_header,
)
from lakehead.storage.format.stream_object import AbortedTransaction
from lakehead.storage.metadata.state import INTERNAL_TOPICS
from lakehead.storage.stream.stored_state import StoredState
from lakehead.storage.stream.stream import Stream

OFFSETS_TOPIC = "__consumer_offsets"
"""The log of group coordinators."""
TRANSACTIONS_TOPIC = "__transaction_state"
"""The log of transaction coordinators."""
SHARE_STATES_TOPIC = "__share_group_state"
"""The log of share coordinators."""
_NAME_MAX = 249
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NO_EPOCH = -1
_RESTORED_INLINE = 256 * 1024
"""Bytes of partition states that are restored on the event loop; more in a thread beside it."""

OnDone = Callable[[Exception | None], None]

_log = structlog.get_logger("broker.partition")


def is_valid_name(name: str) -> bool:
    """True for a name that Kafka allows for a topic."""
    return (
        0 < len(name) <= _NAME_MAX and name not in {".", ".."} and not set(name) - _NAME_CHARACTERS
    )


class TrafficTotal:
    """The bytes appended to and sent from the partitions that share it."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Topic:
    """One topic. `partitions` are by index: None where the partition is not open on this node."""

    __slots__ = (
        "_append_time_ms",
        "id_bytes",
        "is_internal",
        "name",
        "partitions",
        "rules",
        "stream_ids",
        "topic_id",
        "traffic",
    )

    def __init__(self, name: str, topic_id: str) -> None:
        self.name = name
        self.topic_id = topic_id
        self.id_bytes = bytes.fromhex(topic_id)
        self.is_internal = name in INTERNAL_TOPICS
        self.partitions: list[Partition | None] = []
        self.stream_ids: tuple[int, ...] = ()
        """The streams of the partitions, by index."""
        self.rules = RecordRules()
        """The rules for producers' batches."""
        self.traffic = TrafficTotal()
        """Of all topics of a registry together."""
        self._append_time_ms = 0

    @property
    def uuid(self) -> UUID:
        """The topic id as messages carry it."""
        return UUID(bytes=self.id_bytes)

    def served(self, index: int) -> "Partition":
        """Return a partition that is open here, and not about to be another node's.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        if not 0 <= index < len(self.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        partition = self.partitions[index]
        if partition is None or not partition.stream.is_open:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return partition

    def append_time(self, now_ms: int) -> int:
        """Return the time of a batch that is appended now: it does not go back when the clock does
        (milliseconds).
        """
        self._append_time_ms = max(self._append_time_ms, now_ms)
        return self._append_time_ms

    def extend(self, stream_ids: Sequence[int]) -> None:
        """Take over which streams the partitions have, and with it how many there are."""
        self.stream_ids = tuple(stream_ids)
        self.partitions.extend([None] * (len(stream_ids) - len(self.partitions)))


class TopicRegistry:
    """The topics of the cluster."""

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.traffic = TrafficTotal()

    def add(self, topic: Topic) -> None:
        """Serve a topic."""
        topic.traffic = self.traffic
        self.by_name[topic.name] = topic
        self.by_id[topic.id_bytes] = topic

    def remove(self, topic: Topic) -> None:
        """Serve a topic no more."""
        self.by_id.pop(topic.id_bytes, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]

    def led(self) -> "Iterator[Partition]":
        """Yield the partitions that this node leads."""
        for topic in self.by_name.values():
            yield from (partition for partition in topic.partitions if partition is not None)

    def find(self, key: str | bytes) -> Topic | None:
        """Return the topic of a name, or of an id of 16 bytes."""
        return self.by_name.get(key) if isinstance(key, str) else self.by_id.get(key)

    def is_current(self, name: str, topic_id: bytes | None) -> bool:
        """True if a topic has this name, and this id (16 bytes) where one is given: it is not a
        topic of the name that was deleted before.
        """
        topic = self.by_name.get(name)
        return topic is not None and topic_id in {None, topic.id_bytes}

    def partition(self, key: str | bytes, index: int) -> "Partition | None":
        """Return a partition that is open here, None otherwise."""
        topic = self.find(key)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]


class Plan(msgspec.Struct, frozen=True):
    """A batch that may be appended now, or that was already: `known_offset` is its base offset
    then.
    """

    records: memoryview
    header: BatchHeader
    known_offset: int
    known_end: int
    marker: Marker | None = None
    """The marker in the batch, if it ends a transaction."""


class Partition:
    """One partition of a topic, led by this node. Made by `open_partition`."""

    __slots__ = (
        "_clock",
        "_replaced",
        "bytes_in",
        "bytes_out",
        "index",
        "producers",
        "stream",
        "topic",
        "waiters",
    )

    def __init__(
        self, topic: Topic, index: int, stream: Stream, producers: ProducerStates, clock: Clock
    ) -> None:
        self.topic = topic
        self.index = index
        self.stream = stream
        self.producers = producers
        self._clock = clock
        self._replaced = 0
        self.bytes_in = 0
        """Bytes appended since it was opened here."""
        self.bytes_out = 0
        """Bytes sent to consumers since it was opened here."""
        self.waiters: dict[Callable[[], None], None] = {}
        """Callbacks for when the high watermark moves, in order."""
        stream.on_advance = self.wake
        stream.state_snapshot = producers.snapshot
        stream.is_state_due = producers.is_due
        stream.old_state_snapshot = producers.old_snapshot
        stream.aborted_by = producers.transactions.aborted_by

    def count_sent(self, size: int) -> None:
        """Count bytes of records that a consumer gets."""
        self.bytes_out += size
        self.topic.traffic.bytes += size

    @property
    def leader_epoch(self) -> int:
        """Kafka's leader epoch: the stream's."""
        return self.stream.epoch

    @property
    def high_watermark(self) -> int:
        """The end of what is durable, and so of what consumers may read."""
        return self.stream.confirmed_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.stream.start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next batch."""
        return self.stream.next_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what read-committed consumers may read: of what is durable, and in which no
        transaction is open.
        """
        stream = self.stream
        stable = self.producers.transactions.last_stable_offset(stream.confirmed_offset)
        return stable if stable == stream.confirmed_offset else max(stable, stream.start_offset)

    def aborted_among(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions that may have records in [start, end), which is below the
        last stable offset.
        """
        return self.producers.transactions.aborted_among(start_offset, end_offset)

    def plan(self, records: memoryview, header: BatchHeader) -> Plan:
        """Hold a batch, checked by `check_batch` if it is a client's, against what is known of its
        producer. One of a coordinator, in a producer's transaction, has no sequence.

        Raises KafkaError. Changes nothing.
        """
        if header.producer_id != NO_PRODUCER_ID and not self.producers.is_next(header):
            if header.base_sequence != NO_SEQUENCE:
                known = self.producers.check(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.last_offset_delta + 1,
                )
                if known is not None:
                    return Plan(records, header, known.base_offset, known.end_offset)
            self.producers.check_state(header)
        return Plan(records, header, -1, -1)

    def verification(self, header: BatchHeader, *, is_adding: bool) -> Verification | None:
        """Return what has to be confirmed before a client's transactional batch may begin a
        transaction here; None when it is open. `is_adding`: the client's are of version 2.

        Raises KafkaError: INVALID_PRODUCER_EPOCH.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        self.producers.check_epoch(producer_id, epoch)
        if self.producers.is_in_transaction(producer_id, epoch):
            return None
        return self.producers.verifications.begin(
            producer_id,
            epoch,
            header.base_sequence,
            self._clock.now_ms(),
            is_adding=is_adding,
        )

    def check_verified(self, header: BatchHeader, confirmed: Verification | None) -> None:
        """Refuse a client's transactional batch that would begin a transaction, unless what was
        confirmed still holds: no transaction of the producer began or ended here since.

        Raises KafkaError: INVALID_TXN_STATE.
        """
        producers, producer_id = self.producers, header.producer_id
        if (
            (confirmed is not None and producers.verifications.get(producer_id) is confirmed)
            or producers.is_in_transaction(producer_id, header.producer_epoch)
            or producers.find(
                producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta + 1,
            )
        ):
            return
        raise KafkaError(
            ErrorCode.invalid_txn_state, "Record was not part of an ongoing transaction"
        )

    def perform(self, plan: Plan, on_done: OnDone | None) -> int:
        """Append what was planned; return its base offset. `on_done` as in `Stream.append`.

        Raises WalFull and the other errors of `Stream.append`; then nothing happened.
        """
        stream, records, header = self.stream, plan.records, plan.header
        base_offset, size = stream.next_offset, len(records)
        patch(records, 0, base_offset, stream.epoch)
        stream.append(
            records,
            count=header.last_offset_delta + 1,
            max_timestamp=header.max_timestamp,
            on_done=on_done,
        )
        self.bytes_in += size
        self.topic.traffic.bytes += size
        if header.producer_id != NO_PRODUCER_ID:
            now_ms, confirmed = self._clock.now_ms(), stream.confirmed_offset
            try:
                self.producers.add(header, base_offset, confirmed, now_ms, plan.marker)
            except BaseException as error:  # a repetition of the batch would be appended again
                stream.broke_off(error)
                raise
        return base_offset

    def append(self, batch: memoryview, on_done: OnDone | None = None) -> int:
        """Append a batch of the broker's own, unchecked; return its base offset.

        `batch` is a writable view of one whole batch; it must not change afterwards. Raises the
        errors of `Stream.append`.
        """
        return self.perform(Plan(batch, read_header(batch), -1, -1), on_done)

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        is_commit: bool,
        on_done: OnDone | None,
        transaction_version: int = 0,
    ) -> int:
        """Append the marker that commits or aborts a producer's transaction; return its offset.

        Without an open transaction it still fences older epochs. `on_done` as in `Stream.append`.
        Raises KafkaError (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED) and the errors of
        `Stream.append`; then nothing happened.
        """
        self.producers.check_marker(
            producer_id, producer_epoch, coordinator_epoch, transaction_version
        )
        marker = Marker(is_commit, coordinator_epoch)
        batch = memoryview(
            encode_marker(
                marker,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp_ms=self._clock.now_ms(),
            )
        )
        offset = self.perform(Plan(batch, read_header(batch), -1, -1, marker), on_done)
        self.producers.transactions.trim(self.stream.start_offset)
        return offset

    def wait(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` each time the high watermark moves, until `unwait`."""
        self.waiters[waiter] = None

    def unwait(self, waiter: Callable[[], None]) -> None:
        """Stop calling `waiter`. Harmless when it does not wait."""
        self.waiters.pop(waiter, None)

    def when_confirmed(self, offset: int, on_done: OnDone) -> None:
        """Call `on_done(None)` as soon as the high watermark is at `offset` or above."""
        if self.stream.confirmed_offset >= offset:
            on_done(None)
            return

        def advanced() -> None:
            if self.stream.confirmed_offset >= offset:
                self.unwait(advanced)
                on_done(None)

        self.wait(advanced)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the last epoch that is not above `epoch`; (-1, -1) for -1,
        and for an epoch that is yet to come. An epoch below all known ones ends where the first of
        them begins, as in Kafka.

        The end of the current epoch is the high watermark, since no client may see more.
        """
        epochs = self.stream.epochs
        if epoch == NO_EPOCH or epoch > self.leader_epoch or not epochs:
            return NO_EPOCH, -1
        found_epoch, found_end = epoch, max(epochs[0][1], self.log_start_offset)
        for position, (known, _) in enumerate(epochs):
            if known > epoch:
                break
            found_epoch = known
            last = position + 1 == len(epochs)
            found_end = self.high_watermark if last else epochs[position + 1][1]
        return found_epoch, found_end

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch under which `offset` was, or will be, written."""
        found = self.stream.epoch
        for epoch, start in reversed(self.stream.epochs):
            found = epoch
            if start <= offset:
                break
        return found

    def check_epoch(self, epoch: int) -> None:
        """Compare a client's idea of the leader epoch with ours; -1 is none.

        Raises KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
        """
        if epoch in {-1, self.stream.epoch}:
            return
        raise KafkaError(
            ErrorCode.fenced_leader_epoch
            if epoch < self.stream.epoch
            else ErrorCode.unknown_leader_epoch
        )

    async def expire_producers(self, before_ms: int) -> None:
        """Forget producers whose last batch came before `before_ms`. Without producers, release the
        objects that are kept for their states alone.
        """
        for _ in self.producers.expire(before_ms):
            await asyncio.sleep(0)
        if (replaced := self.producers.replaced) > self._replaced:
            _log.warning(
                "producers_replaced",
                partition=f"{self.topic.name}-{self.index}",
                count=replaced - self._replaced,
                known=len(self.producers),
            )
            self._replaced = replaced
        if not len(self.producers):
            await self.stream.drop_trimmed_state()

    def wake(self) -> None:
        """Call every waiter: the high watermark moved, or the partition is closed."""
        if self.waiters:
            for waiter in list(self.waiters):
                waiter()


async def restore_producers(
    stored: StoredState, *, limits: ProducerLimits = LIMITS
) -> ProducerStates:
    """Return the producer states of a snapshot; large ones are restored off the event loop."""
    restore = partial(
        ProducerStates.restore,
        stored.states,
        since=stored.since,
        end_offset=stored.end_offset,
        limits=limits,
    )
    is_large = sum(map(len, stored.states)) > _RESTORED_INLINE
    return await asyncio.to_thread(restore) if is_large else restore()


async def follow_committed(
    stream: Stream, producers: ProducerStates, offset: int, clock: Clock
) -> None:
    """Take what counts of the batches that another node has committed from an offset on, and move
    to their end: of a partition that is only read here. Raises StorageError, UnsupportedFormat.
    """
    end_offset, now_ms = stream.committed_offset, clock.now_ms()
    async for header, marker in stream.state_batches(offset):  # of the objects of this moment
        producers.add(header, header.base_offset, end_offset, now_ms, marker)
    if end_offset >= stream.confirmed_offset:
        stream.follow(end_offset)


async def open_partition(
    topic: Topic, index: int, stream: Stream, clock: Clock, *, limits: ProducerLimits = LIMITS
) -> Partition:
    """Return the partition with its producer states: the newest snapshot and what came after it.
    As in Kafka they outlive the records: producers expire, and are not deleted with what they sent.

    Raises StorageError, UnsupportedFormat.
    """
    stored = await stream.load_state()
    producers = await restore_producers(stored, limits=limits)
    now_ms = clock.now_ms()
    async for header, marker in stream.state_batches(stored.end_offset):
        producers.add(header, header.base_offset, stream.confirmed_offset, now_ms, marker)
    return Partition(topic, index, stream, producers, clock)
