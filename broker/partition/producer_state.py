"""Idempotent producers of one partition: the last batches of each, to know a retry from a loss
(KIP-98, KIP-360).

A producer numbers its records; a batch must continue its last one, or be one of those remembered,
which is answered with the offset it got the first time. A producer that is not known, or was
expired, may begin anywhere, as in Kafka.
"""

from collections import deque
from typing import NamedTuple

import msgspec
from kio.schema.errors import ErrorCode

from broker.protocol.errors import KafkaError
from storage.errors import UnsupportedFormat
from storage.format.record_batch import BatchHeader

WINDOW = 5
"""Durable batches remembered of each producer: Kafka's, and the most a client may have in flight.
"""
SNAPSHOT_VERSION = 1
_SEQUENCES = 2**31


class AppendedBatch(NamedTuple):
    """One batch of a producer: its epoch, first and last sequence, offsets [base_offset,
    end_offset), and when it was appended (milliseconds).
    """

    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int
    appended_ms: int


class _Snapshot(msgspec.Struct, frozen=True):
    """Batches of each producer id, oldest first."""

    producers: dict[int, list[AppendedBatch]]


class ProducerStates:
    """Every producer that a partition remembers."""

    def __init__(self) -> None:
        self._producers: dict[int, deque[AppendedBatch]] = {}

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Return the batch that `header` repeats; None for one that may be appended. Raises
        KafkaError.

        INVALID_PRODUCER_EPOCH: a newer incarnation of the producer has written.
        OUT_OF_ORDER_SEQUENCE_NUMBER: batches are missing, or the repeated one is no longer
        remembered.
        """
        batches = self._producers.get(header.producer_id)
        if not batches:
            return None
        last = batches[-1]
        if header.producer_epoch == last.epoch:
            if header.base_sequence == (last.last_sequence + 1) % _SEQUENCES:
                return None
            return self._repeated(header, batches)
        if header.producer_epoch < last.epoch:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id}: epoch {header.producer_epoch}, now {last.epoch}",
            )
        if header.base_sequence != 0:
            raise _out_of_order(header, "the first of its epoch")
        return None

    def append(
        self, header: BatchHeader, base_offset: int, confirmed_offset: int, now_ms: int
    ) -> None:
        """Remember a checked batch that got `base_offset`. What ends at or below `confirmed_offset`
        is durable.
        """
        batches = self._producers.get(header.producer_id)
        if batches is None:
            batches = self._producers[header.producer_id] = deque()
        count = header.last_offset_delta + 1
        batches.append(
            AppendedBatch(
                header.producer_epoch,
                header.base_sequence,
                (header.base_sequence + count - 1) % _SEQUENCES,
                base_offset,
                base_offset + count,
                now_ms,
            )
        )
        # A crash may undo the batches that are not durable yet, so they do not count for the
        # window.
        while len(batches) > WINDOW and batches[WINDOW].end_offset <= confirmed_offset:
            batches.popleft()

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Remember a batch that is in the log."""
        if header.producer_id >= 0 and not header.is_control:
            self.append(header, header.base_offset, header.end_offset, now_ms)

    def expire(self, before_ms: int) -> None:
        """Forget producers whose last batch was appended before `before_ms`."""
        idle = [
            key for key, batches in self._producers.items() if batches[-1].appended_ms < before_ms
        ]
        for producer_id in idle:
            del self._producers[producer_id]

    def snapshot(self, end_offset: int) -> bytes:
        """Return the state as of `end_offset`: version u8, then MessagePack. `restore` reads it."""
        producers = {
            producer_id: kept[-WINDOW:]
            for producer_id, batches in self._producers.items()
            if (kept := [batch for batch in batches if batch.end_offset <= end_offset])
        }
        return bytes([SNAPSHOT_VERSION]) + msgspec.msgpack.encode(_Snapshot(producers))

    @classmethod
    def restore(cls, blob: bytes) -> "ProducerStates":
        """Return the state in a snapshot. Raises UnsupportedFormat for one of a newer release."""
        if blob[0] > SNAPSHOT_VERSION:
            raise UnsupportedFormat(
                f"producer state has version {blob[0]}, newer than this release: upgrade Lakehead"
            )
        states = cls()
        snapshot = msgspec.msgpack.decode(blob[1:], type=_Snapshot)
        states._producers = {key: deque(batches) for key, batches in snapshot.producers.items()}
        return states

    @staticmethod
    def _repeated(header: BatchHeader, batches: deque[AppendedBatch]) -> AppendedBatch:
        last_sequence = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
        for batch in batches:
            if (batch.epoch, batch.first_sequence, batch.last_sequence) == (
                header.producer_epoch,
                header.base_sequence,
                last_sequence,
            ):
                return batch
        raise _out_of_order(header, f"the last was {batches[-1].last_sequence}")


def _out_of_order(header: BatchHeader, what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} epoch {header.producer_epoch}: sequence "
        f"{header.base_sequence} where {what}",
    )
