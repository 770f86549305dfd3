"""Small record batches of one producer become larger ones, and nothing that a client can tell is
changed: each record keeps its offset, its timestamp, its sequence number, its bytes; the batch its
producer, its attributes (codec, kind of timestamps, transaction), its leader epoch.

Batches are merged only where they follow each other without a gap and agree in all of that. Control
batches, what compaction by keys has touched, and whatever is malformed or fails its checksum stay
as they are: when in doubt, a batch is kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from storage.compaction.merge_kernels import GROWTH_MAX, move_records
from storage.compaction.reading import StoredBatch
from storage.format.compression import deflate
from storage.format.record_batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    crc_ok,
    read_header,
    sealed,
)
from storage.format.records import inflate

_KNOWN_ATTRIBUTES = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL
_SEQUENCE_END = 1 << 31
_TIME_END = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class RebatchSettings:
    """Batches below `small_bytes` are merged to at most about `target_bytes` of records, inflated;
    0: none is.
    """

    small_bytes: int = 4 * 1024
    target_bytes: int = 1024 * 1024


@dataclass(slots=True)
class RebatchFigures:
    """Batches in and out."""

    before: int = 0
    after: int = 0


def rebatched(
    batches: Iterable[StoredBatch], settings: RebatchSettings, figures: RebatchFigures
) -> Iterator[StoredBatch]:
    """Yield batches of a stream in the order of offsets, with small ones merged."""
    run: list[tuple[BatchHeader, StoredBatch]] = []
    size = 0
    for stored in batches:
        figures.before += 1
        header = read_header(stored.payload) if len(stored.payload) >= HEADER_SIZE else None
        if header is not None and run and size + header.size <= settings.target_bytes:
            last, before = run[-1]
            is_small = header.size < settings.small_bytes
            if is_small and stored.epoch == before.epoch and _is_next(last, header):
                run.append((header, stored))
                size += header.size
                continue
        yield from _finished(run, settings, figures)
        run, size = [], 0
        if header is not None and header.size < settings.small_bytes and _is_plain(header):
            run, size = [(header, stored)], header.size
        else:
            figures.after += 1
            yield stored
    yield from _finished(run, settings, figures)


def _finished(
    run: list[tuple[BatchHeader, StoredBatch]], settings: RebatchSettings, figures: RebatchFigures
) -> Iterator[StoredBatch]:
    made = _merged(run, settings.target_bytes) if len(run) > 1 else [one for _, one in run]
    figures.after += len(made)
    yield from made


def _is_plain(header: BatchHeader) -> bool:
    """Whether a batch may be merged at all: it has all its records, and nothing special."""
    return (
        header.magic == MAGIC
        and not header.attributes & ~_KNOWN_ATTRIBUTES
        and header.record_count == header.last_offset_delta + 1 > 0
        and (header.producer_id == NO_PRODUCER_ID) == (header.base_sequence == NO_SEQUENCE)
    )


def _is_next(last: BatchHeader, header: BatchHeader) -> bool:
    """Whether a batch goes on where a plain one ends, as if both had been one."""
    if header.base_offset != last.end_offset or not _is_plain(header):
        return False
    if header.producer_id != NO_PRODUCER_ID:
        sequence = last.base_sequence + last.record_count
        if header.base_sequence != sequence or sequence + header.record_count >= _SEQUENCE_END:
            return False
    is_stamped = header.attributes & LOG_APPEND_TIME
    return (
        header.attributes == last.attributes
        and header.leader_epoch == last.leader_epoch
        and header.producer_id == last.producer_id
        and header.producer_epoch == last.producer_epoch
        and (not is_stamped or header.max_timestamp == last.max_timestamp)
    )


def _merged(run: list[tuple[BatchHeader, StoredBatch]], target_bytes: int) -> list[StoredBatch]:
    """Merge batches that follow each other: into one, or where they inflate to more, into a few."""
    made: list[StoredBatch] = []
    open_ = _Open(target_bytes)
    for header, stored in run:
        data = _records(header, stored.payload)
        if data is None:
            made += open_.closed()
            made.append(stored)
            continue
        if not open_.has_room(header, data):
            made += open_.closed()
        if not open_.add(header, stored, data):
            made += open_.closed()
            made.append(stored)
    return made + open_.closed()


def _records(header: BatchHeader, batch: memoryview) -> memoryview | None:
    """Return the records of a batch, inflated; None where they cannot be trusted."""
    if not crc_ok(batch):
        return None
    try:
        return inflate(header, batch[HEADER_SIZE : header.size])
    except ValueError:
        return None


class _Open:
    """A batch that is being made of several."""

    def __init__(self, target_bytes: int) -> None:
        self._target = target_bytes
        self._held: list[tuple[BatchHeader, StoredBatch]] = []
        self._out = np.empty(0, np.uint8)
        self._end = 0

    def has_room(self, header: BatchHeader, data: memoryview) -> bool:
        """Whether these records may come into it: the first ones always may."""
        return not self._held or self._end + _room(header, data) <= len(self._out)

    def add(self, header: BatchHeader, stored: StoredBatch, data: memoryview) -> bool:
        """Add a batch; False where its records are not as a producer writes them, or their times
        too far from the first ones.
        """
        first = self._held[0][0] if self._held else header
        if not self._held:
            self._end = 0
            room = max(_room(header, data), self._target)
            if len(self._out) < room:
                self._out = np.empty(room, np.uint8)
        later = header.base_timestamp - first.base_timestamp
        if not -_TIME_END <= later < _TIME_END:
            return False
        end = move_records(
            np.frombuffer(data, np.uint8),
            header.record_count,
            later,
            header.base_offset - first.base_offset,
            self._out,
            self._end,
        )
        if end < 0:
            return False
        self._held.append((header, stored))
        self._end = end
        return True

    def closed(self) -> list[StoredBatch]:
        """Return what became of it, and begin anew."""
        held, self._held = self._held, []
        if len(held) < 2:
            return [stored for _, stored in held]
        first, last = held[0][0], held[-1][0]
        whole = first._replace(
            last_offset_delta=last.last_offset - first.base_offset,
            max_timestamp=max(header.max_timestamp for header, _ in held),
            record_count=sum(header.record_count for header, _ in held),
        )
        body = self._out[: self._end].data
        batch = sealed(whole, body if first.codec == 0 else deflate(first.codec, body))
        return [StoredBatch(held[0][1].epoch, last.end_offset, memoryview(batch))]


def _room(header: BatchHeader, data: memoryview) -> int:
    return len(data) + GROWTH_MAX * header.record_count
