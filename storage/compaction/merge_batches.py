"""Small record batches of one producer become larger ones, and nothing that a client can tell is
changed: each record keeps its offset, its timestamp, its sequence number, its bytes; the batch its
producer, its attributes (codec, kind of timestamps, transaction), its leader epoch.

Batches are merged only where they follow each other without a gap and agree in all of that. Control
batches, what compaction by keys has touched, and whatever is malformed or fails its checksum stay
as they are: when in doubt, a batch is kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from storage.compaction.reading import StoredBatch
from storage.format.batch_writer import varint
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
from storage.format.records import inflate, read_varint

_KNOWN_ATTRIBUTES = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL
_SEQUENCE_END = 1 << 31
_TIME_END = 1 << 63
_VARINTS = tuple(varint(number) for number in range(8192))
"""Most of what is written: lengths and deltas."""


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
    held: list[tuple[BatchHeader, StoredBatch]] = []
    parts: list[bytes] = []
    size = 0
    for header, stored in run:
        first = held[0][0] if held else header
        try:
            if not crc_ok(stored.payload):
                raise ValueError("a batch fails its checksum")
            body = _moved(header, stored.payload, first)
        except (ValueError, IndexError):
            made += _closed(held, parts)
            made.append(stored)
            held, parts, size = [], [], 0
            continue
        if held and size + len(body) > target_bytes:
            made += _closed(held, parts)
            held, parts, size = [], [], 0
            body = _moved(header, stored.payload, header)
        held.append((header, stored))
        parts.append(body)
        size += len(body)
    return made + _closed(held, parts)


def _closed(held: list[tuple[BatchHeader, StoredBatch]], parts: list[bytes]) -> list[StoredBatch]:
    """Return one batch with the records of several."""
    if len(held) < 2:
        return [stored for _, stored in held]
    first, last = held[0][0], held[-1][0]
    whole = first._replace(
        last_offset_delta=last.last_offset - first.base_offset,
        max_timestamp=max(header.max_timestamp for header, _ in held),
        record_count=sum(header.record_count for header, _ in held),
    )
    batch = sealed(whole, deflate(first.codec, b"".join(parts)))
    return [StoredBatch(held[0][1].epoch, last.end_offset, memoryview(batch))]


def _moved(header: BatchHeader, batch: memoryview, first: BatchHeader) -> bytes:
    """Return the records of a batch as they stand in one that begins with `first`.

    Raises ValueError, IndexError for records that are not as a producer writes them.
    """
    data = bytes(inflate(header, batch[HEADER_SIZE : header.size]))
    later = header.base_timestamp - first.base_timestamp
    moved = header.base_offset - first.base_offset
    parts: list[bytes] = []
    position = 0
    for place in range(header.record_count):
        length, start = _read(data, position)
        position = start + length
        time_delta, at = _read(data, start + 1)
        offset_delta, body = _read(data, at)
        if offset_delta != place or length < body - start or position > len(data):
            raise ValueError("records do not follow each other")
        time_delta += later
        if not -_TIME_END <= time_delta < _TIME_END:
            raise ValueError("timestamps are too far apart")
        time, offset = _written(time_delta), _written(place + moved)
        size = length - (body - start) + 1 + len(time) + len(offset)
        parts.append(_written(size) + data[start : start + 1] + time + offset)
        parts.append(data[body:position])
    if position != len(data):
        raise ValueError("something follows the last record")
    return b"".join(parts)


def _read(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return read_varint(data, position)


def _written(number: int) -> bytes:
    return _VARINTS[number] if 0 <= number < 8192 else varint(number)
