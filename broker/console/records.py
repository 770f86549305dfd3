"""The records of a partition, some at a time, as a page shows them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.storage.errors import OffsetOutOfRange
from lakehead.storage.format.record_batch import HEADER_SIZE, read_header
from lakehead.storage.format.records import KafkaRecord, inflate, iter_inflated_records
from lakehead.storage.stream.read_replica import ReadReplicaServices, TailCache
from lakehead.storage.stream.stream import Stream

RECORDS_MAX = 200
FETCH_MAX = 4 << 20
"""Bytes of batches that are read for a page."""
INFLATED_MAX = 32 << 20
"""Bytes of one batch, decompressed; a larger one is not shown."""
TEXT_MAX = 4096
"""Characters of a key, value or header that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatches:
    """Whole batches from `offset` on, of a partition that has offsets [start, end). `is_led` is
    false if another node leads it: it has later records that are not in objects yet.
    """

    offset: int
    start: int
    end: int
    is_led: bool
    batches: Sequence[memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    """A record for people. `note` says what kind of batch it is of, if that is not the usual."""

    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...]
    size: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """`next_offset` is where the next page begins, `problem` is set if a batch cannot be shown."""

    records: Sequence[ShownRecord]
    next_offset: int
    problem: str = ""


async def fetch_batches(
    node: ObservedNode, stream_id: int, *, offset: int | None, time_ms: int | None, newest: int
) -> FoundBatches:
    """Read batches from the first record at or after a time, else from an offset, else the newest
    ones. Belongs to the event loop. Raises StorageError.
    """
    led = next((one for one in node.topics.led() if one.stream.stream_id == stream_id), None)
    stream = led.stream if led is not None else _committed(node, stream_id)
    start, end = stream.start_offset, stream.confirmed_offset
    if time_ms is not None:
        found = await stream.offset_for_timestamp(time_ms)
        offset = end if found is None else found.offset
    if offset is None:
        offset = end - newest
    offset = min(max(offset, start), end)
    try:
        batches = await stream.fetch(offset, FETCH_MAX)
    except OffsetOutOfRange:  # trimmed meanwhile
        batches = []
    return FoundBatches(
        offset=offset, start=start, end=end, is_led=led is not None, batches=batches
    )


def _committed(node: ObservedNode, stream_id: int) -> Stream:
    services = ReadReplicaServices(TailCache(0), node.engine.reader, node.engine.metadata)
    return services.stream(stream_id)


def shown_records(found: FoundBatches, *, limit: int, text: str) -> RecordPage:
    """Return the records from `found.offset` on, at most `limit`, of which the key or the value has
    `text`.
    """
    records: list[ShownRecord] = []
    position = found.offset
    for batch in found.batches:
        header = read_header(batch)
        try:
            inflated = inflate(header, batch[HEADER_SIZE : header.size], INFLATED_MAX)
            for record in iter_inflated_records(header, inflated):
                if record.offset < found.offset:
                    continue
                shown = _shown(record, _note(header.is_control, header.is_transactional))
                if text and text not in (shown.key or "") and text not in (shown.value or ""):
                    continue
                records.append(shown)
                if len(records) == limit:
                    return RecordPage(records=records, next_offset=record.offset + 1)
        except ValueError as error:
            problem = f"the batch at offset {header.base_offset} cannot be shown: {error}"
            return RecordPage(
                records=records,
                next_offset=header.base_offset + header.last_offset_delta + 1,
                problem=problem,
            )
        position = header.base_offset + header.last_offset_delta + 1
    return RecordPage(records=records, next_offset=position)


def _note(is_control: bool, is_transactional: bool) -> str:
    if is_control:
        return "control"
    return "transaction" if is_transactional else ""


def _shown(record: KafkaRecord, note: str) -> ShownRecord:
    return ShownRecord(
        offset=record.offset,
        timestamp=record.timestamp,
        key=as_text(record.key),
        value=as_text(record.value),
        headers=tuple((name, as_text(value)) for name, value in record.headers),
        size=len(record.key or b"") + len(record.value or b""),
        note=note,
    )


def as_text(data: bytes | None) -> str | None:
    """Return bytes as people read them: JSON with lines, UTF-8 text, or hexadecimal."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        shown = data[: TEXT_MAX // 2].hex(" ")
        return f"{shown} …" if len(data) > TEXT_MAX // 2 else shown
    if text[:1] in ("{", "[") and len(text) <= TEXT_MAX:
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]} …"
