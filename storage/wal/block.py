"""The write-ahead log on a block device: group commit into a ring.

A record is copied once, into the page-aligned buffer of the current block. At the end of the loop's
iteration the block is written if a slot is free; else it gathers more until a slot frees or it is
full. Several writes are in flight; their completions are released strictly in order. Any error of
the device ends the log: nothing is retried and nothing more is released, since what such a write
left behind is unknown.

Owned by one event loop. The layout, and the invariants that writing keeps, are in `block_format`;
reading back is in `recovery`.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from crc32c import crc32c

from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.encryption.log_cipher import SALT_SIZE, TAG_SIZE, LogCipher, LogKey
from lakehead.storage.errors import (
    Fenced,
    KeyUnavailable,
    RecordTooLarge,
    WalClosed,
    WalCorrupted,
    WalFailed,
    WalFull,
)
from lakehead.storage.failpoints import failpoint
from lakehead.storage.wal.block_format import (
    BODY,
    BODY_MAGIC,
    CRC,
    DATA,
    ENCRYPTED_DATA,
    ENCRYPTED_VERSION,
    FORMAT_VERSION,
    HEADER_CRC_AT,
    OVERHEAD,
    RECORD,
    RECORD_MAGIC,
    RING_OFFSET,
    SECTOR,
    EpochRange,
    SliceEntry,
    SliceHeader,
    encode_padding,
    lap_of,
    log_name,
    record_seed,
    sector_down,
    sector_up,
    stamp,
)
from lakehead.storage.wal.block_index import IndexBuilder, encrypt_index, encrypted_size
from lakehead.storage.wal.block_recovery import Ring, RingScan, index_places, recovered, surveyed
from lakehead.storage.wal.block_settings import BlockWalSettings, BlockWalStats
from lakehead.storage.wal.device import WalDevice, aligned_buffer, write_failure
from lakehead.storage.wal.protocol import (
    Buffer,
    LogIdentity,
    WalListener,
    WalPart,
    WalRecord,
)
from lakehead.storage.wal.slice_store import SliceStore, ended, started, trimmed_to

_PIECE_SHARE = 8
"""A record of more than this part of a piece of the ring may cross its end."""
_pack_record = RECORD.pack_into
_pack_body = BODY.pack_into
_pack_crc = CRC.pack_into


class BlockWal:
    """A WriteAheadLog in one slice of a block device. `open_wal` and `format_volume` prepare it."""

    def __init__(
        self,
        device: WalDevice,
        entry: SliceEntry,
        store: SliceStore,
        *,
        settings: BlockWalSettings | None = None,
    ) -> None:
        self.extent = (entry.start + RING_OFFSET, entry.start + entry.length)
        """The place of its records on the device, from byte to byte."""
        self._device = device
        self._store = store
        self._ring = Ring(
            start=entry.start + RING_OFFSET,
            length=entry.length - RING_OFFSET,
            seed=record_seed(store.header.volume_id, entry),
        )
        self._settings = (settings or BlockWalSettings()).fitted_to(self._ring.length)
        self._loop = asyncio.get_running_loop()
        self._pool = BlockPool(
            self._settings.block_size,
            keep=self._settings.writes_in_flight_max + 2,
            keep_max=self._settings.pool_size // self._settings.block_size,
        )
        self._listener: WalListener | None = None
        self._index: IndexBuilder | None = None
        self._piece = range(0)
        self._indexed = -1
        self._epoch = store.header.node_epoch
        self._trimmed = self._released = store.header.trimmed
        self._recovered_end: int | None = None
        self._block = Block.none_at(self._trimmed)
        self._sealed: deque[Block] = deque()
        self._writing: deque[Block] = deque()  # in log order; done ones wait for those before
        self._in_flight = 0
        self._flush_is_due = False
        self._stats = BlockWalStats()
        self._data_keys: DataKeys | None = None
        self._cipher: LogCipher | None = None
        self._kind, self._version, self._tag_size = DATA, FORMAT_VERSION, 0
        self._error: WalFailed | Fenced | None = None
        self._closing = False
        self._drained: asyncio.Future[None] | None = None

    def use_keys(self, data_keys: DataKeys) -> None:
        """Decrypt what is recovered by these keys, and encrypt the next epoch if they are for that.
        To be called before all else.
        """
        self._data_keys = data_keys

    @property
    def objects(self) -> None:
        """None: group commits are not objects."""

    @property
    def next_position(self) -> int:
        """The next record goes here, or to the next sector boundary."""
        block = self._block
        return block.start + block.used if block.used else block.start - block.gap

    @property
    def released_position(self) -> int:
        """The durable frontier."""
        return self._released

    @property
    def trimmed_position(self) -> int:
        """Nothing below is needed."""
        return self._trimmed

    @property
    def capacity(self) -> int:
        """Bytes of the ring."""
        return self._ring.length

    @property
    def stats(self) -> BlockWalStats:
        """Counters since the start."""
        self._stats.in_flight = self._in_flight
        return self._stats

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet released."""
        return self.next_position - self._released

    async def identify(self, *, reach: int = -1) -> LogIdentity:
        """Return the volume's id, and what the slice's header says; see WriteAheadLog."""
        header = self._store.header
        end = max(header.released, header.trimmed)
        if end < reach:
            async for _ in self.recover():
                pass
            # An index, or padding, may have been released last, if the record behind it was not
            # written any more: an upload then has reached beyond the last record.
            end = max(end, self._recovered_end or 0)
        return LogIdentity(header.volume_id.hex(), header.node_epoch, end)

    def recover(self) -> AsyncGenerator[WalRecord, None]:
        """Yield the records that were written and not trimmed. Raises WalCorrupted, WalFailed (it
        cannot be read), KeyUnavailable (it is encrypted), NotEncrypted, StorageError.

        All that it yields is durable: the last writes of a process that died may have reached a
        cache of the device alone, and what is committed of them says how far this log reaches. May
        be repeated until `start()`.
        """
        header, scan = self._store.header, self._scan()
        return recovered(scan.records(), scan, self._device, header, self._set_recovered)

    def survey(self) -> AsyncGenerator[WalPart, None]:
        """Yield the parts of the log, by its indexes as far as there are any. Raises as `recover`;
        damage to records that an index covers is not seen.
        """
        header, scan = self._store.header, self._scan()
        parts = surveyed(scan, index_places(self._ring, header, self._settings.index_interval))
        return recovered(parts, scan, self._device, header, self._set_recovered)

    def _scan(self) -> RingScan:
        refuses_plain = self._data_keys is not None and self._data_keys.is_required
        return RingScan(
            self._device,
            self._ring,
            self._store.header,
            self._cipher_of,
            refuses_plain=refuses_plain,
        )

    def _set_recovered(self, end: int) -> None:
        """Note where the records end, and so where the next epoch begins."""
        header = self._store.header
        after = max(end, header.released)  # the second: an epoch began there and wrote nothing
        start = sector_up(after) + (0 if header.is_clean else header.window_length)
        self._recovered_end = end
        self._released = start
        self._block = Block.none_at(start)

    async def start(self, *, epoch: int, listener: WalListener) -> None:
        """Begin `epoch` beyond what was recovered, durably. Raises Fenced, WalFailed; with
        encryption KeyUnavailable, StoreUnavailable.
        """
        header, end = self._store.header, self._recovered_end
        if end is None or self._listener is not None:
            raise RuntimeError("start() follows one whole recover(), once")
        if epoch <= header.node_epoch:
            raise Fenced(
                f"{self._device.name}: node {header.node_id} started epoch {header.node_epoch} "
                f"here, {epoch} is not newer"
            )
        key = await self._new_key(epoch)
        await self._save(
            lambda h: started(
                ended(h, end),
                key=key,
                epoch=epoch,
                start=self._released,
                window_length=self._settings.window_size,
                scan_length=max(self._settings.window_size, self._settings.record_size_max),
            )
        )
        await self._save(lambda h: h)  # to the other slot: either alone knows this epoch
        self._trimmed = self._store.header.trimmed
        self._epoch = epoch
        self._listener = listener
        interval = self._settings.index_interval
        if self._ring.length > interval > 0:
            self._index = IndexBuilder(self._released, interval)

    def append(
        self, stream_id: int, epoch: int, base_offset: int, count: int, payload: Buffer
    ) -> int:
        """Add a record; see WriteAheadLog."""
        size = OVERHEAD + len(payload) + self._tag_size
        block = self._block
        used = block.used
        end = used + size
        if end > block.limit:
            block = self._make_room(size)
            used = 0
            end = size
        view, position = block.view, block.start + used
        body = used + 48
        _pack_body(view, body, BODY_MAGIC, stream_id, epoch, base_offset, count, size - OVERHEAD)
        if self._cipher is None:
            view[used + OVERHEAD : end] = payload
        else:
            view[used + OVERHEAD : end] = self._cipher.encrypt(
                position, payload, view[body : used + OVERHEAD]
            )
        _pack_record(
            view, used, RECORD_MAGIC, self._version, self._kind, 0, block.lap, size - 48,
            position, self._epoch, block.released, crc32c(view[body:end]), 0,
        )  # fmt: skip
        crc_at = used + HEADER_CRC_AT
        _pack_crc(view, crc_at, crc32c(view[used:crc_at], self._ring.seed))
        block.used = end
        position += size
        if self._index is not None:
            self._index.add(position, stream_id, epoch, base_offset, count, payload)
        return position

    async def trim(self, position: int) -> None:
        """Free what ends at or below `position`: an end position, at most the released one.

        The space is reused only once the header that says so is durable. Raises WalFailed.
        """
        self._check_alive()
        if self._recovered_end is None or position > self._released:
            raise ValueError(f"cannot trim to {position}: released is {self._released}")
        if position <= self._trimmed:
            return
        end, is_started = self._recovered_end, self._listener is not None
        await self._save(
            lambda h: trimmed_to(
                h if is_started else ended(h, end),
                position,
                released=self._released,
                start=self._released,
            )
        )
        self._trimmed = max(self._trimmed, self._store.header.trimmed)

    async def close(self) -> None:
        """Write what was appended, mark the end, let go of the device. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._block.limit = -1
        try:
            if self._listener is not None and self._error is None:
                self._pump()
                await self._wait_drained()
                await self._mark_clean()
            if self._error is None:
                await self._store.let_go()
        except (WalFailed, Fenced, OSError):
            pass  # the listener was called; a name left behind is that of a process that ended
        finally:
            await self._device.close()

    async def _cipher_of(self, segment: EpochRange) -> LogCipher:
        """Return the cipher of an earlier epoch. Raises KeyUnavailable, StoreUnavailable,
        WalCorrupted.
        """
        try:
            stored = LogKey.decode(segment.key)
        except (struct.error, UnicodeDecodeError):
            raise WalCorrupted(
                f"{self._device.name}: the key of epoch {segment.epoch} cannot be read"
            ) from None
        if self._data_keys is None:
            raise KeyUnavailable(f"{self._device.name} is encrypted: set encryption.key.provider")
        try:
            plain = await self._data_keys.unwrap(stored.key)
        except KeyUnavailable as error:
            raise KeyUnavailable(f"cannot decrypt {self._device.name}: {error}") from None
        return LogCipher(self._name_of(segment.epoch), stored.salt, plain)

    async def _new_key(self, epoch: int) -> bytes:
        """Begin to encrypt, if that is on; return the key as it is stored, else nothing."""
        keys = self._data_keys
        if keys is None or not keys.is_on:
            return b""
        key, salt = await keys.current(), keys.rng.randbytes(SALT_SIZE)
        self._cipher = LogCipher(self._name_of(epoch), salt, key.plain)
        self._kind, self._version, self._tag_size = ENCRYPTED_DATA, ENCRYPTED_VERSION, TAG_SIZE
        return LogKey(salt, key.wrapped).encode()

    def _name_of(self, epoch: int) -> bytes:
        return log_name(self._store.header.volume_id, self._store.header.node_id, epoch)

    # ---------------------------------------------------------------- blocks

    def _make_room(self, size: int) -> Block:
        """Open the block that the next record, of `size` bytes with its headers, begins. Without
        memory for one, nothing has happened: it is tried again.
        """
        self._check_appendable(size)
        try:
            return self._open_block(size)
        except (OSError, MemoryError) as error:  # mmap(2) says ENOMEM
            raise WalFull(f"{self._device.name}: no memory for a block: {error!r}") from error

    def _open_block(self, size: int) -> Block:
        end = self.next_position
        start = sector_up(end)
        left = self._left_at(start, size)
        padding = left if size > left else 0
        space_end = sector_down(self._trimmed) + self._ring.length
        if start + padding + sector_up(size) > space_end:
            raise WalFull(
                f"{self._device.name}: {size} bytes do not fit until positions from "
                f"{self._trimmed} on are trimmed"
            )
        pending = end - self._released
        if pending and pending + padding + size > self._settings.pending_size_max:
            raise WalFull(f"{self._device.name}: {pending} bytes wait to be written")
        if self._block.used:
            self._seal()
        if padding:
            lap = lap_of(start, self._ring.length)
            self._sealed.append(Block.padding(start, padding, start - end, lap, self._epoch))
            start, end = start + padding, start + padding
            left = self._left_at(start, size)
            self._block = Block.none_at(start)
        if index := self._index_at(start):
            index_size = encrypted_size(index) if self._cipher is not None else len(index)
            needed = sector_up(RECORD.size + index_size) + sector_up(size)
            if needed <= min(space_end - start, left):
                if self._cipher is not None:
                    index = encrypt_index(index, self._cipher, start)
                lap = lap_of(start, self._ring.length)
                self._sealed.append(Block.index(start, index, start - end, lap, self._epoch))
                end = self._sealed[-1].end
                start = sector_up(end)
                left = self._left_at(start, size)
                self._block = Block.none_at(end)
        if self._sealed:
            self._pump()
            self._check_alive()
        limit = size
        if size <= self._settings.block_size:
            limit = min(self._settings.block_size, left, space_end - start)
        self._block = Block(
            view=self._pool.take(limit),
            start=start,
            limit=limit,
            gap=start - end,
            lap=lap_of(start, self._ring.length),
            released=self._released,
        )
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        return self._block

    def _left_at(self, start: int, size: int) -> int:
        """Return the bytes that a block from `start` on may have: to the end of the lap and, unless
        its record is so large that much of the ring would be padding, of the piece that an index
        ends.
        """
        interval = 0 if self._index is None else self._index.interval
        if size * _PIECE_SHARE > interval:
            return self._ring.left_in_lap(start)
        return self._piece_at(start, interval).stop - start

    def _piece_at(self, position: int, interval: int) -> range:
        """Return the piece of the ring that a position is in: that of the last call, as a rule."""
        if position not in self._piece:
            self._piece = self._ring.piece_at(position, interval)
        return self._piece

    def _index_at(self, start: int) -> bytes:
        """Return the index to be written at `start`; empty: none."""
        index = self._index
        if index is None:
            return b""
        piece = self._piece_at(start, index.interval).start
        if piece == self._indexed:
            return b""
        self._indexed = piece
        if start != piece:  # a large record has crossed the end of the piece before
            index.skip(self._released)
            return b""
        return index.take(self._released)

    def _check_appendable(self, size: int) -> None:
        self._check_alive()
        if self._listener is None:
            raise WalClosed(f"{self._device.name}: the WAL has not been started")
        if size > self._settings.record_size_max:
            raise RecordTooLarge(
                f"{self._device.name}: {size} bytes, at most {self._settings.record_size_max}"
            )

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise WalClosed(f"{self._device.name}: the WAL is closed")

    def _seal(self) -> None:
        """Close the current block, which has records."""
        block = self._block
        block.end = block.start + block.used
        self._sealed.append(block)
        self._block = Block.none_at(block.end)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._pump()

    def _pump(self) -> None:
        """Write sealed blocks, then the current one, as far as slots and the window allow."""
        sealed, settings = self._sealed, self._settings
        while (sealed or self._block.used) and self._error is None:
            if self._in_flight >= settings.writes_in_flight_max:
                return
            end = sealed[0].end if sealed else self.next_position
            if self._in_flight and end - self._released > settings.window_size:
                self._stats.window_waits += 1
                return
            if not sealed:
                self._seal()
            self._write(sealed.popleft())

    def _write(self, block: Block) -> None:
        self._in_flight += 1
        self._writing.append(block)
        offset = self._ring.offset_of(block.start)
        try:
            buffer = block.complete(self._released, self._ring.seed)
            write = self._device.write(offset, buffer)
        except Exception as error:  # noqa: BLE001  # the loop calls this, and so may an append
            self._fail(f"write at byte {offset}", error)
            return
        self._stats.writes += 1
        self._stats.written_bytes += len(buffer)
        write.add_done_callback(lambda done: self._written(block, offset, done))

    def _written(self, block: Block, offset: int, write: asyncio.Future[None]) -> None:
        self._in_flight -= 1
        failpoint("wal_written")
        error = asyncio.CancelledError() if write.cancelled() else write.exception()
        if error is not None:
            self._fail(f"write at byte {offset}", error)
        if self._error is not None:
            return
        block.is_done = True
        while self._writing and self._writing[0].is_done:
            first = self._writing.popleft()
            self._released = first.end
            self._pool.give(first.view)
        self._pump()
        if self._released >= block.end:
            self._report_released()
        self._wake_if_drained()

    def _report_released(self) -> None:
        if self._error is None and self._listener is not None:
            self._listener.released(self._released)

    # ---------------------------------------------------------------- ends

    def _fail(self, what: str, error: BaseException) -> None:
        if self._error is not None:
            return
        self._error = write_failure(f"{self._device.name}: {what} failed", error)
        self._block.limit = -1
        self._sealed.clear()
        self._wake_if_drained()
        if self._listener is not None:
            self._listener.failed(self._error)

    async def _save(self, change: Callable[[SliceHeader], SliceHeader]) -> None:
        try:
            await self._store.save(change)
            self._stats.header_writes += 1
        except OSError as error:
            self._fail("header write", error)
        if self._error is not None:
            raise self._error

    async def _wait_drained(self) -> None:
        self._drained = self._loop.create_future()
        self._wake_if_drained()
        await self._drained
        if self._error is not None:
            raise self._error

    def _wake_if_drained(self) -> None:
        if self._drained is None or self._drained.done():
            return
        is_idle = not (self._sealed or self._writing or self._block.used)
        if self._error is not None or is_idle:
            self._drained.set_result(None)

    async def _mark_clean(self) -> None:
        end = self._released
        await self._save(
            lambda h: replace(
                trimmed_to(ended(h, end), self._trimmed, released=end, start=end), is_clean=True
            )
        )


_NOTHING = memoryview(b"")
_SPARED_AFTER = 1024


class Block:
    """Records that are written together, or the place where the next block will begin.

    `limit` is what may be used of `view`, in bytes; -1 sends every append the slow way. `end` is
    set when the block is sealed.
    """

    __slots__ = ("end", "gap", "is_done", "lap", "limit", "released", "start", "used", "view")

    def __init__(
        self, *, view: memoryview, start: int, limit: int, gap: int, lap: int, released: int
    ) -> None:
        self.view = view
        self.start = start
        self.used = 0
        self.limit = limit
        self.gap = gap
        self.lap = lap
        self.released = released
        self.end = start
        self.is_done = False

    @classmethod
    def none_at(cls, position: int) -> Block:
        """There is no current block; the log has come to `position`."""
        return cls(view=_NOTHING, start=position, limit=-1, gap=0, lap=0, released=0)

    @classmethod
    def padding(cls, start: int, length: int, gap: int, lap: int, epoch: int) -> Block:
        """A block of one padding record that fills the rest of a lap."""
        view = aligned_buffer(SECTOR)
        block = cls(view=view, start=start, limit=RECORD.size, gap=gap, lap=lap, released=0)
        block.end = start + length
        view[: RECORD.size] = encode_padding(
            lap=lap, gap=gap, position=start, end=block.end, epoch=epoch
        )
        block.used = RECORD.size
        return block

    @classmethod
    def index(cls, start: int, body: bytes, gap: int, lap: int, epoch: int) -> Block:
        """A block of one index."""
        view = aligned_buffer(sector_up(RECORD.size + len(body)))
        block = cls(view=view, start=start, limit=len(view), gap=gap, lap=lap, released=0)
        block.used = RECORD.size + len(body)
        block.end = start + block.used
        view[: RECORD.size] = encode_padding(
            lap=lap, gap=gap, position=start, end=block.end, epoch=epoch, body_crc=crc32c(body)
        )
        view[RECORD.size : block.used] = body
        return block

    def complete(self, released: int, seed: int) -> memoryview:
        """Return the bytes to write, now that `released` is known."""
        size = sector_up(self.used)
        self.view[self.used : size] = bytes(size - self.used)
        stamp(self.view, self.gap, released, seed)
        return self.view[:size]


class BlockPool:
    """Buffers of block size, kept since fresh pages cost more than the copy into them.

    Page faults of a fresh block of 1 MiB take half a millisecond, as long as a fast disk takes to
    write it. While the device is slow, the log takes more buffers than `keep`: they stay, up to
    `keep_max`, so that a log that is behind does not wait for memory each time. Half of those that
    were not needed meanwhile go after every `_SPARED_AFTER` blocks.
    """

    def __init__(self, block_size: int, *, keep: int, keep_max: int) -> None:
        self._block_size = block_size
        self._keep = keep
        self._keep_max = max(keep, keep_max)
        self._free: list[memoryview] = []
        self._fewest = self._given = 0

    def take(self, size: int) -> memoryview:
        """Return a buffer of at least `size` bytes; its content is undefined."""
        if size > self._block_size:
            return aligned_buffer(sector_up(size))
        if not self._free:
            return aligned_buffer(self._block_size)
        view = self._free.pop()
        self._fewest = min(self._fewest, len(self._free))
        return view

    def give(self, view: memoryview) -> None:
        """Take a buffer back that no write uses any more."""
        if len(view) == self._block_size and len(self._free) < self._keep_max:
            self._free.append(view)
        self._given += 1
        if self._given == _SPARED_AFTER:
            spare = min(self._fewest, len(self._free) - self._keep)
            del self._free[: max(0, spare + 1) // 2]
            self._fewest, self._given = len(self._free), 0
