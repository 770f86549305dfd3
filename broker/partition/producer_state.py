"""What a partition knows of its idempotent producers: Kafka's rules, in one place (KIP-98,
KIP-360).

A producer has an epoch and its last batches by sequence number. A batch that is already known is
answered with its first offset again; one out of order, or of an older epoch, is refused. Kafka
keeps five batches, since a client has at most five in flight; so do we, of those that are durable,
and besides them all that are still on their way: a snapshot for an offset below the newest batch
must hold its five too.

Snapshot, version 1, msgpack: `[1, [[producer id, epoch, timestamp ms, [[first sequence, last
sequence, base offset, end offset], …]], …]]`, batches oldest first.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from kio.schema.errors import ErrorCode

from broker.protocol.errors import KafkaError
from storage.errors import UnsupportedFormat
from storage.format.record_batch import NO_PRODUCER_ID, BatchHeader

WINDOW = 5
"""Durable batches remembered for each producer."""
SEQUENCE_MAX = 0x7FFFFFFF
SNAPSHOT_VERSION = 1


class ProducerBatch(NamedTuple):
    """One batch of a producer: its sequence numbers, inclusive, and offsets [base, end)."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


class ProducerEntry:
    """One producer. `batches` oldest first."""

    __slots__ = ("batches", "epoch", "timestamp")

    def __init__(self, epoch: int, timestamp: int) -> None:
        self.epoch = epoch
        self.timestamp = timestamp
        self.batches: list[ProducerBatch] = []


_PackedEntry = tuple[int, int, int, list[ProducerBatch]]
_Packed = tuple[int, list[_PackedEntry]]


def next_sequence(sequence: int) -> int:
    """Return the sequence number after `sequence`: after 2^31 - 1 comes 0."""
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


def sequence_after(first: int, count: int) -> int:
    """Return the last sequence number of `count` records that begin with `first`."""
    return (first + count - 1) & SEQUENCE_MAX


class ProducerStates:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._producers.items())

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, count: int
    ) -> ProducerBatch | None:
        """Return the known batch when this one is a repetition, None when it is the next one.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return None  # unknown or expired: any sequence begins it anew, as in Kafka
        if epoch != entry.epoch:
            if epoch < entry.epoch:
                raise KafkaError(
                    ErrorCode.invalid_producer_epoch,
                    f"producer {producer_id} has epoch {entry.epoch}, the batch has {epoch}",
                )
            if first_sequence != 0:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence}",
                )
            return None
        batches = entry.batches
        if not batches or first_sequence == next_sequence(batches[-1].last_sequence):
            return None
        last_sequence = sequence_after(first_sequence, count)
        for batch in reversed(batches):
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        raise KafkaError(
            ErrorCode.out_of_order_sequence_number,
            f"producer {producer_id} sends sequence {first_sequence} after "
            f"{batches[-1].last_sequence}",
        )

    def add(
        self, header: BatchHeader, base_offset: int, confirmed_offset: int, now_ms: int
    ) -> None:
        """Remember a batch that was appended at `base_offset`."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        entry = self._producers.get(producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._producers[producer_id] = ProducerEntry(header.producer_epoch, now_ms)
        entry.timestamp = now_ms
        if header.is_control:
            return  # transaction markers have no sequence
        count = header.last_offset_delta + 1
        batches = entry.batches
        batches.append(
            ProducerBatch(
                header.base_sequence,
                sequence_after(header.base_sequence, count),
                base_offset,
                base_offset + count,
            )
        )
        while len(batches) > WINDOW and batches[WINDOW].end_offset <= confirmed_offset:
            del batches[0]

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch came before `before_ms`; return how many."""
        old = [pid for pid, entry in self._producers.items() if entry.timestamp < before_ms]
        for producer_id in old:
            del self._producers[producer_id]
        return len(old)

    def snapshot(self, end_offset: int) -> bytes:
        """Return the state as of `end_offset`: of the batches that end at or below it."""
        packed: list[_PackedEntry] = []
        for producer_id, entry in self._producers.items():
            batches = [b for b in entry.batches if b.end_offset <= end_offset][-WINDOW:]
            if batches:
                packed.append((producer_id, entry.epoch, entry.timestamp, batches))
        return msgspec.msgpack.encode((SNAPSHOT_VERSION, packed))

    @classmethod
    def restore(cls, blob: bytes) -> "ProducerStates":
        """Return the states of a snapshot. Raises UnsupportedFormat."""
        version = msgspec.msgpack.decode(blob, type=list)[0]
        if version != SNAPSHOT_VERSION:
            raise UnsupportedFormat(
                f"a partition state has version {version}, this Lakehead reads {SNAPSHOT_VERSION}: "
                "upgrade it"
            )
        _, packed = msgspec.msgpack.decode(blob, type=_Packed)
        states = cls()
        for producer_id, epoch, timestamp, batches in packed:
            entry = states._producers[producer_id] = ProducerEntry(epoch, timestamp)
            entry.batches.extend(batches)
        return states
