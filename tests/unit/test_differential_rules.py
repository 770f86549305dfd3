"""The rules of what differs by design, and the page that tells them."""

from pathlib import Path
from typing import Any

import pytest

from tests.differential.brokers import ProducerEpoch, Records, Request
from tests.differential.by_design import RULES, has_hidden_effect, reason_for
from tests.differential.trees import differences

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
    found = list(differences(produced(theirs, base_offset=-1), produced(ours, base_offset=4)))
    assert [(one.theirs, one.ours) for one in found] == [(theirs, ours)], "codes alone"
    assert (reason_for(asked(**fields), found[0]) is not None) == is_known


@pytest.mark.parametrize(("off", "is_known"), [(-1, True), (0, False)])
def test_a_fenced_producer_is_refused_where_kafka_takes_it_for_its_successor(
    off: int, is_known: bool
) -> None:
    epoch = ProducerEpoch("i", off)
    request = Request(key=26, version=5, tree={"producer_epoch": epoch})
    theirs = {"error_code": "none", "producer_id": "i", "producer_epoch": "i"}
    ours = {"error_code": "producer_fenced", "producer_id": -1, "producer_epoch": -1}
    reasons = [reason_for(request, found) for found in differences(theirs, ours)]
    assert reasons
    assert all((reason is not None) == is_known for reason in reasons)


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
    (found,) = differences("silent", markers(*codes))
    assert (reason_for(request, found) is not None) == is_known
    (turned,) = differences(markers(*codes), "silent")
    assert reason_for(request, turned) is None, "Lakehead always responds"


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
