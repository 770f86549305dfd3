"""One record batch and what is left of it: Kafka's rules, and its bytes.

A batch keeps its base offset, its last offset, its producer fields and its codec; records that stay
keep their bytes. Where a batch holds tombstones, its base timestamp becomes the moment from which
they may go, and an attribute says so (`DELETE_HORIZON`, KIP-534); then the records' timestamp
deltas are written anew. A batch of which nothing changes stays as it is, byte by byte.
"""

from typing import NamedTuple

import numpy as np

from lakehead.storage.compaction import record_kernels as kernels
from lakehead.storage.compaction.arena import Arena
from lakehead.storage.compaction.bare_batches import sealed
from lakehead.storage.compaction.offset_map import OffsetMap, Rows
from lakehead.storage.format.compression import deflate
from lakehead.storage.format.record_batch import (
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
)
from lakehead.storage.format.records import INFLATED_SIZE_MAX, inflate
from lakehead.storage.object_store.protocol import Buffer


def inflated(header: BatchHeader, batch: memoryview) -> Buffer:
    """Return the records of a batch. Raises ValueError."""
    return inflate(header, batch[HEADER_SIZE : header.size], INFLATED_SIZE_MAX)


def delete_horizon(header: BatchHeader) -> int | None:
    """Return from when on a batch's tombstones may go (milliseconds), if that is known."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def with_horizon(
    header: BatchHeader, batch: memoryview, newest: OffsetMap, horizon_ms: int, arena: Arena
) -> memoryview:
    """Return a whole batch, with the moment from which on it may go. Raises ValueError for a
    malformed one.
    """
    data = inflated(header, batch)
    rows = newest.rows(header, data)
    rows[:, kernels.FLAGS] |= kernels.STAYS
    changed = _Changed(len(rows), header.max_timestamp, horizon_ms, is_timed=True)
    return _rewritten(header, changed, data, rows, len(data), arena)


def filtered(
    header: BatchHeader,
    batch: memoryview,
    newest: OffsetMap,
    *,
    start_offset: int,
    now_ms: int,
    retention_ms: int,
    arena: Arena,
) -> memoryview | None:
    """Return what is left of a batch with records, from `start_offset` on: itself where nothing
    changes, None where no record stays. Tombstones go at their horizon, which is `retention_ms`
    after they were first met. What is made lies in memory of `arena`.

    Raises ValueError for a malformed batch.
    """
    horizon = delete_horizon(header)
    is_over = horizon is not None and horizon <= now_ms
    data = inflated(header, batch)
    rows = newest.rows(header, data)
    kept, tombstones, newest_ms, size = newest.mark(rows, start_offset, is_over=is_over)
    if not kept:
        return None
    is_new = horizon is None and tombstones > 0
    if kept == header.record_count and not is_new:
        return batch
    if is_new:
        horizon = now_ms + retention_ms
    if header.attributes & LOG_APPEND_TIME:
        newest_ms = header.max_timestamp
    changed = _Changed(kept, newest_ms, horizon, is_timed=is_new)
    return _rewritten(header, changed, data, rows, size, arena)


class _Changed(NamedTuple):
    """What is new of a batch; `is_timed`: its timestamp deltas too, from the horizon."""

    records: int
    max_timestamp: int
    horizon: int | None
    is_timed: bool


def _rewritten(
    header: BatchHeader, changed: _Changed, data: Buffer, rows: Rows, size: int, arena: Arena
) -> memoryview:
    """Return the batch of the rows that stay, whose records have `size` bytes now."""
    horizon, is_timed = changed.horizon, changed.is_timed
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon
    room = HEADER_SIZE + size + kernels.GROWTH_MAX * changed.records * is_timed
    out = arena.room(room)
    source, records = np.frombuffer(data, dtype=np.uint8), out[HEADER_SIZE:room]
    size = kernels.copy_kept(
        source, rows, len(rows), int(is_timed), base_timestamp if is_timed else 0, records, 0
    )
    if header.codec:
        body = deflate(header.codec, records[:size].data)
        whole = memoryview(bytearray(HEADER_SIZE) + body)
    else:
        whole = out[: HEADER_SIZE + size].data
        arena.free = out[HEADER_SIZE + size :]
    made = BatchHeader(
        base_offset=header.base_offset,
        length=0,
        leader_epoch=header.leader_epoch,
        magic=header.magic,
        crc=0,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=changed.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=changed.records,
    )
    return sealed(made, whole)
