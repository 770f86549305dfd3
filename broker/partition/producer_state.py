"""The producers of a partition by Kafka's rules, in one place (KIP-98, KIP-360, KIP-890).

A producer has an epoch and its last batches by sequence number. A known batch gets its first offset
again; one out of order, or of an older epoch, is refused. Kafka keeps five batches, since a client
has at most five in flight. So does this node, of the durable ones, and besides them all that are
still in flight: a snapshot for an offset below the newest batch must hold its five too.

A transaction is open from a producer's first transactional batch to the marker that ends it. An
appended batch changes a producer at once, before it is durable, since the next batch is judged by
it; the state before is kept until then, for snapshots.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.partition.producer_table import (
    LIMITS,
    WINDOW,
    ProducerEntry,
    ProducerLimits,
    ProducerTable,
)
from lakehead.broker.partition.verification import Verifications
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.format.control_batch import Marker
from lakehead.storage.format.partition_state import (
    NONE,
    PackedState,
    PartitionState,
    ProducerBatch,
    StateSnapshot,
    decode_packed,
    encode_packed,
    encode_state,
    union_of_aborted,
    unpack_producer,
)
from lakehead.storage.format.record_batch import (
    CONTROL,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
)
from lakehead.storage.format.transaction_index import ENTRY_SIZE, TransactionIndex

SEQUENCE_MAX = 0x7FFFFFFF
STRICT_MARKERS = 2
"""First transaction version whose markers bear a newer epoch than the records (KIP-890)."""


class _Before(NamedTuple):
    """The state of a producer before the batch that ends at `end_offset`; None if unknown."""

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
    """The producers of one partition. Of what is in objects already, the states of those that reach
    beyond `since` are all that counts (-1: there is none), and are true up to `end_offset`.
    """

    def __init__(
        self, *, since: int = 0, end_offset: int = 0, limits: ProducerLimits = LIMITS
    ) -> None:
        self.transactions = TransactionIndex()
        self.verifications = Verifications()
        self._producers = ProducerTable(limits)
        self._before: deque[_Before] = deque()
        self._since = end_offset if since < 0 else since
        self._saved_to = self._round_from = end_offset
        self._aborted_round = 0

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return self._producers.items()

    @property
    def size(self) -> int:
        """About how many bytes a whole state takes."""
        return self._producers.size + self.transactions.packed_size

    @property
    def replaced(self) -> int:
        """Producers that were forgotten for new ones, beyond the cap."""
        return self._producers.replaced

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return what is known of a producer."""
        return self._producers.get(producer_id)

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return true if a producer has a transaction open here, of this epoch."""
        entry = self._producers.get(producer_id)
        return entry is not None and entry.transaction_start >= 0 and entry.epoch == epoch

    def is_next(self, header: BatchHeader) -> bool:
        """Return true if a batch is the next one of a known producer, outside of transactions:
        `check` and `check_state` would find nothing.
        """
        entry = self._producers.get(header.producer_id)
        return (
            entry is not None
            and bool(entry.batches)
            and header.base_sequence == entry.batches[-1].last_sequence + 1
            and header.producer_epoch == entry.epoch
            and entry.transaction_start < 0
            and not len(self.verifications)
        )

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
            return None  # unknown or expired: any sequence begins it again, as in Kafka
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
        producer_id, attributes = header.producer_id, header.attributes
        if producer_id == NO_PRODUCER_ID:
            return
        if attributes & CONTROL and marker is None:
            return  # compaction has emptied it, or it is of another kind
        is_transactional = attributes & TRANSACTIONAL
        if is_transactional:
            epoch = None if marker is None else header.producer_epoch
            self.verifications.end(producer_id, epoch)
        entry = self._producers.get(producer_id)
        begins = (
            is_transactional
            and header.record_count > 0  # compaction empties none of an open transaction
            and (entry is None or entry.transaction_start < 0)
        )
        end_offset = base_offset + header.last_offset_delta + 1
        self._producers.confirmed_offset = confirmed_offset
        if entry is None or entry.epoch != header.producer_epoch or marker is not None or begins:
            entry = self._change(producer_id, header.producer_epoch, end_offset, confirmed_offset)
        entry.timestamp = now_ms
        entry.end_offset = end_offset
        if marker is not None:
            entry.coordinator_epoch = marker.coordinator_epoch
            entry.transaction_start = NONE
            self.transactions.end(producer_id, base_offset, is_commit=marker.is_commit)
            return
        if begins:
            entry.transaction_start = base_offset
            self.transactions.begin(producer_id, base_offset)
        first = header.base_sequence
        if first != NO_SEQUENCE:
            batches = entry.batches
            last = (first + header.last_offset_delta) & SEQUENCE_MAX
            batches.append(ProducerBatch(first, last, base_offset, end_offset))
            while len(batches) > WINDOW and batches[WINDOW].end_offset <= confirmed_offset:
                del batches[0]

    def _change(
        self, producer_id: int, epoch: int, end_offset: int, confirmed_offset: int
    ) -> ProducerEntry:
        """Return a producer's entry to change, and keep how it was."""
        self._let_go_before(confirmed_offset)
        entry = self._producers.get(producer_id)
        known = None if entry is None else entry.copy()
        if end_offset > confirmed_offset:
            self._before.append(_Before(end_offset, producer_id, known))
        if entry is None:
            entry = self._producers.add(producer_id, epoch)
        if entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        return entry

    def expire(self, before_ms: int) -> Iterator[int]:
        """Forget producers without an open transaction whose last batch came before `before_ms`.
        Yields how many, after each piece of the work.
        """
        yield from self._producers.expire(before_ms)
        self.verifications.expire(before_ms)

    def is_due(self, confirmed_offset: int) -> bool:
        """Return true if an upload should take the state now, as of what is durable: it would be a
        large one before long.
        """
        self._let_go_before(confirmed_offset)
        limits, transactions = self._producers.limits, self.transactions
        changed = self._producers.changed_size(len(self._before))
        return (
            changed + transactions.packed_size >= limits.changed_bytes
            and self.size > limits.upload_bytes
            and changed + transactions.size_since(self._saved_to) >= limits.changed_bytes
        )

    def snapshot(self, start_offset: int, end_offset: int) -> StateSnapshot:
        """Return the state as of `end_offset`, of the batches that end at or below it, for an
        upload of [start, end): whole where it is small, else what changed since the upload before,
        and a share of the rest. It must not be below what is durable, and uploads must be in order.
        """
        before, transactions = self._before_of(end_offset), self.transactions
        limits = self._producers.limits
        if self.size <= limits.whole_bytes:
            whole = PackedState(
                self._producers.take_all(end_offset, before), transactions.packed(end_offset)
            )
            self._begin_round(end_offset)
            return StateSnapshot(encode_packed(whole))
        new, _ = transactions.packed_between(self._saved_to, end_offset)
        changed_size = self._producers.changed_size(len(before)) + len(new)
        share = limits.share(self.size, changed_size)
        changed, is_round = self._producers.take_share(end_offset, before, share)
        again, self._aborted_round = transactions.packed_between(
            self._aborted_round, self._round_from, share // ENTRY_SIZE
        )
        if is_round and self._aborted_round == self._round_from:
            self._since = self._round_from
            self._begin_round(end_offset)
        self._saved_to = end_offset
        data = encode_packed(PackedState(changed, again + new))
        return StateSnapshot(data, -1 if self._since >= start_offset else self._since)

    def old_snapshot(self, end_offset: int) -> StateSnapshot:
        """Return the state as `snapshot`, whole, for a cluster with releases that read version 2
        only.
        """
        packed = self._producers.take_all(end_offset, self._before_of(end_offset))
        records = dict(PackedState(packed).records()).values()
        producers = [unpack_producer(one) for one in records]
        self._begin_round(end_offset)
        state = PartitionState(producers, self.transactions.packed(end_offset))
        return StateSnapshot(encode_state(state))

    def _let_go_before(self, confirmed_offset: int) -> None:
        while self._before and self._before[0].end_offset <= confirmed_offset:
            self._before.popleft()

    def _before_of(self, end_offset: int) -> dict[int, ProducerEntry | None]:
        """Return how producers were at an offset that have changed since."""
        return {
            producer_id: entry
            for end, producer_id, entry in reversed(self._before)
            if end > end_offset
        }

    def _begin_round(self, end_offset: int) -> None:
        """From now on what has not changed goes round once more."""
        self._producers.begin_round()
        self._saved_to = self._round_from = end_offset
        self._aborted_round = 0

    @classmethod
    def restore(
        cls,
        states: Sequence[bytes],
        *,
        since: int = 0,
        end_offset: int = 0,
        limits: ProducerLimits = LIMITS,
    ) -> "ProducerStates":
        """Return what states say, the oldest first, of objects that reach beyond `since`; they are
        true up to `end_offset`. May run in another thread. Raises UnsupportedFormat, ValueError.
        """
        restored = cls(since=since, end_offset=end_offset, limits=limits)
        stored = [decode_packed(data) for data in states]
        restored._producers.confirmed_offset = end_offset
        opened = restored._producers.restore(stored)
        restored.transactions.restore(
            [(start, producer_id) for producer_id, start in opened.items()],
            union_of_aborted([one.aborted for one in stored]),
        )
        return restored


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
