"""What the decoder promises at its edges."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import cramjam
import pytest

from lakehead.lake.decode.columns import chosen_columns
from lakehead.lake.decode.decoder import BlockRange, RecordDecoder
from lakehead.lake.decode.invalid import ByMode, InvalidBatch, InvalidTimes
from lakehead.lake.decode.modes import MODES, Mode
from lakehead.lake.errors import InvalidRecord
from lakehead.storage import kernel_compiler
from lakehead.storage.errors import CorruptObject, LakeheadError, SettingsError
from lakehead.storage.format.records import TIME_MAX
from tests.support.record_batches import (
    TestRecord,
    block,
    encode_batch,
    encode_record,
    seal_batch,
    varint,
)

SOURCE = BlockRange(
    key="data/x",
    position=1000,
    stream_id=7,
    topic="t",
    partition=0,
    first_offset=0,
    end_offset=1 << 60,
)
GOOD = encode_batch([TestRecord(offset=0, value=b"v")])


class Met:
    """Keeps what could not be read."""

    keeps_batches = keeps_times = True

    def __init__(self) -> None:
        self.batches: list[InvalidBatch] = []
        self.times: list[InvalidTimes] = []

    def take_batch(self, found: InvalidBatch) -> None:
        self.batches.append(found)

    def take_times(self, found: InvalidTimes) -> None:
        self.times.append(found)


def decode(
    blocks: bytes, *, inflated_bytes_max: int = 1 << 20, inflated_batch_bytes_max: int = 1 << 24
) -> int:
    decoder = RecordDecoder(
        chosen_columns(None, include_headers=True),
        inflated_bytes_max=inflated_bytes_max,
        inflated_batch_bytes_max=inflated_batch_bytes_max,
    )
    return sum(batch.num_rows for batch in decoder.decode(blocks, SOURCE))


def test_a_small_batch_that_inflates_to_much_is_an_error_not_memory() -> None:
    for codec, body in (
        (4, bytes(cramjam.zstd.compress(bytes(64 << 20)))),
        (1, bytes(cramjam.gzip.compress(bytes(64 << 20)))),
        (3, bytes(cramjam.lz4.compress(bytes(64 << 20)))),
        (2, varint(1 << 40) + b"\0" * 20),
    ):
        bomb = seal_batch(
            body, base_offset=1, last_offset_delta=0, record_count=1, attributes=codec
        )
        what = r"topic t, partition 0, offset 1: (its rec|not snappy)"
        with pytest.raises(InvalidRecord, match=what):
            decode(
                block([GOOD, bomb]), inflated_bytes_max=1 << 16, inflated_batch_bytes_max=1 << 20
            )


def test_a_large_batch_may_need_more_than_the_usual_buffer() -> None:
    large = encode_batch([TestRecord(offset=0, value=b"x" * (1 << 20))], codec="zstd")
    assert decode(block([large, encode_batch([TestRecord(offset=1)])]), inflated_bytes_max=999) == 2


def test_a_compressed_batch_without_its_end_is_an_error() -> None:
    """Its checksum is right: a client sealed what it had not finished."""
    records = b"".join(
        encode_record(TestRecord(offset=n, value=bytes([n]) * 200), 0, 0) for n in range(90)
    )
    for codec, body in (
        (4, bytes(cramjam.zstd.compress(records))),
        (3, bytes(cramjam.lz4.compress(records))),
        (1, bytes(cramjam.gzip.compress(records))),
    ):
        for kept in (1, 8, len(body) // 2, len(body) - 8):
            cut = seal_batch(
                body[:kept],
                base_offset=1,
                last_offset_delta=89,
                record_count=90,
                attributes=codec,
            )
            with pytest.raises(InvalidRecord, match="topic t, partition 0, offset"):
                decode(block([GOOD, cut]))


def test_errors_name_object_and_position() -> None:
    bad = bytearray(encode_batch([TestRecord(offset=1, value=b"w")]))
    bad[-2] ^= 1
    with pytest.raises(
        CorruptObject, match="batch at offset 1 of t-0 fails its checksum"
    ) as caught:
        decode(block([GOOD, bytes(bad)]))
    assert caught.value.key == "data/x"
    assert caught.value.position == 1000 + 10 + 33 + len(GOOD) + 33


def test_a_record_count_that_cannot_be_is_an_error_before_memory_is_taken() -> None:
    body = encode_record(TestRecord(offset=0), 0, 0)
    lie = seal_batch(body, base_offset=0, last_offset_delta=2**31 - 2, record_count=2**31 - 1)
    with pytest.raises(InvalidRecord, match="offsets 0 to 2147483646: 2147483647 records do not"):
        decode(block([lie]))


def rows_in(mode: Mode, blocks: bytes, *, source: BlockRange = SOURCE) -> list[dict[str, Any]]:
    decoder = RecordDecoder(
        chosen_columns(None, include_headers=True),
        inflated_bytes_max=1 << 16,
        inflated_batch_bytes_max=1 << 20,
        invalid=ByMode(mode=mode),
    )
    batches = list(decoder.decode(blocks, source))
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_time_out_of_range_is_an_error_of_its_record_and_of_no_other() -> None:
    for strange in (1 << 62, -(1 << 62), TIME_MAX + 1, -TIME_MAX - 1):
        records = [
            TestRecord(offset=1, value=b"a"),
            TestRecord(offset=2, timestamp=strange, value=b"b"),
            TestRecord(offset=3, timestamp=TIME_MAX, value=b"c"),
        ]
        blocks = block([GOOD, encode_batch(records), encode_batch([TestRecord(offset=4)])])
        named = f"topic t, partition 0, offset 2: the record's time, {strange} ms since 1970"
        with pytest.raises(InvalidRecord, match=named):
            decode(blocks)
        columns = RecordDecoder(["offset", "timestamp"], invalid=ByMode(mode="PERMISSIVE"))
        (found,) = columns.decode(blocks, SOURCE)
        assert found.column(0).to_pylist() == [0, 1, 2, 3, 4]
        assert found.column(1).cast("int64").to_pylist()[2:4] == [None, TIME_MAX * 1000]
        (found,) = RecordDecoder(
            ["offset", "timestamp"], invalid=ByMode(mode="DROPMALFORMED")
        ).decode(blocks, SOURCE)
        assert found.column(0).to_pylist() == [0, 1, 3, 4]


def test_times_out_of_range_are_all_met_however_many_there_are() -> None:
    many = [TestRecord(offset=i, timestamp=(1 << 60) + i) for i in range(100)]
    met = Met()
    decoder = RecordDecoder(["offset", "timestamp"], invalid=met)
    (found,) = decoder.decode(block([encode_batch(many)]), SOURCE)
    assert found.num_rows == found.column(1).null_count == 100
    (times,) = met.times
    assert times.offsets.tolist() == list(range(100))
    assert times.times.tolist() == [record.timestamp for record in many]


def test_a_batch_nobody_can_read_stops_none_of_its_neighbours() -> None:
    """In the middle, at both ends, many in a row; each kind of fault; with and without codec."""
    body = encode_record(TestRecord(offset=1), 0, 0) * 2
    bomb = bytes(cramjam.zstd.compress(bytes(64 << 20)))
    kinds = [
        (b"\xff" * 40, 0, 3),  # the audit's
        (body, 0, 2),
        (body, 0, 1),
        (b"\xff" * 40, 4, 3),
        (bomb, 4, 3),
        (varint(1 << 40) + b"\0" * 20, 2, 3),
        (b"", 0, 3),
        (varint(8) + b"\0\0\0" + varint(-1) * 2 + varint(1) + b"\x0a\0", 0, 1),  # a header
    ]

    def invalid(at: int, kind: int) -> bytes:
        content, codec, count = kinds[kind]
        return seal_batch(
            content, base_offset=at, last_offset_delta=2, record_count=count, attributes=codec
        )

    for codec in ("none", "zstd"):
        good = [encode_batch([TestRecord(offset=100 * i)], codec=codec) for i in range(9)]
        for kind in range(len(kinds)):
            batches = [invalid(1, kind), *good[1:3], invalid(201, kind), invalid(204, kind)]
            blocks = block([*batches, good[3], invalid(301, kind)])
            found = rows_in("DROPMALFORMED", blocks)
            assert [row["offset"] for row in found] == [100, 200, 300]
            found = rows_in("PERMISSIVE", blocks)
            assert [row["offset"] for row in found] == [1, 100, 200, 201, 204, 300, 301]
            for row in found:
                of_batch = {"topic": "t", "partition": 0, "offset": row["offset"]}
                nothing = dict.fromkeys(row, None) | of_batch
                assert (row == nothing) is (row["offset"] % 100 != 0)
            with pytest.raises(InvalidRecord, match=r"offsets 1 to 3: .*DROPMALFORMED"):
                rows_in("FAILFAST", blocks)


def test_an_invalid_batch_is_met_whole_and_by_each_range_for_its_own_offsets() -> None:
    sent = seal_batch(b"\xff" * 40, base_offset=10, last_offset_delta=29, record_count=30)
    blocks = block([GOOD, sent, encode_batch([TestRecord(offset=40)])])
    places = []
    for first, end in ((0, 20), (20, 30), (30, 100)):
        met = Met()
        decoder = RecordDecoder(["offset"], invalid=met)
        list(decoder.decode(blocks, replace(SOURCE, first_offset=first, end_offset=end)))
        (batch,) = met.batches
        assert bytes(batch.data) == sent
        assert batch.record_count == 30
        places.append((batch.first_offset, batch.last_offset))
    assert places == [(10, 19), (20, 29), (30, 39)]


def test_damage_is_an_error_in_every_mode() -> None:
    bad = bytearray(encode_batch([TestRecord(offset=1, value=b"w")]))
    bad[-2] ^= 1
    for mode in MODES:
        with pytest.raises(CorruptObject, match="fails its checksum"):
            rows_in(mode, block([GOOD, bytes(bad)]))


def test_offsets_must_rise_within_and_between_batches() -> None:
    body = encode_record(TestRecord(offset=1), 0, 0) + encode_record(TestRecord(offset=1), 0, 0)
    twice = seal_batch(body, base_offset=0, last_offset_delta=3, record_count=2)
    with pytest.raises(InvalidRecord, match="record 1: a record's offset is not above"):
        decode(block([twice]))
    with pytest.raises(CorruptObject, match="a batch begins before the end of the one before it"):
        decode(block([GOOD, GOOD]))


def test_another_streams_records_are_an_error() -> None:
    with pytest.raises(CorruptObject, match="a record of another stream"):
        decode(block([GOOD], stream_id=8))


def test_header_keys_that_are_not_utf8_are_replaced() -> None:
    body = b"\0\0\0" + varint(-1) + varint(-1) + varint(1) + varint(2) + b"k\xff" + varint(-1)
    batch = seal_batch(varint(len(body)) + body, base_offset=0, last_offset_delta=0, record_count=1)
    (found,) = RecordDecoder(["headers"]).decode(block([batch]), SOURCE)
    assert found.to_pylist() == [{"headers": [{"key": "k\ufffd", "value": None}]}]


def test_a_batch_without_records_is_passed_over() -> None:
    empty = seal_batch(b"", base_offset=0, last_offset_delta=4, record_count=0)
    assert decode(block([empty, encode_batch([TestRecord(offset=5)])])) == 1


def test_columns_are_named_once_each() -> None:
    for names in (["offset", "offset"], []):
        with pytest.raises(SettingsError, match="columns must be named once each"):
            chosen_columns(names)


def test_kernels_are_kept_only_where_nobody_else_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = kernel_compiler._private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert kernel_compiler._private_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(LakeheadError, match="set NUMBA_CACHE_DIR"):
        kernel_compiler._private_folder()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LakeheadError, match="set NUMBA_CACHE_DIR"):
        kernel_compiler._private_folder()
    assert os.getuid() == (tmp_path / "elsewhere").stat().st_uid
