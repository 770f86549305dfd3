"""Blocks: the buffers that gather records until they are written in one piece."""

from __future__ import annotations

from lakehead.storage.wal.block_format import RECORD, SECTOR, encode_padding, sector_up, stamp
from lakehead.storage.wal.device import aligned_buffer

_NOTHING = memoryview(b"")


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

    def complete(self, released: int, seed: int) -> memoryview:
        """Return the bytes to write, now that `released` is known."""
        size = sector_up(self.used)
        self.view[self.used : size] = bytes(size - self.used)
        stamp(self.view, self.gap, released, seed)
        return self.view[:size]


class BlockPool:
    """Buffers of block size, kept since fresh pages cost more than the copy into them."""

    def __init__(self, block_size: int, *, keep: int) -> None:
        self._block_size = block_size
        self._keep = keep
        self._free: list[memoryview] = []

    def take(self, size: int) -> memoryview:
        """Return a buffer of at least `size` bytes; its content is undefined."""
        if size > self._block_size:
            return aligned_buffer(sector_up(size))
        return self._free.pop() if self._free else aligned_buffer(self._block_size)

    def give(self, view: memoryview) -> None:
        """Take a buffer back that no write uses any more."""
        if len(view) == self._block_size and len(self._free) < self._keep:
            self._free.append(view)
