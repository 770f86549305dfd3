"""What compaction makes of one batch, and what it remembers of keys."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.compaction.batch_filter import filler, filtered, keyed_records, without_records
from storage.compaction.offset_map import OffsetMap, digest_of
from storage.format.record_batch import DELETE_HORIZON, crc_ok, read_header
from storage.format.records import iter_kafka_records
from tests.support.record_batches import CODECS, TestRecord, encode_batch, foreign_batch

T = 1_700_000_000_000

keys = st.none() | st.binary(max_size=20)
records = st.lists(
    st.tuples(keys, st.none() | st.binary(max_size=40), st.integers(0, 10_000)),
    min_size=1,
    max_size=12,
)


def made(values: list[tuple[bytes | None, bytes | None, int]], base: int) -> list[TestRecord]:
    return [
        TestRecord(
            offset=base + n, timestamp=T + time, key=key, value=value, headers=(("h", b"x"),)
        )
        for n, (key, value, time) in enumerate(values)
    ]


def fields(batch: bytes | memoryview) -> list[tuple[object, ...]]:
    return [tuple(record) for record in iter_kafka_records(memoryview(batch))]


@settings(max_examples=150, deadline=None)
@given(records, st.sampled_from(CODECS), st.data())
def test_what_stays_of_a_batch_is_what_it_was(
    values: list[tuple[bytes | None, bytes | None, int]], codec: str, data: st.DataObject
) -> None:
    """Offsets, timestamps, keys, values and headers; in the codec and of the producer as before."""
    source = made(values, base=100)
    whole = memoryview(encode_batch(source, codec=codec, producer_id=9, last_offset=120))
    stay = data.draw(st.sets(st.sampled_from([one.offset for one in source])))
    left = filtered(whole, lambda r: r.offset in stay, now_ms=T, retention_ms=50)
    wanted = [one for one in source if one.offset in stay]
    if not wanted:
        assert left is None
        return
    assert left is not None
    assert fields(left) == [one for one in fields(whole) if one[0] in stay]
    before, after = read_header(whole), read_header(left)
    assert crc_ok(memoryview(left))
    assert (after.base_offset, after.end_offset) == (100, 121)
    assert (after.producer_id, after.codec) == (9, CODECS.index(codec))
    assert after.max_timestamp == max(one.timestamp for one in wanted)
    has_tombstone = any(one.value is None for one in wanted)
    assert bool(after.attributes & DELETE_HORIZON) == has_tombstone
    if has_tombstone:
        assert after.base_timestamp == T + 50
    elif len(wanted) == len(source):
        assert left == whole
    else:
        assert after.base_timestamp == before.base_timestamp


@pytest.mark.parametrize("codec", CODECS)
def test_a_tombstone_goes_at_its_horizon_and_not_before(codec: str) -> None:
    source = [
        TestRecord(offset=0, timestamp=T, key=b"a", value=b"1"),
        TestRecord(offset=1, timestamp=T + 5, key=b"b", value=None),
    ]
    whole = memoryview(foreign_batch(source, codec=codec))
    first = filtered(whole, lambda _: True, now_ms=T, retention_ms=100)
    assert first is not None
    assert fields(first) == fields(whole)
    for now_ms in (T, T + 99):
        again = filtered(memoryview(first), lambda _: True, now_ms=now_ms, retention_ms=100)
        assert again == first
    last = filtered(memoryview(first), lambda _: True, now_ms=T + 100, retention_ms=100)
    assert last is not None
    assert fields(last) == fields(whole)[:1]
    assert read_header(last).end_offset == 2
    gone = filtered(memoryview(first), lambda r: r.offset > 0, now_ms=T + 100, retention_ms=100)
    assert gone is None


def test_batches_without_records_keep_their_offsets_and_their_producer() -> None:
    whole = memoryview(
        encode_batch([TestRecord(offset=7)], codec="zstd", producer_id=3, last_offset=11)
    )
    bare = without_records(read_header(whole))
    header = read_header(bare)
    assert len(bare) == header.size == 61
    assert crc_ok(memoryview(bare))
    assert (header.base_offset, header.end_offset, header.record_count) == (7, 12, 0)
    assert (header.producer_id, header.codec) == (3, 0)
    assert not fields(bare)
    empty = read_header(filler(20, 2**30 + 20, 4))
    assert (empty.base_offset, empty.end_offset) == (20, 2**30 + 20)
    assert (empty.record_count, empty.producer_id, empty.leader_epoch) == (0, -1, 4)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 5), st.sampled_from(CODECS))
def test_garbage_in_a_batch_is_told_apart(junk: bytes, count: int, codec: str) -> None:
    good = encode_batch([TestRecord(offset=0)], codec=codec)
    bad = bytearray(good[:57] + count.to_bytes(4, "big") + junk)
    bad[8:12] = (len(bad) - 12).to_bytes(4, "big")
    try:
        found = keyed_records(read_header(bad), memoryview(bad)).records
    except ValueError:
        return
    assert len(found) == count


def test_the_map_holds_what_a_dictionary_would() -> None:
    rng = random.Random(5)
    newest, plain = OffsetMap(24 * 400), dict[bytes, int]()
    assert newest.capacity == 300
    for _ in range(5000):
        key, offset = b"key-%d" % rng.randrange(300), rng.randrange(1000)
        newest.put(digest_of(key), offset)
        plain[key] = max(plain.get(key, -1), offset)
    assert newest.count == len(plain)
    for number in range(500):
        key = b"key-%d" % number
        assert newest.get(digest_of(key)) == plain.get(key, -1)
