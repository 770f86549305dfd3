"""Producer states against a plain model of Kafka's rules, with snapshots at any offset."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.producer_state import (
    SEQUENCE_MAX,
    ProducerStates,
    next_sequence,
    sequence_after,
)
from lakehead.broker.partition.producer_table import LIMITS, WINDOW, ProducerLimits
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.errors import UnsupportedFormat
from lakehead.storage.format.record_batch import BatchHeader
from tests.support.repetitions import examples
from tests.support.stored_states import TINY, StoredStates


def header(producer_id: int, epoch: int, sequence: int, count: int) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, 0, count - 1, 0, 0, producer_id, epoch, sequence, count)


class Log:
    """A partition's worth of appends: what `Partition` does with the states."""

    def __init__(self, limits: ProducerLimits = LIMITS) -> None:
        self.stored = StoredStates(limits)
        self.states = self.stored.states()
        self.end = 0
        self.confirmed = 0
        self.batches: list[tuple[int, int, int, int, int]] = []

    def produce(self, producer_id: int, epoch: int, sequence: int, count: int) -> int | ErrorCode:
        batch = header(producer_id, epoch, sequence, count)
        is_next = self.states.is_next(batch)
        try:
            known = self.states.check(producer_id, epoch, sequence, count)
            if is_next:
                assert known is None
                self.states.check_state(batch)
        except KafkaError as error:
            assert not is_next
            return error.code
        if known is not None:
            return known.base_offset
        base = self.end
        self.states.add(batch, base, self.confirmed, 5)
        self.end += count
        self.batches.append((producer_id, epoch, sequence, count, base))
        return base


class Model:
    """Kafka's rules, over the whole history."""

    def __init__(self) -> None:
        self.history: dict[int, list[tuple[int, int, int, int]]] = {}
        self.end = 0

    def produce(self, producer_id: int, epoch: int, sequence: int, count: int) -> set[object]:
        """Every answer that is right."""
        batches = self.history.get(producer_id)
        if batches is not None:
            known_epoch, last, _, _ = batches[-1]
            if epoch < known_epoch:
                return {ErrorCode.invalid_producer_epoch}
            if epoch > known_epoch:
                if sequence != 0:
                    return {ErrorCode.out_of_order_sequence_number}
            elif sequence != next_sequence(last):
                right: set[object] = set()
                same = [b for b in batches if b[0] == epoch]
                for back, (_, b_last, b_first, base) in enumerate(reversed(same)):
                    if (b_first, b_last) == (sequence, sequence_after(sequence, count)):
                        right.add(base)
                        if back >= WINDOW:  # forgotten or, being on its way still, not
                            right.add(ErrorCode.out_of_order_sequence_number)
                        break
                return right or {ErrorCode.out_of_order_sequence_number}
        base = self.end
        self.end += count
        self.history.setdefault(producer_id, []).append(
            (epoch, sequence_after(sequence, count), sequence, base)
        )
        return {base}


operation = st.tuples(
    st.sampled_from(
        ["next", "next", "next", "repeat", "any", "confirm", "restart", "upload", "merge"]
    ),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 8),
    st.integers(1, 4),
)


@settings(max_examples=examples(400))
@given(
    st.lists(operation, max_size=60),
    st.sampled_from([0, SEQUENCE_MAX - 5]),
    st.sampled_from([LIMITS, TINY]),
)
def test_answers_are_those_of_the_model(
    operations: list[tuple[str, int, int, int, int]], first: int, limits: ProducerLimits
) -> None:
    log, model = Log(limits), Model()
    for kind, producer_id, epoch, number, count in operations:
        known = model.history.get(producer_id, [])
        if kind == "confirm":
            log.confirmed = log.end
            continue
        if kind == "restart":
            log.confirmed = log.end
            log.stored.upload(log.states, log.end)
            log.states = log.stored.restore()
            continue
        if kind == "upload":
            log.stored.upload(log.states, log.confirmed)
            continue
        if kind == "merge":
            log.stored.merge(number, count)
            continue
        if kind == "next":
            epoch = known[-1][0] if known else epoch
            sequence = next_sequence(known[-1][1]) if known else first
        elif kind == "repeat" and known:
            epoch, last, sequence, _ = known[-1 - number % len(known)]
            count = ((last - sequence) & SEQUENCE_MAX) + 1
        else:
            sequence = number
        right = model.produce(producer_id, epoch, sequence, count)
        assert log.produce(producer_id, epoch, sequence, count) in right


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_snapshot_below_the_end_knows_five_batches_and_nothing_above(
    counts: list[int], at: int, confirmed_at: int
) -> None:
    log = Log()
    ends = [0]
    sequence = 0
    confirmed_at = min(confirmed_at, len(counts))
    for number, count in enumerate(counts):
        log.produce(9, 0, sequence, count)
        sequence += count
        ends.append(log.end)
        if number + 1 == confirmed_at:
            log.confirmed = log.end
    at = max(confirmed_at, min(at, len(counts)))
    restored = ProducerStates.restore([log.states.snapshot(0, ends[at]).data])
    for number, (_, epoch, first, count, base) in enumerate(log.batches):
        if at - WINDOW <= number < at:
            known = restored.check(9, epoch, first, count)
            assert known is not None
            assert known.base_offset == base
    if 0 < at < len(counts):
        _, epoch, first, count, _ = log.batches[at]
        assert restored.check(9, epoch, first, count) is None, "what was lost is taken again"


def test_sequences_wrap_to_zero() -> None:
    assert next_sequence(SEQUENCE_MAX) == 0
    assert sequence_after(SEQUENCE_MAX, 1) == SEQUENCE_MAX
    assert sequence_after(SEQUENCE_MAX, 2) == 0
    assert sequence_after(SEQUENCE_MAX - 1, 4) == 1


def test_an_old_epoch_is_fenced_and_a_new_one_begins_at_zero() -> None:
    log = Log()
    assert log.produce(1, 1, 0, 2) == 0
    assert log.produce(1, 0, 2, 1) is ErrorCode.invalid_producer_epoch
    assert log.produce(1, 2, 5, 1) is ErrorCode.out_of_order_sequence_number
    assert log.produce(1, 2, 0, 1) == 2


def test_idle_producers_expire() -> None:
    log = Log()
    log.produce(1, 0, 0, 1)
    assert sum(log.states.expire(5)) == 0
    assert sum(log.states.expire(6)) == 1
    assert len(log.states) == 0


def test_a_newer_snapshot_is_refused() -> None:
    import msgspec

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        ProducerStates.restore([msgspec.msgpack.encode([4, [], b""])])
