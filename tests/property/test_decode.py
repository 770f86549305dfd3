"""Whatever a producer encodes is decoded unchanged; whatever is not a stream object is an error,
never a crash."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.decode.columns import COLUMNS, HEADERS, chosen_columns
from lakehead.lake.decode.decoder import BlockRange, RecordDecoder
from lakehead.lake.decode.invalid import ByMode
from lakehead.lake.decode.modes import checked_mode
from lakehead.lake.errors import InvalidRecord
from lakehead.storage.errors import CorruptObject
from tests.support.record_batches import (
    CODECS,
    TestRecord,
    block,
    compress,
    encode_batch,
    encode_record,
    foreign_batch,
    seal_batch,
)
from tests.support.repetitions import examples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL = (*COLUMNS, HEADERS)
SOURCE = BlockRange(
    key="data/x",
    position=0,
    stream_id=7,
    topic="orders",
    partition=3,
    first_offset=0,
    end_offset=1 << 60,
)

fields = st.none() | st.binary(max_size=40) | st.binary(min_size=100, max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), fields), max_size=3).map(tuple)
timestamps = st.integers(-1, 4_000_000_000_000)


@st.composite
def batches(draw: st.DrawFn, *, gaps: bool = True) -> tuple[list[list[TestRecord]], int]:
    """Batches of records at rising offsets, and the offset after the last."""
    offset = draw(st.integers(0, 1 << 40))
    result = []
    for _ in range(draw(st.integers(1, 5))):
        records = []
        for _ in range(draw(st.integers(1, 12))):
            records.append(
                TestRecord(
                    offset=offset,
                    timestamp=draw(timestamps),
                    key=draw(fields),
                    value=draw(fields),
                    headers=draw(headers),
                )
            )
            offset += draw(st.integers(1, 3)) if gaps else 1
        result.append(records)
    return result, offset


def as_row(record: TestRecord, timestamp: int | None = None) -> dict[str, Any]:
    stamp = record.timestamp if timestamp is None else timestamp
    return {
        "key": record.key,
        "value": record.value,
        "topic": "orders",
        "partition": 3,
        "offset": record.offset,
        "timestamp": EPOCH + timedelta(milliseconds=stamp),
        "timestampType": 0 if timestamp is None else 1,
        "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
    }


def rows_of(found: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    for batch in found:
        batch.validate(full=True)
    return [row for batch in found for row in batch.to_pylist()]


@settings(deadline=None)
@given(
    data=batches(),
    codec=st.sampled_from(CODECS),
    xerial=st.booleans(),
    views=st.booleans(),
    columns=st.lists(st.sampled_from(ALL), unique=True, min_size=1),
    rows_max=st.integers(1, 20),
    bytes_max=st.integers(1, 400),
    stamped=st.none() | timestamps,
)
def test_what_is_encoded_is_decoded(
    data: tuple[list[list[TestRecord]], int],
    codec: str,
    xerial: bool,
    views: bool,
    columns: list[str],
    rows_max: int,
    bytes_max: int,
    stamped: int | None,
) -> None:
    groups, _ = data
    blocks = block(
        [encode_batch(g, codec=codec, xerial=xerial, log_append_time=stamped) for g in groups]
    )
    decoder = RecordDecoder(
        columns, views=views, rows_max=rows_max, bytes_max=bytes_max, inflated_bytes_max=500
    )
    found = list(decoder.decode(blocks, SOURCE))
    assert all(batch.schema == decoder.schema for batch in found)
    assert all(0 < batch.num_rows <= rows_max for batch in found)
    expected = [as_row(record, stamped) for group in groups for record in group]
    assert rows_of(found) == [{name: row[name] for name in columns} for row in expected]


@settings(deadline=None)
@given(
    data=batches(gaps=False),
    codec=st.sampled_from(CODECS),
    low=st.integers(-5, 60),
    size=st.integers(0, 60),
)
def test_an_offset_window_cuts_through_foreign_batches(
    data: tuple[list[list[TestRecord]], int], codec: str, low: int, size: int
) -> None:
    groups, _ = data
    first = max(0, groups[0][0].offset + low)
    source = BlockRange(
        key="data/x",
        position=0,
        stream_id=7,
        topic="orders",
        partition=3,
        first_offset=first,
        end_offset=first + size,
    )
    blocks = b"".join(block([foreign_batch(group, codec=codec)]) for group in groups)
    found = list(RecordDecoder(ALL).decode(blocks, source))
    records = [record for group in groups for record in group]
    assert rows_of(found) == [
        as_row(record) for record in records if first <= record.offset < first + size
    ]


@settings(deadline=None)
@given(
    data=batches(),
    codec=st.sampled_from(CODECS),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 50),
)
def test_damaged_bytes_are_errors_that_name_object_and_position(
    data: tuple[list[list[TestRecord]], int],
    codec: str,
    flips: list[tuple[int, int]],
    cut: int,
) -> None:
    blocks = bytearray(block([encode_batch(group, codec=codec) for group in data[0]]))
    for position, mask in flips:
        blocks[position % len(blocks)] ^= mask
    del blocks[len(blocks) - min(cut, len(blocks)) :]
    try:
        found = list(RecordDecoder(ALL).decode(bytes(blocks), SOURCE))
    except CorruptObject as error:
        named = error.key == "data/x" and 0 <= error.position <= len(blocks)
        assert named, error  # noqa: PT017 - an error is one of two right answers
    else:  # only what no checksum covers may have changed: block flags, epochs
        rows_of(found)


@settings(deadline=None, max_examples=examples(300))
@given(
    data=batches(),
    codec=st.sampled_from(CODECS),
    edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6),
    count=st.integers(-3, 3),
    views=st.booleans(),
)
def test_malformed_records_under_a_right_checksum_are_errors(
    data: tuple[list[list[TestRecord]], int],
    codec: str,
    edits: list[tuple[int, int]],
    count: int,
    views: bool,
) -> None:
    """A producer may send anything in a batch whose checksum is right: the broker does not look at
    records."""
    records = data[0][0]
    base = records[0].offset
    body = bytearray(
        b"".join(encode_record(record, base, records[0].timestamp) for record in records)
    )
    packed = bytearray(compress(codec, bytes(body)))
    for position, byte in edits:
        packed[position % len(packed)] = byte
    span = records[-1].offset - base
    batch = seal_batch(
        bytes(packed),
        base_offset=base,
        last_offset_delta=span,
        record_count=max(0, min(span + 1, len(records) + count)),
        attributes=CODECS.index(codec),
    )
    decoder = RecordDecoder(
        ALL, views=views, inflated_batch_bytes_max=1 << 20, inflated_bytes_max=1 << 16
    )
    try:
        found = list(decoder.decode(block([batch]), SOURCE))
    except InvalidRecord as error:
        # An error is one of two right answers.
        assert f"topic orders, partition 3, offset{'s' * (span > 0)} {base}" in str(error)  # noqa: PT017
        assert_neighbours_stay(batch, base, base + span + 1)
    else:
        rows_of(found)


def assert_neighbours_stay(batch: bytes, base: int, end: int) -> None:
    """Whatever a batch is that cannot be read, in other modes those beside it can."""
    before, after = (TestRecord(offset=at, value=b"v") for at in (base, end + 1))
    moved = bytes((base + 1).to_bytes(8, "big")) + batch[8:]  # no checksum covers it
    blocks = block([encode_batch([before]), moved, encode_batch([after])])
    for mode, stands in (("PERMISSIVE", [base + 1]), ("DROPMALFORMED", [])):
        decoder = RecordDecoder(
            ALL,
            inflated_batch_bytes_max=1 << 20,
            inflated_bytes_max=1 << 16,
            invalid=ByMode(mode=checked_mode(mode)),
        )
        rows = rows_of(list(decoder.decode(blocks, SOURCE)))
        assert [row["offset"] for row in rows] == [base, *stands, end + 1]
        assert [rows[0], rows[-1]] == [as_row(before), as_row(after)]


@settings(deadline=None)
@given(noise=st.binary(max_size=400), head=st.booleans())
def test_noise_is_an_error(noise: bytes, head: bool) -> None:
    blocks = block([noise_batch]) + noise if head else b"\x5a\x02" + noise
    if head and not noise:
        return
    with pytest.raises(CorruptObject):
        list(RecordDecoder(chosen_columns(None)).decode(blocks, SOURCE))


noise_batch = encode_batch([TestRecord(offset=1, value=b"v")])
