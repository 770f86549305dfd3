"""A write-ahead log in memory: for tests, and for clusters that may lose what is not uploaded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from lakehead.storage.errors import Fenced, RecordTooLarge, WalClosed, WalFailed, WalFull
from lakehead.storage.wal.block_format import OVERHEAD
from lakehead.storage.wal.protocol import Buffer, WalListener, WalPart, WalRecord


class MemoryWal:
    """A WriteAheadLog that lasts as long as its process.

    Records are released at the next iteration of the loop. `reopen()` is a crash and a restart:
    what was released is recovered, the rest is gone. `break_with()` is a device that fails.
    """

    def __init__(self, *, capacity: int = 1 << 30, record_size_max: int | None = None) -> None:
        self._capacity = capacity
        self._record_size_max = record_size_max or capacity // 2
        self._records: deque[WalRecord] = deque()
        self._next = self._released = self._trimmed = 0
        self._epoch = -1
        self._is_recovered = False
        self._listener: WalListener | None = None
        self._error: WalFailed | None = None
        self._closed = False
        self._release_is_due = False

    def reopen(self) -> MemoryWal:
        """Return the log as the next process finds it; this one is of no use any more."""
        self._closed = True
        successor = MemoryWal(capacity=self._capacity, record_size_max=self._record_size_max)
        successor._records = deque(r for r in self._records if r.end_position <= self._released)
        successor._next = successor._released = self._released
        successor._trimmed = self._trimmed
        successor._epoch = self._epoch
        return successor

    def break_with(self, error: Exception) -> None:
        """Fail as a device does: nothing appended and not released is released any more."""
        if self._error is None:
            self._error = WalFailed(f"memory: {error!r}")
            self._error.__cause__ = error
            if self._listener is not None:
                self._listener.failed(self._error)

    @property
    def objects(self) -> None:
        """None: group commits are not objects."""

    @property
    def next_position(self) -> int:
        """The position of the next record."""
        return self._next

    @property
    def released_position(self) -> int:
        """The frontier of what `reopen()` keeps."""
        return self._released

    @property
    def trimmed_position(self) -> int:
        """Nothing below is needed."""
        return self._trimmed

    @property
    def capacity(self) -> int:
        """Bytes, each record's headers included."""
        return self._capacity

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet released."""
        return self._next - self._released

    async def identify(self, *, reach: int = -1) -> None:
        """None: there is no other log than that of this process."""

    async def recover(self) -> AsyncGenerator[WalRecord, None]:
        """Yield what was released and not trimmed. Raises WalClosed once a successor has it."""
        self._check_alive()
        for record in list(self._records):
            yield record
        self._is_recovered = True

    async def survey(self) -> AsyncGenerator[WalPart, None]:
        """Yield the records one by one."""
        async for record in self.recover():
            yield WalPart(record.end_position, record)

    async def start(self, *, epoch: int, listener: WalListener) -> None:
        """Begin an epoch. Raises Fenced, WalClosed."""
        self._check_alive()
        if not self._is_recovered or self._listener is not None:
            raise RuntimeError("start() follows one whole recover(), once")
        if epoch <= self._epoch:
            raise Fenced(f"memory: epoch {self._epoch} was started here, {epoch} is not newer")
        self._epoch = epoch
        self._listener = listener

    def append(
        self, stream_id: int, epoch: int, base_offset: int, count: int, payload: Buffer
    ) -> int:
        """Add a record; see WriteAheadLog."""
        self._check_alive()
        if self._listener is None:
            raise WalClosed("memory: the WAL has not been started")
        end = self._next + OVERHEAD + len(payload)
        if end - self._next > self._record_size_max:
            raise RecordTooLarge(f"memory: {end - self._next} bytes")
        if end - self._trimmed > self._capacity:
            raise WalFull(f"memory: full until positions from {self._trimmed} on are trimmed")
        record = WalRecord(
            position=self._next,
            end_position=end,
            stream_id=stream_id,
            epoch=epoch,
            base_offset=base_offset,
            count=count,
            payload=memoryview(bytes(payload)),
        )
        self._records.append(record)
        self._next = end
        if not self._release_is_due:
            self._release_is_due = True
            asyncio.get_running_loop().call_soon(self._release)
        return end

    async def trim(self, position: int) -> None:
        """Forget what ends at or below `position`. Raises WalFailed, WalClosed."""
        self._check_alive()
        if position > self._released:
            raise ValueError(f"cannot trim to {position}: released is {self._released}")
        self._trimmed = max(self._trimmed, position)
        while self._records and self._records[0].end_position <= self._trimmed:
            self._records.popleft()

    async def close(self) -> None:
        """Release what was appended and stop. Idempotent."""
        if not self._closed and self._error is None:
            self._release()
        self._closed = True

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise WalClosed("memory: the WAL is closed")

    def _release(self) -> None:
        self._release_is_due = False
        if self._closed or self._error is not None or self._released == self._next:
            return
        self._released = self._next
        if self._listener is not None:
            self._listener.released(self._released)
