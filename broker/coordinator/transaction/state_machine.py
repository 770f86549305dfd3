"""The state of one transactional id: Kafka's machine, with the rules of KIP-890 (pure: no log, no
clock, no network).

A method decides; what it returns as `Store` is `pending` until `stored` says that it is in the log,
and until then every other change is refused with CONCURRENT_TRANSACTIONS. A transaction that is
prepared ends when a marker is in the log of each of its partitions (`marked`).
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.transaction.messages import (
    COMPLETED,
    EPOCH_MAX,
    IDLE,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TV_2,
    Decision,
    NeedsProducerId,
    Producer,
    Refused,
    Settled,
    Store,
    TopicPartition,
    Transaction,
    TransactionState,
)

_CONCURRENT = Refused(ErrorCode.concurrent_transactions)
_FENCED = Refused(ErrorCode.producer_fenced)
_INVALID_STATE = Refused(ErrorCode.invalid_txn_state)
_NO_TIMEOUT_MS = 2_147_483_647


class TransactionMachine:
    """One transactional id. `current` is what the log says."""

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.pending: Transaction | None = None
        """On its way to the log."""
        self.unmarked: set[TopicPartition] = set()
        """Partitions without a marker yet, of a transaction that is prepared."""
        self._await_markers()

    # Requests.

    def init_producer_id(
        self, expected: Producer | None, timeout_ms: int, now_ms: int, fresh_id: int | None
    ) -> Decision:
        """Handle InitProducerId. `expected` is the previous identity of the producer, if it sends
        one (KIP-360).

        An open transaction is fenced and aborted: the producer has to retry when that is done.
        """
        known = self.current
        if self.pending is not None or (expected is not None and self._is_next(expected)):
            return _CONCURRENT
        if expected is not None and not self._may_continue(expected):
            return _FENCED
        if known.state in PREPARED:
            return _CONCURRENT
        if known.state is TransactionState.ONGOING:
            return self._fence(now_ms)
        epoch = known.producer_epoch
        fresh = replace(
            known,
            previous_producer_id=known.producer_id,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            timeout_ms=timeout_ms,
            start_ms=-1,
            updated_ms=now_ms,
        )
        is_known_epoch = expected is None or expected.epoch in {epoch, known.last_producer_epoch}
        if is_known_epoch and (
            epoch == EPOCH_MAX
            or (known.is_epoch_exhausted and (expected is None or expected.epoch == epoch))
        ):
            if fresh_id is None:
                return NeedsProducerId()
            last = NO_EPOCH if expected is None else epoch
            return self._store(
                replace(fresh, producer_id=fresh_id, producer_epoch=0, last_producer_epoch=last)
            )
        if expected is None:
            return self._store(
                replace(fresh, producer_epoch=epoch + 1, last_producer_epoch=NO_EPOCH)
            )
        if epoch in {NO_EPOCH, expected.epoch}:
            return self._store(replace(fresh, producer_epoch=epoch + 1, last_producer_epoch=epoch))
        if expected.epoch == known.last_producer_epoch:  # its response was lost
            return self._store(fresh)
        return _FENCED

    def add_partitions(
        self,
        producer: Producer,
        partitions: Collection[TopicPartition],
        transaction_version: int,
        now_ms: int,
    ) -> Decision:
        """AddPartitionsToTxn and AddOffsetsToTxn: the transaction begins, or goes on."""
        refused = self._refuse(producer)
        if refused is not None:
            return refused
        known = self.current
        if self.pending is not None or known.state in PREPARED:
            return _CONCURRENT
        is_ongoing = known.state is TransactionState.ONGOING
        if is_ongoing and known.partitions.issuperset(partitions):
            return Settled(*producer)
        return self._store(
            replace(
                known,
                previous_producer_id=known.producer_id,
                state=TransactionState.ONGOING,
                partitions=known.partitions.union(partitions),
                start_ms=known.start_ms if is_ongoing else now_ms,
                updated_ms=now_ms,
                transaction_version=transaction_version,
            )
        )

    def verify(
        self, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return true if each partition is in the producer's transaction: TRANSACTION_ABORTABLE if
        not.

        A pending change does not matter: the partition itself checks once more when it appends.
        """
        refused = self._refuse(producer)
        if refused is None and self.current.state in PREPARED:
            refused = _CONCURRENT
        if refused is not None:
            return dict.fromkeys(partitions, refused.code)
        known = self.current.partitions
        absent = ErrorCode.transaction_abortable
        return {where: ErrorCode.none if where in known else absent for where in partitions}

    def end(
        self,
        producer: Producer,
        transaction_version: int,
        now_ms: int,
        fresh_id: int | None,
        *,
        is_commit: bool,
    ) -> Decision:
        """Handle EndTxn. The response to a `Store` is its `outcome`."""
        known = replace(self.current, transaction_version=transaction_version)
        if not known.bumps_epochs:
            return self._end_plainly(producer, known, now_ms, is_commit=is_commit)
        is_retry = self._is_ended_by(producer)
        refused = self._refuse_end(producer, is_retry=is_retry)
        if refused is not None:
            return refused
        if known.state is TransactionState.ONGOING:
            return self._prepare(known, now_ms, fresh_id, is_commit=is_commit)
        if is_retry:
            return self._end_again(is_commit=is_commit)
        if is_commit:
            return _INVALID_STATE
        # The client cannot know whether the broker began a transaction for it: aborting none is
        # right, and bumps its epoch all the same.
        return self._prepare(replace(known, start_ms=now_ms), now_ms, fresh_id, is_commit=False)

    def time_out(self, now_ms: int) -> Decision | None:
        """Fence and abort a transaction that has been open for longer than its timeout; None when
        there is none.
        """
        known = self.current
        if (
            self.pending is not None
            or known.state is not TransactionState.ONGOING
            or known.timeout_ms == _NO_TIMEOUT_MS
            or known.start_ms + known.timeout_ms >= now_ms
        ):
            return None
        return self._fence(now_ms)

    def is_expired(self, before_ms: int) -> bool:
        """Return true if this id was not used since, so that it may be deleted."""
        known = self.current
        return self.pending is None and known.state in IDLE and known.updated_ms <= before_ms

    # The results of decisions.

    def stored(self, *, is_durable: bool) -> None:
        """Record that the pending state is in the log, or has failed."""
        pending, self.pending = self.pending, None
        assert pending is not None
        if is_durable:
            self.current = pending
            self._await_markers()

    def marked(self, partitions: Iterable[TopicPartition], now_ms: int) -> Decision | None:
        """Markers are in the log of these partitions; returns the end when they are in all."""
        self.unmarked.difference_update(partitions)
        if self.unmarked or self.pending is not None or self.current.state not in PREPARED:
            return None
        return self._store(outcome(self.current, now_ms))

    # Inside.

    def _may_continue(self, expected: Producer) -> bool:
        known = self.current
        return (
            known.producer_epoch == NO_EPOCH
            or expected.producer_id == known.producer_id
            or (
                expected.producer_id == known.previous_producer_id
                and expected.epoch >= EPOCH_MAX - 1
            )
        )

    def _is_next(self, producer: Producer) -> bool:
        """Return true if `producer` is the identity after the transaction that is being ended,
        which the client got with the decision.
        """
        known = self.current
        if known.state not in PREPARED or not known.bumps_epochs:
            return False
        ended = outcome(known, known.updated_ms)
        return producer == (ended.producer_id, ended.producer_epoch)

    def _is_ended_by(self, producer: Producer) -> bool:
        """Return true if this was the producer when the last transaction ended, which bumped its
        epoch. A transaction that keeps its epoch, of an older client, is that of a successor.

        Kafka goes by the number of the epoch alone: a fenced producer would become its successor.
        """
        known = self.current
        if not known.bumps_epochs:
            return False
        has_overflowed = (
            known.previous_producer_id == producer.producer_id != known.producer_id
            and producer.epoch == EPOCH_MAX - 1
            and known.producer_epoch == 0
        )
        is_same_id = known.producer_id == producer.producer_id
        return has_overflowed or (is_same_id and known.producer_epoch == producer.epoch + 1)

    def _refuse_end(self, producer: Producer, *, is_retry: bool) -> Refused | None:
        known = self.current
        if self._is_next(producer):
            return _CONCURRENT
        is_unknown = known.producer_epoch == NO_EPOCH
        if is_unknown or (known.producer_id != producer.producer_id and not is_retry):
            return Refused(ErrorCode.invalid_producer_id_mapping)
        is_current = producer == (known.producer_id, known.producer_epoch)
        if known.state in PREPARED:
            is_valid = is_retry
        else:
            is_valid = is_current or (is_retry and known.state in COMPLETED)
        if not is_valid:
            return _FENCED
        return None if self.pending is None else _CONCURRENT

    def _end_again(self, *, is_commit: bool) -> Decision:
        known = self.current
        if known.state in PREPARED:
            return _CONCURRENT if known.state is _prepared(is_commit) else _INVALID_STATE
        if known.state is not _completed(is_commit):
            return _INVALID_STATE
        if known.producer_epoch == EPOCH_MAX:  # it was fenced, under an epoch that no producer gets
            return _FENCED
        return Settled(known.producer_id, known.producer_epoch)

    def _refuse(self, producer: Producer) -> Refused | None:
        if self._is_next(producer):
            return _CONCURRENT
        known = self.current
        if producer.producer_id != known.producer_id or known.producer_epoch == NO_EPOCH:
            return Refused(ErrorCode.invalid_producer_id_mapping)
        return None if producer.epoch == known.producer_epoch else _FENCED

    def _end_plainly(
        self, producer: Producer, known: Transaction, now_ms: int, *, is_commit: bool
    ) -> Decision:
        """End a transaction as before KIP-890: the epoch stays, and does not identify repeated
        requests.
        """
        refused = self._refuse(producer)
        if refused is not None:
            return refused
        if self.pending is not None:
            return _CONCURRENT
        if known.state is TransactionState.ONGOING:
            return self._prepare(known, now_ms, None, is_commit=is_commit)
        if known.state is _prepared(is_commit):
            return _CONCURRENT
        if known.state is _completed(is_commit):
            return Settled(*producer)
        return _INVALID_STATE

    def _prepare(
        self, known: Transaction, now_ms: int, fresh_id: int | None, *, is_commit: bool
    ) -> Decision:
        prepared = replace(
            known,
            previous_producer_id=known.producer_id,
            state=_prepared(is_commit),
            updated_ms=now_ms,
        )
        if not known.bumps_epochs:
            return self._store(prepared)
        if known.is_epoch_exhausted:
            if fresh_id is None:
                return NeedsProducerId()
            prepared = replace(prepared, next_producer_id=fresh_id)
        epoch = known.producer_epoch
        return self._store(replace(prepared, producer_epoch=epoch + 1, last_producer_epoch=epoch))

    def _fence(self, now_ms: int) -> Decision:
        """Abort under the next epoch, which fences the old one. Its producer, if it still lives,
        may go on with InitProducerId and what it was.
        """
        known = self.current
        return self._store(
            replace(
                known,
                previous_producer_id=known.producer_id,
                producer_epoch=known.producer_epoch + 1,
                last_producer_epoch=known.producer_epoch,
                state=TransactionState.PREPARE_ABORT,
                updated_ms=now_ms,
                transaction_version=TV_2,
            )
        )

    def _store(self, transaction: Transaction) -> Store:
        assert self.pending is None
        self.pending = transaction
        return Store(transaction)

    def _await_markers(self) -> None:
        known = self.current
        self.unmarked = set(known.partitions) if known.state in PREPARED else set()


def outcome(prepared: Transaction, now_ms: int) -> Transaction:
    """Return what a prepared transaction becomes when all its markers are written. Its producer id
    and epoch are those that the client goes on with.
    """
    is_commit = prepared.state is TransactionState.PREPARE_COMMIT
    has_successor = prepared.bumps_epochs and prepared.next_producer_id != NO_PRODUCER_ID
    return replace(
        prepared,
        previous_producer_id=prepared.producer_id,
        producer_id=prepared.next_producer_id if has_successor else prepared.producer_id,
        producer_epoch=0 if has_successor else prepared.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        state=_completed(is_commit),
        partitions=frozenset(),
        updated_ms=now_ms,
    )


def _prepared(is_commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT


def _completed(is_commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
