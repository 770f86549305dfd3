"""Merging small batches changes nothing that a record is told by, whatever they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.compaction import batch_merging, kernels
from lakehead.storage.compaction.batch_merging import Rebatching, RebatchStatistics, Span
from lakehead.storage.compaction.batches import StoredBatch
from lakehead.storage.compaction.object_compaction_plan import RebatchSettings
from lakehead.storage.format.control_batch import Marker, encode_marker
from lakehead.storage.format.record_batch import crc_ok, patch, read_header
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.format.stream_object import (
    BLOCK_FLAGS,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    RECORD_HEADER,
    RECORD_MAGIC,
    iter_records,
)
from tests.support.record_batches import TestRecord, compress, encode_record, seal_batch
from tests.support.repetitions import examples

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


STREAM = 12


def block(batches: Sequence[StoredBatch]) -> bytes:
    """A data block."""
    records = b""
    for one in batches:
        base = read_header(one.payload).base_offset
        place = (STREAM, one.epoch, base, one.end_offset - base)
        records += RECORD_HEADER.pack(RECORD_MAGIC, *place, len(one.payload)) + one.payload
    return BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, len(batches), len(records)) + records


def items(batches: Sequence[StoredBatch], cuts: Sequence[int]) -> list[memoryview]:
    """Items of some data blocks: a batch for each of a cut, two blocks to an item."""
    blocks, rest, number = [], list(batches), 0
    while rest:
        count = cuts[number % len(cuts)] if cuts else len(rest)
        blocks.append(block(rest[:count]))
        rest, number = rest[count:], number + 1
    return [memoryview(b"".join(blocks[n : n + 2])) for n in range(0, len(blocks), 2)]


def batches_in(spans: Sequence[Span]) -> list[StoredBatch]:
    found = []
    for span in spans:
        header = BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, 0, len(span.data))
        records = list(iter_records(header + bytes(span.data)))
        assert {one.stream_id for one in records} == {STREAM}
        held = [
            StoredBatch(one.epoch, one.base_offset + one.offset_count, one.payload)
            for one in records
        ]
        headers = [read_header(one.payload) for one in held]
        assert len(held) == span.batches
        assert (headers[0].base_offset, held[-1].end_offset) == (span.start_offset, span.end_offset)
        assert held[-1].epoch == span.epoch
        assert max([-1, *(one.max_timestamp for one in headers)]) == span.max_timestamp
        found += held
    return found


def rebatched(
    data: Sequence[memoryview], rules: RebatchSettings, figures: RebatchStatistics
) -> list[StoredBatch]:
    merging = Rebatching(STREAM, rules, figures)
    for one in data:
        merging.add(one)
    return batches_in(merging.finish())


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(drawn, max_size=20),
    st.lists(st.integers(1, 6), max_size=4),
    st.sampled_from([0, 90, 200, 1 << 20]),
    st.sampled_from([0, 400]),
    st.sampled_from([1, 3, 1 << 20]),
)
def test_nothing_is_changed(
    batches: list[Drawn], cuts: list[int], target: int, compressed: int, window: int
) -> None:
    before, figures = stored(batches), RebatchStatistics()
    rules = RebatchSettings(small_bytes=400, small_compressed_bytes=compressed, target_bytes=target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_merging, "_WINDOW_ROWS", window)
        after = rebatched(items(before, cuts), rules, figures)
    assert told(after) == told(before)
    assert (figures.before, figures.after) == (len(before), len(after))
    kept = {bytes(one.payload) for one in before}
    for one in after:
        assert one.payload.nbytes <= target + 61 or bytes(one.payload) in kept


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("cuts", [[], [1], [3, 2]])
def test_what_agrees_becomes_one(codec: str, cuts: list[int]) -> None:
    plain = Drawn(7, 3, codec, 0, 0, 0, 0, 0, "")
    before = items(stored([plain] * 4), cuts)
    rules = RebatchSettings(small_compressed_bytes=4096)
    after = rebatched(before, rules, RebatchStatistics())
    assert len(after) == 2, "the sequence number begins anew in between"
    assert len(rebatched(before, RebatchSettings(small_bytes=0), RebatchStatistics())) == 4
    kept = 4 if codec != "none" else 2
    assert len(rebatched(before, RebatchSettings(), RebatchStatistics())) == kept


def test_runs_go_on_from_window_to_window_and_through_full_batches() -> None:
    plain = Drawn(-1, 5, "none", 0, 0, 0, 0, 0, "")
    before = stored([plain] * 3000)
    rules, figures = RebatchSettings(target_bytes=20_000), RebatchStatistics()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_merging, "_WINDOW_ROWS", 70)
        after = rebatched(items(before, [17, 40]), rules, figures)
    assert told(after) == told(before)
    sizes = [len(one.payload) for one in after]
    assert min(sizes[:-1]) > 13_000
    assert max(sizes) < 20_000


def read_at_most(data: bytes, beyond: bytes, rules: RebatchSettings) -> object:
    """What is made of data that lies in the midst of memory; the error, if it is none."""
    whole = memoryview(beyond + data + beyond)
    merging = Rebatching(STREAM, rules, RebatchStatistics())
    try:
        merging.add(whole[len(beyond) : len(beyond) + len(data)])
        return [(*span[:-1], bytes(span.data)) for span in merging.finish()]
    except ValueError as error:
        return str(error)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(drawn, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(0, 255)), max_size=4),
    st.integers(0, 60),
)
def test_malformed_blocks_are_refused_or_kept_and_nothing_beyond_them_is_read(
    batches: list[Drawn], changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(block(stored(batches)))
    for place, byte in changes:
        data[place % len(data)] = byte
    data = data[: len(data) - cut]
    rules = RebatchSettings(small_bytes=400, small_compressed_bytes=400, target_bytes=600)
    with pytest.MonkeyPatch.context() as patch:
        # Whatever is broken looks whole: kernels alone must stay inside.
        patch.setattr("lakehead.storage.compaction.batch_merging.crc32c", trusting)
        seen = [read_at_most(bytes(data), byte * 4096, rules) for byte in (b"\0", b"\x22", b"\xff")]
    assert seen[0] == seen[1] == seen[2]


class AnyChecksum(int):
    """A checksum that every other one equals."""

    def __ne__(self, _other: object) -> bool:
        return False

    __eq__ = int.__eq__
    __hash__ = int.__hash__


def trusting(_data: object) -> int:
    return AnyChecksum(1)


def test_records_that_claim_too_much_are_kept() -> None:
    """A count of records that no memory has room for, and lengths that wrap around."""
    made = batch(Drawn(-1, 3, "none", 0, 0, 0, 0, 0, ""), 0, 0)
    rows = np.zeros((2, kernels.COLUMNS), np.int64)
    scanned = kernels.scan_blocks(
        np.frombuffer(block([StoredBatch(0, 3, memoryview(made))]), np.uint8), STREAM, 0, 0, rows, 0
    )
    assert scanned == (0, 10 + 33 + len(made), 1, 1)
    rows[1] = rows[0]
    out, tables = np.zeros(500, np.uint8), np.zeros((1, kernels.MADE_COLUMNS), np.int64)
    data = np.frombuffer(block([StoredBatch(0, 3, memoryview(made))]), np.uint8)
    for column, value in (
        (kernels.COUNT, 2**31 - 1),
        (kernels.BODY_SIZE, 1 << 40),
        (kernels.BODY, 1 << 62),
        (kernels.BODY_SIZE, -5),
    ):
        broken = rows.copy()
        broken[:, kernels.RUN] = 0
        broken[:, column] = value
        state = np.array([-1, 0, 0, 0, 0])
        end = kernels.merge_rows(data, 0, 2, STREAM, 1 << 20, broken, state, out, tables, 1)
        assert (end, state[kernels.MADE], state[kernels.AT]) == (2, 0, 0)
        assert not out.any()
