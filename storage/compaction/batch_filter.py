"""One record batch and what is left of it: Kafka's rules, and its bytes.

A batch keeps its base offset, its last offset, its producer fields and its codec; records that stay
keep their bytes. Where a batch holds tombstones, its base timestamp becomes the moment from which
they may go, and an attribute says so (`DELETE_HORIZON`, KIP-534); then the records' timestamp
deltas are written anew. A batch of which nothing changes stays as it is, byte by byte.
"""

import numpy as np

from storage.compaction import record_kernels as kernels
from storage.compaction.bare_batches import sealed
from storage.compaction.offset_map import OffsetMap, Rows
from storage.format.compression import deflate
from storage.format.record_batch import (
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    read_header,
)
from storage.format.records import INFLATED_SIZE_MAX, inflate
from storage.object_store.protocol import Buffer


def inflated(header: BatchHeader, batch: memoryview) -> Buffer:
    """Return the records of a batch. Raises ValueError."""
    return inflate(header, batch[HEADER_SIZE : header.size], INFLATED_SIZE_MAX)


def delete_horizon(header: BatchHeader) -> int | None:
    """Return from when on a batch's tombstones may go (milliseconds), if that is known."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def with_horizon(batch: memoryview, newest: OffsetMap, horizon_ms: int) -> memoryview:
    """Return a whole batch, with the moment from which on it may go. Raises ValueError for a
    malformed one.
    """
    header = read_header(batch)
    data = inflated(header, batch)
    rows = newest.rows(header, data)
    rows[:, kernels.FLAGS] |= kernels.STAYS
    attributes = header.attributes | DELETE_HORIZON
    changed = header._replace(attributes=attributes, base_timestamp=horizon_ms)
    return memoryview(sealed(changed, deflate(header.codec, _kept(data, rows, horizon_ms))))


def filtered(
    batch: memoryview, newest: OffsetMap, *, start_offset: int, now_ms: int, retention_ms: int
) -> memoryview | None:
    """Return what is left of a batch with records, from `start_offset` on: itself where nothing
    changes, None where no record stays. Tombstones go at their horizon, which is `retention_ms`
    after they were first met.

    Raises ValueError for a malformed batch.
    """
    header = read_header(batch)
    horizon = delete_horizon(header)
    is_over = horizon is not None and horizon <= now_ms
    data = inflated(header, batch)
    rows = newest.rows(header, data)
    kept, tombstones, newest_ms = newest.mark(rows, start_offset, is_over=is_over)
    if not kept:
        return None
    is_new = horizon is None and tombstones > 0
    if kept == header.record_count and not is_new:
        return batch
    if is_new:
        horizon = now_ms + retention_ms
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon
    if header.attributes & LOG_APPEND_TIME:
        newest_ms = header.max_timestamp
    changed = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=newest_ms,
        record_count=kept,
    )
    body = _kept(data, rows, base_timestamp if is_new else None)
    return memoryview(sealed(changed, deflate(header.codec, body)))


def _kept(data: Buffer, rows: Rows, base_timestamp: int | None) -> bytes:
    """Return the bytes of the rows that stay; with timestamp deltas from another base, if there is
    one.
    """
    is_timed = base_timestamp is not None
    growth = kernels.GROWTH_MAX * len(rows) if is_timed else 0
    out = np.empty(len(data) + growth, dtype=np.uint8)
    source = np.frombuffer(data, dtype=np.uint8)
    size = kernels.copy_kept(source, rows, len(rows), int(is_timed), base_timestamp or 0, out)
    return out[:size].tobytes()
