"""The log of a coordinator: one partition of an internal topic, which the coordinator keeps short.

State is a map of keys to their last values, as bytes. A request that appends records completes when
they are durable. When the log holds far more records than keys, the whole map is written again and
the log is trimmed below it: after many records, or sooner if few records lie in many objects each,
since the next coordinator reads them all before it serves. The map changes when a record is
appended, not when it is durable, so such a snapshot contains every record that is trimmed. It is
written batch by batch, while other records are appended: each batch has the last values at the
moment when it is appended, and later records are not trimmed.

Records of a producer's transaction count when its commit marker is in the log, at the place in the
order where they were written: a later record of the same key stands. A snapshot only repeats
earlier records, so it must not count as later: its records bear a header, `lakehead-snapshot`, with
the producers (i64 each) that had written the key in transactions which were open at that time.
Records of those transactions are not trimmed.
"""

import asyncio
import struct
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from lakehead.broker.partition.partition import Plan
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.format.batch_writer import (
    KeyValue,
    encode_batch,
    encode_batch_of,
    encode_headers,
    encode_record,
)
from lakehead.storage.format.control_batch import read_marker
from lakehead.storage.format.record_batch import (
    TRANSACTIONAL,
    BatchHeader,
    iter_headers,
    read_header,
)
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.tasks import TaskScope

OnDone = Callable[[Exception | None], None]

SNAPSHOT_HEADER = "lakehead-snapshot"
_PRODUCER_ID = struct.Struct(">q")
_FETCH_SIZE = 1 << 20
_BATCH_SIZE = 1 << 20
"""Records that are appended together share a batch up to this size: all of them count, or none."""
_SNAPSHOT_BATCH_SIZE = 256 << 10
_SNAPSHOT_KEYS = 1000
_OBJECTS_MAX = 64
"""Objects that a log may lie in while it has far more records than keys."""


class LogStream(Protocol):
    """The part of a stream that a log needs (`lakehead.storage.stream.Stream`)."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def confirmed_offset(self) -> int:
        """The end of what is durable."""

    @property
    def next_offset(self) -> int:
        """The next offset to assign."""

    @property
    def object_count(self) -> int:
        """The objects that it lies in."""

    async def fetch(self, offset: int, max_bytes: int) -> list[memoryview]:
        """Return whole batches from the one that contains `offset`."""

    async def trim(self, offset: int) -> None:
        """Make `offset` the start offset."""


class LogPartition(Protocol):
    """The part of a partition that a log needs (`lakehead.broker.partition.Partition`)."""

    @property
    def stream(self) -> LogStream:
        """Its storage."""

    def append(self, batch: memoryview, on_done: OnDone | None = None) -> object:
        """Append a batch; `on_done` is called in order, once it is durable."""

    def plan(self, records: memoryview, header: BatchHeader) -> Plan:
        """Hold a batch of a producer against its epoch. Raises KafkaError."""

    def perform(self, plan: Plan, on_done: OnDone | None) -> object:
        """Append what was planned, as `append`."""


class _PendingTransaction(NamedTuple):
    """A record of an open transaction."""

    offset: int
    value: bytes | None


async def _give_way() -> None:
    await asyncio.sleep(0)


class CoordinatorLog:
    """One partition as a durable map; no snapshot below `snapshot_min_records` records. While it is
    read, it awaits `give_way` between the pieces of the work.
    """

    def __init__(
        self,
        partition: LogPartition,
        clock: Clock,
        scope: TaskScope,
        *,
        name: str,
        snapshot_min_records: int = 20_000,
        give_way: Callable[[], Awaitable[None]] = _give_way,
    ) -> None:
        self._partition = partition
        self._clock = clock
        self._scope = scope
        self._name = name
        self._snapshot_min_records = snapshot_min_records
        self.give_way = give_way
        self._latest: MutableMapping[bytes, bytes] = {}
        self._open: dict[int, dict[bytes, _PendingTransaction]] = {}
        """The records of open transactions, by producer id: the last record of each key."""
        self._writers: dict[bytes, set[int]] = {}
        """The producers that have a record of a key among those."""
        self._decided_by: dict[bytes, int] = {}
        """While the log is only read: whose transaction wrote a key's last value."""
        self._replayed_to = -1
        """The offset up to which the log is replayed; -1: not begun."""
        self._changed: set[bytes] | None = None
        """The keys whose values change, while `catch_up` looks for them."""
        self._is_trimming = False
        self._lacks_records = False
        """After an unexpected error the map may lack what the log has: nothing is trimmed by it."""

    def keep_in(self, values: MutableMapping[bytes, bytes]) -> None:
        """Keep the last values in this map, to be called before `replay`: for a coordinator whose
        records add to earlier ones. Its values are what a snapshot writes.
        """
        assert self._replayed_to < 0
        self._latest = values

    @property
    def latest(self) -> Mapping[bytes, bytes]:
        """The last value of every live key, of records that may not be durable yet too."""
        return MappingProxyType(self._latest)

    async def values(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield (key, last value) of every live key, and let others have a turn now and then: of a
        log that was replayed, before anything is appended.
        """
        for number, item in enumerate(self._latest.items(), 1):
            yield item
            if not number % _SNAPSHOT_KEYS:
                await self.give_way()

    @property
    def record_count(self) -> int:
        """Offsets in the log."""
        return self._partition.stream.next_offset - self._partition.stream.start_offset

    async def replay(self) -> None:
        """Read the log from its start, before the first append. Markers may come at any time:
        `catch_up` follows where transactions are, in one turn with the start of service.

        A log that another cluster writes may be read again: what is new, if it `goes_on`. One that
        could not be read is of no more use.
        """
        await self._read_on()

    def goes_on(self, partition: LogPartition) -> bool:
        """Return true if this is the log of a partition, of which nothing was trimmed that was not
        read.
        """
        return partition is self._partition and self._replayed_to >= partition.stream.start_offset

    async def catch_up(self) -> Mapping[bytes, bytes | None]:
        """Read what the log has got since it was replayed; return the values that this has changed,
        None for keys that are gone. Nothing has come after it at the moment when this returns.
        """
        changed = self._changed = set()
        await self._read_on()
        self._changed = None
        return {key: self._latest.get(key) for key in changed}

    async def _read_on(self) -> None:
        stream = self._partition.stream
        offset = stream.start_offset if self._replayed_to < 0 else self._replayed_to
        while offset < stream.confirmed_offset:
            for piece in await stream.fetch(offset, _FETCH_SIZE):
                await self.give_way()
                for position, header in iter_headers(piece):
                    if header.end_offset > offset:
                        self._replay_batch(piece[position : position + header.size], header, offset)
                    offset = max(offset, header.end_offset)
        self._replayed_to = offset

    def _replay_batch(self, batch: memoryview, header: BatchHeader, start_offset: int) -> None:
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None:
                decided = self.end_transaction(header.producer_id, is_commit=marker.is_commit)
                self._decided_by.update(dict.fromkeys(decided, header.producer_id))
            return
        for record in iter_kafka_records(batch):
            if record.offset < start_offset or record.key is None:
                continue
            if header.is_transactional:
                self._hold(header.producer_id, record.key, record.offset, record.value)
            elif record.headers and record.headers[0][0] == SNAPSHOT_HEADER:
                # A commit that the snapshot did not know of, though its marker came before.
                if self._decided_by.get(record.key) not in _producers(record.headers[0][1]):
                    self._keep(record.key, record.value)
            else:
                self._remember(record.key, record.value)

    def pending_transactional(self) -> Iterator[tuple[int, bytes]]:
        """Yield (producer id, key) of what open transactions wrote and may count yet."""
        for producer_id, records in self._open.items():
            for key in records:
                yield producer_id, key

    def append_transactional(
        self, records: Sequence[KeyValue], producer_id: int, producer_epoch: int, on_done: OnDone
    ) -> None:
        """Append records of a producer's transaction, as `append`; they count when its commit
        marker is there (`end_transaction`).
        """
        if not records:
            on_done(None)
            return
        try:
            self._append_transactional(records, producer_id, producer_epoch, on_done)
        except LakeheadError as error:
            on_done(error)
            return
        self._maybe_snapshot()

    def _append_transactional(
        self, records: Sequence[KeyValue], producer_id: int, producer_epoch: int, on_done: OnDone
    ) -> None:
        batches = list(_split(records))
        for number, batch in enumerate(batches, 1):
            encoded = memoryview(
                encode_batch(
                    batch,
                    self._clock.now_ms(),
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    attributes=TRANSACTIONAL,
                )
            )
            plan = self._partition.plan(encoded, read_header(encoded))
            offset = self._partition.stream.next_offset
            self._partition.perform(plan, on_done if number == len(batches) else _ignore)
            try:
                for delta, (key, value) in enumerate(batch):
                    self._hold(producer_id, key, offset + delta, value)
            except BaseException:
                self._lacks_records = True
                raise
        self._decided_by.clear()

    def _hold(self, producer_id: int, key: bytes, offset: int, value: bytes | None) -> None:
        """Keep a record of a producer's transaction until its marker is there."""
        self._open.setdefault(producer_id, {})[key] = _PendingTransaction(offset, value)
        self._writers.setdefault(key, set()).add(producer_id)

    def _drop(self, producer_id: int, key: bytes) -> None:
        """A record of an open transaction does not count any more: a later one does."""
        del self._open[producer_id][key]
        self._forget_writer(producer_id, key)

    def _forget_writer(self, producer_id: int, key: bytes) -> None:
        writers = self._writers[key]
        writers.discard(producer_id)
        if not writers:
            del self._writers[key]

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> Mapping[bytes, bytes | None]:
        """A transaction's marker is in the log; return the records that count from now on."""
        ended = self._open.pop(producer_id, {})
        for key in ended:
            self._forget_writer(producer_id, key)
        if not is_commit:
            return {}
        for key, (offset, value) in ended.items():
            self._keep(key, value)
            for other in tuple(self._writers.get(key, ())):
                if self._open[other][key].offset < offset:
                    self._drop(other, key)
        return {key: record.value for key, record in ended.items()}

    def append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        """Append records, in order. `on_done` is called once all of them are durable, or with what
        went wrong: at once if they could not even be begun.
        """
        try:
            self._append(records, on_done)
        except LakeheadError as error:
            on_done(error)
            return
        self._maybe_snapshot()

    def _append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        batches = list(_split(records))
        for number, batch in enumerate(batches, 1):
            encoded = memoryview(encode_batch(batch, self._clock.now_ms()))
            self._partition.append(encoded, on_done if number == len(batches) else _ignore)
            try:
                for key, value in batch:
                    self._remember(key, value)
            except BaseException:
                self._lacks_records = True
                raise
        self._decided_by.clear()

    def _remember(self, key: bytes, value: bytes | None) -> None:
        for producer_id in tuple(self._writers.get(key, ())):  # theirs were written before
            self._drop(producer_id, key)
        self._decided_by.pop(key, None)
        self._keep(key, value)

    def _keep(self, key: bytes, value: bytes | None) -> None:
        if self._changed is not None:
            self._changed.add(key)
        if value is None:
            self._latest.pop(key, None)
        else:
            self._latest[key] = value

    def _maybe_snapshot(self) -> None:
        is_scattered = self._partition.stream.object_count > _OBJECTS_MAX
        least = _OBJECTS_MAX if is_scattered else self._snapshot_min_records
        limit = max(least, 4 * len(self._latest))
        if self._is_trimming or self._lacks_records or self.record_count < limit:
            return
        next_offset = self._partition.stream.next_offset
        pending_transactional = (
            one.offset for records in self._open.values() for one in records.values()
        )
        start = min(pending_transactional, default=next_offset)
        if next_offset - start > limit // 2:
            return  # an old transaction is open: that would free too little
        self._is_trimming = True
        self._scope.spawn_apart(self._shorten(start), name=f"snapshot {self._name}")

    async def _shorten(self, offset: int) -> None:
        """Write all keys once more, and trim what lies below `offset`."""
        try:
            stream, has_written = self._partition.stream, await self._append_snapshot()
            # Without a key that is left to write, the deletions may not be durable yet.
            if has_written or stream.confirmed_offset == stream.next_offset:
                await stream.trim(offset)
        except LakeheadError:  # nothing is lost: the log only stays longer
            pass
        finally:
            self._is_trimming = False

    async def _append_snapshot(self) -> bool:
        """Append the last value of each key, batch by batch, while others go on to append: each
        value is that of the moment, and each batch is durable before the next one. Return true if
        there were some.
        """
        keys, has_written = iter(list(self._latest)), False
        while batch := self._snapshot_batch(keys):
            await self._append_durably(batch)
            has_written = True
        return has_written

    def _snapshot_batch(self, keys: Iterator[bytes]) -> list[KeyValue]:
        """Return the last values of the next keys that have one."""
        batch: list[KeyValue] = []
        size = 0
        for key in keys:
            value = self._latest.get(key)
            if value is not None:
                batch.append((key, value))
                size += _size_of((key, value))
            if size >= _SNAPSHOT_BATCH_SIZE or len(batch) == _SNAPSHOT_KEYS:
                break
        return batch

    async def _append_durably(self, batch: Sequence[KeyValue]) -> None:
        """Append values that are the last ones now, as records of a snapshot."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(error: Exception | None) -> None:
            if durable.done():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        records = [
            encode_record(delta, key, value, self._snapshot_headers(key))
            for delta, (key, value) in enumerate(batch)
        ]
        encoded = memoryview(encode_batch_of(records, self._clock.now_ms()))
        self._partition.append(encoded, on_done)
        await durable

    def _snapshot_headers(self, key: bytes) -> bytes:
        writers = self._writers.get(key)
        return _NO_WRITERS if writers is None else _snapshot_headers(writers)


class _GatheredBatch:
    """Records of one turn of the event loop that are written together."""

    __slots__ = ("error", "outcome", "records", "size", "waiting")

    def __init__(self) -> None:
        self.records: list[KeyValue] = []
        self.size = 0
        self.waiting: list[OnDone] = []
        self.outcome: asyncio.Future[Exception | None] | None = None
        self.error: Exception | None = None

    def done(self, error: Exception | None) -> None:
        """The records are durable, or could not be written: what was said first counts. Raises the
        unexpected error of a callback after all of them were called.
        """
        waiting, self.waiting = self.waiting, []
        self.error = error
        unexpected: Exception | None = None
        for one in waiting:
            try:
                one(error)
            except Exception as raised:  # noqa: BLE001  # the root of a request
                unexpected = unexpected or raised
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(error)
        if unexpected is not None:
            raise unexpected


class BatchingLog:
    """Appends to a log, in order, one batch for all records of one turn of the event loop.

    A batch costs about the same with one record as with a hundred. Records that arrive together,
    from many clients, share a batch; a single record waits only for the end of the turn. Other
    writers to the same log call `flush` before they append. No batch ends between two records of
    one append, unless these are larger than a batch.
    """

    def __init__(self, log: CoordinatorLog) -> None:
        self._log = log
        self._batches: list[_GatheredBatch] = []

    @property
    def latest(self) -> Mapping[bytes, bytes]:
        """The last value of every live key, without those of this turn."""
        return self._log.latest

    @property
    def outcome(self) -> asyncio.Future[Exception | None]:
        """The outcome of the newest records of this turn, of which there must be some: an error, or
        None. It is done once each `on_done` was called.
        """
        batch = self._batches[-1]
        if batch.outcome is None:
            batch.outcome = asyncio.get_running_loop().create_future()
        return batch.outcome

    def append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        """Append records by the end of this turn; see `CoordinatorLog.append`. No `on_done` is
        called in here: that of an earlier change could undo what these records were made of.
        """
        size = sum(map(_size_of, records))
        if not self._batches:
            asyncio.get_running_loop().call_soon(self.flush)
        if not self._batches or self._batches[-1].size + size > _BATCH_SIZE:
            self._batches.append(_GatheredBatch())
        batch = self._batches[-1]
        batch.records += records
        batch.size += size
        batch.waiting.append(on_done)

    def flush(self) -> None:
        """Append the gathered records. Those after a batch that is refused are refused too: they
        may rely on it. Raises an unexpected error after all of them were.
        """
        batches, self._batches = self._batches, []
        error: Exception | None = None
        unexpected: Exception | None = None
        for batch in batches:
            try:
                if error is None:
                    self._log.append(batch.records, batch.done)
                    error = batch.error
                else:
                    batch.done(error)
            except Exception as raised:  # noqa: BLE001  # the loop calls this
                error, unexpected = error or raised, unexpected or raised
                with suppress(Exception):
                    batch.done(raised)
        if unexpected is not None:
            raise unexpected


class _Waiting(NamedTuple):
    until: float
    future: asyncio.Future[Any]


class SharedTimeout:
    """A timeout for futures that all may take `timeout_s` seconds, with a single timer.

    The first future to begin is the first to time out. A timer for each future would cost as much
    as the commit that it waits for. A future that times out gets the exception that `error`
    returns.
    """

    def __init__(self, timeout_s: float, error: Callable[[], Exception]) -> None:
        self._timeout_s = timeout_s
        self._error = error
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, future: asyncio.Future[Any]) -> None:
        """Start the timeout of a future."""
        waiting = self._waiting
        while waiting and waiting[0].future.done():
            waiting.popleft()
        loop = future.get_loop()
        waiting.append(_Waiting(loop.time() + self._timeout_s, future))
        if self._timer is None:
            self._timer = loop.call_at(waiting[0].until, self._expire)

    def _expire(self) -> None:
        self._timer = None
        waiting, loop = self._waiting, asyncio.get_running_loop()
        now = loop.time()
        while waiting and (waiting[0].future.done() or waiting[0].until <= now):
            future = waiting.popleft().future
            if not future.done():
                future.set_exception(self._error())
        if waiting:
            self._timer = loop.call_at(waiting[0].until, self._expire)


def _snapshot_headers(producers: Iterable[int]) -> bytes:
    return encode_headers([(SNAPSHOT_HEADER, b"".join(map(_PRODUCER_ID.pack, producers)))])


_NO_WRITERS = _snapshot_headers(())


def _producers(data: bytes | None) -> set[int]:
    return {producer_id for (producer_id,) in _PRODUCER_ID.iter_unpack(data or b"")}


def _ignore(_error: Exception | None) -> None:
    """The last batch speaks for those before it: completions are in order."""


def _size_of(record: KeyValue) -> int:
    key, value = record
    return len(key) + len(value or b"") + 16


def _split(records: Sequence[KeyValue]) -> list[list[KeyValue]]:
    """Cut records into batches of about `_BATCH_SIZE` bytes."""
    batches: list[list[KeyValue]] = [[]]
    size = 0
    for key, value in records:
        size += _size_of((key, value))
        if size > _BATCH_SIZE and batches[-1]:
            batches.append([])
            size = _size_of((key, value))
        batches[-1].append((key, value))
    return batches
