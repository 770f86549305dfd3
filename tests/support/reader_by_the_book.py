"""A reader of everything that Lakehead stores, written from docs/formats alone.

It imports nothing of the project. What it cannot read, the pages do not tell well enough.
"""

import struct
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c


class Wrong(Exception):
    """The bytes are not what the pages say."""


def demand(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


# stream-object.md


class Batch(NamedTuple):
    """A record of a stream object: a record batch and where it belongs."""

    stream: int
    epoch: int
    offset: int
    offsets: int
    payload: bytes


def read_object(body: bytes) -> tuple[dict[str, Any], list[Batch]]:
    """Return the extension and every batch, in the order of the index."""
    footer = struct.unpack(">qiBB2xqiII4xQ", body[-48:])
    index_at, index_size, version, _, more_at, more_size, index_crc, more_crc, magic = footer
    demand(magic == 0x88E241B785F4CFF7, "footer magic")
    demand(version == 1, "format version")
    index, more = body[index_at : index_at + index_size], body[more_at : more_at + more_size]
    demand(crc32c(index) == index_crc, "checksum of the index")
    demand(crc32c(more) == more_crc, "checksum of the extension")
    demand(more[0] == 1, "extension version")
    extension: dict[str, Any] = msgspec.msgpack.decode(more[1:])
    batches: list[Batch] = []
    items = list(struct.iter_unpack(">qqiiqi", index))
    demand(items == sorted(items), "order of the index")
    demand(len(items) == len(extension["item_crcs"]), "one checksum for each item")
    for item, crc in zip(items, extension["item_crcs"], strict=True):
        stream, start, delta, records, position, size = item
        data = body[position : position + size]
        demand(crc32c(data) == crc, "checksum of an item")
        found = list(_blocks(data))
        demand(len(found) == records, "records of an item")
        demand({batch.stream for batch in found} == {stream}, "one stream in an item")
        offset = start
        for batch in found:
            demand(batch.offset >= offset, "offsets in order")
            offset = batch.offset + batch.offsets
        demand(offset == start + delta, "end offset of an item")
        batches += found
    return extension, batches


def _blocks(data: bytes) -> Any:
    at = 0
    while at < len(data):
        magic, flags, records, size = struct.unpack_from(">BBii", data, at)
        demand((magic, flags) == (0x5A, 0x02), "data block")
        at += 10
        end = at + size
        for _ in range(records):
            magic, stream, epoch, offset, count, length = struct.unpack_from(">Bqqqii", data, at)
            demand(magic == 0x22, "record")
            at += 33
            yield Batch(stream, epoch, offset, count, data[at : at + length])
            at += length
        demand(at == end, "length of a data block")


# object-wal.md


def read_tombstone(body: bytes) -> tuple[int, int, str]:
    """Return the sealer's node id, the time and the sealer's incarnation."""
    demand(len(body) == 64, "64 bytes")
    demand(crc32c(body[:60]) == int.from_bytes(body[60:], "big"), "checksum of a tombstone")
    magic, version, node, time_ms, incarnation = struct.unpack(">8sB3xiq16s20x", body[:60])
    demand((magic, version) == (b"LKHDTOMB", 1), "tombstone")
    return node, time_ms, incarnation.rstrip(b"\0").decode("ascii")


# wal.md

SECTOR = 4096


class Slice(NamedTuple):
    """What a slice of a block WAL holds that is not trimmed."""

    node: int
    cluster: str
    is_clean: bool
    batches: list[Batch]


def read_block_wal(device: bytes) -> list[Slice]:
    """Return the slices of a volume. Raises Wrong where acknowledged data is damaged."""
    volume = _newest(device, 0, b"LKHDVOLU")
    host_size, cluster_size, count = struct.unpack_from(">HHH", volume, 10)
    volume_id = volume[24:40]
    cluster = volume[48 + host_size : 48 + host_size + cluster_size].decode()
    table = volume[48 + host_size + cluster_size :][: 20 * count]
    return [
        _slice(device, volume_id, cluster, entry) for entry in struct.iter_unpack(">iqq", table)
    ]


def _newest(device: bytes, at: int, magic: bytes) -> bytes:
    """Return the valid header slot of the newest generation."""
    found = []
    for slot in (device[at : at + SECTOR], device[at + SECTOR : at + 2 * SECTOR]):
        whole = crc32c(slot[:4092]) == int.from_bytes(slot[4092:], "big")
        if slot[:8] == magic and whole:
            demand(int.from_bytes(slot[8:10], "big") == 1, "version")
            found.append((int.from_bytes(slot[16:24], "big"), slot))
    demand(bool(found), f"no {magic!r}")
    return max(found)[1]


def _slice(device: bytes, volume_id: bytes, cluster: str, entry: tuple[int, int, int]) -> Slice:
    node, start, length = entry
    header = _newest(device, start, b"LKHDSLIC")
    flags, found_node = struct.unpack_from(">Hi", header, 10)
    demand(found_node == node and header[24:40] == volume_id, "whose slice it is")
    trimmed, released, _, scan, count = struct.unpack_from(">qqqqI", header, 48)
    seed = crc32c(volume_id + struct.pack(">iqq", node, start, length))
    ring = device[start + 3 * SECTOR : start + length]
    batches: list[Batch] = []
    for epoch, first, end in struct.iter_unpack(">qqq", header[84 : 84 + 24 * count]):
        at = max(first, trimmed)
        while end < 0 or at < end:
            record = _next_record(ring, at, epoch, seed)
            if record is None:
                break
            at, body = record
            if body is not None:
                magic, stream, stream_epoch, offset, records, size = struct.unpack_from(
                    ">Bqqqii", body
                )
                demand(magic == 0x22 and size == len(body) - 33, "body of a record")
                batches.append(Batch(stream, stream_epoch, offset, records, body[33:]))
        if end >= 0:
            demand(at == end, f"damage at {at}: the segment ends at {end}")
        else:
            demand(at >= released, f"damage at {at}: released up to {released}")
            _check_beyond(ring, at, epoch, seed, scan)
    return Slice(node, cluster, bool(flags & 1), batches)


def _header(ring: bytes, position: int, epoch: int, seed: int) -> tuple[Any, ...] | None:
    """Return kind, gap, body length, released and body checksum of a valid record header."""
    at = position % len(ring)
    head = ring[at : at + 48]
    if len(head) < 48 or crc32c(head[:44], seed) != int.from_bytes(head[44:], "big"):
        return None
    fields = struct.unpack(">IBBHIIqqqII", head)
    magic, version, kind, gap, lap, size, found, found_epoch, released, body_crc, _ = fields
    expected = (0x4C4B5752, 1, position // len(ring) % 2**32, position, epoch)
    if (magic, version, lap, found, found_epoch) != expected or kind not in {1, 2}:
        return None
    return kind, gap, size, released, body_crc


def _next_record(
    ring: bytes, position: int, epoch: int, seed: int
) -> tuple[int, bytes | None] | None:
    """Return the end of the record that follows, and its body (None: padding)."""
    for start in (position, -(-position // SECTOR) * SECTOR):
        found = _header(ring, start, epoch, seed)
        if found is None or found[1] != start - position:
            continue
        kind, _, size, _, body_crc = found
        at = start % len(ring) + 48
        body = ring[at : at + size]
        if kind == 2:
            return start + 48 + size, None
        if len(body) == size and crc32c(body) == body_crc:
            return start + 48 + size, body
    return None


def _check_beyond(ring: bytes, hole: int, epoch: int, seed: int, scan: int) -> None:
    first = -(-hole // SECTOR) * SECTOR
    last = min(first + scan + SECTOR, hole + len(ring) - SECTOR)
    for position in range(first, last, SECTOR):
        found = _header(ring, position, epoch, seed)
        demand(found is None or found[3] <= hole, f"damage at {hole}, seen from {position}")


# record-batch.md


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def read_batch(batch: bytes) -> list[Record]:
    """Return the records of an uncompressed record batch."""
    offset, size, _, magic, crc, attributes = struct.unpack_from(">qiiBIH", batch)
    demand(magic == 2 and size == len(batch) - 12, "a record batch")
    demand(crc32c(batch[21:]) == crc, "checksum of a batch")
    demand(attributes & 0b111 == 0, "no codec")
    base_timestamp, max_timestamp = struct.unpack_from(">qq", batch, 27)
    (count,) = struct.unpack_from(">i", batch, 57)
    at, records = 61, []
    for _ in range(count):
        size, at = _varint(batch, at)
        end = at + size
        timestamp_delta, at = _varint(batch, at + 1)
        offset_delta, at = _varint(batch, at)
        key, at = _text(batch, at)
        value, at = _text(batch, at)
        stamp = max_timestamp if attributes & 8 else base_timestamp + timestamp_delta
        records.append(Record(offset + offset_delta, stamp, key, value))
        at = end
    demand(at == len(batch), "end of the batch")
    return records


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _text(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)
