"""Single rules of the machine of a share-partition, as Kafka 4.2 has them."""

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.record_state import RecordState, ShareState, StateBatch
from lakehead.broker.share.share_partition import (
    Acknowledgement,
    AcquiredRecords,
    AcquireRequest,
    OffsetRange,
    ShareLimits,
    SharePartition,
)

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
LIMITS = ShareLimits(records_max=100, deliveries_max=5)
LOG = [OffsetRange(0, 9), OffsetRange(10, 19), OffsetRange(20, 29)]


def request(
    member: str = "a", records_max: int = 500, batch_size: int = 500, *, is_strict: bool = False
) -> AcquireRequest:
    return AcquireRequest(member, 1_000, records_max, batch_size, is_strict=is_strict)


def taken(
    machine: SharePartition, wanted: AcquireRequest, log: list[OffsetRange] = LOG
) -> list[AcquiredRecords]:
    offset = machine.next_fetch_offset()
    fetched = [one for one in log if one.last_offset >= offset]
    return machine.acquire(wanted, offset, fetched)


def is_full(machine: SharePartition) -> bool:
    return not machine.can_acquire


def settle(machine: SharePartition, first: int, last: int, *types: int, member: str = "a") -> None:
    change = machine.acknowledge(member, [Acknowledgement(first, last, types)], 2_000)
    machine.complete(change)


def fresh(limits: ShareLimits = LIMITS) -> SharePartition:
    return SharePartition(ShareState(0), limits)


def test_the_limit_of_records_is_rounded_up_to_a_batch_unless_it_is_strict() -> None:
    assert taken(fresh(), request(records_max=12)) == [(0, 19, 1)]
    assert taken(fresh(), request(records_max=12, is_strict=True)) == [(0, 11, 1)]


def test_ranges_begin_anew_at_the_end_of_a_record_batch() -> None:
    assert taken(fresh(), request(batch_size=5)) == [(0, 9, 1), (10, 19, 1), (20, 29, 1)]
    assert taken(fresh(), request(batch_size=11)) == [(0, 19, 1), (20, 29, 1)]
    assert taken(fresh(), request(batch_size=0)) == [(0, 9, 1), (10, 19, 1), (20, 29, 1)]
    assert taken(fresh(), request(batch_size=5, is_strict=True)) == [(0, 29, 1)]


def test_what_is_in_flight_is_limited() -> None:
    machine = fresh(ShareLimits(records_max=15, deliveries_max=5))
    assert taken(machine, request("a")) == [(0, 19, 1)]  # to the end of a batch
    assert is_full(machine)
    assert taken(machine, request("b")) == []
    settle(machine, 3, 4, RELEASE)
    assert not is_full(machine), "released records are free at any limit"
    assert taken(machine, request("b")) == [(3, 4, 2)]
    settle(machine, 0, 2, ACCEPT)
    settle(machine, 3, 4, ACCEPT, member="b")
    settle(machine, 5, 9, ACCEPT)
    assert (machine.start_offset, is_full(machine)) == (10, False)
    assert taken(machine, request("b")) == [(20, 29, 1)]


@pytest.mark.parametrize(
    ("member", "first", "last", "types", "code"),
    [
        ("b", 0, 9, (ACCEPT,), ErrorCode.invalid_record_state),
        ("a", 0, 9, (5,), ErrorCode.invalid_request),
        ("a", 0, 9, (ACCEPT, 1), ErrorCode.invalid_request),
        ("a", 15, 25, (ACCEPT,), ErrorCode.invalid_request),
        ("a", 40, 41, (ACCEPT,), ErrorCode.invalid_request),
    ],
)
def test_a_refused_acknowledgement_changes_nothing(
    member: str, first: int, last: int, types: tuple[int, ...], code: ErrorCode
) -> None:
    machine = fresh()
    taken(machine, request(records_max=20))
    good = Acknowledgement(0, 0, [ACCEPT])
    with pytest.raises(KafkaError) as caught:
        machine.acknowledge(member, [good, Acknowledgement(first, last, types)], 0)
    expected = ErrorCode.invalid_record_state if member == "b" else code
    assert caught.value.code is expected
    settle(machine, 0, 19, ACCEPT)
    assert machine.start_offset == 20


def test_records_that_were_never_acquired_are_in_no_state_to_acknowledge() -> None:
    with pytest.raises(KafkaError) as caught:
        fresh().acknowledge("a", [Acknowledgement(0, 0, [ACCEPT])], 0)
    assert caught.value.code is ErrorCode.invalid_record_state


def test_the_rest_of_a_batch_that_was_acquired_in_part_is_in_flight_for_any_member() -> None:
    machine = fresh()
    assert taken(machine, request(records_max=4, is_strict=True)) == [(0, 3, 1)]
    for last, code in ((4, ErrorCode.invalid_record_state), (10, ErrorCode.invalid_request)):
        with pytest.raises(KafkaError) as caught:
            machine.acknowledge("a", [Acknowledgement(0, last, [ACCEPT])], 0)
        assert caught.value.code is code
    assert taken(machine, request("b")) == [(4, 9, 1), (10, 29, 1)]


def test_records_are_delivered_again_in_the_ranges_in_which_they_came_first() -> None:
    machine = fresh()
    assert taken(machine, request(records_max=12)) == [(0, 19, 1)]
    assert taken(machine, request(batch_size=5)) == [(20, 29, 1)]
    settle(machine, 0, 29, RELEASE)
    assert taken(machine, request("b", records_max=1)) == [(0, 19, 2)], "the whole range"
    settle(machine, 3, 9, RELEASE, member="b")
    assert taken(machine, request("c")) == [(3, 9, 3), (20, 29, 2)]


def test_a_range_is_delivered_again_as_a_whole_whatever_its_deliveries() -> None:
    machine = fresh()
    taken(machine, request(records_max=10))
    settle(machine, 0, 9, RELEASE)
    assert taken(machine, request("b", records_max=4, is_strict=True)) == [(0, 3, 2)]
    settle(machine, 0, 3, RELEASE, member="b")
    assert taken(machine, request("c", records_max=1)) == [(0, 3, 3), (4, 9, 2)]


def test_a_last_delivery_is_alone_also_where_others_have_one_more() -> None:
    machine = fresh(ShareLimits(records_max=100, deliveries_max=3))
    taken(machine, request(records_max=10))
    settle(machine, 0, 9, RELEASE)
    assert taken(machine, request("a", records_max=1, is_strict=True)) == [(0, 0, 2)]
    settle(machine, 0, 0, RELEASE)
    assert taken(machine, request("b")) == [(0, 0, 3)], "the last one"
    assert taken(machine, request("c")) == [(1, 9, 2), (10, 29, 1)]


def test_all_of_an_acknowledgement_is_in_flight_or_none_of_it_is_looked_at() -> None:
    machine = fresh()
    taken(machine, request(records_max=10))
    with pytest.raises(KafkaError) as caught:
        machine.acknowledge("b", [Acknowledgement(8, 10, [RELEASE, ACCEPT, ACCEPT])], 0)
    assert caught.value.code is ErrorCode.invalid_request, "not that of another member's records"


def test_a_record_is_acknowledged_once_even_while_that_is_not_durable() -> None:
    machine = fresh()
    taken(machine, request())
    change = machine.acknowledge("a", [Acknowledgement(0, 9, [RELEASE])], 0)
    with pytest.raises(KafkaError):
        machine.acknowledge("a", [Acknowledgement(5, 5, [ACCEPT])], 0)
    assert machine.next_fetch_offset() == 30, "it is not free before it is durable"
    assert machine.expire(5_000) is not None
    assert taken(machine, request("b")) == [(10, 29, 2)]
    machine.complete(change)
    assert taken(machine, request("b")) == [(0, 9, 2)]


def test_a_lock_that_is_renewed_lasts_longer_and_nothing_is_stored() -> None:
    machine = fresh()
    taken(machine, request())
    change = machine.acknowledge("a", [Acknowledgement(0, 9, [RENEW])], 2_000)
    assert change.batches == []
    assert machine.next_deadline_ms == 1_000
    machine.expire(1_000)
    assert machine.next_deadline_ms == 2_000
    assert taken(machine, request("b")) == [(10, 29, 2)]


def test_deliveries_that_are_used_up_archive_a_record() -> None:
    machine = fresh(ShareLimits(records_max=100, deliveries_max=1))
    taken(machine, request())
    settle(machine, 0, 29, RELEASE)
    assert machine.start_offset == 30


def test_records_that_were_delivered_often_go_out_in_ever_smaller_numbers() -> None:
    machine = SharePartition(
        ShareState(0, batches=(StateBatch(0, 15, RecordState.AVAILABLE, 3),)), LIMITS
    )
    log = [OffsetRange(0, 15), OffsetRange(16, 19)]
    assert taken(machine, request(), log) == [(0, 7, 4)]
    settle(machine, 0, 7, RELEASE)
    assert taken(machine, request(), log) == [(0, 0, 5)], "the last delivery is alone"
    assert taken(machine, request("b"), log) == [(1, 1, 5)]
    settle(machine, 0, 0, RELEASE)
    assert machine.start_offset == 1


def test_aborted_records_and_holes_of_the_log_are_skipped() -> None:
    machine = fresh()
    log = [OffsetRange(4, 9), OffsetRange(10, 19), OffsetRange(25, 29)]
    found = machine.acquire(request(), 0, log, [OffsetRange(10, 19)])
    assert found == [AcquiredRecords(4, 9, 1), AcquiredRecords(20, 29, 1)]
    assert machine.start_offset == 4
    settle(machine, 4, 9, ACCEPT)
    assert machine.start_offset == 20


def test_what_is_stored_is_restored_with_its_holes() -> None:
    batches = (
        StateBatch(0, 4, RecordState.ACKNOWLEDGED, 1),
        StateBatch(8, 9, RecordState.ARCHIVED, 2),
        StateBatch(10, 11, RecordState.AVAILABLE, 2),
    )
    machine = SharePartition(ShareState(0, batches=batches), LIMITS)
    assert (machine.start_offset, machine.end_offset) == (5, 12)
    assert machine.delivery_complete_count == 2
    assert taken(machine, request()) == [(5, 7, 1), (10, 11, 3), (12, 29, 1)]


def test_a_log_that_begins_later_takes_what_lies_before() -> None:
    machine = fresh()
    taken(machine, request())
    machine.move_start(15)
    assert (machine.start_offset, machine.in_flight) == (15, 15)
    settle(machine, 10, 29, ACCEPT)
    assert machine.start_offset == 30
    machine.move_start(50)
    assert machine.next_fetch_offset() == machine.end_offset == 50
