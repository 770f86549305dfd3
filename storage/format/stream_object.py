"""The stream object: immutable, indexed, checksummed. Layout of AutoMQ's S3Stream objects, plus an
extension block.

Big-endian, in this order::

    DataBlock *      magic 0x5A u8, flags 0x02 u8, record count i32, data length i32,
                     then records of one stream
      record         magic 0x22 u8, stream id i64, epoch i64, base offset i64, offset count i32,
                     payload length i32, then the payload: one Kafka RecordBatch
    ExtensionBlock   version u8, then MessagePack (`Extension`)
    IndexBlock       36-byte items sorted by (stream id, start offset): stream id i64, start offset
                     i64, end offset delta i32, record count i32, position i64, size i32 (block
                     headers included)
    Footer, 48 B     index position i64, index length i32, version u8, flags u8, 2 zero, extension
                     position i64, extension length i32, CRC32C of index u32, CRC32C of extension
                     u32, 4 zero, magic u64

An item may cover several adjacent data blocks, so a reader loops over block headers. Readers of the
original layout see zero bytes where our footer fields are and ignore the extension. `object_writer`
writes objects, this module reads them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from lakehead.storage.errors import CorruptObject, UnsupportedFormat
from lakehead.storage.object_store.protocol import Buffer, ObjectStore

FORMAT_VERSION = 1
EXTENSION_VERSION = 1
RECORD_MAGIC = 0x22
BLOCK_MAGIC = 0x5A
BLOCK_FLAGS = 0x02
FOOTER_MAGIC = 0x88E241B785F4CFF7

RECORD_HEADER = struct.Struct(">Bqqqii")
BLOCK_HEADER = struct.Struct(">BBii")
_RECORD_PLACE = struct.Struct(">BqqqiI")
"""With a length that is beyond every block where it is negative."""
_MAGIC = itemgetter(0)
INDEX_ITEM = struct.Struct(">qqiiqi")
FOOTER = struct.Struct(">qiBBxxqiIIxxxxQ")

RECORD_HEADER_SIZE = RECORD_HEADER.size
BLOCK_HEADER_SIZE = BLOCK_HEADER.size
INDEX_ITEM_SIZE = INDEX_ITEM.size
FOOTER_SIZE = FOOTER.size
assert (RECORD_HEADER_SIZE, BLOCK_HEADER_SIZE, INDEX_ITEM_SIZE, FOOTER_SIZE) == (33, 10, 36, 48)

SUFFIX_GUESS = 64 * 1024
_STREAM_MEMORY = 500
"""About what a `StreamInfo` takes beside its partition state."""
_ABORTED_MEMORY = 180
_HALVES = struct.Struct("=II")
_INDEX_KEY = struct.Struct(">qq")
_INDEX_PLACE = struct.Struct(">qqi")
_OFFSET_MAX = (1 << 63) - 1


class AbortedTransaction(msgspec.Struct, frozen=True, array_like=True):
    """An aborted transaction: its offsets, and the last stable offset when it ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class StreamInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of one stream in an object: topic id as 32 hex digits, topic name, partition,
    the newest partition state (opaque; valid up to the end of the stream's range in this object)
    and the aborted transactions whose markers are here. `epoch` is the stream epoch of all its
    records here, in objects of kind `wal`, which are committed as they are found. If neither
    `state` nor `aborted` is known, `headers` are those of the batches here from which both are
    built (see `producer_headers`); None in old objects. `state_since` of an incremental state: the
    states of all objects that reach beyond this offset make the whole; -1: it is whole.
    """

    stream_id: int
    topic_id: str = ""
    topic: str = ""
    partition: int = -1
    state: bytes | None = None
    aborted: tuple[AbortedTransaction, ...] = ()
    epoch: int = -1
    headers: bytes | None = None
    state_since: int = -1


class Extension(msgspec.Struct, frozen=True, omit_defaults=True):
    """The extension block. `item_crcs` (CRC32C of an item's bytes), `item_max_timestamps`
    (milliseconds) and `item_record_counts` (Kafka's records, those of control batches left out; -1:
    unknown; none at all in objects of older releases) follow the order of the index. `kind`: `sso`
    (many streams), `so` (one stream), `wal` (one group commit).
    """

    kind: str
    cluster_id: str
    node_id: int
    node_epoch: int
    writer_id: str
    created_ms: int
    item_crcs: tuple[int, ...]
    item_max_timestamps: tuple[int, ...]
    streams: tuple[StreamInfo, ...]
    item_record_counts: tuple[int, ...] = ()


UNKNOWN_COUNT = -1


class IndexItem(NamedTuple):
    """One entry of the index: offsets [start_offset, end_offset) of a stream lie in `size` bytes
    from `position`, as `record_count` records of S3Stream's, which are Kafka's batches. These have
    `kafka_records` without those of control batches.
    """

    stream_id: int
    start_offset: int
    end_offset: int
    record_count: int
    position: int
    size: int
    crc: int
    max_timestamp: int
    kafka_records: int = UNKNOWN_COUNT


class StreamRecord(NamedTuple):
    """A record of a data block: a RecordBatch of `offset_count` offsets from `base_offset`."""

    stream_id: int
    epoch: int
    base_offset: int
    offset_count: int
    payload: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class ObjectIndex:
    """The index of one object, in columns: `table` is the index block itself, sorted by (stream id,
    start offset), with a CRC, a newest timestamp and a number of Kafka's records for each row.

    An `IndexItem` is made on demand: a row takes 52 bytes here, an item five times as much.
    """

    key: str
    size: int
    table: bytes
    crcs: array[int]
    max_timestamps: array[int]
    kafka_records: array[int]
    streams: dict[int, StreamInfo]
    kind: str
    cluster_id: str
    node_id: int
    node_epoch: int
    writer_id: str
    created_ms: int

    def __len__(self) -> int:
        return len(self.crcs)

    @property
    def memory(self) -> int:
        """About how many bytes this index takes, for caches."""
        blobs = sum(
            len(info.state or b"") + len(info.headers or b"") + _ABORTED_MEMORY * len(info.aborted)
            for info in self.streams.values()
        )
        return len(self.table) + 16 * len(self) + blobs + _STREAM_MEMORY * (1 + len(self.streams))

    @property
    def items(self) -> tuple[IndexItem, ...]:
        """Every item, made now."""
        return tuple(map(self.item, range(len(self))))

    def item(self, row: int) -> IndexItem:
        """Return the item of a row."""
        stream, start, delta, count, position, length = INDEX_ITEM.unpack_from(
            self.table, row * INDEX_ITEM_SIZE
        )
        crc, timestamp, records = self.crcs[row], self.max_timestamps[row], self.kafka_records[row]
        end = start + delta
        return IndexItem(stream, start, end, count, position, length, crc, timestamp, records)

    def position(self, row: int) -> int:
        """Return where the item of a row begins."""
        position: int = INDEX_ITEM.unpack_from(self.table, row * INDEX_ITEM_SIZE)[4]
        return position

    def items_of(self, stream_id: int) -> tuple[IndexItem, ...]:
        """Return the items of one stream, in offset order."""
        rows = range(self._row(stream_id, -1), self._row(stream_id, _OFFSET_MAX))
        return tuple(map(self.item, rows))

    def find(self, stream_id: int, offset: int) -> int:
        """Return the row of the item that holds an offset of a stream, -1 when none does."""
        row = self._row(stream_id, offset) - 1
        if row < 0:
            return -1
        stream, start, delta = _INDEX_PLACE.unpack_from(self.table, row * INDEX_ITEM_SIZE)
        return row if stream == stream_id and offset < start + delta else -1

    def _row(self, stream_id: int, offset: int) -> int:
        """Return the first row whose place is beyond (stream_id, offset)."""
        table, unpack, low, high = self.table, _INDEX_KEY.unpack_from, 0, len(self.crcs)
        wanted = (stream_id, offset)
        while low < high:
            middle = (low + high) // 2
            if wanted < unpack(table, middle * INDEX_ITEM_SIZE):
                high = middle
            else:
                low = middle + 1
        return low


async def read_index(store: ObjectStore, key: str, suffix_size: int = SUFFIX_GUESS) -> ObjectIndex:
    """Read the index of an object: one suffix GET, a second one if index and extension are longer
    than `suffix_size`.

    Raises ObjectNotFound, StoreUnavailable, CorruptObject, UnsupportedFormat (written by a newer
    version).
    """
    suffix: Buffer
    suffix, size = await store.get_suffix(key, suffix_size)
    start = metadata_start(key, suffix, size)
    if size - start > len(suffix):
        suffix = await store.get_range(key, start, size - start)
    return parse_index(key, suffix, size)


def metadata_start(key: str, suffix: Buffer, size: int) -> int:
    """Return where extension and index begin, from the footer at the end of `suffix`."""
    return min(_read_footer(key, suffix, size)[:2])


def parse_index(key: str, suffix: Buffer, size: int) -> ObjectIndex:
    """Parse extension, index and footer from the last bytes of an object of `size` bytes. Both CRCs
    are checked.
    """
    view = memoryview(suffix)
    index_at, extension_at, index_length, extension_length, index_crc, extension_crc = _read_footer(
        key, view, size
    )
    first = size - len(view)
    index = view[index_at - first : index_at - first + index_length]
    extension_bytes = view[extension_at - first : extension_at - first + extension_length]
    if len(index) != index_length or index_length % INDEX_ITEM_SIZE or crc32c(index) != index_crc:
        raise CorruptObject(key, index_at, "the index does not match its checksum")
    if len(extension_bytes) != extension_length or crc32c(extension_bytes) != extension_crc:
        raise CorruptObject(key, extension_at, "the extension does not match its checksum")
    extension = _decode_extension(key, extension_at, extension_bytes)
    rows = index_length // INDEX_ITEM_SIZE
    counts = extension.item_record_counts or (UNKNOWN_COUNT,) * rows
    if not rows == len(extension.item_crcs) == len(extension.item_max_timestamps) == len(counts):
        raise CorruptObject(key, extension_at, f"the extension does not describe {rows} items")
    streams = {info.stream_id: info for info in extension.streams}
    if not _streams_of(index) <= streams.keys():
        raise CorruptObject(key, extension_at, "the extension does not describe all streams")
    try:
        crcs = array("I", extension.item_crcs)
        max_timestamps = array("q", extension.item_max_timestamps)
        kafka_records = array("i", counts)
    except OverflowError as error:
        raise CorruptObject(key, extension_at, f"the extension holds {error}") from error
    return ObjectIndex(
        key=key,
        size=size,
        table=bytes(index),
        crcs=crcs,
        max_timestamps=max_timestamps,
        kafka_records=kafka_records,
        streams=streams,
        kind=extension.kind,
        cluster_id=extension.cluster_id,
        node_id=extension.node_id,
        node_epoch=extension.node_epoch,
        writer_id=extension.writer_id,
        created_ms=extension.created_ms,
    )


def _streams_of(index: memoryview) -> set[int]:
    """Return the ids of the streams in an index: few, and each in many neighbouring rows."""
    words, stride = index.cast("I"), INDEX_ITEM_SIZE // 4
    halves = {*zip(words[::stride].tolist(), words[1::stride].tolist(), strict=True)}
    return {int.from_bytes(_HALVES.pack(*pair), "big", signed=True) for pair in halves}


def check_item(key: str, item: IndexItem, data: Buffer) -> None:
    """Raise CorruptObject unless `data` are the bytes of `item`."""
    if len(data) != item.size or crc32c(data) != item.crc:
        raise CorruptObject(
            key,
            item.position,
            f"data of stream {item.stream_id} from offset {item.start_offset} fails its checksum",
        )


def iter_records(data: Buffer) -> Iterator[StreamRecord]:
    """Yield the records of the data blocks in `data` (an item's bytes, already checked), without a
    copy. Raises ValueError where they are not laid out as records.
    """
    view = memoryview(data)
    headers, starts = record_headers(data)
    for (_, stream, epoch, base, count, length), start in zip(headers, starts, strict=True):
        yield StreamRecord(stream, epoch, base, count, view[start : start + length])


def record_headers(
    data: Buffer, *, is_in_block: bool = False
) -> tuple[list[tuple[int, int, int, int, int, int]], list[int]]:
    """Return the headers of the records in `data` (magic, stream id, epoch, base offset, offset
    count, payload length), and where their payloads start. `data` is data blocks, or with
    `is_in_block` records of one alone. Raises ValueError.
    """
    unpack, position, size = _RECORD_PLACE.unpack_from, 0, len(data)
    headers: list[tuple[int, int, int, int, int, int]] = []
    starts: list[int] = []
    try:
        while position < size:
            end = size
            if not is_in_block:
                magic, _, _, length = BLOCK_HEADER.unpack_from(data, position)
                position += BLOCK_HEADER_SIZE
                end = position + length
                if magic != BLOCK_MAGIC or not position <= end <= size:
                    raise ValueError(f"no data block at byte {position - BLOCK_HEADER_SIZE}")
            while position < end:  # for each batch that is read: as few steps as can be
                header = unpack(data, position)
                position += RECORD_HEADER_SIZE
                headers.append(header)
                starts.append(position)
                position += header[5]
            if position != end:
                raise ValueError(f"a record goes beyond byte {end}")
    except struct.error:
        raise ValueError(f"a header is cut short at byte {position}") from None
    if any(map(RECORD_MAGIC.__ne__, map(_MAGIC, headers))):
        raise ValueError("a record has another magic number")
    return headers, starts


def encode_extension(extension: Extension) -> bytes:
    """Return the extension block's bytes."""
    return bytes([EXTENSION_VERSION]) + msgspec.msgpack.encode(extension)


def _decode_extension(key: str, position: int, data: memoryview) -> Extension:
    if not data:
        raise CorruptObject(
            key, position, "the object has no extension block: not written by Lakehead"
        )
    if data[0] > EXTENSION_VERSION:
        raise UnsupportedFormat(
            f"object {key} has extension version {data[0]}, newer than this release: upgrade"
        )
    try:
        return msgspec.msgpack.decode(data[1:], type=Extension)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptObject(key, position, f"the extension cannot be decoded: {error}") from error


def _read_footer(key: str, suffix: Buffer, size: int) -> tuple[int, int, int, int, int, int]:
    """Return index position, extension position, their lengths, their CRCs."""
    if len(suffix) < FOOTER_SIZE:
        raise CorruptObject(key, 0, f"too short for a footer ({size} bytes)")
    (
        index_at,
        index_length,
        version,
        _,
        extension_at,
        extension_length,
        index_crc,
        extension_crc,
        magic,
    ) = FOOTER.unpack_from(suffix, len(suffix) - FOOTER_SIZE)
    footer_at = size - FOOTER_SIZE
    if magic != FOOTER_MAGIC:
        raise CorruptObject(key, footer_at, "no stream object footer")
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"object {key} has format version {version}, newer than this release: upgrade"
        )
    for start, length in ((index_at, index_length), (extension_at, extension_length)):
        if start < 0 or length < 0 or start + length > footer_at:
            raise CorruptObject(key, footer_at, "the footer points outside the object")
    return index_at, extension_at, index_length, extension_length, index_crc, extension_crc
