"""Merging small batches changes nothing that a record is told by, whatever they are."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.compaction.merge_batches import RebatchFigures, RebatchSettings, rebatched
from storage.compaction.reading import StoredBatch
from storage.format.control_batch import Marker, encode_marker
from storage.format.record_batch import crc_ok, patch, read_header
from storage.format.records import iter_kafka_records
from tests.support.record_batches import TestRecord, compress, encode_record, seal_batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Drawn:
    """A batch to be: the rest follows from the ones before it."""

    producer: int
    records: int
    codec: str
    attributes: int
    time: int
    epoch: int
    sequence_gap: int
    gap: int
    damage: str


drawn = st.builds(
    Drawn,
    producer=st.sampled_from([-1, -1, 7, 7, 8]),
    records=st.integers(1, 5),
    codec=st.sampled_from(["none", "none", "zstd", "gzip"]),
    attributes=st.sampled_from([0, 0, 0, 0, 0x08, 0x10, 0x20, 0x40]),
    time=st.sampled_from([0, 1, 70, -3, 10**12, -1 - BASE_MS]),
    epoch=st.sampled_from([0, 0, 0, 1]),
    sequence_gap=st.sampled_from([0, 0, 0, 0, 1]),
    gap=st.sampled_from([0, 0, 0, 0, 2]),
    damage=st.sampled_from(["", "", "", "", "", "", "crc", "body"]),
)


def batch(one: Drawn, offset: int, sequence: int) -> bytearray:
    time = BASE_MS + one.time
    if one.attributes == 0x20:
        made = encode_marker(
            Marker(is_commit=True, coordinator_epoch=0),
            producer_id=one.producer,
            producer_epoch=0,
            timestamp_ms=time,
        )
        patch(made, 0, offset, one.epoch)
        return made
    records = [
        TestRecord(offset=offset + n, timestamp=time + n, key=b"k", value=b"v" * (n * 40))
        for n in range(one.records)
    ]
    body = b"".join(encode_record(record, offset, time) for record in records)
    if one.damage == "body":
        body = body[:-1] + b"\x7f"
    made = bytearray(
        seal_batch(
            compress(one.codec, body),
            base_offset=offset,
            last_offset_delta=one.records - 1,
            record_count=one.records,
            attributes=CODECS.index(one.codec) | one.attributes,
            base_timestamp=time,
            max_timestamp=time + one.records - 1,
            producer_id=one.producer,
            producer_epoch=-1 if one.producer < 0 else 0,
            base_sequence=-1 if one.producer < 0 else sequence,
            crc=1 if one.damage == "crc" else None,
        )
    )
    patch(made, 0, offset, one.epoch)
    return made


def stored(batches: list[Drawn]) -> list[StoredBatch]:
    offset, epoch, found = 0, 0, []
    sequences = {7: 2**31 - 12, 8: 0, -1: 0}
    for one in batches:
        offset += one.gap
        epoch = max(epoch, one.epoch)
        sequences[one.producer] = (sequences[one.producer] + one.sequence_gap) % 2**31
        made = batch(one, offset, sequences[one.producer])
        header = read_header(made)
        if not header.is_control:
            sequences[one.producer] = (sequences[one.producer] + one.records) % 2**31
        offset = header.end_offset
        found.append(StoredBatch(epoch, offset, memoryview(made)))
    return found


def told(batches: list[StoredBatch]) -> list[object]:
    """All that anybody can tell of records, and of batches without any that can be read."""
    found: list[object] = []
    for one in batches:
        header = read_header(one.payload)
        assert header.end_offset == one.end_offset
        try:
            records = list(iter_kafka_records(one.payload))
        except ValueError:
            records = []
        if header.is_control or not records or not crc_ok(one.payload):
            found.append((one.epoch, bytes(one.payload)))
            continue
        assert len(records) == header.record_count
        for place, record in enumerate(records):
            sequence = -1 if header.base_sequence < 0 else (header.base_sequence + place) % 2**31
            found.append(
                (
                    *(one.epoch, header.leader_epoch, header.attributes),
                    *(header.producer_id, header.producer_epoch, sequence, record),
                )
            )
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(drawn, max_size=20), st.sampled_from([0, 90, 200, 1 << 20]))
def test_nothing_is_changed(batches: list[Drawn], target: int) -> None:
    before, figures = stored(batches), RebatchFigures()
    rules = RebatchSettings(small_bytes=400, target_bytes=target)
    after = list(rebatched(before, rules, figures))
    assert told(after) == told(before)
    assert (figures.before, figures.after) == (len(before), len(after))
    for one in after:
        if one.payload.nbytes > target + 61:
            assert any(one.payload is other.payload for other in before) or target == 90


@pytest.mark.parametrize("codec", CODECS)
def test_what_agrees_becomes_one(codec: str) -> None:
    plain = Drawn(7, 3, codec, 0, 0, 0, 0, 0, "")
    before = stored([plain] * 4)
    after = list(rebatched(before, RebatchSettings(), RebatchFigures()))
    assert len(after) == 2, "the sequence number begins anew in between"
    assert len(list(rebatched(before, RebatchSettings(small_bytes=0), RebatchFigures()))) == 4
