"""Batches of an imported topic: which are committed, and what of them is stored."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.cli.migration.imported_batch import as_stored
from lakehead.broker.cli.migration.source_batches import (
    SourceBatch,
    committed_batches,
    parsed_fetch,
)
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.frame import encode_response
from lakehead.broker.protocol.messages import entity
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.control_batch import Marker, encode_marker
from lakehead.storage.format.record_batch import (
    CODECS,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    crc_ok,
    patch,
    read_header,
)
from lakehead.storage.format.records import iter_kafka_records


def batch(
    offset: int, producer: int = NO_PRODUCER_ID, *, in_transaction: bool = False
) -> SourceBatch:
    data = encode_batch(
        [(b"k", b"%d" % number) for number in range(3)],
        1000,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        attributes=TRANSACTIONAL if in_transaction else 0,
    )
    patch(data, 0, offset, 7)
    return SourceBatch(read_header(data), memoryview(data))


def marker(offset: int, producer: int, *, is_commit: bool) -> SourceBatch:
    data = encode_marker(
        Marker(is_commit, 0), producer_id=producer, producer_epoch=0, timestamp_ms=1000
    )
    patch(data, 0, offset, 7)
    return SourceBatch(read_header(data), memoryview(data))


def offsets(batches: Sequence[SourceBatch], aborted: Sequence[tuple[int, int]]) -> list[int]:
    return [one.header.base_offset for one in committed_batches(batches, aborted)]


def test_aborted_batches_and_markers_are_left_out() -> None:
    batches = [
        batch(0, 5, in_transaction=True),  # committed
        batch(3, 6, in_transaction=True),  # aborted
        batch(6),
        marker(9, 5, is_commit=True),
        batch(10, 5, in_transaction=True),  # aborted
        marker(13, 6, is_commit=False),
        batch(14, 6, in_transaction=True),  # committed
        batch(17, 5, in_transaction=True),  # aborted
        marker(20, 6, is_commit=True),
        marker(21, 5, is_commit=False),
        batch(22, 5, in_transaction=True),
        batch(25, 6),
    ]
    assert offsets(batches, [(5, 10), (6, 3)]) == [0, 6, 14, 22, 25]


def test_a_transaction_aborted_before_the_response_is_left_out_to_its_marker() -> None:
    batches = [batch(100, 5, in_transaction=True), marker(103, 5, is_commit=False), batch(104, 5)]
    assert offsets(batches, [(5, 20)]) == [104]


def test_a_stored_batch_has_the_same_records_and_no_producer() -> None:
    for codec in (None, *range(len(CODECS))):
        found = batch(40, 5, in_transaction=True)
        expected = list(iter_kafka_records(found.data))
        stored = as_stored(found, codec)
        header = read_header(stored)
        assert crc_ok(stored)
        assert list(iter_kafka_records(stored)) == expected
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert not header.is_transactional
        assert header.codec == (codec or 0)


def test_a_batch_without_a_producer_is_stored_byte_by_byte() -> None:
    found = batch(40)
    expected = bytes(found.data)
    assert bytes(as_stored(found, None)) == expected


def fetch_response(version: int, *topics: Any) -> memoryview:
    """Return the body of a response to a fetch."""
    fields = {"throttle_time": timedelta(milliseconds=250), "error_code": ErrorCode.none}
    module = schema(1, version).response_module
    response = entity(module, "FetchResponse", responses=[*topics], session_id=0, **fields)
    frame = memoryview(encode_response(response, 7))
    return frame[9 if schema(1, version).flexible_response else 8 :]  # length, correlation id, tags


@pytest.mark.parametrize("version", range(4, 14))
def test_a_response_without_a_partition_is_throttled_and_not_the_end(version: int) -> None:
    module = schema(1, version).response_module
    assert parsed_fetch(fetch_response(version), version) == 0.25
    one = entity(
        module,
        "PartitionData",
        partition_index=0,
        error_code=ErrorCode.none,
        high_watermark=7,
        aborted_transactions=[entity(module, "AbortedTransaction", producer_id=5, first_offset=3)],
        records=bytes(batch(0).data),
    )
    topic = entity(
        module, "FetchableTopicResponse", topic="t", topic_id=UUID(int=1), partitions=[one]
    )
    parsed = parsed_fetch(fetch_response(version, topic), version)
    assert not isinstance(parsed, float)
    code, (records, aborted) = parsed
    assert code is ErrorCode.none
    assert bytes(records) == bytes(batch(0).data)
    assert aborted == [(5, 3)]
