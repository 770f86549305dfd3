"""Reading a ring back: which records there are, where they end, and whether that can be true.

Reading changes nothing on the device, so a crash during recovery costs nothing. The layout and the
invariants that this rests on are in `block_format`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard, TypeVar

from crc32c import crc32c

from lakehead.storage.encryption.log_cipher import LogCipher
from lakehead.storage.encryption.settings import REQUIRED
from lakehead.storage.errors import NotEncrypted, WalCorrupted
from lakehead.storage.tasks import TaskScope, log_failure, task_group
from lakehead.storage.wal.block_format import (
    BODY,
    BODY_MAGIC,
    DATA,
    ENCRYPTED_DATA,
    PADDING,
    RECORD,
    SECTOR,
    EpochRange,
    RecordHeader,
    SliceHeader,
    lap_of,
    read_record_header,
    sector_down,
    sector_up,
)
from lakehead.storage.wal.block_index import LogIndex, decode_index, decrypt_index
from lakehead.storage.wal.device import WalDevice, write_failure
from lakehead.storage.wal.protocol import WalPart, WalRecord

_CHUNK = 4 * 1024 * 1024
_AHEAD_MAX = 4
"""Chunks that are read ahead at most."""
_INDEXES_AT_ONCE = 32
_INDEX_READ = 64 * 1024
"""Most indexes are shorter: one read each."""

CipherOf = Callable[[EpochRange], Awaitable[LogCipher]]
"""Returns the cipher of a segment's records. Raises KeyUnavailable, StoreUnavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The place of a slice's ring on its device, and the seed of its record checksums."""

    start: int
    length: int
    seed: int

    def offset_of(self, position: int) -> int:
        """Return where `position` lies on the device."""
        return self.start + position % self.length

    def left_in_lap(self, position: int) -> int:
        """Return the bytes from `position` to the end of its lap."""
        return self.length - position % self.length

    def piece_at(self, position: int, size: int) -> range:
        """Return the positions of the piece that `position` is in. A lap has pieces of `size` bytes
        each. A shorter rest of the lap is a part of the last one: a record that is put into the
        next piece, since it does not fit into its own, finds room there.
        """
        lap, at = position - position % self.length, position % self.length
        number = min(at // size, max(self.length // size - 1, 0))
        is_last = (number + 2) * size > self.length
        return range(lap + number * size, lap + (self.length if is_last else (number + 1) * size))


class RingReader:
    """Views of a ring's bytes by position, read in large pieces. The further a scan has come, the
    further it reads ahead, beside what is done with the records.
    """

    def __init__(self, device: WalDevice, ring: Ring) -> None:
        self._device = device
        self.ring = ring
        self._start = 0
        self._chunk = memoryview(b"")
        self._scope = TaskScope(log_failure)
        self._ahead: deque[asyncio.Task[memoryview]] = deque()
        self._ahead_end = 0
        self._depth = 0

    async def close(self) -> None:
        """End the reads ahead."""
        await self._scope.close()

    async def view(self, position: int, length: int) -> memoryview:
        """Return `length` bytes, or fewer where the lap ends first."""
        length = min(length, self.ring.left_in_lap(position))
        found = self.at_hand(position, length)
        if found is not None:
            return found
        end = self._start + len(self._chunk)
        if not (self._ahead and self._start <= position < end + _CHUNK):
            return await self._read_at(position, length)
        before = self._chunk[max(0, position - self._start) :]
        self._start, self._chunk = end, await self._ahead.popleft()
        self._read_ahead()
        rest = length - len(before)
        if position >= end:
            return await self.view(position, length)
        if rest > len(self._chunk):
            return await self._read_at(position, length)
        return memoryview(b"".join((before, self._chunk[:rest])))

    async def _read_at(self, position: int, length: int) -> memoryview:
        """Read at a position that nothing was read ahead for."""
        for task in self._ahead:
            task.cancel()
        self._ahead.clear()
        is_next = self._start <= position <= self._start + len(self._chunk)
        self._depth = self._depth if is_next else 0
        self._start = sector_down(position)
        wanted = max(_CHUNK, sector_up(position + length) - self._start)
        size = min(wanted, self.ring.left_in_lap(self._start))
        self._chunk = await self._device.read(self.ring.offset_of(self._start), size)
        self._ahead_end = self._start + size
        if is_next:
            self._read_ahead()
        at = position - self._start
        return self._chunk[at : at + length]

    def _read_ahead(self) -> None:
        self._depth = min(self._depth + 1, _AHEAD_MAX)
        while len(self._ahead) < self._depth:
            start = self._ahead_end
            size = min(_CHUNK, self.ring.left_in_lap(start))
            reading = self._device.read(self.ring.offset_of(start), size)
            self._ahead.append(self._scope.spawn(reading, name="read ahead", is_awaited=True))
            self._ahead_end = start + size

    def at_hand(self, position: int, length: int) -> memoryview | None:
        """Return `length` bytes if they have been read."""
        at = position - self._start
        if at >= 0 and at + length <= len(self._chunk):
            return self._chunk[at : at + length]
        return None


class RingScan:
    """One pass over the segments of a slice. `cipher_of` gives the cipher of a segment with a key;
    without it, payloads stay encrypted.

    After `records()` has ended, `end` is the end of the last valid record: the first hole.
    """

    def __init__(
        self,
        device: WalDevice,
        ring: Ring,
        header: SliceHeader,
        cipher_of: CipherOf | None = None,
        *,
        refuses_plain: bool = False,
    ) -> None:
        self._cipher_of = cipher_of
        self._refuses_plain = refuses_plain
        self._device = device
        self._reader = RingReader(device, ring)
        self._ring = ring
        self._header = header
        self._name = device.name
        self._ciphers: dict[int, LogCipher] = {}
        self.end = header.trimmed
        self.indexes: dict[int, deque[LogIndex]] = {}
        """Indexes by epoch, in the order of the log: what they cover is not read."""

    async def records(self) -> AsyncGenerator[WalRecord, None]:
        """Yield what was written and not trimmed, in order.

        Raises WalCorrupted at the place where data is missing that had been acknowledged, or is not
        what was encrypted; NotEncrypted for a plain record that is refused; and what `cipher_of`
        raises.
        """
        async with aclosing(self.parts()) as parts:
            async for part in parts:
                if part.record is not None:
                    yield part.record

    async def parts(self) -> AsyncGenerator[WalPart, None]:
        """Yield the records, or in their place what `indexes` say of them. Raises as `records`."""
        try:
            async for part in self._parts():
                yield part
        finally:
            await self._reader.close()

    async def read_indexes(self, places: Sequence[int]) -> None:
        """Find the indexes at these positions: what they cover is not read. Raises WalFailed, and
        for an encrypted one what `records` does for a record.
        """
        reader = IndexReader(self._device, self._ring)
        segments = {segment.epoch: segment for segment in self._header.segments}
        async for stored in reader.read(places):
            segment = segments.get(stored.epoch)
            index = None if segment is None else await self._index(stored, segment)
            if index is not None and index.end <= stored.position:
                self.indexes.setdefault(stored.epoch, deque()).append(index)

    async def _index(self, stored: StoredIndex, segment: EpochRange) -> LogIndex | None:
        """Return an index of a segment; None: its records have to be read."""
        if not segment.key:
            return None if self._refuses_plain else decode_index(stored.body)
        cipher = await self._cipher(segment)
        if cipher is None:
            return None
        try:
            return decrypt_index(stored.body, cipher, stored.position)
        except ValueError:
            raise WalCorrupted(
                f"{self._name}: the index at WAL position {stored.position} (device offset "
                f"{self._ring.offset_of(stored.position)}) is whole, and fails its authentication"
            ) from None

    async def _cipher(self, segment: EpochRange) -> LogCipher | None:
        if not segment.key or self._cipher_of is None:
            return None
        cipher = self._ciphers.get(segment.epoch)
        if cipher is None:
            cipher = self._ciphers[segment.epoch] = await self._cipher_of(segment)
        return cipher

    async def _parts(self) -> AsyncGenerator[WalPart, None]:
        for segment in self._header.segments:
            cipher = await self._cipher(segment)
            self.end = max(segment.start, self._header.trimmed)
            indexes = self.indexes.get(segment.epoch, deque())
            while segment.end is None or self.end < segment.end:
                while indexes and indexes[0].start < self.end:
                    indexes.popleft()
                if indexes and indexes[0].start == self.end:
                    index = indexes.popleft()
                    self.end = index.end
                    yield WalPart(index.end, ranges=index.ranges)
                    continue
                header = self._header_at_hand(self.end, segment.epoch)
                header = header or await self._header_after(self.end, segment.epoch)
                if header is None:
                    break
                end = header.position + RECORD.size + header.body_length
                if header.kind != PADDING:
                    start = header.position + RECORD.size
                    body = self._reader.at_hand(start, header.body_length)
                    if body is None:
                        body = await self._reader.view(start, header.body_length)
                    if not _is_body(header, body):
                        break
                    yield WalPart(end, self._record(header, end, body, cipher))
                self.end = end
            if segment.end is None:
                await self._check_open_end(segment)
            elif self.end != segment.end:
                raise self._damage(f"an epoch's data reaches to {segment.end}")

    def _header_at_hand(self, position: int, epoch: int) -> RecordHeader | None:
        """Return the header that `_header_after` would, in the case that most are: right behind,
        and read already. None: it has to look.
        """
        view = self._reader.at_hand(position, RECORD.size)
        if view is None:
            return None
        header = read_record_header(view, self._ring.seed)
        return header if self._follows(header, position, position, epoch) else None

    def _follows(
        self, header: RecordHeader | None, start: int, position: int, epoch: int
    ) -> TypeGuard[RecordHeader]:
        """Return true if a header at `start` is that of the record after what ends at
        `position`.
        """
        return (
            header is not None
            and header.gap == start - position
            and header.body_length <= self._ring.left_in_lap(start) - RECORD.size
            and self._is_current(header, start, epoch)
        )

    async def _header_after(self, position: int, epoch: int) -> RecordHeader | None:
        """Return the header of the record that follows what ends at `position`, if there is one.

        It begins there, or at the next sector boundary after a gap that it confirms.
        """
        boundary = sector_up(position)
        for start in {position: None, boundary: None}:
            header = read_record_header(
                await self._reader.view(start, RECORD.size), self._ring.seed
            )
            if self._follows(header, start, position, epoch):
                return header
        return None

    def _is_current(self, header: RecordHeader, position: int, epoch: int) -> bool:
        return (
            header.position == position
            and header.epoch == epoch
            and header.lap == lap_of(position, self._ring.length)
            and header.kind in {DATA, PADDING, ENCRYPTED_DATA}
        )

    def _record(
        self, header: RecordHeader, end: int, body: memoryview, cipher: LogCipher | None
    ) -> WalRecord:
        _, stream_id, epoch, base_offset, count, _ = BODY.unpack_from(body)
        payload = body[BODY.size :]
        if header.kind == DATA and self._refuses_plain:
            raise NotEncrypted(
                f"{self._name}: the record at {header.position} is not encrypted, and {REQUIRED} "
                "is true: start the node without it once, so that its records are uploaded"
            )
        if header.kind == DATA and cipher is not None:
            raise self._damage("the record there is whole, and is plain in an encrypted epoch")
        if header.kind == ENCRYPTED_DATA and cipher is not None:
            plain = cipher.decrypt(header.position, payload, body[: BODY.size])
            if plain is None:
                raise self._damage("the record there is whole, and fails its authentication")
            payload = memoryview(plain)
        return WalRecord(
            position=header.position,
            end_position=end,
            stream_id=stream_id,
            epoch=epoch,
            base_offset=base_offset,
            count=count,
            payload=payload,
        )

    async def _check_open_end(self, segment: EpochRange) -> None:
        """Distinguish writes that were cut off (left out, never acknowledged) from damage (an
        error).
        """
        header = self._header
        if self.end < header.released:
            raise self._damage(f"the slice header says released up to {header.released}")
        first = sector_up(self.end)
        last = min(first + header.scan_length + SECTOR, self.end + self._ring.length - SECTOR)
        for position in range(first, last, SECTOR):
            beyond = read_record_header(
                await self._reader.view(position, RECORD.size), self._ring.seed
            )
            if beyond is None or not self._is_current(beyond, position, segment.epoch):
                continue
            if beyond.released > self.end:
                raise self._damage(
                    f"the record at {position} says released up to {beyond.released}"
                )

    def _damage(self, evidence: str) -> WalCorrupted:
        offset = self._ring.offset_of(self.end)
        return WalCorrupted(
            f"{self._name}: no valid record at WAL position {self.end} (device offset {offset}), "
            f"yet {evidence}: acknowledged data is damaged"
        )


def _is_body(header: RecordHeader, body: memoryview) -> bool:
    is_whole = len(body) >= BODY.size and crc32c(body) == header.body_crc
    return is_whole and body[0] == BODY_MAGIC


class StoredIndex(NamedTuple):
    """An index at a position, as it is stored: a body whose checksum holds."""

    position: int
    epoch: int
    body: memoryview


def index_places(ring: Ring, header: SliceHeader, interval: int) -> list[int]:
    """Return the positions where an index of what is not trimmed may be: at each `interval` bytes
    of the ring.
    """
    length, trimmed = ring.length, header.trimmed
    if not 0 < interval < length:
        return []
    lap = trimmed - trimmed % length
    places = [start + at for start in (lap, lap + length) for at in range(0, length, interval)]
    return [place for place in places if trimmed <= place < trimmed + length]


class IndexReader:
    """Reads the indexes of a ring, some at once."""

    def __init__(self, device: WalDevice, ring: Ring) -> None:
        self._device = device
        self._ring = ring

    async def read(self, places: Sequence[int]) -> AsyncGenerator[StoredIndex, None]:
        """Yield the indexes at positions, in their order, until many of these have none. Raises
        WalFailed.
        """
        for first in range(0, len(places), _INDEXES_AT_ONCE):
            async with task_group() as group:
                reads = [
                    group.create_task(self._index_at(place))
                    for place in places[first : first + _INDEXES_AT_ONCE]
                ]
            some = [one for read in reads if (one := read.result()) is not None]
            for one in some:
                yield one
            if not some:
                break

    async def _index_at(self, position: int) -> StoredIndex | None:
        ring = self._ring
        size = min(_INDEX_READ, ring.left_in_lap(position))
        data = await self._read(position, size)
        header = read_record_header(data, ring.seed)
        if header is None or header.kind != PADDING or not header.body_crc:
            return None
        if header.position != position or header.lap != lap_of(position, ring.length):
            return None
        end = RECORD.size + header.body_length
        if end > size:
            if end > ring.left_in_lap(position):
                return None
            data = await self._read(position, sector_up(end))
        body = data[RECORD.size : end]
        return (
            StoredIndex(position, header.epoch, body) if crc32c(body) == header.body_crc else None
        )

    async def _read(self, position: int, size: int) -> memoryview:
        try:
            return await self._device.read(self._ring.offset_of(position), size)
        except OSError as error:
            raise write_failure(f"{self._device.name}: a read failed", error) from error


async def surveyed(scan: RingScan, places: Sequence[int]) -> AsyncGenerator[WalPart, None]:
    """Yield the parts of a scan that reads records only where no index at `places` covers them."""
    await scan.read_indexes(places)
    async with aclosing(scan.parts()) as parts:
        async for part in parts:
            yield part


P = TypeVar("P", WalRecord, WalPart)


class _Ended(Protocol):
    @property
    def end(self) -> int: ...


async def recovered(
    found: AsyncGenerator[P, None],
    scan: _Ended,
    device: WalDevice,
    header: SliceHeader,
    on_end: Callable[[int], None],
) -> AsyncGenerator[P, None]:
    """Yield what a scan finds, all of it durable; call `on_end` with the end of the last record.

    Raises what `RingScan.records` does, and WalFailed.
    """
    if not header.is_clean:
        try:
            await device.sync()
        except OSError as error:
            raise write_failure(f"{device.name}: a flush failed", error) from error
    async with aclosing(found) as records:
        while (record := await _next_of(records, device)) is not None:
            yield record
    on_end(scan.end)


async def _next_of(records: AsyncIterator[P], device: WalDevice) -> P | None:
    try:
        return await anext(records, None)
    except OSError as error:
        raise write_failure(f"{device.name}: a read failed", error) from error
