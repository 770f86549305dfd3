"""The rules of what differs by design, and the page that tells them."""

from pathlib import Path
from typing import Any

import pytest

from tests.differential.brokers import ProducerEpoch, Records, Request, TopicId
from tests.differential.by_design import RULES, has_hidden_effect, reason_for
from tests.differential.trees import Tree, differences

PAGE = Path(__file__).parents[2] / "docs" / "differential.md"


def test_every_reason_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [rule.reason for rule in RULES if rule.reason not in page] == []


def produced(code: str, **fields: object) -> dict[str, object]:
    return {"responses": [{"index": 0, "error_code": code, **fields}]}


def asked(**fields: object) -> Request:
    records = Records("i", 0, (("attributes", 0), *fields.items()))
    topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
    return Request(key=0, version=13, tree={"topic_data": [topic]})


@pytest.mark.parametrize(
    ("fields", "theirs", "ours", "is_known"),
    [
        ({"magic": 3}, "corrupt_message", "invalid_record", True),
        ({"crc": 1}, "corrupt_message", "invalid_record", False),
        ({"body": b""}, "invalid_record", "none", True),
        ({"body": b"x"}, "invalid_record", "none", False),
        ({}, "none", "out_of_order_sequence_number", False),
        ({}, "out_of_order_sequence_number", "none", False),
        ({}, "none", "invalid_record", False),
    ],
)
def test_a_rule_admits_what_its_reason_argues_and_no_more(
    fields: dict[str, object], theirs: str, ours: str, is_known: bool
) -> None:
    responses = produced(theirs, base_offset=-1), produced(ours, base_offset=4)
    found = list(differences(*responses))
    assert [(one.theirs, one.ours) for one in found] == [(theirs, ours)], "codes alone"
    assert (reason_for(asked(**fields), found[0], responses) is not None) == is_known


@pytest.mark.parametrize(("off", "is_known"), [(-1, True), (0, False)])
def test_a_fenced_producer_is_refused_where_kafka_takes_it_for_its_successor(
    off: int, is_known: bool
) -> None:
    epoch = ProducerEpoch("i", off)
    request = Request(key=26, version=5, tree={"producer_epoch": epoch})
    theirs = {"error_code": "none", "producer_id": "i", "producer_epoch": "i"}
    ours = {"error_code": "producer_fenced", "producer_id": -1, "producer_epoch": -1}
    assert are_known(request, theirs, ours) == is_known


@pytest.mark.parametrize(
    ("theirs", "ours", "is_known"), [("0.0005d", "5.0E-4", True), ("0.0005d", "0.005", False)]
)
def test_a_number_with_the_suffix_of_java_is_the_same_number(
    theirs: str, ours: str, is_known: bool
) -> None:
    one, other = [{"topics": [{"configs": [{"value": value}]}]} for value in (theirs, ours)]
    assert are_known(Request(key=19, version=7, tree={}), one, other) == is_known


def markers(*codes: str) -> dict[str, Any]:
    return {
        "markers": [
            {"producer_id": "i", "topics": [{"partitions": [{"error_code": code}]}]}
            for code in codes
        ]
    }


@pytest.mark.parametrize(
    ("codes", "is_known"),
    [
        (("none", "unknown_topic_or_partition"), True),
        (("cluster_authorization_failed", "unknown_topic_or_partition"), True),
        (("none", "none"), False),
        (("unknown_topic_or_partition", "unknown_topic_or_partition"), False),
        (("unknown_topic_or_partition",), False),
        (("none",), False),
    ],
)
def test_kafka_is_silent_only_about_a_marker_that_it_leaves_out(
    codes: tuple[str, ...], is_known: bool
) -> None:
    request = Request(key=27, version=2, tree={"markers": [{"producer_id": 1} for _ in codes]})
    assert are_known(request, "silent", markers(*codes)) == is_known
    assert not are_known(request, markers(*codes), "silent"), "Lakehead always responds"


def are_known(request: Request, theirs: Tree, ours: Tree) -> bool:
    """Return true if there are differences, and a reason for each."""
    found = list(differences(theirs, ours))
    reasons = [reason_for(request, one, (theirs, ours)) for one in found]
    return bool(found) and None not in reasons


Range = tuple[int, int, int]
"""First and last offset, and the number of deliveries."""


def share_fetch(
    *,
    max_records: int = 500,
    batch_size: int = 500,
    max_bytes: int = 1 << 24,
    released: tuple[int, int] | None = None,
) -> Request:
    verdicts = []
    if released is not None:
        first, last = released
        verdicts = [{"first_offset": first, "last_offset": last, "acknowledge_types": [2]}]
    partition = {"partition_index": 0, "acknowledgement_batches": verdicts}
    topic = {"topic_id": TopicId("t"), "partitions": [partition]}
    tree = {
        "max_records": max_records,
        "batch_size": batch_size,
        "max_bytes": max_bytes,
        "topics": [topic],
    }
    return Request(key=78, version=2, tree=tree)


def shared(*partitions: list[Range], acknowledge_code: int = 0) -> Tree:
    """Return a response to ShareFetch with these ranges of partitions 0, 1, ..."""
    parts = [
        {
            "partition_index": index,
            "error_code": "none",
            "acknowledge_error_code": acknowledge_code,
            "records": [{"base_offset": first} for first, _, _ in ranges],
            "acquired_records": [
                {"first_offset": first, "last_offset": last, "delivery_count": count}
                for first, last, count in ranges
            ],
        }
        for index, ranges in enumerate(partitions)
    ]
    return {"error_code": "none", "responses": [{"topic_id": "t", "partitions": parts}]}


@pytest.mark.parametrize(
    ("max_records", "theirs", "ours", "is_known"),
    [
        (1, ([(0, 0, 1)], []), ([], [(4, 4, 1)]), True),
        (3, ([(0, 0, 1)], [(4, 5, 1)]), ([], [(4, 6, 1)]), True),
        (3, ([(0, 0, 1)], [(4, 5, 1)]), ([], [(5, 7, 1)]), False),
        (3, ([(0, 0, 1)], [(4, 5, 1)]), ([], [(4, 6, 2)]), False),
        (3, ([(0, 2, 1)], []), ([], [(4, 5, 1)]), False),
        (1, ([(0, 0, 1)],), ([(4, 4, 1)],), False),
    ],
)
def test_another_order_of_partitions_is_known_where_the_room_is_used_up(
    max_records: int, theirs: tuple[list[Range], ...], ours: tuple[list[Range], ...], is_known: bool
) -> None:
    request = share_fetch(max_records=max_records)
    assert are_known(request, shared(*theirs), shared(*ours)) == is_known


@pytest.mark.parametrize(
    ("max_records", "theirs", "ours", "is_known"),
    [
        (500, [(5, 6, 1)], [(0, 1, 2), (5, 6, 1)], True),
        (500, [], [(0, 1, 2)], True),
        (500, [(0, 1, 2)], [], False),
        (500, [(5, 6, 1)], [(0, 1, 2)], False),
        (500, [(5, 6, 1)], [(0, 2, 2), (5, 6, 1)], False),
        (2, [(5, 6, 1)], [(0, 1, 2)], True),
        (2, [(5, 6, 1)], [(7, 8, 1)], False),
    ],
)
def test_records_that_a_request_releases_are_known_in_its_own_response(
    max_records: int, theirs: list[Range], ours: list[Range], is_known: bool
) -> None:
    request = share_fetch(max_records=max_records, released=(0, 1))
    assert are_known(request, shared(theirs), shared(ours)) == is_known


@pytest.mark.parametrize(
    ("max_bytes", "theirs", "ours", "is_known"),
    [
        (400, ([(0, 1, 1)], [(0, 0, 1)]), ([(0, 4, 1)], []), True),
        (400, ([(0, 1, 1)], []), ([], [(0, 0, 1)]), True),
        (400, ([(0, 1, 1)], [(0, 0, 1)]), ([(1, 4, 1)], []), False),
        (400, ([(0, 1, 1)], []), ([], []), False),
        (1 << 24, ([(0, 1, 1)], [(0, 0, 1)]), ([(0, 4, 1)], []), False),
    ],
)
def test_other_amounts_are_known_where_bytes_are_few(
    max_bytes: int, theirs: tuple[list[Range], ...], ours: tuple[list[Range], ...], is_known: bool
) -> None:
    request = share_fetch(max_bytes=max_bytes)
    assert are_known(request, shared(*theirs), shared(*ours)) == is_known


def test_a_range_that_ends_before_it_begins_is_known_of_batches_without_records() -> None:
    one, other = shared([(0, -1, 1), (0, 3, 1)]), shared([(0, 3, 1)])
    one["responses"][0]["partitions"][0]["records"].pop()
    assert are_known(share_fetch(batch_size=0), one, other)
    assert not are_known(share_fetch(batch_size=1), one, other)
    assert not are_known(share_fetch(batch_size=0), other, shared([(0, 2, 1)]))


def test_records_of_a_fenced_share_partition_are_known_where_kafka_has_none() -> None:
    with_records = shared([(0, 3, 1)], acknowledge_code=6)
    assert are_known(share_fetch(), shared([], acknowledge_code=6), with_records)
    assert not are_known(share_fetch(), with_records, shared([], acknowledge_code=6))
    assert not are_known(share_fetch(), shared([]), shared([(0, 3, 1)]))


@pytest.mark.parametrize(
    ("acks", "epoch_off", "fields", "is_hidden"),
    [
        (0, -1, {}, True),
        (0, 0, {"body": b""}, True),
        (0, 0, {"attributes": 5}, True),
        (0, 0, {}, False),
        (0, 1, {"crc": 1}, False),
        (-1, -1, {}, False),
        (1, 0, {"body": b""}, False),
    ],
)
def test_a_batch_that_one_takes_by_design_is_hidden_without_a_response(
    acks: int, epoch_off: int, fields: dict[str, object], is_hidden: bool
) -> None:
    records = Records("x", epoch_off, tuple(({"attributes": 0} | fields).items()))
    topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
    tree = {"acks": acks, "topic_data": [topic]}
    assert has_hidden_effect(Request(key=0, version=13, tree=tree)) == is_hidden


@pytest.mark.parametrize(
    ("first", "code", "is_known"), [(1, 121, True), (5, 121, False), (1, 0, False)]
)
def test_a_failure_of_kafka_is_known_where_a_verdict_reaches_to_nothing(
    first: int, code: int, is_known: bool
) -> None:
    request = share_fetch(released=(first, 5))
    failed = {"error_code": "unknown_server_error", "responses": []}
    assert are_known(request, failed, shared([], acknowledge_code=code)) == is_known


@pytest.mark.parametrize(("sent", "is_known"), [(9, True), (13, False), (0, False)])
def test_another_assignment_is_known_with_a_new_epoch(sent: int, is_known: bool) -> None:
    request = Request(key=76, version=1, tree={"member_epoch": sent})
    theirs, ours = ({"member_epoch": 13, "assignment": one} for one in ("some", None))
    assert are_known(request, theirs, ours) == is_known
