"""Both passes of compaction over many batches at once, against the same one batch at a time."""

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.compaction.batches import BatchRows
from lakehead.storage.compaction.log_cleaner import Cleaner, CleaningRules, DirtyScan
from lakehead.storage.format.control_batch import Marker, encode_marker
from lakehead.storage.format.record_batch import NO_PRODUCER_ID, crc_ok, patch, read_header, sealed
from lakehead.storage.format.stream_object import (
    BLOCK_FLAGS,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    RECORD_HEADER,
    RECORD_MAGIC,
    iter_records,
)
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.repetitions import examples

EXAMPLES = 60
STREAM, NOW, DAY_MS = 7, 1_700_000_000_000, 86_400_000

keys = st.none() | st.sampled_from([b"a", b"b", b"c", b"a longer key than others"])
times = st.integers(0, 9) | st.just(-2 * DAY_MS)
values = st.lists(
    st.tuples(keys, st.none() | st.sampled_from([b"", b"v" * 30]), times), min_size=1, max_size=6
)
kinds = st.sampled_from(
    ["plain"] * 8
    + ["zstd", "transaction", "commit", "abort", "appended", "marked", "empty", "junk"]
)
batches = st.lists(
    st.tuples(values, kinds, st.sampled_from([-1, -1, 3, 4]), st.integers(0, 3)), max_size=14
)


def made(
    pairs: Sequence[tuple[bytes | None, bytes | None, int]], kind: str, producer: int, gap: int
) -> bytes:
    """A batch from offset 0, whose last offset has no record where there is a gap."""
    if kind in {"commit", "abort"}:
        marker = Marker(kind == "commit", 0)
        return bytes(
            encode_marker(marker, producer_id=producer, producer_epoch=0, timestamp_ms=NOW)
        )
    records = [
        TestRecord(offset=n, timestamp=NOW + time, key=key, value=value)
        for n, (key, value, time) in enumerate(pairs)
    ]
    batch = encode_batch(
        records,
        codec="zstd" if kind == "zstd" else "none",
        producer_id=producer,
        transactional=kind == "transaction" and producer != NO_PRODUCER_ID,
        last_offset=len(records) - 1 + gap,
        log_append_time=NOW + 5 if kind == "appended" else None,
    )
    header = read_header(batch)
    if kind == "marked":  # an earlier compaction met its tombstones
        return sealed(header._replace(attributes=header.attributes | 0x40), batch[61:])
    if kind == "empty":
        return sealed(header._replace(record_count=0), b"")
    if kind == "junk":
        return sealed(header, b"\x05" + batch[62:])
    return batch


def items(given: Sequence[tuple[bytes, int]], cuts: Sequence[int]) -> list[memoryview]:
    """The batches as they lie in items of objects: cut in data blocks, these in items."""
    blocks, held, offset = list[bytes](), b"", 0
    for number, (batch, gap) in enumerate(given):
        offset += gap
        data = bytearray(batch)
        patch(data, 0, offset, 0)
        count = read_header(data).last_offset_delta + 1
        header = RECORD_HEADER.pack(RECORD_MAGIC, STREAM, number // 5, offset, count, len(data))
        held += header + data
        offset += count
        if number in cuts or number == len(given) - 1:
            blocks.append(BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, 1, len(held)) + held)
            held = b""
    half = len(blocks) // 2
    return [memoryview(b"".join(some)) for some in (blocks[:half], blocks[half:]) if some]


def scanned(data: Sequence[memoryview], memory: int, end: int, *, at_once: bool) -> DirtyScan:
    scan, rows = DirtyScan(memory, random.Random(1), offsets=1000, keys_until=end + 5), BatchRows()
    for item in data:
        rows.read(STREAM, item)
        if at_once:
            if not scan.add_all(rows, end):
                break
        elif not all(
            one.end_offset <= end and scan.add(one) for one in map(rows.stored, rows.rows)
        ):
            break
    return scan


def cleaned(
    data: Sequence[memoryview], scan: DirtyScan, rules: CleaningRules, *, at_once: bool
) -> list[tuple[int, int, bytes]]:
    """What is left: epoch, first offset, bytes of each batch."""
    cleaner, rows, left = Cleaner(scan, rules), BatchRows(), list[tuple[int, int, bytes]]()
    for item in data:
        rows.read(STREAM, item)
        row = 0
        while row < rows.count:
            if at_once:
                done = cleaner.clean_all(rows, row)
                for span in done.left:
                    found = [*iter_records(frame(span.data))]
                    assert found[0].base_offset == span.start_offset
                    assert found[-1].base_offset + found[-1].offset_count == span.end_offset
                    assert (len(found), found[-1].epoch) == (span.batches, span.epoch)
                    newest = max(read_header(one.payload).max_timestamp for one in found)
                    assert newest == span.max_timestamp
                    left += [(one.epoch, one.base_offset, bytes(one.payload)) for one in found]
                row = done.row
                if row == rows.count:
                    break
            stored = rows.stored(row)
            if stored.end_offset > rules.clean_end:
                return left
            header = read_header(stored.payload)
            stays = cleaner.clean(header, stored)
            if stays is not None:
                left.append((stored.epoch, header.base_offset, bytes(stays)))
            row += 1
    return left


def frame(records: memoryview) -> bytes:
    return BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, 1, len(records)) + records


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(
    batches,
    st.sets(st.integers(0, 14)),
    st.sampled_from([24 * 16, 24 * 28, 1 << 16]),
    st.sampled_from([1 << 62, 20]),
    st.integers(0, 12),
    st.sampled_from([NOW - DAY_MS // 2, NOW + 3, NOW + 3 * DAY_MS]),
)
def test_batches_at_once_are_cleaned_as_one_by_one(
    drawn: list[tuple[list[tuple[bytes | None, bytes | None, int]], str, int, int]],
    cuts: set[int],
    memory: int,
    end: int,
    start: int,
    now_ms: int,
) -> None:
    data = items([(made(*one), one[3]) for one in drawn], sorted(cuts))
    fast, slow = (scanned(data, memory, end, at_once=way) for way in (True, False))
    for name in ("end_offset", "is_full", "unreadable", "last_batches", "last_markers"):
        assert getattr(fast, name) == getattr(slow, name), name
    assert (fast.stable_offset, fast.newest.count) == (slow.stable_offset, slow.newest.count)
    rules = CleaningRules(start_offset=start, clean_end=end, now_ms=now_ms, delete_retention_ms=100)
    left = cleaned(data, fast, rules, at_once=True)
    assert left == cleaned(data, slow, rules, at_once=False)
    for _, _, batch in left:
        assert crc_ok(memoryview(batch))
