"""Errors of partitions of the source of an import: for which another try is worth it."""

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.cli.migration.source_brokers import (
    Incarnation,
    Place,
    SourceMoved,
    check_partition,
)
from lakehead.storage.errors import RequestRefused

PLACE = Place(Incarnation("t", ""), 3)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_leader_epoch,
    ],
)
def test_a_change_of_the_leader_is_waited_for(code: ErrorCode) -> None:
    with pytest.raises(SourceMoved, match="t-3"):
        check_partition(code, PLACE)


def test_a_refusal_names_the_partition_and_the_error() -> None:
    check_partition(ErrorCode.none, PLACE)
    with pytest.raises(RequestRefused, match=r"t-3.*TOPIC_AUTHORIZATION_FAILED"):
        check_partition(ErrorCode.topic_authorization_failed, PLACE)
