"""What compaction makes of one batch, and what it remembers of keys."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.compaction.batches import Arena, filler, without_records
from lakehead.storage.compaction.log_cleaner import filtered, inflated, with_horizon
from lakehead.storage.compaction.offset_map import OffsetMap
from lakehead.storage.compaction.record_kernels import digest
from lakehead.storage.format.record_batch import DELETE_HORIZON, crc_ok, read_header
from lakehead.storage.format.records import iter_kafka_records
from tests.support.record_batches import CODECS, TestRecord, encode_batch, foreign_batch
from tests.support.repetitions import examples

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


def known(newest: dict[bytes, int], memory: int = 24 * 400) -> OffsetMap:
    """Return a map that has met these keys at these offsets."""
    found = OffsetMap(memory, random.Random(1))
    for key, offset in newest.items():
        note(found, key, offset)
    return found


def note(newest: OffsetMap, key: bytes, offset: int) -> None:
    batch = memoryview(encode_batch([TestRecord(offset=offset, timestamp=T, key=key)]))
    header = read_header(batch)
    newest.put(newest.rows(header, inflated(header, batch)), 1 << 62)


@settings(max_examples=examples(150), deadline=None)
@given(records, st.sampled_from(CODECS), st.data())
def test_what_stays_of_a_batch_is_what_it_was(
    values: list[tuple[bytes | None, bytes | None, int]], codec: str, data: st.DataObject
) -> None:
    """Offsets, timestamps, keys, values and headers; in the codec and of the producer as before."""
    source = made(values, base=100)
    whole = memoryview(encode_batch(source, codec=codec, producer_id=9, last_offset=120))
    keyed = [one.key for one in source if one.key is not None]
    some = st.sampled_from(keyed) if keyed else st.nothing()
    newest = data.draw(st.dictionaries(some, st.integers(90, 115)))
    start = data.draw(st.sampled_from([0, 100, 103]))
    left = filtered(
        read_header(whole),
        whole,
        known(newest),
        start_offset=start,
        now_ms=T,
        retention_ms=50,
        arena=Arena(),
    )
    wanted = [
        one
        for one in source
        if one.key is not None and one.offset >= max(start, newest.get(one.key, 0))
    ]
    if not wanted:
        assert left is None
        return
    assert left is not None
    stay = {one.offset for one in wanted}
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
    nothing, superseded, arena = known({}), known({b"a": 2}), Arena()

    def later(now_ms: int, newest: OffsetMap = nothing) -> memoryview | None:
        batch = memoryview(first) if first else whole
        return filtered(
            read_header(batch),
            batch,
            newest,
            start_offset=0,
            now_ms=now_ms,
            retention_ms=100,
            arena=arena,
        )

    first: memoryview | None = None
    first = later(T)
    assert first is not None
    assert fields(first) == fields(whole)
    for now_ms in (T, T + 99):
        assert later(now_ms) == first
    last = later(T + 100)
    assert last is not None
    assert fields(last) == fields(whole)[:1]
    assert read_header(last).end_offset == 2
    assert later(T + 100, superseded) is None


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


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=120), st.integers(0, 5), st.sampled_from(CODECS))
def test_garbage_in_a_batch_is_told_apart(junk: bytes, count: int, codec: str) -> None:
    good = encode_batch([TestRecord(offset=0)], codec=codec)
    bad = bytearray(good[:57] + count.to_bytes(4, "big") + junk)
    bad[8:12] = (len(bad) - 12).to_bytes(4, "big")
    try:
        header = read_header(bad)
        found = known({}).rows(header, inflated(header, memoryview(bad)))
    except ValueError:
        return
    assert len(found) == count
    assert all(0 <= start < end for start, end in found[:, [5, 7]])


def test_the_map_holds_what_a_dictionary_would() -> None:
    rng = random.Random(5)
    newest, plain = known({}), dict[bytes, int]()
    assert newest.capacity == 300
    for _ in range(3000):
        key, offset = b"key-%d" % rng.randrange(250), rng.randrange(1000)
        note(newest, key, offset)
        plain[key] = max(plain.get(key, -1), offset)
    assert newest.count == len(plain)
    arena = Arena()
    for number in range(400):
        key = b"key-%d" % number
        for offset in {plain.get(key, 0), max(0, plain.get(key, 0) - 1)}:
            batch = memoryview(encode_batch([TestRecord(offset=offset, timestamp=T, key=key)]))
            left = filtered(
                read_header(batch),
                batch,
                newest,
                start_offset=0,
                now_ms=T,
                retention_ms=50,
                arena=arena,
            )
            assert (left is not None) == (offset >= plain.get(key, -1))


def siphash(data: bytes, low: int, high: int) -> bytes:
    """SipHash-2-4 of 128 bits, as its paper has it."""
    mask = (1 << 64) - 1
    v = [low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D ^ 0xEE]
    v += [low ^ 0x6C7967656E657261, high ^ 0x7465646279746573]

    def turn(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & mask

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, c, d, first, second in ((0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)):
                v[a] = (v[a] + v[b]) & mask
                v[c] = (v[c] + v[d]) & mask
                v[b], v[d] = turn(v[b], first) ^ v[a], turn(v[d], second) ^ v[c]
                v[a] = turn(v[a], 32)

    whole = len(data) // 8 * 8
    words = [data[at : at + 8] for at in range(0, whole, 8)]
    for word in [*words, data[whole:].ljust(7, b"\0") + bytes([len(data) & 0xFF])]:
        v[3] ^= int.from_bytes(word, "little")
        rounds(2)
        v[0] ^= int.from_bytes(word, "little")
    v[2] ^= 0xEE
    made = b""
    for _ in range(2):
        rounds(4)
        made += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
        v[1] ^= 0xDD
    return made


def test_the_hash_of_keys_is_siphash_of_128_bits() -> None:
    """By the vectors of its authors: the key is 00 to 0f, inputs are 00, 01 ... of each length."""
    secret = [int.from_bytes(bytes(range(n, n + 8)), "little") for n in (0, 8)]
    wanted = {0: "a3817f04ba25a8e66df67214c7550293", 1: "da87c1d86b99af44347659119b22fc45"}
    data = np.arange(100, dtype=np.uint8)
    for size in range(64):
        found = np.array(digest(data, 0, size, *secret), dtype="<i8").tobytes()
        assert found == siphash(data[:size].tobytes(), secret[0], secret[1])
        assert found.hex() == wanted.get(size, found.hex())
        # Wherever it lies.
        assert np.array(digest(np.roll(data, 3), 3, size, *secret), "<i8").tobytes() == found


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(-1, 1 << 41), st.integers(0, 1 << 41))
def test_a_horizon_changes_no_time(timestamp: int, horizon: int) -> None:
    record = TestRecord(offset=3, timestamp=timestamp, key=b"k", value=b"v")
    batch = memoryview(encode_batch([record], producer_id=4))
    marked = with_horizon(read_header(batch), batch, known({}), horizon, Arena())
    header = read_header(marked)
    assert fields(marked) == fields(batch)
    assert (header.base_timestamp, header.producer_id) == (horizon, 4)
    assert header.max_timestamp == read_header(batch).max_timestamp
    assert header.attributes & DELETE_HORIZON
    assert crc_ok(marked)
