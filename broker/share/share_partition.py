"""A share-partition: the deliveries of one partition's records to the members of a share group.

The machine has no clock, log or socket. Records between the start offset and the end offset are in
flight. A member acquires records that are AVAILABLE, for the time of a lock; each time counts as a
delivery. Its acknowledgement makes them ACKNOWLEDGED (accept), ARCHIVED (reject, or a gap) or
AVAILABLE again (release). A lock that runs out makes them AVAILABLE too. Records whose deliveries
are used up become ARCHIVED instead. The start offset moves behind all that is done.

In a group with a dead letter topic, records that were rejected or used up become ARCHIVING first.
Once that is durable their dead letters are written, and `archive` makes them ARCHIVED. A machine
that is made from a state with such records has them in `archiving`: they are written again.

An acknowledgement counts once it is durable: `acknowledge` and `release` return a `Change`, whose
records no member gets meanwhile, and `complete` or `roll_back` ends it. Sources: KIP-932, KIP-1206
(acquire modes), KIP-1222 (renewal), KIP-1191 (dead letters).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.dead_letters import DeadLetters, Reason
from lakehead.broker.share.in_flight import NO_DEADLINE, InFlightBatch, InFlightBatches
from lakehead.broker.share.record_state import (
    AcknowledgeType,
    RecordState,
    ShareState,
    StateBatch,
)

_THROTTLED_DELIVERIES_MIN = 2

_origin = attrgetter("origin")

_VERDICTS = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


class OffsetRange(NamedTuple):
    """Offsets, first and last inclusive: of a record batch, or of an aborted one."""

    first_offset: int
    last_offset: int


class AcquiredRecords(NamedTuple):
    """Offsets, first and last inclusive, that a member has acquired for the n-th time."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """Verdicts on the records of a range: one for all of them, or one for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class AcquireRequest(NamedTuple):
    """The limits of an acquisition.

    At most `records_max` records are acquired: in the mode `record_limit` (`is_strict`) exactly,
    else up to the end of the record batch that reaches it, and of records that are delivered again,
    of the range in which they came first. `batch_size` is the number of records after which a new
    range begins, at the end of a record batch; in the mode `record_limit` none begins.
    """

    member_id: str
    deadline_ms: int
    records_max: int
    batch_size: int
    is_strict: bool = False


class ShareLimits(NamedTuple):
    """Limits of a share-partition.

    `records_max` is the number of offsets in flight (`group.share.partition.max.record.locks`),
    `deliveries_max` that of the deliveries of a record (`group.share.delivery.count.limit`).
    """

    records_max: int = 2000
    deliveries_max: int = 5


class Change:
    """New states of records, by acknowledgements, that count once they are durable."""

    __slots__ = ("batches", "dead_letters", "delivery_complete_count", "is_late", "start_offset")

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        """The start offset to store: as it is without this change."""
        self.delivery_complete_count = 0
        """The number of offsets that are done, with this change."""
        self.batches: list[StateBatch] = []
        """The states to store; nothing is to be stored if there is none."""
        self.dead_letters: list[DeadLetters] = []
        """The dead letters to write once the change counts."""
        self.is_late = False
        """True if there are verdicts on records behind the start offset."""


class SharePartition:
    """The machine of one share-partition; see the module. Made from its durable state, of which the
    start offset is known.
    """

    def __init__(self, state: ShareState, limits: ShareLimits) -> None:
        self.start_offset = state.start_offset
        """The first offset that is not done."""
        self.end_offset = state.start_offset
        """The offset after the last record batch that was acquired, all of it or a part."""
        self.has_dead_letters = False
        """True if records that are given up go to a dead letter topic, from now on."""
        self.limits = limits
        """The present limits."""
        self._batches = InFlightBatches()
        self._may_redeliver = False
        """False if certainly nothing in flight is AVAILABLE."""
        for batch in state.batches:
            self._restore(batch)
        self._settle()

    def _restore(self, stored: StateBatch) -> None:
        first_offset = max(stored.first_offset, self.end_offset)
        if stored.last_offset < first_offset:
            return
        self._fill(first_offset, RecordState.AVAILABLE)
        state = stored.state
        if state is RecordState.ACQUIRED:  # nothing writes that
            state = RecordState.AVAILABLE
        self._batches.append(
            InFlightBatch(first_offset, stored.last_offset, state, stored.delivery_count)
        )
        self.end_offset = stored.last_offset + 1
        self._may_redeliver = True

    def _fill(self, offset: int, state: RecordState) -> None:
        """Put what lies between the end offset and `offset` in flight."""
        if offset > self.end_offset:
            self._batches.append(InFlightBatch(self.end_offset, offset - 1, state, 0))
            self.end_offset = offset

    # Looking.

    @property
    def in_flight(self) -> int:
        """The number of offsets in flight."""
        return self.end_offset - self.start_offset

    @property
    def delivery_complete_count(self) -> int:
        """The number of offsets in flight that are done."""
        return sum(len(batch) for batch in self._batches if batch.state.is_terminal)

    @property
    def batches(self) -> Iterable[InFlightBatch]:
        """Everything in flight, in order."""
        return iter(self._batches)

    @property
    def archiving(self) -> list[DeadLetters]:
        """Everything that is ARCHIVING. The state has no reasons: they follow from the deliveries,
        as in Kafka.
        """
        return [
            DeadLetters(
                batch.first_offset,
                batch.last_offset,
                batch.delivery_count,
                Reason.DELIVERIES_USED_UP if self._is_used_up(batch) else Reason.REJECTED,
            )
            for batch in self._batches
            if batch.state is RecordState.ARCHIVING
        ]

    @property
    def can_acquire(self) -> bool:
        """Return true if `next_fetch_offset` may be acquired, as to the limit of what is in
        flight.
        """
        return (
            self.in_flight < self.limits.records_max or self.next_fetch_offset() < self.end_offset
        )

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the first acquisition lock runs out, in ms; None without locks."""
        return min(
            (
                batch.deadline_ms
                for batch in self._batches
                if batch.deadline_ms != NO_DEADLINE and batch.change is None
            ),
            default=None,
        )

    def next_fetch_offset(self) -> int:
        """Return the first offset that may be acquired."""
        if self._may_redeliver:
            for batch in self._batches:
                if batch.is_available:
                    return batch.first_offset
            self._may_redeliver = False
        return self.end_offset

    # Delivery.

    def acquire(
        self,
        request: AcquireRequest,
        fetch_offset: int,
        fetched: Sequence[OffsetRange],
        aborted: Iterable[OffsetRange] = (),
    ) -> list[AcquiredRecords]:
        """Acquire records for a member, of the record batches that were fetched from `fetch_offset`
        on. Records of aborted batches are archived instead, for read-committed groups.
        """
        if not fetched:
            return []
        self._skip(fetch_offset, fetched[0].first_offset)
        wanted = OffsetRange(
            max(fetched[0].first_offset, self.start_offset), fetched[-1].last_offset
        )
        room = request.records_max
        acquired: list[AcquiredRecords] = []
        for _, parts in groupby(self._available(wanted), key=_origin):
            batches = list(parts)
            is_throttled = any(self._is_throttled(batch) for batch in batches)
            if acquired and is_throttled:
                break
            found = list(self._acquire_again(request, wanted, batches, room))
            acquired += found
            room -= sum(one.last_offset - one.first_offset + 1 for one in found)
            if room <= 0 or is_throttled:
                break
        else:
            acquired += self._acquire_new(request, fetched, room)
        for gone in aborted:
            acquired = list(self._without(acquired, gone))
        self._settle()
        return acquired

    def give_back(self, member_id: str, acquired: Iterable[AcquiredRecords]) -> None:
        """Undo deliveries that do not reach the member: they do not count."""
        for one in acquired:
            for batch in self._batches.cut(one.first_offset, one.last_offset):
                is_held = batch.member_id == member_id and batch.change is None
                if is_held and batch.delivery_count == one.delivery_count:
                    batch.delivery_count -= 1
                    batch.become(RecordState.AVAILABLE)
        self._may_redeliver = True
        self._settle()

    def _available(self, wanted: OffsetRange) -> list[InFlightBatch]:
        return [batch for batch in self._batches.overlapping(*wanted) if batch.is_available]

    def _is_last_delivery(self, batch: InFlightBatch) -> bool:
        """Return true if the next delivery is the last one. It is alone in its response then."""
        deliveries_max = self.limits.deliveries_max
        return (
            deliveries_max > _THROTTLED_DELIVERIES_MIN
            and batch.delivery_count == deliveries_max - 1
        )

    def _excess(self, batch: InFlightBatch) -> int:
        """Return how often a batch was delivered beyond the middle of its deliveries."""
        middle = (self.limits.deliveries_max + 1) // 2
        return batch.delivery_count - max(_THROTTLED_DELIVERIES_MIN, middle)

    def _is_throttled(self, batch: InFlightBatch) -> bool:
        return self._excess(batch) >= 0

    def _acquire_again(
        self,
        request: AcquireRequest,
        wanted: OffsetRange,
        batches: Iterable[InFlightBatch],
        room: int,
    ) -> Iterator[AcquiredRecords]:
        """Acquire from batches of one origin: as a whole, unless the limit of records is strict, or
        they were delivered often. These go out in ever smaller numbers, and alone at last, so that
        one that kills its consumers takes no others with it.
        """
        most = room if request.is_strict else None
        taken, is_throttled = 0, False
        for batch in batches:
            is_last = self._is_last_delivery(batch)
            if taken and is_last:
                return
            if self._is_throttled(batch) and not is_throttled:
                is_throttled = True
                first_offset, last_offset = batch.origin
                share = max(1, (last_offset - first_offset + 1) >> (self._excess(batch) + 1))
                if taken < share:
                    most = share if most is None else min(most, share)
            low = max(batch.first_offset, wanted.first_offset)
            high = low if is_last else min(batch.last_offset, wanted.last_offset)
            if most is not None:
                high = min(high, low + most - taken - 1)
            for part in self._batches.cut(low, high):
                part.acquire(request.member_id, request.deadline_ms)
                yield AcquiredRecords(low, high, part.delivery_count)
            taken += high - low + 1
            if is_last or taken == most:
                return

    def _acquire_new(
        self, request: AcquireRequest, fetched: Sequence[OffsetRange], room: int
    ) -> Iterator[AcquiredRecords]:
        """Acquire what was never in flight, up to the end of a record batch. If the limit of
        records is strict, the rest of that batch is in flight too, and available.
        """
        last_offset = fetched[-1].last_offset
        free = self.limits.records_max - self.in_flight
        if last_offset < self.end_offset or free <= 0 or room <= 0:
            return
        self._fill(fetched[0].first_offset, RecordState.ARCHIVED)
        low = self.end_offset
        most = min(room, free)
        end = min(_end_of_batch(low + most - 1, fetched), last_offset)
        self.end_offset = end + 1
        if request.is_strict:
            self._batches.append(InFlightBatch(low, end, RecordState.AVAILABLE, 0))
            self._may_redeliver = True
            ranges = [OffsetRange(low, min(end, low + most - 1))]
        else:
            ranges = list(_split(low, end, fetched, request.batch_size))
            for one in ranges:
                self._batches.append(InFlightBatch(*one, RecordState.AVAILABLE, 0))
        for one in ranges:
            for part in self._batches.cut(*one):
                part.acquire(request.member_id, request.deadline_ms)
                yield AcquiredRecords(*one, part.delivery_count)

    def _skip(self, fetch_offset: int, first_offset: int) -> None:
        """Archive what may be acquired from `fetch_offset` up to `first_offset`: no record is left
        there, by log compaction.
        """
        if fetch_offset <= self.end_offset:
            self._fill(first_offset, RecordState.ARCHIVED)
        self._archive(fetch_offset, first_offset - 1, RecordState.AVAILABLE)

    def _without(
        self, acquired: Iterable[AcquiredRecords], gone: OffsetRange
    ) -> Iterator[AcquiredRecords]:
        """Archive the part of acquired records that is in a range; yield the rest of them."""
        for first_offset, last_offset, count in acquired:
            low = max(first_offset, gone.first_offset)
            high = min(last_offset, gone.last_offset)
            if low > high:
                yield AcquiredRecords(first_offset, last_offset, count)
                continue
            self._archive(low, high, RecordState.ACQUIRED)
            if first_offset < low:
                yield AcquiredRecords(first_offset, low - 1, count)
            if high < last_offset:
                yield AcquiredRecords(high + 1, last_offset, count)

    def _archive(self, first_offset: int, last_offset: int, state: RecordState) -> None:
        """Archive what is in a state in [first, last]."""
        if first_offset > last_offset:
            return
        for batch in self._batches.cut(first_offset, last_offset):
            if batch.state is state:
                batch.become(RecordState.ARCHIVED)

    # Acknowledgement.

    def acknowledge(
        self,
        member_id: str,
        acknowledgements: Iterable[Acknowledgement],
        renewed_until_ms: int | None,
    ) -> Change:
        """Begin what a member's acknowledgements say; locks that it renews last until
        `renewed_until_ms`, None in a group whose locks are not renewed.

        Raises KafkaError, and nothing has changed: INVALID_REQUEST for an unknown type and for
        records that were never acquired, INVALID_RECORD_STATE for records that the member does not
        have, and for a renewal where there are none.
        """
        change = Change(self.start_offset)
        renewed: list[tuple[InFlightBatch, int]] = []
        try:
            for one in acknowledgements:
                change.is_late |= one.first_offset < self.start_offset
                verdicts = list(_verdicts(one))
                self._check_known(one.first_offset, one.last_offset)
                for first_offset, last_offset, kind in verdicts:
                    found = self._acquired_by(member_id, first_offset, last_offset)
                    if kind is not AcknowledgeType.RENEW:
                        self._begin(change, found, kind)
                    elif renewed_until_ms is not None:
                        renewed += [(batch, renewed_until_ms) for batch in found]
                    elif found:
                        raise KafkaError(
                            ErrorCode.invalid_record_state,
                            "The group does not renew the locks of records.",
                        )
        except KafkaError:
            self.roll_back(change)
            raise
        for batch, until_ms in renewed:
            batch.deadline_ms = until_ms
        self._finish(change)
        return change

    def release(self, member_id: str) -> Change:
        """Begin to release all that a member has: its share session has ended."""
        change = Change(self.start_offset)
        held = [
            batch
            for batch in self._batches
            if batch.member_id == member_id and batch.change is None
        ]
        self._begin(change, held, AcknowledgeType.RELEASE)
        self._finish(change)
        return change

    def _check_known(self, first_offset: int, last_offset: int) -> None:
        """Raise KafkaError for records that are not in flight yet."""
        if last_offset < self.start_offset:
            return
        if not len(self._batches):
            raise KafkaError(
                ErrorCode.invalid_record_state,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        if last_offset >= self.end_offset:
            edge = "first" if first_offset >= self.end_offset else "last"
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Batch record not found. The {edge} offset in request is past acquired records.",
            )

    def _acquired_by(
        self, member_id: str, first_offset: int, last_offset: int
    ) -> Sequence[InFlightBatch]:
        """Return the batches of [first, last], cut to it, which all are the member's."""
        if last_offset < self.start_offset:
            return ()  # they are done, or deleted
        for batch in self._batches.overlapping(first_offset, last_offset):
            if batch.state is not RecordState.ACQUIRED or batch.change is not None:
                raise KafkaError(
                    ErrorCode.invalid_record_state,
                    "The batch cannot be acknowledged. The batch is not in the acquired state.",
                )
            if batch.member_id != member_id:
                raise KafkaError(
                    ErrorCode.invalid_record_state, "Member is not the owner of batch record"
                )
        return self._batches.cut(first_offset, last_offset)

    def _begin(
        self, change: Change, batches: Iterable[InFlightBatch], kind: AcknowledgeType
    ) -> None:
        for batch in batches:
            reason = self._reason(batch, kind)
            batch.change = change
            batch.next_state = _VERDICTS[kind] if reason is None else RecordState.ARCHIVED
            if reason is not None and self.has_dead_letters:
                batch.next_state = RecordState.ARCHIVING
                first_offset, last_offset = batch.first_offset, batch.last_offset
                change.dead_letters.append(
                    DeadLetters(first_offset, last_offset, batch.delivery_count, reason)
                )

    def _reason(self, batch: InFlightBatch, kind: AcknowledgeType) -> Reason | None:
        """Return the reason for which a verdict gives records up; None if it does not."""
        if kind is AcknowledgeType.REJECT:
            return Reason.REJECTED
        is_last = kind is AcknowledgeType.RELEASE and self._is_used_up(batch)
        return Reason.DELIVERIES_USED_UP if is_last else None

    def _is_used_up(self, batch: InFlightBatch) -> bool:
        return batch.delivery_count >= self.limits.deliveries_max

    def _finish(self, change: Change) -> None:
        """Note what a change has to store."""
        self._batches.join()
        change.batches = [
            StateBatch(one.first_offset, one.last_offset, one.next_state, one.delivery_count)
            for one in self._changing(change)
        ]
        change.delivery_complete_count = self.delivery_complete_count + sum(
            len(one) for one in self._changing(change) if one.next_state.is_terminal
        )

    def _changing(self, change: Change) -> Iterator[InFlightBatch]:
        return (batch for batch in self._batches if batch.change is change)

    def complete(self, change: Change) -> None:
        """A change is durable: it counts."""
        for batch in self._changing(change):
            batch.become(batch.next_state)
        self._may_redeliver = True
        self._settle()

    def roll_back(self, change: Change) -> None:
        """A change was not stored: its records are as before, until their locks run out."""
        for batch in self._changing(change):
            batch.change = None
        self._settle()

    def expire(self, now_ms: int) -> Change | None:
        """Release the records whose locks have run out. It counts at once, as in Kafka: return what
        to store of it, None if there is nothing.
        """
        change = Change(self.start_offset)
        late = [
            batch
            for batch in self._batches
            if batch.deadline_ms != NO_DEADLINE
            and batch.change is None
            and batch.deadline_ms <= now_ms
        ]
        if not late:
            return None
        self._begin(change, late, AcknowledgeType.RELEASE)
        self._finish(change)
        self.complete(change)
        return change

    def archive(self, letters: DeadLetters) -> Change | None:
        """Be done with records whose dead letters are written, or cannot be. It counts at once:
        return what to store of it, None if there is nothing.
        """
        change = Change(self.start_offset)
        for batch in self._batches.cut(letters.first_offset, letters.last_offset):
            if batch.state is RecordState.ARCHIVING:
                batch.change = change
                batch.next_state = RecordState.ARCHIVED
        self._finish(change)
        self.complete(change)
        return change if change.batches else None

    def move_start(self, log_start_offset: int) -> None:
        """The log begins later now, by retention or DeleteRecords: what lies before is done."""
        if log_start_offset <= self.start_offset:
            return
        self._batches.drop_before(log_start_offset)
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self._settle()

    def _settle(self) -> None:
        """Move the start offset behind what is done, and join what is equal."""
        self._batches.join()
        done = self._batches.drop_done()
        if done is not None:
            self.start_offset = done


def _verdicts(one: Acknowledgement) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """Yield (first offset, last offset, type) of each run of offsets with the same verdict."""
    if len(one.types) == 1:
        yield one.first_offset, one.last_offset, _type(one.types[0])
        return
    if len(one.types) != one.last_offset - one.first_offset + 1:
        raise KafkaError(ErrorCode.invalid_request, "The types do not fit the offsets.")
    first_offset = one.first_offset
    for kind, run in groupby(one.types):
        end = first_offset + len(list(run))
        yield first_offset, end - 1, _type(kind)
        first_offset = end


def _type(number: int) -> AcknowledgeType:
    try:
        return AcknowledgeType(number)
    except ValueError:
        raise KafkaError(ErrorCode.invalid_request, f"Invalid acknowledge type: {number}") from None


def _end_of_batch(offset: int, fetched: Sequence[OffsetRange]) -> int:
    """Return the last offset of the record batch that has `offset`."""
    return next((one.last_offset for one in fetched if one.last_offset >= offset), offset)


def _split(
    first_offset: int, last_offset: int, fetched: Sequence[OffsetRange], batch_size: int
) -> Iterator[OffsetRange]:
    """Cut a range at ends of record batches, so that each part has about `batch_size` records."""
    low = first_offset
    for one in fetched:
        if low <= one.last_offset < last_offset and one.last_offset - low + 1 >= batch_size:
            yield OffsetRange(low, one.last_offset)
            low = one.last_offset + 1
    yield OffsetRange(low, last_offset)
