"""What a partition knows of its producers: Kafka's rules, in one place (KIP-98, KIP-360, KIP-890).

A producer has an epoch and its last batches by sequence number. A batch that is already known is
answered with its first offset again; one out of order, or of an older epoch, is refused. Kafka
keeps five batches, since a client has at most five in flight; so do we, of those that are durable,
and besides them all that are still on their way: a snapshot for an offset below the newest batch
must hold its five too.

A transaction is open from a producer's first transactional batch to the marker that ends it. What
is appended changes a producer at once, before it is durable, since the next batch is judged by it;
how the producer was before is kept until then, for snapshots.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from broker.partition.verification import Verifications
from broker.protocol.errors import KafkaError
from storage.format.control_batch import Marker
from storage.format.partition_state import (
    NONE,
    PartitionState,
    ProducerBatch,
    ProducerRecord,
    decode_state,
    encode_state,
)
from storage.format.record_batch import NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader
from storage.format.transaction_index import TransactionIndex

WINDOW = 5
"""Durable batches remembered for each producer."""
SEQUENCE_MAX = 0x7FFFFFFF
STRICT_MARKERS = 2
"""First transaction version whose markers bear a newer epoch than the records (KIP-890)."""


class ProducerEntry:
    """One producer. `batches` oldest first; `transaction_start` is the first offset of its open
    transaction, `coordinator_epoch` that of its last marker; -1 for none.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "timestamp", "transaction_start")

    def __init__(self, epoch: int, timestamp: int) -> None:
        self.epoch = epoch
        self.timestamp = timestamp
        self.coordinator_epoch = NONE
        self.transaction_start = NONE
        self.batches: list[ProducerBatch] = []

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; -1 before the first of this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def copy(self) -> "ProducerEntry":
        """Return the entry as it is now."""
        copied = ProducerEntry(self.epoch, self.timestamp)
        copied.coordinator_epoch = self.coordinator_epoch
        copied.transaction_start = self.transaction_start
        copied.batches = self.batches[:]
        return copied

    def batches_below(self, end_offset: int) -> list[ProducerBatch]:
        """Return the last batches that end at or below an offset."""
        return [batch for batch in self.batches if batch.end_offset <= end_offset][-WINDOW:]


class _Before(NamedTuple):
    """How a producer was before the batch that ends at `end_offset`; None: unknown."""

    end_offset: int
    producer_id: int
    entry: ProducerEntry | None


def next_sequence(sequence: int) -> int:
    """Return the sequence number after `sequence`: after 2^31 - 1 comes 0."""
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


def sequence_after(first: int, count: int) -> int:
    """Return the last sequence number of `count` records that begin with `first`."""
    return (first + count - 1) & SEQUENCE_MAX


class ProducerStates:
    """The producers of one partition."""

    def __init__(self) -> None:
        self.transactions = TransactionIndex()
        self.verifications = Verifications()
        self._producers: dict[int, ProducerEntry] = {}
        self._before: deque[_Before] = deque()

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return what is known of a producer."""
        return self._producers.get(producer_id)

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has a transaction open here, of this epoch."""
        entry = self._producers.get(producer_id)
        return entry is not None and entry.transaction_start >= 0 and entry.epoch == epoch

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, count: int
    ) -> ProducerBatch | None:
        """Return the known batch when this one is a repetition, None when it is the next one.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        entry, waiting = self._producers.get(producer_id), self.verifications.get(producer_id)
        last = NO_SEQUENCE if entry is None else entry.last_sequence
        if entry is not None and epoch == entry.epoch:
            if first_sequence == next_sequence(last) and waiting is None:
                return None
            known = self.find(producer_id, epoch, first_sequence, count)
            if known is not None:
                return known
        if waiting is not None:
            begins_late = waiting.is_adding and first_sequence != 0 and last == NO_SEQUENCE
            if begins_late or first_sequence > waiting.lowest_sequence:
                raise _out_of_order(producer_id, first_sequence, waiting.lowest_sequence - 1)
        if entry is None:
            return None  # unknown or expired: any sequence begins it anew, as in Kafka
        _check_epoch(producer_id, epoch, entry)
        if epoch != entry.epoch:
            last = NO_SEQUENCE
        if first_sequence != next_sequence(last):
            raise _out_of_order(producer_id, first_sequence, last)
        return None

    def find(
        self, producer_id: int, epoch: int, first_sequence: int, count: int
    ) -> ProducerBatch | None:
        """Return the batch that this one repeats, if it is known."""
        entry = self._producers.get(producer_id)
        if entry is None or epoch != entry.epoch:
            return None
        last_sequence = sequence_after(first_sequence, count)
        for batch in reversed(entry.batches):
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH for an epoch below the one that is known."""
        entry = self._producers.get(producer_id)
        if entry is not None:
            _check_epoch(producer_id, epoch, entry)

    def check_state(self, header: BatchHeader) -> None:
        """Hold a new batch against its producer's epoch and transaction, whatever its sequence.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            return
        _check_epoch(header.producer_id, header.producer_epoch, entry)
        if entry.transaction_start >= 0 and not header.is_transactional:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} has a transaction open since offset "
                f"{entry.transaction_start}, and the batch is not of it",
            )

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Judge whether a marker may be written. Since transaction version 2 its epoch is above
        that of the records; a repetition of one that was written may be written again.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        if producer_id < 0 or epoch < 0:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch, "a marker needs a producer and its epoch"
            )
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        _check_epoch(producer_id, epoch, entry)
        is_strict = transaction_version >= STRICT_MARKERS
        if is_strict and epoch == entry.epoch and entry.transaction_start >= 0:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id} has epoch {epoch} in a transaction that a marker of the "
                "same epoch is to end",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"the last marker of producer {producer_id} is of coordinator epoch "
                f"{entry.coordinator_epoch}, this one of {coordinator_epoch}",
            )

    def add(
        self,
        header: BatchHeader,
        base_offset: int,
        confirmed_offset: int,
        now_ms: int,
        marker: Marker | None = None,
    ) -> None:
        """Remember a batch that was appended at `base_offset`; `marker` if it is a control batch
        that ends a transaction.
        """
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        if header.is_control and marker is None:
            return  # compaction has emptied it, or it is of another kind
        if header.is_transactional:
            epoch = None if marker is None else header.producer_epoch
            self.verifications.end(producer_id, epoch)
        entry = self._producers.get(producer_id)
        begins = (
            header.is_transactional
            and header.record_count > 0  # compaction empties none of an open transaction
            and (entry is None or entry.transaction_start < 0)
        )
        if entry is None or entry.epoch != header.producer_epoch or marker is not None or begins:
            end_offset = base_offset + header.last_offset_delta + 1
            entry = self._change(producer_id, header.producer_epoch, end_offset, confirmed_offset)
        entry.timestamp = now_ms
        if marker is not None:
            entry.coordinator_epoch = marker.coordinator_epoch
            entry.transaction_start = NONE
            self.transactions.end(producer_id, base_offset, is_commit=marker.is_commit)
            return
        if begins:
            entry.transaction_start = base_offset
            self.transactions.begin(producer_id, base_offset)
        if header.base_sequence != NO_SEQUENCE:
            _add_batch(entry.batches, header, base_offset, confirmed_offset)

    def _change(
        self, producer_id: int, epoch: int, end_offset: int, confirmed_offset: int
    ) -> ProducerEntry:
        """Return a producer's entry to change, and keep how it was."""
        before = self._before
        while before and before[0].end_offset <= confirmed_offset:
            before.popleft()
        entry = self._producers.get(producer_id)
        known = None if entry is None else entry.copy()
        if end_offset > confirmed_offset:
            before.append(_Before(end_offset, producer_id, known))
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(epoch, 0)
        if entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        return entry

    def expire(self, before_ms: int) -> int:
        """Forget producers without an open transaction whose last batch came before `before_ms`;
        return how many.
        """
        old = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.timestamp < before_ms and entry.transaction_start < 0
        ]
        for producer_id in old:
            del self._producers[producer_id]
        self.verifications.expire(before_ms)
        return len(old)

    def snapshot(self, end_offset: int) -> bytes:
        """Return the state as of `end_offset`: of the batches that end at or below it. It must not
        be below what is durable.
        """
        changed = {
            producer_id: entry
            for end, producer_id, entry in reversed(self._before)
            if end > end_offset
        }
        known = [
            (producer_id, changed.get(producer_id, now))
            for producer_id, now in self._producers.items()
        ]
        producers = [
            ProducerRecord(
                producer_id,
                entry.epoch,
                entry.timestamp,
                entry.batches_below(end_offset),
                entry.coordinator_epoch,
                entry.transaction_start,
            )
            for producer_id, entry in known
            if entry is not None
        ]
        return encode_state(PartitionState(producers, self.transactions.packed(end_offset)))

    @classmethod
    def restore(cls, blob: bytes) -> "ProducerStates":
        """Return the states of a snapshot. Raises UnsupportedFormat."""
        states, stored = cls(), decode_state(blob)
        for one in stored.producers:
            entry = ProducerEntry(one.epoch, one.timestamp)
            entry.batches.extend(one.batches)
            entry.coordinator_epoch = one.coordinator_epoch
            entry.transaction_start = one.transaction_start
            states._producers[one.producer_id] = entry
        states.transactions.restore(stored.open_transactions, stored.aborted)
        return states


def _out_of_order(producer_id: int, first_sequence: int, last_sequence: int) -> KafkaError:
    return KafkaError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {producer_id} sends sequence {first_sequence} after {last_sequence}",
    )


def _check_epoch(producer_id: int, epoch: int, entry: ProducerEntry) -> None:
    if epoch < entry.epoch:
        raise KafkaError(
            ErrorCode.invalid_producer_epoch,
            f"producer {producer_id} has epoch {entry.epoch}, the batch has {epoch}",
        )


def _add_batch(
    batches: list[ProducerBatch], header: BatchHeader, base_offset: int, confirmed_offset: int
) -> None:
    count = header.last_offset_delta + 1
    last_sequence = sequence_after(header.base_sequence, count)
    batches.append(
        ProducerBatch(header.base_sequence, last_sequence, base_offset, base_offset + count)
    )
    while len(batches) > WINDOW and batches[WINDOW].end_offset <= confirmed_offset:
        del batches[0]
