"""Transactions of a partition against a plain model: what a committed reader gets is what was
committed, from any offset, before and after a restart that lost what was not durable.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.broker.partition.producer_table import LIMITS, ProducerLimits
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.format.control_batch import Marker
from lakehead.storage.format.record_batch import CONTROL, TRANSACTIONAL, BatchHeader
from tests.support.repetitions import examples
from tests.support.stored_states import TINY, StoredStates


def header(
    producer_id: int, epoch: int, sequence: int, count: int, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(
        0, 100, 0, 2, 0, attributes, count - 1, 0, 0, producer_id, epoch, sequence, count
    )


@dataclass(frozen=True)
class Written:
    """A batch of the log. `marker`: None for data."""

    base: int
    header: BatchHeader
    marker: Marker | None

    @property
    def end(self) -> int:
        return self.base + self.header.last_offset_delta + 1


class Log:
    """A partition with its states, and what the model needs to judge them: the log itself."""

    def __init__(self, limits: ProducerLimits = LIMITS) -> None:
        self.stored = StoredStates(limits)
        self.states = self.stored.states()
        self.written: list[Written] = []
        self.confirmed = 0
        self.sequences: dict[int, tuple[int, int]] = {}

    @property
    def end(self) -> int:
        return self.written[-1].end if self.written else 0

    def _add(self, header: BatchHeader, marker: Marker | None) -> None:
        self.written.append(Written(self.end, header, marker))
        self.states.add(header, self.written[-1].base, self.confirmed, 5, marker)

    def open_start(self, producer_id: int) -> int:
        start = -1
        for one in self.written:
            if one.header.producer_id == producer_id:
                if one.marker is not None:
                    start = -1
                elif one.header.is_transactional and start < 0:
                    start = one.base
        return start

    def epoch(self, producer_id: int) -> int:
        found = [
            w.header.producer_epoch for w in self.written if w.header.producer_id == producer_id
        ]
        return found[-1] if found else 0

    def produce(self, producer_id: int, count: int, *, is_transactional: bool) -> None:
        is_open = self.open_start(producer_id) >= 0
        epoch = self.epoch(producer_id)
        attributes = TRANSACTIONAL if is_transactional else 0
        new = header(producer_id, epoch, -1, count, attributes)
        if is_open and not is_transactional:
            with pytest.raises(KafkaError) as refused:
                self.states.check_state(new)
            assert refused.value.code is ErrorCode.invalid_txn_state
            return
        self.states.check_state(new)
        self._add(new, None)

    def end_transaction(self, producer_id: int, *, is_commit: bool, bump: int) -> None:
        epoch, marker = self.epoch(producer_id) + bump, Marker(is_commit, 0)
        if not bump and self.open_start(producer_id) >= 0:
            with pytest.raises(KafkaError) as refused:
                self.states.check_marker(producer_id, epoch, 0, transaction_version=2)
            assert refused.value.code is ErrorCode.invalid_producer_epoch
        self.states.check_marker(producer_id, epoch, 0, transaction_version=2 if bump else 1)
        self._add(header(producer_id, epoch, -1, 1, TRANSACTIONAL | CONTROL), marker)

    def confirm(self, count: int) -> None:
        ahead = [one.end for one in self.written if one.end > self.confirmed]
        self.confirmed = ahead[min(count, len(ahead)) - 1] if ahead and count else self.confirmed

    def upload(self) -> None:
        self.stored.upload(self.states, self.confirmed)

    def crash(self) -> None:
        """Nothing is left but the last upload and the log up to what was durable."""
        self.written = [one for one in self.written if one.end <= self.confirmed]
        self.states, offset = self.stored.restore(), self.stored.end
        for one in self.written:
            if one.end > offset:
                self.states.add(one.header, one.base, self.confirmed, 5, one.marker)

    # What is right.

    def stable(self) -> int:
        durable = [one for one in self.written if one.end <= self.confirmed]
        open_now: dict[int, int] = {}
        for one in durable:
            if one.marker is not None:
                open_now.pop(one.header.producer_id, None)
            elif one.header.is_transactional:
                open_now.setdefault(one.header.producer_id, one.base)
        return min(open_now.values(), default=self.confirmed)

    def committed(self, start: int, end: int) -> list[int]:
        """The data batches in [start, end) that a reader of committed records must get."""
        found = []
        for number, one in enumerate(self.written):
            if one.marker is not None or not (start <= one.base and one.end <= end):
                continue
            fate = next(
                (
                    later.marker.is_commit
                    for later in self.written[number:]
                    if later.marker and later.header.producer_id == one.header.producer_id
                ),
                None,
            )
            if not one.header.is_transactional or fate:
                found.append(one.base)
        return found

    def read(self, start: int, end: int) -> list[int]:
        """What Kafka's consumer makes of the batches and the aborted transactions it is sent."""
        entries = self.states.transactions.aborted_among(start, end)
        aborted = sorted((entry.first_offset, entry.producer_id) for entry in entries)
        skipped: set[int] = set()
        found = []
        for one in self.written:
            if not (start <= one.base and one.end <= end):
                continue
            while aborted and aborted[0][0] < one.end:
                skipped.add(aborted.pop(0)[1])
            producer_id = one.header.producer_id
            if one.marker is not None:
                if not one.marker.is_commit:
                    skipped.discard(producer_id)
            elif not (one.header.is_transactional and producer_id in skipped):
                found.append(one.base)
        return found


KINDS = ("produce", "plain", "commit", "abort", "confirm", "upload", "merge", "crash")
kind = st.one_of(st.just("produce"), st.sampled_from(("abort", "confirm")), st.sampled_from(KINDS))
operation = st.tuples(kind, st.integers(1, 4), st.integers(1, 3))


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(operation, max_size=50), st.sampled_from([LIMITS, TINY]), st.data())
def test_committed_readers_get_what_was_committed(
    operations: list[tuple[str, int, int]], limits: ProducerLimits, data: st.DataObject
) -> None:
    log = Log(limits)
    for kind, producer_id, count in operations:
        match kind:
            case "produce" | "plain":
                log.produce(producer_id, count, is_transactional=kind == "produce")
            case "commit" | "abort":
                log.end_transaction(producer_id, is_commit=kind == "commit", bump=count % 2)
            case "confirm":
                log.confirm(count)
            case "upload":
                log.upload()
            case "merge":
                log.stored.merge(producer_id, count)
            case "crash":
                log.crash()
        stable = log.states.transactions.last_stable_offset(log.confirmed)
        assert stable == log.stable()
    edges = [0, *(one.end for one in log.written if one.end <= log.stable())]
    start = data.draw(st.sampled_from(edges))
    end = data.draw(st.sampled_from([edge for edge in edges if edge >= start]))
    assert log.read(start, end) == log.committed(start, end)
    for producer_id in range(1, 5):
        entry = log.states.get(producer_id)
        assert log.open_start(producer_id) == (-1 if entry is None else entry.transaction_start)


def test_a_zombie_coordinator_is_fenced() -> None:
    states = ProducerStates()
    states.add(header(1, 0, -1, 1, TRANSACTIONAL | CONTROL), 0, 0, 5, Marker(True, 4))
    states.check_marker(1, 0, 4, transaction_version=1)
    with pytest.raises(KafkaError) as refused:
        states.check_marker(1, 0, 3, transaction_version=1)
    assert refused.value.code is ErrorCode.transaction_coordinator_fenced


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (1, -1)])
def test_a_marker_of_nobody_is_refused(producer_id: int, epoch: int) -> None:
    with pytest.raises(KafkaError) as refused:
        ProducerStates().check_marker(producer_id, epoch, 0, transaction_version=1)
    assert refused.value.code is ErrorCode.invalid_producer_epoch


def test_a_marker_fences_what_its_producer_sent_before() -> None:
    """A batch that was held up must not open a transaction that nobody ends."""
    states = ProducerStates()
    states.add(header(1, 0, 0, 2, TRANSACTIONAL), 0, 0, 5)
    states.check_marker(1, 1, 0, transaction_version=2)
    states.add(header(1, 1, -1, 1, TRANSACTIONAL | CONTROL), 2, 0, 5, Marker(True, 0))
    states.check_marker(1, 1, 0, transaction_version=2)  # sent again: its answer was lost
    for sequence in (2, 0):
        with pytest.raises(KafkaError) as refused:
            states.check(1, 0, sequence, 1)
        assert refused.value.code is ErrorCode.invalid_producer_epoch
    with pytest.raises(KafkaError) as refused:
        states.check(1, 1, 2, 1)
    assert refused.value.code is ErrorCode.out_of_order_sequence_number
    assert states.check(1, 1, 0, 1) is None


def test_producers_with_an_open_transaction_do_not_expire() -> None:
    states = ProducerStates()
    states.add(header(1, 0, 0, 1, TRANSACTIONAL), 0, 0, 5)
    assert sum(states.expire(100)) == 0
    states.add(header(1, 0, -1, 1, TRANSACTIONAL | CONTROL), 1, 0, 6, Marker(False, 0))
    assert sum(states.expire(100)) == 1


def test_states_of_version_1_are_read() -> None:
    import msgspec

    packed = [1, [[7, 2, 99, [[0, 3, 10, 14]]]]]
    states = ProducerStates.restore([msgspec.msgpack.encode(packed)])
    known = states.check(7, 2, 0, 4)
    assert known is not None
    assert known.base_offset == 10
    assert not states.is_in_transaction(7, 2)
