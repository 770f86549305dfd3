"""A block WAL says in its ring which offsets lie in it: found without reading the records."""

import asyncio
import random
from dataclasses import replace

import msgspec
import pytest

from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.errors import KeyUnavailable, NotEncrypted, WalCorrupted, WalFailed
from lakehead.storage.format.producer_headers import producer_headers
from lakehead.storage.stream.inherited_tail import find_tail
from lakehead.storage.stream.recovery import Uncommitted, chosen_blocks
from lakehead.storage.wal import BlockWal, BlockWalSettings
from lakehead.storage.wal.block import Block
from lakehead.storage.wal.block_format import (
    RECORD,
    RING_OFFSET,
    SECTOR,
    SLICES_START,
    SliceEntry,
    read_record_header,
    record_seed,
)
from lakehead.storage.wal.block_index import (
    APPENDS_MAX,
    ENCRYPTED_MAGIC,
    MAGIC,
    IndexBuilder,
    LogIndex,
    decode_index,
    encode_index,
)
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.protocol import WalPart, WalRange
from tests.support.encryption_keys import MemoryKeys
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.wal_tools import RING_START, new_device, open_small, recovered, started
from tests.unit import test_metadata_rules
from tests.unit.test_stream_engine import make_batch

INDEXED = BlockWalSettings(block_size=4096, window_size=16 * 1024, index_interval=32 * 1024)
BATCHES = 40
PRODUCER = 0x0102030405060708
RING = 1024 * 1024

kinds = pytest.mark.parametrize("keys", [None, MemoryKeys(random.Random(1))], ids=["plain", "key"])


async def surveyed(wal: BlockWal) -> list[WalPart]:
    return [part async for part in wal.survey()]


def batch_of(number: int) -> bytes:
    record = TestRecord(offset=number, timestamp=1000 + number, key=None, value=b"v" * 2000)
    return encode_batch([record], producer_id=PRODUCER)


async def written(
    settings: BlockWalSettings = INDEXED, keys: MemoryKeys | None = None, seed: int = 1
) -> MemoryDevice:
    """A log of two streams, a part of its ring, whose process died. Its data key goes by `seed`."""
    device = await new_device(ring_length=RING)
    wal = await open_small(device, settings, None if keys is None else keys.data_keys(seed=seed))
    listener = await started(wal, 1)
    for number in range(BATCHES):
        ends = [wal.append(stream_id, 0, number, 1, batch_of(number)) for stream_id in (0, 1)]
        await listener.wait_released(ends[-1])
    return device.crash()


async def opened(
    device: MemoryDevice, keys: MemoryKeys | None, settings: BlockWalSettings = INDEXED
) -> BlockWal:
    """The log as another process opens it, with the same provider of keys."""
    return await open_small(device, settings, reader(keys))


def reader(keys: MemoryKeys | None) -> DataKeys | None:
    return None if keys is None else keys.data_keys(seed=9, writes=False)


def offsets(parts: list[WalPart], stream_id: int) -> list[int]:
    found: list[int] = []
    for part in parts:
        if part.record is not None and part.record.stream_id == stream_id:
            found.append(part.record.base_offset)
        for span in part.ranges:
            if span.stream_id == stream_id:
                found += range(span.start_offset, span.end_offset)
    return found


@kinds
async def test_a_survey_finds_every_offset_and_reads_the_last_piece_only(
    keys: MemoryKeys | None,
) -> None:
    wal = await opened(await written(keys=keys), keys)
    parts = await surveyed(wal)
    assert [offsets(parts, one) for one in (0, 1)] == [list(range(BATCHES))] * 2
    read = [part.record for part in parts if part.record is not None]
    assert 0 < len(read) < BATCHES // 2
    assert parts[-1].end_position == (await recovered(wal))[-1].end_position


@kinds
async def test_an_index_has_what_the_states_of_partitions_need(keys: MemoryKeys | None) -> None:
    wal = await opened(await written(keys=keys), keys)
    span = next(span for part in await surveyed(wal) for span in part.ranges)
    records = [one for one in await recovered(wal) if one.stream_id == span.stream_id]
    covered = [
        one.payload for one in records if span.start_offset <= one.base_offset < span.end_offset
    ]
    assert span.headers == producer_headers(covered) != b""
    assert span.size == sum(map(len, covered))


@kinds
async def test_a_takeover_finds_the_same_tail_by_indexes_as_by_records(
    keys: MemoryKeys | None,
) -> None:
    device, state = await written(keys=keys), test_metadata_rules.start()
    by_indexes = await find_tail(await opened(device, keys), state, 0)
    scanned = await opened(device, keys, replace(INDEXED, index_interval=0))
    assert by_indexes == await find_tail(scanned, state, 0)
    (span,) = by_indexes.ranges
    assert (span.stream_id, span.start_offset, span.end_offset) == (0, 0, BATCHES)


def first_index(device: MemoryDevice, magic: bytes) -> int:
    """Return the place on a device at which the body of the first index begins."""
    at = device.content.find(magic)
    assert at > 0
    return at


@kinds
@pytest.mark.parametrize("reached", [0, RECORD.size, RECORD.size + 20])
async def test_a_damaged_index_costs_a_scan_and_loses_nothing(
    keys: MemoryKeys | None, reached: int
) -> None:
    device = await written(keys=keys)
    before = await surveyed(await opened(device, keys))
    magic = MAGIC if keys is None else ENCRYPTED_MAGIC
    device.content[first_index(device, magic) - RECORD.size + reached] ^= 1
    wal = await opened(device, keys)
    parts = await surveyed(wal)
    assert [offsets(parts, one) for one in (0, 1)] == [list(range(BATCHES))] * 2
    assert len(parts) > len(before)


@kinds
async def test_an_index_that_was_cut_off_by_a_crash_loses_nothing(keys: MemoryKeys | None) -> None:
    """Of its write, the first sector has come, and nothing of what follows."""
    device = await written(keys=keys)
    magic = MAGIC if keys is None else ENCRYPTED_MAGIC
    at = device.content.rfind(magic) - RECORD.size
    device.content[at + 512 :] = bytes(len(device.content) - at - 512)
    wal = await opened(device, keys)
    parts, records = await surveyed(wal), await recovered(wal)
    for one in (0, 1):
        expected = [record.base_offset for record in records if record.stream_id == one]
        assert offsets(parts, one) == expected == list(range(len(expected)))
        assert BATCHES // 2 < len(expected) < BATCHES


async def test_a_read_that_fails_is_a_failure_of_the_log() -> None:
    device = await written()
    wal = await opened(device, None)
    device.reads_fail = True
    with pytest.raises(WalFailed, match="a read failed"):
        await surveyed(wal)


async def test_records_that_cross_the_ends_of_pieces_are_scanned_and_not_kept_in_memory() -> None:
    device = await new_device(ring_length=512 * 1024)
    wal = await open_small(device, INDEXED)
    listener = await started(wal, 1)
    for number in range(20):
        end = wal.append(1, 1, number, 1, make_batch(number, 1, size=20_000))
        await listener.wait_released(end)
        assert wal._index is not None
        assert len(wal._index) <= 3
    parts = await surveyed(await open_small(device.crash(), INDEXED))
    assert offsets(parts, 1) == list(range(20))


@kinds
@pytest.mark.parametrize("rest", [1, 2, 8, 25, 26, 31])
@pytest.mark.parametrize("size", [1000, 14_000, 100_000])
async def test_no_record_crosses_the_end_of_a_ring_that_is_not_a_multiple_of_its_pieces(
    keys: MemoryKeys | None, rest: int, size: int
) -> None:
    """It would be written over the slice of another node, and be lost to this one. Records of the
    first two sizes stay within one piece. The last piece of the ring has `rest` sectors.
    """
    pieces = replace(INDEXED, block_size=16 * 1024, index_interval=128 * 1024)
    ring_length = 4 * pieces.index_interval + rest * SECTOR
    device = await new_device(ring_length=ring_length)
    wal = await open_small(device, pieces, None if keys is None else keys.data_keys(seed=1))
    listener, rng = await started(wal, 1), random.Random(rest)
    trimmed = number = 0
    while wal.released_position < 4 * ring_length:
        batch = make_batch(number, 1, size=size + rng.randrange(1000))
        end = wal.append(1, 1, number, 1, batch)
        while wal.released_position < end:
            await asyncio.sleep(0)
            assert not listener.errors
        if number % 3 == 1:
            await wal.trim(end)
            trimmed = number + 1
        number += 1
    left = await opened(device.crash(), keys, pieces)
    parts, records = await surveyed(left), await recovered(left)
    expected = list(range(trimmed, number))
    assert [one.base_offset for one in records] == offsets(parts, 1) == expected


async def test_a_log_reaches_to_an_index_that_was_released_before_its_record() -> None:
    """An upload may have noted that position. A node whose log ended before it would be refused as
    one on an older state of its log.
    """
    device = await new_device(ring_length=RING)
    wal = await open_small(device, replace(INDEXED, writes_in_flight_max=1))
    listener = await started(wal, 1)
    ends, number = {wal.released_position}, 0
    while wal.released_position in ends:
        if wal.released_position == max(ends):
            ends.add(wal.append(1, 1, number, 1, make_batch(number, 1, size=2000)))
            number += 1
        await asyncio.sleep(0)
    reached = wal.released_position
    assert reached == listener.positions[-1]
    left = await open_small(device.crash(), INDEXED)
    assert (await left.identify(reach=reached)).end == reached
    assert [record.base_offset for record in await recovered(left)] == list(range(number - 1))


@pytest.mark.parametrize("is_survey", [True, False])
async def test_a_log_that_lacks_a_record_is_read_no_further(*, is_survey: bool) -> None:
    """Reads ahead would go on, of a device that its caller closes."""
    chunk = 4 * 1024 * 1024
    plain = replace(INDEXED, block_size=chunk // 4, window_size=2 * chunk, index_interval=0)
    device = await new_device(ring_length=16 * chunk, latency_s=(0.001, 0.002))
    wal = await open_small(device, plain)
    listener = await started(wal, 1)
    for base_offset in (*range(4), 5, *range(6, 12)):
        batch = make_batch(base_offset, 1, size=chunk - 1024)
        await listener.wait_released(wal.append(0, 0, base_offset, 1, batch))
    left = await open_small(device.crash(), plain)
    state = test_metadata_rules.start()
    with pytest.raises(WalCorrupted, match="goes on with stream 0, epoch 0, at offset 5"):
        if is_survey:
            await find_tail(left, state, 0)
        else:
            async for _ in chosen_blocks(left, Uncommitted(state, 0), chunk):
                pass
    assert "read ahead" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_log_without_indexes_is_scanned_and_gets_them_from_the_next_epoch_on() -> None:
    """Earlier releases wrote none."""
    device = await written(replace(INDEXED, index_interval=0))
    wal = await open_small(device, INDEXED)
    assert not any(part.ranges for part in await surveyed(wal))
    listener, end = await started(wal, 2), BATCHES + BATCHES // 2
    for number in range(BATCHES, end):
        batch = make_batch(number, 1, size=2000)
        ends = [wal.append(stream_id, 2, number, 1, batch) for stream_id in (0, 1)]
        await listener.wait_released(ends[-1])
    parts = await surveyed(await open_small(device.crash(), INDEXED))
    assert [offsets(parts, one) for one in (0, 1)] == [list(range(end))] * 2
    spans = [span for part in parts for span in part.ranges]
    assert spans
    assert min(span.start_offset for span in spans) >= BATCHES


def test_an_index_of_too_many_appends_has_the_newest() -> None:
    builder = IndexBuilder(0, 1 << 24)
    more = 10
    for number in range(APPENDS_MAX + more):
        builder.add(100 * (number + 1), 1, 1, number, 1, b"")
        assert len(builder) <= APPENDS_MAX
    index = decode_index(builder.take(1 << 30))
    assert index is not None
    assert index.start == 100 * more
    assert [(span.start_offset, span.end_offset) for span in index.ranges] == [
        (more, APPENDS_MAX + more)
    ]


async def test_an_index_of_an_encrypted_log_shows_nothing_on_the_device() -> None:
    """It has the headers of batches, which show their producers."""
    shown = PRODUCER.to_bytes(8, "big")
    assert shown in (await written()).content
    content = (await written(keys=MemoryKeys(random.Random(1)))).content
    assert ENCRYPTED_MAGIC in content
    assert MAGIC not in content
    assert shown not in content


async def test_indexes_of_an_encrypted_log_need_its_key() -> None:
    keys = MemoryKeys(random.Random(1))
    device = await written(keys=keys)
    with pytest.raises(KeyUnavailable, match=r"is encrypted: set encryption\.key\.provider"):
        await surveyed(await opened(device, None))
    keys.keys[keys.current] = bytes(32)
    with pytest.raises(KeyUnavailable, match=r"cannot decrypt .* is another one"):
        await surveyed(await opened(device, keys))


async def test_an_index_of_another_key_or_place_is_damage() -> None:
    """Checksums are for accidents: these hold."""
    keys = MemoryKeys(random.Random(1))
    device, other = await written(keys=keys), await written(keys=keys, seed=2)
    at = first_index(device, ENCRYPTED_MAGIC) - RECORD.size
    device.content[at : at + SECTOR] = other.content[at : at + SECTOR]
    with pytest.raises(WalCorrupted, match=r"index at WAL position 32768 .*its authentication"):
        await surveyed(await opened(device, keys))
    device = await written(keys=keys)
    body = bytes(device.content[at + RECORD.size : at + RECORD.size + body_length(device, at)])
    put_index(device, at + INDEXED.index_interval, body)
    with pytest.raises(WalCorrupted, match=r"index at WAL position 65536 .*its authentication"):
        await surveyed(await opened(device, keys))


def seed_of(device: MemoryDevice) -> int:
    entry = SliceEntry(node_id=0, start=SLICES_START, length=RING_OFFSET + RING)
    return record_seed(bytes(device.content[24:40]), entry)


def body_length(device: MemoryDevice, at: int) -> int:
    header = read_record_header(memoryview(device.content)[at:], seed_of(device))
    assert header is not None
    return header.body_length


def put_index(device: MemoryDevice, at: int, body: bytes) -> None:
    """Write an index whose checksums hold in the place of another one."""
    seed = seed_of(device)
    before = read_record_header(memoryview(device.content)[at:], seed)
    assert before is not None
    block = Block.index(at - RING_START, body, before.gap, before.lap, before.epoch)
    device.content[at : at + block.used] = block.complete(before.released, seed)[: block.used]


async def test_a_plain_index_in_an_encrypted_log_is_not_believed() -> None:
    keys = MemoryKeys(random.Random(1))
    device = await written(keys=keys)
    lie = msgspec.structs.replace(SPAN, stream_id=0, epoch=0, start_offset=0, end_offset=1000)
    at = first_index(device, ENCRYPTED_MAGIC) - RECORD.size
    put_index(device, at, encode_index(LogIndex(0, 16 * 1024, (lie,))))
    parts = await surveyed(await opened(device, keys))
    assert not [span for part in parts for span in part.ranges if span == lie]


async def test_indexes_of_plain_records_are_refused_where_encryption_is_required() -> None:
    """Else a takeover would open streams whose records it refuses to upload."""
    keys, device = MemoryKeys(random.Random(1)), await written()
    wal = await open_small(device, INDEXED, keys.data_keys(is_required=True))
    with pytest.raises(NotEncrypted, match=r"record at \d+ is not encrypted"):
        await surveyed(wal)


SPAN = WalRange(
    stream_id=1,
    epoch=2,
    start_offset=3,
    end_offset=4,
    max_timestamp=5,
    size=6,
    headers=b"h",
)


def test_an_index_of_an_unknown_kind_is_passed_over() -> None:
    index = LogIndex(7, 8, (SPAN,))
    body = encode_index(index)
    assert decode_index(body) == index
    for other in (b"", b"?" + body[1:], body[:-1], body[:12]):
        assert decode_index(other) is None
