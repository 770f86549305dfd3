"""The two passes of log compaction over a stream's batches, by the rules of Kafka's log cleaner.

The first pass scans what is not compacted for the newest record of each key, and for the ends of
transactions. Keys of a transaction count once its commit is seen; until then they wait, within the
same bound of memory. The compacted range ends before the first batch whose transaction is still
open.

The second pass decides what becomes of each batch, in the order of offsets from the start of the
stream. A record stays if the scan found no newer one of its key. Records of aborted transactions
are removed. A marker is removed `delete.retention.ms` after the last record of its transaction. The
last batch of a producer stays for a day, empty if need be: the last batch with records for its
sequence number, and a marker of another epoch for that epoch.

A batch keeps its base offset, its last offset, its producer fields and its codec; records that stay
keep their bytes. If a batch holds tombstones, its base timestamp becomes the time from which they
may be removed, and an attribute is set (`DELETE_HORIZON`, KIP-534); the timestamp deltas of the
records are then rewritten. A batch of which nothing changes stays as it is, byte by byte.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lakehead.storage.compaction import record_kernels as kernels
from lakehead.storage.compaction.batches import (
    Arena,
    BatchRows,
    StoredBatch,
    sealed,
    without_records,
)
from lakehead.storage.compaction.offset_map import Cleaned, CleanRules, OffsetMap, Rows
from lakehead.storage.format.compression import deflate
from lakehead.storage.format.control_batch import read_marker
from lakehead.storage.format.record_batch import (
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    BatchHeader,
    read_header,
)
from lakehead.storage.format.record_check import RecordChecker
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
    changed = Changed(len(rows), header.max_timestamp, horizon_ms, is_timed=True)
    return rewritten(header, changed, data, rows, len(data), arena)


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
    after they were first met. A new batch lies in memory of `arena`.

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
    changed = Changed(kept, newest_ms, horizon, is_timed=is_new)
    return rewritten(header, changed, data, rows, size, arena)


class Changed(NamedTuple):
    """The changes of a batch; `is_timed`: its timestamp deltas too, from the horizon. Without a
    `horizon` its base timestamp stays.
    """

    records: int
    max_timestamp: int
    horizon: int | None
    is_timed: bool


def rewritten(
    header: BatchHeader, changed: Changed, data: Buffer, rows: Rows, size: int, arena: Arena
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


OFFSET_MAX = 2**63 - 1


@dataclass(slots=True)
class _Open:
    """A transaction without an end: its first offset, and what its records would supersede."""

    first_offset: int
    keys: list[Rows] = field(default_factory=list)


class DirtyScan:
    """The result of a scan of batches over `offsets` offsets. `memory` in bytes bounds the map of
    keys; records from `keys_until` on supersede nothing.
    """

    def __init__(
        self, memory: int, rng: random.Random, *, offsets: int, keys_until: int = OFFSET_MAX
    ) -> None:
        self.newest = OffsetMap(memory, rng, keys_max=offsets)
        self.end_offset = -1
        """The end of what was scanned."""
        self.is_full = False
        self.unreadable = 0
        """Batches that hold no records that can be read; they stay as they are."""
        self.last_batches: dict[int, int] = {}
        """The end offset of the last batch with records of each producer."""
        self.last_markers: dict[int, int] = {}
        """The end offset of each producer's last marker."""
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        self._open: dict[int, _Open] = {}
        self._waiting = 0
        self._keys_until = keys_until
        self._checker = RecordChecker()

    @property
    def stable_offset(self) -> int:
        """The end of what was scanned and whose transactions have ended."""
        return min((one.first_offset for one in self._open.values()), default=self.end_offset)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return true if a batch belongs to a transaction that was aborted, as far as was
        scanned.
        """
        if not header.is_transactional or header.is_control:
            return False
        spans = self._aborted.get(header.producer_id, ())
        return any(first <= header.base_offset < marker for first, marker in spans)

    def add_all(self, batches: BatchRows, end_offset: int = OFFSET_MAX) -> bool:
        """Scan the next batches, up to an offset. False when it is reached, or the map has no room:
        nothing that follows was scanned.
        """
        row = 0
        while row < batches.count:
            first, row = (
                row,
                self.newest.note(
                    batches,
                    row,
                    end_offset=end_offset,
                    keys_until=self._keys_until,
                    waiting=self._waiting,
                ),
            )
            if row > first:
                for producer_id, end, _ in batches.producers(first, row):
                    self.last_batches[producer_id] = end
                self.end_offset = batches.end_offset(row - 1)
            if row < batches.count:
                stored = batches.stored(row)
                if stored.end_offset > end_offset or not self.add(stored):
                    return False
                row += 1
        return True

    def add(self, stored: StoredBatch) -> bool:
        """Scan the next batch. False when the map has no room for its keys: nothing of it, and
        nothing that follows, was scanned. A batch that nothing can read needs none, however many
        records its header counts.
        """
        header = read_header(stored.payload)
        room = self.newest.capacity - self.newest.count - self._waiting
        is_readable = True
        if header.record_count > room:
            is_readable = self._is_readable(header, stored.payload)
            if is_readable:
                self.is_full = True
                return False
        if header.is_control:
            self.last_markers[header.producer_id] = stored.end_offset
            self._end_transaction(header, stored.payload)
        elif header.record_count > 0:
            self._add_records(header, stored, is_readable=is_readable)
        self.end_offset = stored.end_offset
        return True

    def _end_transaction(self, header: BatchHeader, payload: memoryview) -> None:
        try:
            marker = read_marker(payload)
        except ValueError:
            self.unreadable += 1
            return
        ended = self._open.pop(header.producer_id, None) if marker is not None else None
        if ended is None or marker is None:
            return
        self._waiting -= sum(map(len, ended.keys))
        if marker.is_commit:
            for rows in ended.keys:
                self.newest.put(rows, self._keys_until)
        else:
            spans = self._aborted.setdefault(header.producer_id, [])
            spans.append((ended.first_offset, header.base_offset))

    def _is_readable(self, header: BatchHeader, payload: memoryview) -> bool:
        found = self._checker.check(header, payload)
        return found is None or not found.is_whole

    def _add_records(self, header: BatchHeader, stored: StoredBatch, *, is_readable: bool) -> None:
        if header.producer_id != NO_PRODUCER_ID:
            self.last_batches[header.producer_id] = stored.end_offset
        waiting = None
        if header.is_transactional:
            waiting = self._open.setdefault(header.producer_id, _Open(header.base_offset))
        try:
            rows = (
                self.newest.rows(header, inflated(header, stored.payload)) if is_readable else None
            )
        except ValueError:
            rows = None
        if rows is None:
            self.unreadable += 1
            return
        if waiting is None:
            self.newest.put(rows, self._keys_until)
            return
        keyed = rows[rows[:, kernels.FLAGS] & kernels.HAS_KEY != 0, : kernels.KEY_COLUMNS]
        waiting.keys.append(np.ascontiguousarray(keyed))
        self._waiting += len(keyed)


PRODUCER_EXPIRY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRules:
    """The rules of one cleaning: offsets below `start_offset` are trimmed, those from `clean_end`
    on are not cleaned. Times in milliseconds.
    """

    start_offset: int
    clean_end: int
    now_ms: int
    delete_retention_ms: int


class Cleaner:
    """Decides about the batches of one stream, one after the other."""

    def __init__(self, scan: DirtyScan, rules: CleaningRules) -> None:
        self._scan = scan
        self._rules = rules
        self._arena = Arena()
        self._kept_in_transaction: set[int] = set()
        """Producers of whose transaction at this place something stays."""
        self._epochs: dict[int, int] = {}
        """Under which epoch each producer sent its last batch before this place."""
        last = sorted(scan.last_batches.items())
        self._producers = np.array(last, np.int64).reshape(len(last), 2)
        self._clean_rules = CleanRules(
            end_offset=rules.clean_end,
            start_offset=rules.start_offset,
            now_ms=rules.now_ms,
            horizon_ms=rules.now_ms + rules.delete_retention_ms,
            expired_ms=rules.now_ms - PRODUCER_EXPIRY_MS,
        )

    def clean_all(self, batches: BatchRows, first: int) -> Cleaned:
        """Return what is left of batches from row `first` on, up to one that `clean` is to look at,
        or that is not to be cleaned.
        """
        cleaned = self._scan.newest.clean(
            batches, first, self._clean_rules, self._producers, self._arena
        )
        for producer_id, _, epoch in batches.producers(first, cleaned.row):
            self._epochs[producer_id] = epoch
        return cleaned

    def clean(self, header: BatchHeader, stored: StoredBatch) -> memoryview | None:
        """Return what is left of the next batch: itself where nothing changes; None: nothing."""
        if header.is_control:
            return self._clean_marker(header, stored)
        if header.producer_id != NO_PRODUCER_ID:
            self._epochs[header.producer_id] = header.producer_epoch
        left = None
        if header.record_count > 0 and not self._scan.is_aborted(header):
            left = self._clean_records(header, stored.payload)
        if left is None:
            if not self._is_last(header, stored.end_offset):
                return None
            is_bare = header.record_count == 0
            return stored.payload if is_bare else memoryview(without_records(header))
        if header.is_transactional:
            self._kept_in_transaction.add(header.producer_id)
        return left

    def _clean_records(self, header: BatchHeader, payload: memoryview) -> memoryview | None:
        rules = self._rules
        try:
            return filtered(
                header,
                payload,
                self._scan.newest,
                start_offset=rules.start_offset,
                now_ms=rules.now_ms,
                retention_ms=rules.delete_retention_ms,
                arena=self._arena,
            )
        except ValueError:
            return payload  # no reader can read it; its producer may still want to see that

    def _is_last(self, header: BatchHeader, end_offset: int) -> bool:
        """Return true if a batch may be the last that is known of a producer."""
        if header.producer_id == NO_PRODUCER_ID:
            return False
        if header.max_timestamp < self._rules.now_ms - PRODUCER_EXPIRY_MS:
            return False
        return self._scan.last_batches.get(header.producer_id, end_offset) == end_offset

    def _is_last_marker(self, header: BatchHeader, end_offset: int) -> bool:
        """Return true if a marker may be the last record of a producer's epoch."""
        if header.max_timestamp < self._rules.now_ms - PRODUCER_EXPIRY_MS:
            return False
        if self._epochs.get(header.producer_id) == header.producer_epoch:
            return False  # its last batch stays, and shows it too
        scan, producer_id = self._scan, header.producer_id
        return (
            scan.last_batches.get(producer_id, -1) < end_offset
            and scan.last_markers.get(producer_id, end_offset) == end_offset
        )

    def _clean_marker(self, header: BatchHeader, stored: StoredBatch) -> memoryview | None:
        payload = stored.payload
        try:
            marker = read_marker(payload)
        except ValueError:
            return payload
        has_records = header.producer_id in self._kept_in_transaction
        self._kept_in_transaction.discard(header.producer_id)
        is_bare = header.record_count == 0
        if has_records or (marker is None and not is_bare):
            return payload
        horizon, rules = delete_horizon(header), self._rules
        if horizon is None and not is_bare:
            gone_at_ms = rules.now_ms + rules.delete_retention_ms
            return with_horizon(header, payload, self._scan.newest, gone_at_ms, self._arena)
        if horizon is not None and horizon > rules.now_ms:
            return payload
        if not self._is_last_marker(header, stored.end_offset):
            return None
        return payload if is_bare else memoryview(without_records(header))
