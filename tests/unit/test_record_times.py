"""Times that the broker gives to records, and where those of producers may lie."""

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import Topic
from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.partition.validation import check_batch
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.format.record_batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    crc_ok,
    read_header,
    stamp,
)
from lakehead.storage.format.records import iter_record_times
from tests.support.wire import Batch

NOW = 1_700_000_000_000


def test_a_stamped_batch_is_whole_and_its_records_have_one_time() -> None:
    batch = memoryview(bytearray(Batch(values=(b"a", b"b"), timestamp=5).encode()))
    before = read_header(batch)
    header = stamp(batch, NOW)
    assert header == read_header(batch)
    assert crc_ok(batch)
    assert header.max_timestamp == NOW
    assert header.base_timestamp == before.base_timestamp
    assert [time.timestamp for time in iter_record_times(header, batch[HEADER_SIZE:])] == [NOW, NOW]
    assert stamp(batch, NOW + 1).max_timestamp == NOW + 1
    assert crc_ok(batch)


def test_the_time_of_appending_does_not_go_back_with_the_clock() -> None:
    topic = Topic("t", "0" * 32)
    assert [topic.append_time(now) for now in (5, 9, 3, 10)] == [5, 9, 9, 10]


def check(timestamp: int, rules: RecordRules) -> None:
    batch = memoryview(bytearray(Batch(timestamp=timestamp).encode()))
    check_batch(batch, version=9, rules=rules, now_ms=NOW)


def test_bounds_of_timestamps_are_inclusive_and_spare_what_has_none() -> None:
    rules = RecordRules(before_ms=100, after_ms=10)
    for timestamp in (NOW - 100, NOW, NOW + 10, NO_TIMESTAMP):
        check(timestamp, rules)
    for timestamp in (NOW - 101, NOW + 11, 0, 2**63 - 1, -(2**63)):
        with pytest.raises(KafkaError) as refused:
            check(timestamp, rules)
        assert refused.value.code is ErrorCode.invalid_timestamp


def test_timestamps_do_not_matter_where_the_broker_sets_them() -> None:
    rules = RecordRules(is_log_append_time=True, before_ms=0, after_ms=0)
    for timestamp in (0, 2**63 - 1, -(2**63)):
        check(timestamp, rules)
