"""The second pass: what becomes of each batch, as Kafka's cleaner decides it.

Batches come in the order of offsets, from the stream's start. A record stays if no newer one of its
key was scanned. Records of aborted transactions go; a marker goes `delete.retention.ms` after the
last record of its transaction. What is last of a producer stays, empty if need be, for a day: the
last batch with records, for its sequence; a marker of another epoch, for that.
"""

from dataclasses import dataclass

import numpy as np

from lakehead.storage.compaction.arena import Arena
from lakehead.storage.compaction.bare_batches import without_records
from lakehead.storage.compaction.batch_filter import (
    delete_horizon,
    filtered,
    with_horizon,
)
from lakehead.storage.compaction.batch_rows import BatchRows
from lakehead.storage.compaction.offset_map import Cleaned, CleanRules
from lakehead.storage.compaction.reading import StoredBatch
from lakehead.storage.compaction.scan import DirtyScan
from lakehead.storage.format.control_batch import read_marker
from lakehead.storage.format.record_batch import NO_PRODUCER_ID, BatchHeader

PRODUCER_EXPIRY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRules:
    """What one cleaning goes by: offsets below `start_offset` are trimmed, those from
    `clean_end` on are not cleaned. Times in milliseconds.
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
            return payload  # nobody can read it; who wrote it may still want to see that

    def _is_last(self, header: BatchHeader, end_offset: int) -> bool:
        """Whether a batch may be the last that is known of a producer."""
        if header.producer_id == NO_PRODUCER_ID:
            return False
        if header.max_timestamp < self._rules.now_ms - PRODUCER_EXPIRY_MS:
            return False
        return self._scan.last_batches.get(header.producer_id, end_offset) == end_offset

    def _is_last_marker(self, header: BatchHeader, end_offset: int) -> bool:
        """Whether a marker may be what tells of a producer's epoch."""
        if header.max_timestamp < self._rules.now_ms - PRODUCER_EXPIRY_MS:
            return False
        if self._epochs.get(header.producer_id) == header.producer_epoch:
            return False  # its last batch stays, and tells too
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
