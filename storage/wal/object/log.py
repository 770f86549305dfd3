"""The write-ahead log in an object store: group commits as numbered objects, several in flight.

Records gather by stream; payloads are referenced, not copied. `Batching` decides when a group is
put; then it becomes a whole stream object under the next number of this epoch, by put-if-absent.
Numbers are released strictly in order: number k counts once this writer has put all of 0..k. A put
of unknown outcome is repeated with the same bytes under the same name until its outcome is known. A
number that another writer has taken, by a seal as a rule, ends the log: nothing more is released.
A slow put is raced by a second one of the same bytes under the same name (see `put`).

Trimmed objects are deleted in the background; objects that a crash leaves are found by the sweep.
Owned by one event loop. `seal` handles earlier epochs.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from itertools import islice

import msgspec

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import (
    Fenced,
    LakeheadError,
    RecordTooLarge,
    StorageError,
    WalClosed,
    WalFailed,
    WalFull,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.producer_headers import producer_headers
from lakehead.storage.format.record_batch import max_timestamps
from lakehead.storage.format.stream_object import RECORD_HEADER_SIZE
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.object.batching import Batching
from lakehead.storage.wal.object.log_id import LogMarks
from lakehead.storage.wal.object.names import wal_key
from lakehead.storage.wal.object.put import Putter
from lakehead.storage.wal.object.seal import LogSealer, sealed_records
from lakehead.storage.wal.object.settings import ObjectWalSettings, ObjectWalStats
from lakehead.storage.wal.protocol import (
    Buffer,
    LogIdentity,
    SealedLog,
    WalFloor,
    WalListener,
    WalObjects,
    WalOwner,
    WalPart,
    WalRecord,
)

Records = tuple[int, list[tuple[int, int, Buffer]]]
"""Of one stream: its epoch, then base offset, offset count and payload of each record."""


class Group:
    """Records that are put together. `limit` is what they may take, in bytes; -1 sends every append
    the slow way. `began` is the event loop's time at the first of them, `end` the position after
    the last, set when the group is closed.
    """

    __slots__ = ("began", "end", "is_done", "limit", "size", "streams")

    def __init__(self, limit: int, began: float) -> None:
        self.streams: dict[int, Records] = {}
        self.size = 0
        self.limit = limit
        self.began = began
        self.end = 0
        self.is_done = False

    @classmethod
    def none(cls) -> Group:
        """There is no group: the next record begins one."""
        return cls(-1, 0.0)


def build(group: Group, owner: WalOwner, node_epoch: int) -> WrittenObject:
    """Return the object of a group, streams in order of their ids. Payloads are not copied."""
    writer = ObjectWriter(
        kind="wal",
        cluster_id=owner.cluster_id,
        node_id=owner.node_id,
        node_epoch=node_epoch,
        writer_id=owner.incarnation,
        created_ms=owner.clock.now_ms(),
    )
    for stream_id in sorted(group.streams):
        epoch, records = group.streams[stream_id]
        base_offsets, counts, payloads = map(list, zip(*records, strict=True))
        headers = producer_headers(payloads)
        info = msgspec.structs.replace(owner.describe(stream_id), epoch=epoch, headers=headers)
        writer.begin_stream(info)
        epochs = [epoch] * len(payloads)
        writer.add_run(epochs, base_offsets, counts, payloads, max_timestamps(payloads))
    return writer.finish()


_log = event_logger("storage.wal")

_BATCH = 500
_WAITING_MAX = 100_000
_RETRY_S = 0.1
_RETRY_MAX_S = 10.0
_CLOSE_S = 5.0
_JOINED_SIZE_MAX = 1024 * 1024
"""An object of this size is put as one piece: each layer of a store goes over all pieces, of which
a record batch is two, and so does each repetition.
"""
_TICK_S = 0.0005
"""uvloop's timers count whole milliseconds: one for less than half of that rings at once, and one
that rang too early would be set again and again until the time has come.
"""


class Deleter:
    """A queue of keys to delete, bounded: the oldest are forgotten if a store refuses for long."""

    def __init__(self, store: ObjectStore, scope: TaskScope, rng: random.Random) -> None:
        self._store = store
        self._scope = scope
        self._rng = rng
        self._keys: deque[str] = deque(maxlen=_WAITING_MAX)
        self._task: asyncio.Task[None] | None = None

    def add(self, keys: Iterable[str]) -> None:
        """Delete these, some time."""
        self._keys.extend(keys)
        if self._keys and (self._task is None or self._task.done()):
            self._task = self._scope.spawn_apart(self._run(), name="delete trimmed WAL objects")

    async def close(self) -> None:
        """Give what waits a few seconds."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_CLOSE_S)

    async def _run(self) -> None:
        backoff = Backoff(self._rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
        while self._keys:
            batch = list(islice(self._keys, _BATCH))
            try:
                await self._store.delete(batch)
            except StorageError as error:
                _log.warning("wal_delete_failed", objects=len(batch), error=str(error))
                await backoff.wait()
                continue
            backoff.reset()
            for key in batch:  # some may have been forgotten meanwhile
                if self._keys and self._keys[0] == key:
                    self._keys.popleft()


class ObjectWal:
    """A WriteAheadLog of objects. `store` holds them; `are_shared` says that it is the cluster's.

    Otherwise the log closes it.
    """

    def __init__(
        self,
        store: ObjectStore,
        owner: WalOwner,
        settings: ObjectWalSettings | None = None,
        *,
        are_shared: bool,
    ) -> None:
        self.are_shared = are_shared
        self._stats = ObjectWalStats()
        self._store = store
        self._owner = owner
        self._settings = settings or ObjectWalSettings()
        self._record_max = min(self._settings.record_size_max, self._settings.capacity // 2)
        self._loop = asyncio.get_running_loop()
        self._batching = Batching(self._settings.batching, self._loop.time())
        self._reading = RetryingStore(store, rng=owner.rng)
        self._sealer = LogSealer(
            self._reading,
            cluster_id=owner.cluster_id,
            node_id=owner.node_id,
            sealer_id=owner.node_id,
            incarnation=owner.incarnation,
            clock=owner.clock,
            rng=owner.rng,
        )
        self._deleter = Deleter(store, owner.scope, owner.rng)
        self._putter = Putter(
            store, owner, self._batching, self._settings, self._stats, self._deleter.add
        )
        self._marks = None if are_shared else LogMarks(self._reading, owner)
        self._sealed: SealedLog | None = None
        self._sealed_before = 0
        self._listener: WalListener | None = None
        self._epoch = -1
        self._next = self._released = self._trimmed = self._recovered = 0
        self._group = Group.none()
        self._closed_groups: deque[Group] = deque()
        self._writing: deque[Group] = deque()  # in order; done ones wait for those before
        self._next_number = 0
        self._ends: list[int] = []  # of released objects that are not trimmed …
        self._first_number = 0  # … and the number of the first of them
        self._timer: asyncio.TimerHandle | None = None
        self._flush_is_due = False
        self._error: WalFailed | None = None
        self._closing = False
        self._drained: asyncio.Future[None] | None = None

    @property
    def stats(self) -> ObjectWalStats:
        """Counters since the start, and the present values of the adaptive settings."""
        stats, batching = self._stats, self._batching
        stats.appended_bytes = self._next - self._recovered
        stats.puts_per_mib = stats.puts / max(stats.appended_bytes, 1) * 1024 * 1024
        stats.in_flight = batching.in_flight
        stats.in_flight_limit = batching.in_flight_limit
        stats.put_latency_s = batching.latency_s
        stats.linger_s = batching.linger_s(self._loop.time())
        return stats

    @property
    def objects(self) -> WalObjects:
        """This log: its group commits are objects."""
        return self

    @property
    def next_position(self) -> int:
        """The position of the next record."""
        return self._next

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
        """Bytes of records, with their headers in objects."""
        return self._settings.capacity

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet released."""
        return self._next - self._released

    # ---------------------------------------------------------------- what earlier epochs left

    async def seal(self, floor: WalFloor, *, before: int) -> SealedLog:
        """See `SealableLog.seal`."""
        self._sealed = await self._sealer.seal(floor, before=before)
        self._sealed_before = max(before, floor.epoch)
        return self._sealed

    async def discard(self, keys: Sequence[str]) -> None:
        """See `SealableLog.discard`."""
        await self._sealer.discard(keys)

    async def identify(self, *, reach: int = -1) -> LogIdentity | None:  # noqa: ARG002
        """Return which log this is, in a store of its own; see WriteAheadLog."""
        return None if self._marks is None else await self._marks.identity()

    async def survey(self) -> AsyncGenerator[WalPart, None]:
        """Yield the records one by one. Raises as `recover`."""
        async with aclosing(self.recover()) as records:
            async for record in records:
                yield WalPart(record.end_position, record)

    async def recover(self) -> AsyncGenerator[WalRecord, None]:
        """Yield the records of what was sealed. Raises StoreUnavailable, CorruptObject."""
        if self._sealed is None:
            raise RuntimeError("recover() follows seal()")
        position = 0
        async with aclosing(sealed_records(self._reading, self._sealed.objects)) as records:
            async for record in records:
                end = position + RECORD_HEADER_SIZE + len(record.payload)
                yield WalRecord(
                    position=position,
                    end_position=end,
                    stream_id=record.stream_id,
                    epoch=record.epoch,
                    base_offset=record.base_offset,
                    count=record.offset_count,
                    payload=record.payload,
                )
                position = end
        self._next = self._released = self._recovered = position

    async def start(self, *, epoch: int, listener: WalListener) -> None:
        """Begin `epoch`, whose log is empty. Raises Fenced, StoreUnavailable."""
        if self._sealed is None or self._listener is not None:
            raise RuntimeError("start() follows seal(), once")
        if epoch < self._sealed_before:
            raise Fenced(
                f"{self._store.uri}: node {self._owner.node_id}: epoch {self._sealed_before - 1} "
                f"is sealed here, {epoch} is not newer"
            )
        if self._marks is not None:
            await self._marks.start(epoch)
        self._sealed = SealedLog((), ())
        self._epoch = epoch
        self._listener = listener

    # ---------------------------------------------------------------- appending

    def append(
        self, stream_id: int, epoch: int, base_offset: int, count: int, payload: Buffer
    ) -> int:
        """Add a record; see WriteAheadLog."""
        size = RECORD_HEADER_SIZE + len(payload)
        group = self._group
        if group.size + size > group.limit:
            group = self._make_room(size)
        records = group.streams.get(stream_id)
        if records is None:
            records = group.streams[stream_id] = (epoch, [])
        elif records[0] != epoch:  # an object has one epoch of a stream
            self._close_group()
            group = self._make_room(size)
            records = group.streams[stream_id] = (epoch, [])
        records[1].append((base_offset, count, payload))
        group.size += size
        end = self._next = self._next + size
        return end

    def floor_at(self, position: int) -> WalFloor:
        """See `WalObjects.floor_at`."""
        return WalFloor(self._epoch, self._first_number + bisect_right(self._ends, position))

    async def trim(self, position: int) -> None:
        """Delete, some time, the objects that end at or below `position`. Raises WalFailed,
        WalClosed.
        """
        self._check_alive()
        if position > self._released:
            raise ValueError(f"cannot trim to {position}: released is {self._released}")
        self._trimmed = max(self._trimmed, position)
        first, count = self._first_number, bisect_right(self._ends, position)
        numbers = range(first, first + count)
        self._first_number += count
        del self._ends[:count]
        self._stats.objects_trimmed += count
        self._deleter.add(self._putter.deletable(map(self._key, numbers)))

    async def close(self) -> None:
        """Put what was appended, wait for it and, a while, for deletes. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._group.limit = -1
        try:
            if self._listener is not None and self._error is None:
                self._drained = self._loop.create_future()
                self._pump()
                self._wake_if_drained()
                await self._drained
                await self._putter.close()
            await self._deleter.close()
        finally:
            self._stop_timer()
            if not self.are_shared:
                await self._store.close()

    # ---------------------------------------------------------------- groups

    def _make_room(self, size: int) -> Group:
        """Return the group that takes the next record, of `size` bytes with its header."""
        self._check_appendable(size)
        free = self._settings.capacity - (self._next - self._trimmed)
        if size > free or len(self._ends) >= self._settings.objects_max:
            raise WalFull(f"{self._store.uri}: full until positions from {self._trimmed} on go")
        pending = self.pending_bytes
        left = self._settings.pending_size_max - pending
        if pending and size > left:
            raise WalFull(f"{self._store.uri}: {pending} bytes wait to be put")
        room = min(free, max(left, size))
        batching, group = self._settings.batching, self._group
        if group.streams:
            most = batching.object_size
            if group.size + size > most and not self._batching.has_slot:
                most = batching.object_size_max
            group.limit = min(most, group.size + room)
            if group.size + size <= group.limit:
                return group
            self._close_group()
            self._pump()
        most = min(room, max(size, batching.object_size))
        group = self._group = Group(most, self._loop.time())
        self._flush_soon()
        return group

    def _check_appendable(self, size: int) -> None:
        self._check_alive()
        if self._listener is None:
            raise WalClosed(f"{self._store.uri}: the WAL has not been started")
        if size > self._record_max:
            raise RecordTooLarge(f"{self._store.uri}: {size} bytes, at most {self._record_max}")

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise WalClosed(f"{self._store.uri}: the WAL is closed")

    def _close_group(self) -> None:
        """Let nothing more into the group; it waits for a slot."""
        group = self._group
        if group.streams:
            group.end = self._next
            self._closed_groups.append(group)
            self._group = Group.none()
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._pump_or_fail()

    def _pump(self) -> None:
        """Start the groups whose time has come, as far as slots allow."""
        while self._error is None and self._batching.has_slot:
            if self._closed_groups:
                self._start(self._closed_groups.popleft())
                continue
            if not self._group.streams:
                return
            now = self._loop.time()
            start_at = self._batching.start_at(self._group.size, self._group.began, now)
            if start_at > now + _TICK_S and not self._closing:
                self._set_timer(start_at)
                return
            group, self._group = self._group, Group.none()
            group.end = self._next
            self._start(group)

    def _set_timer(self, when: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(when, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        self._pump_or_fail()

    def _pump_or_fail(self) -> None:
        """Pump where the loop calls: no task has an unexpected error there."""
        try:
            self._pump()
        except Exception as error:  # noqa: BLE001  # the root of a put
            self._fail(WalFailed(f"preparing an object failed: {error!r}"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---------------------------------------------------------------- puts

    def _start(self, group: Group) -> None:
        number = self._next_number
        self._next_number += 1
        self._writing.append(group)
        in_flight = self._batching.started(self._loop.time())
        self._owner.scope.spawn(self._put(group, number, in_flight), name=f"put WAL {number}")

    async def _put(self, group: Group, number: int, in_flight: int) -> None:
        """Create the object of a group under its number, or fail the log."""
        try:
            written = build(group, self._owner, self._epoch)
            if written.size <= _JOINED_SIZE_MAX:
                written = written._replace(pieces=[b"".join(written.pieces)])
            latency_s = await self._putter.put(self._key(number), written)
        except LakeheadError as error:
            self._fail(error)
            return
        except BaseException as error:  # a library in Rust that panics raises no Exception
            if not self._owner.scope.is_closed:
                self._fail(WalFailed(f"object {number}: {error!r}"))
            raise
        failpoint("wal_object_put")
        now = self._loop.time()
        self._batching.finished(now, latency_s, written.size, in_flight)
        self._stats.put_bytes += written.size
        if self._error is None:
            group.is_done = True
            self._release()

    def _release(self) -> None:
        before = self._released
        while self._writing and self._writing[0].is_done:
            self._released = self._writing.popleft().end
            self._ends.append(self._released)
        self._pump()
        if self._released > before and self._listener is not None:
            self._listener.released(self._released)
        self._wake_if_drained()

    def _fail(self, error: LakeheadError) -> None:
        if self._error is not None:
            return
        self._error = WalFailed(f"{self._store.uri}: {error}")
        self._error.__cause__ = error
        self._putter.stop()
        self._group.limit = -1
        self._closed_groups.clear()
        self._stop_timer()
        self._wake_if_drained()
        if self._listener is not None:
            self._listener.failed(self._error)

    def _wake_if_drained(self) -> None:
        if self._drained is None or self._drained.done():
            return
        is_idle = not (self._closed_groups or self._writing or self._group.streams)
        if self._error is not None or is_idle:
            self._drained.set_result(None)

    def _key(self, number: int) -> str:
        return wal_key(self._owner.node_id, self._epoch, number)
