"""What the decoder promises at its edges."""

import os
import tempfile
from pathlib import Path

import cramjam
import pytest

from lake.decode.columns import chosen_columns
from lake.decode.decoder import BlockRange, RecordDecoder
from storage import kernel_compiler
from storage.errors import CorruptObject, LakeheadError, SettingsError
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
        with pytest.raises(CorruptObject, match=r"batch at offset 1 of t-0: (its rec|not snappy)"):
            decode(
                block([GOOD, bomb]), inflated_bytes_max=1 << 16, inflated_batch_bytes_max=1 << 20
            )


def test_a_large_batch_may_need_more_than_the_usual_buffer() -> None:
    large = encode_batch([TestRecord(offset=0, value=b"x" * (1 << 20))], codec="zstd")
    assert decode(block([large, encode_batch([TestRecord(offset=1)])]), inflated_bytes_max=999) == 2


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
    with pytest.raises(CorruptObject, match="2147483647 records do not fit its size"):
        decode(block([lie]))


def test_a_timestamp_that_no_calendar_holds_is_an_error() -> None:
    with pytest.raises(CorruptObject, match="record 0: a timestamp that no calendar holds"):
        decode(block([encode_batch([TestRecord(offset=0, timestamp=1 << 62)])]))


def test_offsets_must_rise_within_and_between_batches() -> None:
    body = encode_record(TestRecord(offset=1), 0, 0) + encode_record(TestRecord(offset=1), 0, 0)
    twice = seal_batch(body, base_offset=0, last_offset_delta=3, record_count=2)
    with pytest.raises(CorruptObject, match="record 1: a record's offset is not above"):
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
