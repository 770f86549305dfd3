"""The format of a block WAL on a device: layout, encoding, decoding, checksums.

Integers are big-endian, checksums CRC-32C (Castagnoli). A *sector* is 4096 bytes here, whatever the
device calls one: nothing is written in smaller pieces, and a header slot is one sector.

Device::

    sector 0, sector 1    volume header, two slots; the newest valid generation counts
    64 KiB ..             slices, one per node of the host

Slice::

    sector 0, sector 1    slice header, two slots; the newest valid generation counts
    sector 2              the process that holds the slice (`holder`)
    sector 3 ..           the ring

Every header slot keeps this shape in every version: magic (8 bytes), version u16, ..., and a
checksum of the first 4092 bytes in the last four. So an older program can recognise a newer format,
which it refuses, from damage.

Volume header: magic `LKHDVOLU`, version u16 = 1, host id length u16, cluster id length u16, slice
count u16, generation u64, volume id 16 bytes, capacity i64 (bytes of the device in use), then the
host id and the cluster id (UTF-8, at most 255 bytes each), then per slice: node id i32, start i64,
length i64 (bytes on the device).

Slice header: magic `LKHDSLIC`, version u16 = 1 (2: with keys), flags u16 (bit 0: clean shutdown),
node id i32, generation u64, volume id 16 bytes, node epoch i64 (the highest ever started, -1 before
the first), trimmed position i64, released position i64 (the durable frontier when the header was
made), window length i64, scan length i64, segment count u32, then per segment: node epoch i64,
start i64, end i64 (-1: still open; only the last). In version 2 then, per segment: length of its
key u16 (0: its records are not encrypted) and the key, as
`lakehead.storage.encryption.log_cipher` has it.

Positions are bytes of an endless log; position P lies at ring start + P % ring length. A *segment*
is what one node epoch wrote. Between segments there may be a gap that holds nothing: an epoch
starts beyond everything that an earlier one may have had in flight.

Record: a 48-byte header, then the body::

    0   magic u32 0x4C4B5752        16  position i64
    4   version u8 = 1              24  node epoch i64
    5   kind u8 (below)             32  released position i64, known when this was written
    6   gap u16                     40  body checksum u32 (0 for padding)
    8   lap u32                     44  header checksum u32
    12  body length u32

The body is the 33-byte record header of a stream object (magic 0x22 u8, stream id i64, epoch i64,
base offset i64, count i32, payload length i32) and the payload, a record batch. Kinds are 1 data, 2
padding and 3, with version 2, encrypted data: its payload is a batch that is encrypted under the
key of its segment and the tag of 16 bytes, which covers the record header of a stream object too.
Padding has a body that no scan reads. It reaches to the end of the ring's lap, or to the end of a
piece of 16 MiB, or it is an index (`block_index`), with the checksum of its body.

Records are packed in *blocks*, each one write: a block starts on a sector boundary, its tail is
zeroed up to one, and it never crosses the end of a lap. `gap` is the number of zero bytes between
the end of the record before and this one, so that a chain of records is proved to be without holes.
The lap (position // ring length, modulo 2**32), the position and the exact epoch of its segment
make a record of the past unreadable; the header checksum is seeded by volume, slice and node, so
that bytes of another log, or a message that imitates a record, are no record either.

Invariants: (1) released <= the first hole, since only what is whole is released; (2) a write that
is not alone ends within `window length` of the released position, and no record is larger than
`scan length`, so the first block that ends beyond hole + window carries a released position beyond
the hole, and begins within the scan; (3) a slice header is durable before anything that relies on
it happens: an append of a new epoch, the reuse of trimmed space.

Left to chance: damage to the last acknowledged blocks, of which nothing written later bears
witness, looks like a write that was cut off.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from crc32c import crc32c

from lakehead.storage.errors import UnsupportedFormat

SECTOR = 4096
SLICES_START = 64 * 1024
RING_OFFSET = 3 * SECTOR
HOLDER_OFFSET = 2 * SECTOR
SLICES_MAX = 128
FORMAT_VERSION = 1
ENCRYPTED_VERSION = 2
"""Of a slice header with keys and of encrypted records; all else stays at version 1."""

RECORD_MAGIC = 0x4C4B5752
BODY_MAGIC = 0x22
DATA = 1
PADDING = 2
ENCRYPTED_DATA = 3

RECORD = struct.Struct(">IBBHIIqqqII")
BODY = struct.Struct(">Bqqqii")
OVERHEAD = RECORD.size + BODY.size
"""Bytes that a record takes beyond its payload."""
CRC = struct.Struct(">I")
GAP = struct.Struct(">H")
POSITION = struct.Struct(">q")
GAP_AT, RELEASED_AT, HEADER_CRC_AT = 6, 32, 44

_VOLUME_MAGIC = b"LKHDVOLU"
_SLICE_MAGIC = b"LKHDSLIC"
_VOLUME = struct.Struct(">8sHHHHQ16sq")
_VOLUME_SLICE = struct.Struct(">iqq")
_LOG_NAME = struct.Struct(">iq")
_SLICE = struct.Struct(">8sHHiQ16sqqqqqI")
_SEGMENT = struct.Struct(">qqq")
_KEY_LENGTH = struct.Struct(">H")
_SLOT_CRC_AT = SECTOR - CRC.size
_CLEAN = 1

EPOCH_RANGES_MAX = (_SLOT_CRC_AT - _SLICE.size) // _SEGMENT.size
IDENTITY_BYTES_MAX = 255


def sector_up(position: int) -> int:
    """Return the first sector boundary at or above `position`."""
    return (position + SECTOR - 1) & -SECTOR


def sector_down(position: int) -> int:
    """Return the last sector boundary at or below `position`."""
    return position & -SECTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceEntry:
    """The place of one node's slice on the device, in bytes."""

    node_id: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHeader:
    """The owner of a device, and its division into slices. `cluster_id` is empty until it is
    known.
    """

    generation: int
    volume_id: bytes
    capacity: int
    host_id: str
    cluster_id: str
    slices: tuple[SliceEntry, ...]

    def encode(self) -> bytes:
        """Return the header slot."""
        host, cluster = self.host_id.encode(), self.cluster_id.encode()
        assert max(len(host), len(cluster)) <= IDENTITY_BYTES_MAX, "identities are short"
        fixed = _VOLUME.pack(
            _VOLUME_MAGIC,
            FORMAT_VERSION,
            len(host),
            len(cluster),
            len(self.slices),
            self.generation,
            self.volume_id,
            self.capacity,
        )
        table = (_VOLUME_SLICE.pack(s.node_id, s.start, s.length) for s in self.slices)
        return seal(b"".join((fixed, host, cluster, *table)))

    @classmethod
    def decode(cls, slot: memoryview) -> VolumeHeader | None:
        """Read a header slot. None: there is none here. Raises UnsupportedFormat."""
        if not is_sealed(slot, _VOLUME_MAGIC, "WAL volume"):
            return None
        fields = _VOLUME.unpack_from(slot)
        _, _, host_length, cluster_length, count, generation, volume_id, capacity = fields
        at = _VOLUME.size
        host = bytes(slot[at : at + host_length]).decode()
        at += host_length
        cluster = bytes(slot[at : at + cluster_length]).decode()
        at += cluster_length
        table = slot[at : at + count * _VOLUME_SLICE.size]
        return cls(
            generation=generation,
            volume_id=volume_id,
            capacity=capacity,
            host_id=host,
            cluster_id=cluster,
            slices=tuple(
                SliceEntry(node_id=node_id, start=start, length=length)
                for node_id, start, length in _VOLUME_SLICE.iter_unpack(table)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRange:
    """The positions that one node epoch wrote, `[start, end)`; `end` is None while it may grow.
    `key` is that of its records, as stored; empty: they are not encrypted.
    """

    epoch: int
    start: int
    end: int | None
    key: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceHeader:
    """The state of one log; the module docstring gives the meaning of each field."""

    generation: int
    volume_id: bytes
    node_id: int
    node_epoch: int
    is_clean: bool
    trimmed: int
    released: int
    window_length: int
    scan_length: int
    segments: tuple[EpochRange, ...]

    def encode(self) -> bytes:
        """Return the header slot."""
        fixed = _SLICE.pack(
            _SLICE_MAGIC,
            ENCRYPTED_VERSION if self._has_keys else FORMAT_VERSION,
            _CLEAN if self.is_clean else 0,
            self.node_id,
            self.generation,
            self.volume_id,
            self.node_epoch,
            self.trimmed,
            self.released,
            self.window_length,
            self.scan_length,
            len(self.segments),
        )
        table = (
            _SEGMENT.pack(s.epoch, s.start, -1 if s.end is None else s.end) for s in self.segments
        )
        keys = (_KEY_LENGTH.pack(len(s.key)) + s.key for s in self.segments if self._has_keys)
        return seal(b"".join((fixed, *table, *keys)))

    @property
    def fits(self) -> bool:
        """Return true if the header fits into its slot."""
        size = _SLICE.size + len(self.segments) * _SEGMENT.size
        if self._has_keys:
            size += sum(_KEY_LENGTH.size + len(segment.key) for segment in self.segments)
        return size <= _SLOT_CRC_AT

    @property
    def _has_keys(self) -> bool:
        return any(segment.key for segment in self.segments)

    @classmethod
    def decode(cls, slot: memoryview) -> SliceHeader | None:
        """Read a header slot. None: there is none here. Raises UnsupportedFormat."""
        if not is_sealed(slot, _SLICE_MAGIC, "WAL slice", ENCRYPTED_VERSION):
            return None
        fields = _SLICE.unpack_from(slot)
        _, version, flags, node_id, generation, volume_id, node_epoch = fields[:7]
        trimmed, released, window_length, scan_length, count = fields[7:]
        end = _SLICE.size + count * _SEGMENT.size
        table = slot[_SLICE.size : end]
        try:
            keys = _keys(slot[end:], count) if version == ENCRYPTED_VERSION else [b""] * count
        except struct.error:
            return None
        return cls(
            generation=generation,
            volume_id=volume_id,
            node_id=node_id,
            node_epoch=node_epoch,
            is_clean=bool(flags & _CLEAN),
            trimmed=trimmed,
            released=released,
            window_length=window_length,
            scan_length=scan_length,
            segments=tuple(
                EpochRange(epoch=epoch, start=start, end=None if end < 0 else end, key=key)
                for (epoch, start, end), key in zip(_SEGMENT.iter_unpack(table), keys, strict=True)
            ),
        )


def _keys(data: memoryview, count: int) -> list[bytes]:
    """Raises struct.error if there are fewer."""
    keys, at = [], 0
    for _ in range(count):
        (length,) = _KEY_LENGTH.unpack_from(data, at)
        at += _KEY_LENGTH.size
        keys.append(bytes(data[at : at + length]))
        at += length
    return keys


class _Generational(Protocol):
    @property
    def generation(self) -> int: ...


H = TypeVar("H", bound=_Generational)


def newest(slots: memoryview, decode: Callable[[memoryview], H | None]) -> H | None:
    """Return the valid header of the highest generation in two adjacent slots."""
    headers = [decode(slots[:SECTOR]), decode(slots[SECTOR : 2 * SECTOR])]
    return max((h for h in headers if h is not None), key=lambda h: h.generation, default=None)


class RecordHeader(NamedTuple):
    """A record header whose checksum holds; `gap` and the rest as in the layout."""

    kind: int
    gap: int
    lap: int
    body_length: int
    position: int
    epoch: int
    released: int
    body_crc: int


def log_name(volume_id: bytes, node_id: int, epoch: int) -> bytes:
    """Return the name of the log of one start of a node, which its encryption is bound to."""
    return volume_id + _LOG_NAME.pack(node_id, epoch)


def record_seed(volume_id: bytes, entry: SliceEntry) -> int:
    """Return the seed of record header checksums in a slice."""
    return crc32c(volume_id + _VOLUME_SLICE.pack(entry.node_id, entry.start, entry.length))


def lap_of(position: int, ring_length: int) -> int:
    """Return the lap number that records at `position` carry."""
    return position // ring_length & 0xFFFFFFFF


def encode_padding(
    *, lap: int, gap: int, position: int, end: int, epoch: int, body_crc: int = 0
) -> bytes:
    """Return the header of padding over `[position, end)`, to be stamped like any other."""
    length = end - position - RECORD.size
    return RECORD.pack(
        RECORD_MAGIC, FORMAT_VERSION, PADDING, gap, lap, length, position, epoch, 0, body_crc, 0
    )


def stamp(view: memoryview, gap: int, released: int, seed: int) -> None:
    """Complete the first record header of a block, at the moment it is written."""
    GAP.pack_into(view, GAP_AT, gap)
    POSITION.pack_into(view, RELEASED_AT, released)
    CRC.pack_into(view, HEADER_CRC_AT, crc32c(view[:HEADER_CRC_AT], seed))


def read_record_header(view: memoryview, seed: int) -> RecordHeader | None:
    """Read the record header at the start of `view`. None: there is no valid one.

    Raises UnsupportedFormat for a valid header of a newer version.
    """
    if len(view) < RECORD.size:
        return None
    fields = RECORD.unpack_from(view)
    magic, version, kind, gap, lap, body_length, position, epoch, released, body_crc, crc = fields
    if magic != RECORD_MAGIC or crc != crc32c(view[:HEADER_CRC_AT], seed):
        return None
    if version > ENCRYPTED_VERSION:
        raise UnsupportedFormat(f"a WAL record has format version {version}: upgrade Lakehead")
    return RecordHeader(
        kind=kind,
        gap=gap,
        lap=lap,
        body_length=body_length,
        position=position,
        epoch=epoch,
        released=released,
        body_crc=body_crc,
    )


def seal(content: bytes) -> bytes:
    """Return a header slot: the content, zeros, and the checksum of both."""
    assert len(content) <= _SLOT_CRC_AT, "a header fits in its slot"
    padded = content.ljust(_SLOT_CRC_AT, b"\0")
    return padded + CRC.pack(crc32c(padded))


def is_sealed(
    slot: memoryview, magic: bytes, what: str, newest_version: int = FORMAT_VERSION
) -> bool:
    """Return true if a slot is whole and has this magic. Raises UnsupportedFormat for a newer
    version.
    """
    if bytes(slot[: len(magic)]) != magic:
        return False
    if crc32c(slot[:_SLOT_CRC_AT]) != CRC.unpack_from(slot, _SLOT_CRC_AT)[0]:
        return False
    (version,) = GAP.unpack_from(slot, len(magic))
    if version > newest_version:
        raise UnsupportedFormat(
            f"{what} has format version {version}, this program knows {newest_version}: "
            "upgrade Lakehead"
        )
    return True
