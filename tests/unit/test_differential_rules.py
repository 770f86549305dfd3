"""The rules of what differs by design, and the page that tells them."""

from pathlib import Path

import pytest

from tests.differential.brokers import Records, Request
from tests.differential.by_design import RULES, reason_for
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
