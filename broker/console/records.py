"""The records of a partition, some at a time, as a page shows them."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from lakehead.broker.console.record_filter import RecordFilter
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.storage.errors import OffsetOutOfRange
from lakehead.storage.format.record_batch import HEADER_SIZE, read_header
from lakehead.storage.format.records import KafkaRecord, inflate, iter_inflated_records
from lakehead.storage.stream.read_replica import ReadReplicaServices, TailCache
from lakehead.storage.stream.stream import Stream

RECORDS_MAX = 200
FETCH_MAX = 4 << 20
"""Bytes of batches that are read at a time."""
SEARCH_MAX = 32 << 20
"""Bytes of batches that are read for a page, if a filter leaves records out."""
LOOKED_AT_MAX = 200_000
"""Records that are compared with a filter for a page."""
INFLATED_MAX = 32 << 20
"""Bytes of one batch, decompressed; a larger one is not shown."""
INFLATED_OF_PAGE_MAX = 128 << 20
"""Bytes of batches, decompressed, that are looked at for a page: few bytes may inflate to many."""
TEXT_MAX = 4096
"""Characters of a key or value that are shown."""
HEADERS_MAX = 50
HEADER_TEXT_MAX = 500
"""Headers of a record, and characters of each name and value, that are shown."""
_PRETTY_MAX = 4 * TEXT_MAX
"""Characters of JSON with lines: deep nesting makes very many blanks of few brackets."""


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


class Reading(NamedTuple):
    """A key or value as JSON text without blanks; None: it is shown as it is. `schema` describes
    the schema that it was decoded by, `fault` is the reason that it was not.
    """

    text: str | None = None
    schema: str = ""
    fault: str = ""


AS_IT_IS = Reading()
Decode = Callable[[Sequence[bytes | None]], Sequence[Reading]]
"""Returns a reading of each key, or each value."""


def undecoded(data: Sequence[bytes | None]) -> Sequence[Reading]:
    """Return readings of keys or values that are shown as they are."""
    return [AS_IT_IS] * len(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    """A record for people. `note` is the kind of its batch, if that is not the usual; `schema` and
    `fault` are of its value.
    """

    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...]
    headers_left_out: int
    size: int
    note: str
    schema: str
    fault: str


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


_CHUNK = 500
"""Records that are decoded at once."""
_CHUNK_BYTES = 1 << 20


class RecordSearch:
    """Gathers the records of a page that a filter lets pass, from batches in order of offsets. At
    most `limit` records are gathered; bytes, records and time that it takes are bounded.

    A batch that cannot be read is named in `problems`, and the search goes on behind it. `position`
    is where the next page begins.
    """

    def __init__(
        self,
        wanted: RecordFilter,
        *,
        limit: int,
        is_time_over: Callable[[], bool],
        decode_keys: Decode = undecoded,
        decode_values: Decode = undecoded,
    ) -> None:
        self.records: list[ShownRecord] = []
        self.problems: list[str] = []
        self.position = 0
        self.looked_at = 0
        self.wanted = wanted
        self.limit = limit
        self._is_time_over = is_time_over
        self._decode_keys = decode_keys
        self._decode_values = decode_values
        self._bytes = 0
        self._inflated = 0

    @property
    def is_full(self) -> bool:
        """Return true if the page has all the records that it may have."""
        return len(self.records) >= self.limit

    @property
    def is_over(self) -> bool:
        """Return true if the search has had its bytes, records or time."""
        return (
            self._bytes >= SEARCH_MAX
            or self._inflated >= INFLATED_OF_PAGE_MAX
            or self.looked_at >= LOOKED_AT_MAX
            or self._is_time_over()
        )

    def add(self, found: FoundBatches) -> None:
        """Look at the records from `found.offset` on, until the page is full or time is over."""
        self.position = found.offset
        self._bytes += sum(map(len, found.batches))
        records = self._each(found)
        while not self.is_full:
            size = min(self.limit - len(self.records), _CHUNK) if self.wanted.is_empty else _CHUNK
            chunk, is_last = _chunk(records, size)
            self._add_chunk(chunk)
            if is_last or self.is_over:
                return

    def _each(self, found: FoundBatches) -> Iterator[tuple[KafkaRecord, str]]:
        """Yield each record with the kind of its batch."""
        for batch in found.batches:
            if self._inflated >= INFLATED_OF_PAGE_MAX:
                return
            header = read_header(batch)
            note = _note(header.is_control, header.is_transactional)
            try:
                inflated = inflate(header, batch[HEADER_SIZE : header.size], INFLATED_MAX)
                self._inflated += len(inflated)
                for record in iter_inflated_records(header, inflated):
                    if record.offset >= found.offset:
                        yield record, note
            except ValueError as error:
                self.problems.append(
                    f"the batch at offset {header.base_offset} cannot be shown: {error}"
                )
            self.position = header.base_offset + header.last_offset_delta + 1

    def _add_chunk(self, chunk: Sequence[tuple[KafkaRecord, str]]) -> None:
        end = self.position
        self.looked_at += len(chunk)
        some = [(record, note) for record, note in chunk if self._may_pass(record)]
        while some:
            count = _count_within(some, _CHUNK_BYTES)
            now, some = some[:count], some[count:]
            keys = self._decode_keys([record.key for record, _ in now])
            values = self._decode_values([record.value for record, _ in now])
            for (record, note), key, value in zip(now, keys, values, strict=True):
                if not self.wanted.passes(_text(record.key, key), _text(record.value, value)):
                    continue
                self.records.append(_shown(record, note, key, value))
                if self.is_full:
                    self.position = record.offset + 1
                    return
        # The last batch may have records that were not looked at yet.
        self.position = max(end, chunk[-1][0].offset + 1) if chunk else end

    def _may_pass(self, record: KafkaRecord) -> bool:
        """Return false for a record whose key, as it is, is not the wanted one. A key that begins
        with a zero byte may be one that is decoded.
        """
        is_framed = record.key is not None and record.key[:1] == b"\0"
        return is_framed or self.wanted.passes_key(_text(record.key, AS_IT_IS))


def _chunk(
    records: Iterator[tuple[KafkaRecord, str]], count: int
) -> tuple[list[tuple[KafkaRecord, str]], bool]:
    """Return the next records, at most `count` and few if they are large; and whether they are the
    last ones.
    """
    chunk: list[tuple[KafkaRecord, str]] = []
    size = 0
    for one in islice(records, count):
        chunk.append(one)
        size += _size(one[0])
        if size >= _CHUNK_BYTES:
            return chunk, False
    return chunk, len(chunk) < count


def _size(record: KafkaRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _count_within(some: Sequence[tuple[KafkaRecord, str]], size_max: int) -> int:
    """Return how many of the first records have a size together, at least one."""
    size = 0
    for count, (record, _) in enumerate(some):
        size += _size(record)
        if count and size > size_max:
            return count
    return len(some)


def _note(is_control: bool, is_transactional: bool) -> str:
    if is_control:
        return "control"
    return "transaction" if is_transactional else ""


def _shown(record: KafkaRecord, note: str, key: Reading, value: Reading) -> ShownRecord:
    return ShownRecord(
        offset=record.offset,
        timestamp=record.timestamp,
        key=as_text(record.key) if key.text is None else _pretty(key.text),
        value=as_text(record.value) if value.text is None else _pretty(value.text),
        headers=tuple(
            (cut_text(visible(name), HEADER_TEXT_MAX), as_text(one, HEADER_TEXT_MAX))
            for name, one in islice(record.headers, HEADERS_MAX)
        ),
        headers_left_out=max(len(record.headers) - HEADERS_MAX, 0),
        size=_size(record),
        note=note,
        schema=value.schema,
        fault=value.fault,
    )


def _text(data: bytes | None, reading: Reading) -> str | None:
    """Return the text that a filter looks at."""
    if reading.text is not None or data is None:
        return reading.text
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _hexadecimal(data)


def as_text(data: bytes | None, most: int = TEXT_MAX) -> str | None:
    """Return bytes as people read them: JSON with lines, UTF-8 text, or hexadecimal; `most`
    characters of them, or of JSON some times as many.
    """
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _hexadecimal(data, most)
    return _pretty(text, most)


def _hexadecimal(data: bytes, most: int = TEXT_MAX) -> str:
    shown = data[: most // 2].hex(" ")
    return f"{shown} …" if len(data) > most // 2 else shown


def _pretty(text: str, most: int = TEXT_MAX) -> str:
    """Return text of a bounded length, JSON with lines."""
    if text[:1] in {"{", "["} and len(text) <= most:
        try:
            pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
        else:
            if len(pretty) <= _PRETTY_MAX and not _SURROGATE.search(pretty):
                return visible(pretty)
    return visible(cut_text(text, most))


def cut_text(text: str, most: int) -> str:
    """Return the first characters of a text, with a mark if there are more."""
    return text if len(text) <= most else f"{text[:most]} …"


def visible(text: str) -> str:
    """Return text in which control characters, and those that turn the direction of text, are seen
    and change nothing. Sources: Unicode's Control Pictures; Trojan Source (CVE-2021-42574).
    """
    return text.translate(_VISIBLE)


_SURROGATE = re.compile("[\ud800-\udfff]")
_VISIBLE: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **{
        code: f"\\u{code:04x}"
        for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    },
}
