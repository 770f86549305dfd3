"""The stream object format: byte-exact layout, and every damaged byte is noticed."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.errors import CorruptObject, UnsupportedFormat
from lakehead.storage.format.object_writer import BLOCK_SIZE, ObjectWriter
from lakehead.storage.format.stream_object import (
    BLOCK_FLAGS,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    INDEX_ITEM_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    RECORD_MAGIC,
    StreamInfo,
    check_item,
    iter_records,
    parse_index,
    read_index,
    record_headers,
)
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.block_cache import Block


def write_object(streams: dict[int, list[tuple[int, int, bytes]]]) -> bytes:
    writer = ObjectWriter(
        kind="sso", cluster_id="c", node_id=1, node_epoch=2, writer_id="w", created_ms=3
    )
    for stream_id, records in streams.items():
        writer.begin_stream(
            StreamInfo(stream_id=stream_id, topic="t", partition=stream_id, state=b"s")
        )
        for base, count, payload in records:
            writer.add(5, base, count, payload, base * 10)
    written = writer.finish()
    body = b"".join(written.pieces)
    assert len(body) == written.size
    return body


def test_layout_is_byte_exact() -> None:
    body = write_object({7: [(100, 3, b"abc"), (103, 1, b"de")]})
    record = struct.pack(">Bqqqii", 0x22, 7, 5, 100, 3, 3) + b"abc"
    record += struct.pack(">Bqqqii", 0x22, 7, 5, 103, 1, 2) + b"de"
    block = struct.pack(">BBii", 0x5A, 0x02, 2, len(record)) + record
    assert body.startswith(block)
    index_at, index_length = struct.unpack_from(">qi", body, len(body) - 48)
    assert body[-8:] == bytes.fromhex("88E241B785F4CFF7")
    assert body[index_at : index_at + index_length] == struct.pack(
        ">qqiiqi", 7, 100, 4, 2, 0, len(block)
    )
    extension_at, extension_length, index_crc, extension_crc = struct.unpack_from(
        ">qiII", body, len(body) - 32
    )
    assert extension_at == len(block)
    assert extension_at + extension_length == index_at
    assert index_crc == crc32c(body[index_at : index_at + index_length])
    assert extension_crc == crc32c(body[extension_at:index_at])


async def test_reading_gives_back_what_was_written() -> None:
    streams = {
        1: [(0, 2, b"x" * 700_000), (2, 1, b"y" * 700_000), (3, 5, b"z")],
        4: [(10, 1, b"q")],
    }
    store = MemoryStore()
    await store.create("data/o", [write_object(streams)])
    index = await read_index(store, "data/o")
    assert [(i.stream_id, i.start_offset, i.end_offset) for i in index.items] == [
        (1, 0, 3),
        (1, 3, 8),
        (4, 10, 11),
    ]
    assert index.items_of(1) == index.items[:2]
    assert [index.find(1, n) for n in range(-1, 9)] == [-1, 0, 0, 0, 1, 1, 1, 1, 1, -1]
    assert [index.find(stream, 10) for stream in (0, 1, 2, 4, 5)] == [-1, -1, -1, 2, -1]
    assert index.items_of(2) == ()
    assert index.streams[4].partition == 4
    seen: dict[int, list[tuple[int, int, bytes]]] = {}
    for item in index.items:
        data = await store.get_range("data/o", item.position, item.size)
        check_item("data/o", item, data)
        for record in iter_records(data):
            seen.setdefault(record.stream_id, []).append(
                (record.base_offset, record.offset_count, bytes(record.payload))
            )
    assert seen == streams


async def test_a_long_index_takes_a_second_read() -> None:
    body = write_object({stream: [(0, 1, b"p")] for stream in range(3000)})
    store = MemoryStore()
    await store.create("o", [body])
    assert len((await read_index(store, "o")).items) == 3000


def test_every_flipped_byte_is_noticed() -> None:
    body = write_object({1: [(0, 1, b"payload")], 2: [(0, 1, b"other")]})
    good = parse_index("o", body, len(body))
    reserved = {
        len(body) - 48 + offset for offset in (13, 14, 15, 36, 37, 38, 39)
    }  # flags and zero bytes
    for position in set(range(len(body))) - reserved:
        damaged = bytearray(body)
        damaged[position] ^= 0x41
        with pytest.raises((CorruptObject, UnsupportedFormat)):
            index = parse_index("o", damaged, len(damaged))
            assert len(index.items) == len(good.items)
            for item in index.items:
                check_item("o", item, damaged[item.position : item.position + item.size])


def test_a_stream_that_the_extension_does_not_describe_is_damage() -> None:
    body = bytearray(write_object({1: [(0, 1, b"p")], 2: [(0, 1, b"q")]}))
    (index_at,) = struct.unpack_from(">q", body, len(body) - 48)
    struct.pack_into(">q", body, index_at + INDEX_ITEM_SIZE, 3)
    index = bytes(body[index_at : index_at + 2 * INDEX_ITEM_SIZE])
    struct.pack_into(">I", body, len(body) - 20, crc32c(index))
    with pytest.raises(CorruptObject, match="does not describe all streams"):
        parse_index("o", body, len(body))


def test_a_newer_version_asks_for_an_upgrade() -> None:
    body = bytearray(write_object({1: [(0, 1, b"p")]}))
    body[len(body) - 36] = 9
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        parse_index("o", body, len(body))


def test_a_block_is_cut_before_its_offset_delta_overflows() -> None:
    body = write_object({1: [(0, 1, b"a"), (1, 2**31 - 2, b"b"), (2**31 - 1, 5, b"c")]})
    items = parse_index("o", body, len(body)).items
    assert [(i.start_offset, i.end_offset) for i in items] == [
        (0, 2**31 - 1),
        (2**31 - 1, 2**31 + 4),
    ]


def test_a_gap_between_records_is_refused() -> None:
    with pytest.raises(ValueError, match="after"):
        write_object({1: [(0, 1, b"a"), (2, 1, b"b")]})


def compacted(*records: tuple[int, int], payload: bytes = b"p") -> bytes:
    """An object of stream 1 from offset 0, with batches (base, count) and nothing between them."""
    writer = ObjectWriter(
        kind="compacted", cluster_id="c", node_id=1, node_epoch=2, writer_id="w", created_ms=3
    )
    writer.begin_stream(StreamInfo(stream_id=1))
    end = 0
    for base, count in records:
        if base > end:
            writer.skip(end, base)
        writer.add(0, base, count, payload, 5)
        end = base + count
    return b"".join(writer.finish().pieces)


def test_what_compaction_removed_is_found_by_the_batch_that_follows() -> None:
    body = compacted((3, 2), (9, 1), (10, 4), (20, 1))
    index = parse_index("k", body, len(body))
    (item,) = index.items
    assert (item.start_offset, item.end_offset) == (0, 21)
    block = Block("k", item, memoryview(body)[: item.size])
    batches = [(0, 5), (5, 10), (10, 14), (14, 21)]
    for number, (first, end) in enumerate(batches):
        for offset in range(first, end):
            found, after = block.fetch(offset, 1)
            assert (len(found), after) == (1, end)
            found, after = block.fetch(offset, 100)
            assert (len(found), after) == (len(batches) - number, 21)


def test_a_gap_lies_in_the_item_of_the_batch_behind_it() -> None:
    """Items follow each other without a gap, so that every offset is in one of them."""
    body = compacted((1, 1), (5, 1), (9, 1), payload=b"x" * BLOCK_SIZE)
    index = parse_index("k", body, len(body))
    assert [(i.start_offset, i.end_offset) for i in index.items] == [(0, 2), (2, 6), (6, 10)]
    assert all(index.find(1, offset) >= 0 for offset in range(10))
    far = compacted((0, 1), (2**31 - 1, 1), (2**31, 1))
    spans = [(i.start_offset, i.end_offset) for i in parse_index("k", far, len(far)).items]
    assert spans == [(0, 1), (1, 2**31), (2**31, 2**31 + 1)]


def test_something_must_follow_what_was_skipped() -> None:
    writer = ObjectWriter(
        kind="compacted", cluster_id="c", node_id=1, node_epoch=2, writer_id="w", created_ms=3
    )
    writer.begin_stream(StreamInfo(stream_id=1))
    writer.add(0, 0, 1, b"p", 5)
    writer.skip(1, 4)
    with pytest.raises(ValueError, match="after 4"):
        writer.add(0, 3, 1, b"p", 5)
    with pytest.raises(ValueError, match="no batch follows"):
        writer.finish()


def data_block(sizes: list[int], magic: int = RECORD_MAGIC) -> bytes:
    """Return a data block of records with payloads of these sizes."""
    body = b"".join(
        RECORD_HEADER.pack(magic, 1, 5, number, 1, size) + bytes([number % 251]) * size
        for number, size in enumerate(sizes)
    )
    return BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, len(sizes), len(body)) + body


SIZES = st.lists(st.integers(0, 60), max_size=8)


@given(st.lists(SIZES, max_size=4))
def test_the_records_of_all_data_blocks_are_found(blocks: list[list[int]]) -> None:
    records = list(iter_records(b"".join(map(data_block, blocks))))
    assert [len(record.payload) for record in records] == [size for one in blocks for size in one]
    numbers = [number for one in blocks for number, _ in enumerate(one)]
    assert [record.base_offset for record in records] == numbers
    for number, record in zip(numbers, records, strict=True):
        assert set(record.payload) <= {number}


@given(st.lists(SIZES, min_size=1, max_size=3), st.data())
def test_headers_that_are_damaged_are_refused_or_stay_within_the_bytes(
    blocks: list[list[int]], data: st.DataObject
) -> None:
    body = bytearray(b"".join(map(data_block, blocks)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        headers, starts = record_headers(body)
    except ValueError:
        return
    ends = [start + header[5] for header, start in zip(headers, starts, strict=True)]
    assert all(end <= len(body) for end in ends)
    assert all(
        end + RECORD_HEADER_SIZE <= start for end, start in zip(ends, starts[1:], strict=False)
    )


@pytest.mark.parametrize("length", [-1, -RECORD_HEADER_SIZE, -(2**31), 2**31 - 1])
def test_a_length_that_leads_nowhere_is_refused(length: int) -> None:
    header = RECORD_HEADER.pack(RECORD_MAGIC, 1, 5, 0, 1, length)
    block = BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, 1, len(header)) + header
    with pytest.raises(ValueError, match="beyond"):
        record_headers(block)
    with pytest.raises(ValueError, match="magic"):
        record_headers(data_block([1, 2], magic=RECORD_MAGIC + 1))
