"""Records of one batch, looked at where a broker must."""

import pytest

from lakehead.storage.format.records import iter_kafka_records
from tests.support.record_batches import CODECS, TestRecord, encode_batch

RECORDS = [
    TestRecord(offset=7, timestamp=1000, key=b"k", value=b"v" * 300_000),
    TestRecord(offset=8, timestamp=900, key=None, value=None, headers=(("h", b"x"), ("n", None))),
    TestRecord(offset=9, timestamp=1100, key=b"", value=b""),
]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_the_records_back(codec: str) -> None:
    found = list(iter_kafka_records(memoryview(encode_batch(RECORDS, codec=codec))))
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found] == [
        (r.offset, r.timestamp, r.key, r.value, r.headers) for r in RECORDS
    ]


def test_snappy_in_xerials_framing() -> None:
    batch = encode_batch(RECORDS, codec="snappy", xerial=True)
    assert [r.offset for r in iter_kafka_records(memoryview(batch))] == [7, 8, 9]


def test_log_append_time_is_every_records_time() -> None:
    batch = encode_batch(RECORDS, log_append_time=5000)
    assert {r.timestamp for r in iter_kafka_records(memoryview(batch))} == {5000}


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_bytes_are_a_value_error_and_nothing_else(codec: str) -> None:
    batch = encode_batch(RECORDS[1:], codec=codec)
    for position in range(61, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0xFF
        try:
            list(iter_kafka_records(memoryview(damaged)))
        except ValueError:
            continue
    with pytest.raises(ValueError):
        list(iter_kafka_records(memoryview(batch)[: 61 + (len(batch) - 61) // 2]))


def test_a_bomb_does_not_inflate() -> None:
    import cramjam

    from tests.support.record_batches import seal_batch

    body = bytes(cramjam.zstd.compress(bytes(600 * 1024 * 1024)))
    batch = seal_batch(body, base_offset=0, last_offset_delta=0, record_count=1, attributes=4)
    with pytest.raises(ValueError, match="inflates beyond"):
        list(iter_kafka_records(memoryview(batch)))
