"""A block WAL says in its ring which offsets lie in it: found without reading the records."""

import random
from dataclasses import replace

import pytest

from lakehead.storage.format.producer_headers import producer_headers
from lakehead.storage.wal import BlockWal, BlockWalSettings
from lakehead.storage.wal.block_format import RECORD
from lakehead.storage.wal.block_index import (
    APPENDS_MAX,
    MAGIC,
    IndexBuilder,
    LogIndex,
    decode_index,
    encode_index,
)
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.protocol import WalPart, WalRange
from tests.support.encryption_keys import MemoryKeys
from tests.support.wal_tools import new_device, open_small, recovered, started
from tests.unit.test_stream_engine import make_batch

INDEXED = BlockWalSettings(block_size=4096, window_size=16 * 1024, index_interval=32 * 1024)
BATCHES = 40


async def surveyed(wal: BlockWal) -> list[WalPart]:
    return [part async for part in wal.survey()]


async def written(
    settings: BlockWalSettings = INDEXED, keys: MemoryKeys | None = None
) -> MemoryDevice:
    """A log of two streams, a part of its ring, whose process died."""
    device = await new_device(ring_length=1024 * 1024)
    wal = await open_small(device, settings, None if keys is None else keys.data_keys(seed=1))
    listener = await started(wal, 1)
    for number in range(BATCHES):
        batch = make_batch(number, 1, size=2000)
        ends = [wal.append(stream_id, 1, number, 1, batch) for stream_id in (1, 2)]
        await listener.wait_released(ends[-1])
    return device.crash()


def offsets(parts: list[WalPart], stream_id: int) -> list[int]:
    found: list[int] = []
    for part in parts:
        if part.record is not None and part.record.stream_id == stream_id:
            found.append(part.record.base_offset)
        for span in part.ranges:
            if span.stream_id == stream_id:
                found += range(span.start_offset, span.end_offset)
    return found


async def test_a_survey_finds_every_offset_and_reads_the_last_piece_only() -> None:
    wal = await open_small(await written(), INDEXED)
    parts = await surveyed(wal)
    assert [offsets(parts, one) for one in (1, 2)] == [list(range(BATCHES))] * 2
    read = [part.record for part in parts if part.record is not None]
    assert 0 < len(read) < BATCHES // 2
    assert parts[-1].end_position == (await recovered(wal))[-1].end_position


async def test_an_index_has_what_the_states_of_partitions_need() -> None:
    wal = await open_small(await written(), INDEXED)
    span = next(span for part in await surveyed(wal) for span in part.ranges)
    records = [one for one in await recovered(wal) if one.stream_id == span.stream_id]
    covered = [
        one.payload for one in records if span.start_offset <= one.base_offset < span.end_offset
    ]
    assert span.headers == producer_headers(covered)
    assert span.size == sum(map(len, covered))


@pytest.mark.parametrize("reached", [RECORD.size, RECORD.size + 20])
async def test_a_damaged_index_costs_a_scan_and_loses_nothing(reached: int) -> None:
    device = await written()
    before = await surveyed(await open_small(device, INDEXED))
    content = device.content
    at = content.find(MAGIC)
    assert at > 0
    content[at - RECORD.size + reached] ^= 1
    wal = await open_small(device, INDEXED)
    parts = await surveyed(wal)
    assert [offsets(parts, one) for one in (1, 2)] == [list(range(BATCHES))] * 2
    assert len(parts) > len(before)


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


async def test_a_log_without_indexes_is_scanned_and_gets_them_from_the_next_epoch_on() -> None:
    """Earlier releases wrote none."""
    device = await written(replace(INDEXED, index_interval=0))
    wal = await open_small(device, INDEXED)
    assert not any(part.ranges for part in await surveyed(wal))
    listener, end = await started(wal, 2), BATCHES + BATCHES // 2
    for number in range(BATCHES, end):
        batch = make_batch(number, 1, size=2000)
        ends = [wal.append(stream_id, 2, number, 1, batch) for stream_id in (1, 2)]
        await listener.wait_released(ends[-1])
    parts = await surveyed(await open_small(device.crash(), INDEXED))
    assert [offsets(parts, one) for one in (1, 2)] == [list(range(end))] * 2
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


async def test_an_encrypted_log_has_no_index() -> None:
    """It would show the producers of the records."""
    keys = MemoryKeys(random.Random(1))
    device = await written(keys=keys)
    wal = await open_small(device, INDEXED, keys.data_keys(seed=2))
    assert not any(part.ranges for part in await surveyed(wal))


def test_an_index_of_an_unknown_kind_is_passed_over() -> None:
    span = WalRange(
        stream_id=1,
        epoch=2,
        start_offset=3,
        end_offset=4,
        max_timestamp=5,
        size=6,
        headers=b"h",
    )
    index = LogIndex(7, 8, (span,))
    body = encode_index(index)
    assert decode_index(body) == index
    for other in (b"", b"?" + body[1:], body[:-1], body[:12]):
        assert decode_index(other) is None
