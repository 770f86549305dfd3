"""Cold reads: from a stream's extents through the index cache and the block cache to the object
store.

Missing data is fetched by one GET per run of adjacent items, on behalf of all waiting readers, each
byte once. Bytes in flight are bounded per node. Reads that a consumer waits for come before reads
ahead; within each the streams take turns, so a stream that reads much delays another by one GET,
not by all of its own.

Readahead distinguishes readers by position: a read that begins at the end of an earlier read of the
same stream continues it, so several consumers of one stream need no names. A reader that has to
wait gets more read ahead, from 512 KiB up to 32 MiB; a reader whose data was evicted before use
gets little for a minute.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lakehead.storage.clock import Clock
from lakehead.storage.errors import CorruptObject, ObjectNotFound, StorageError
from lakehead.storage.event_logger import event_logger
from lakehead.storage.format.stream_object import IndexItem, ObjectIndex
from lakehead.storage.metadata.extents import Extents
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import Entry, ReplaceObjects
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.stream.block_cache import (
    Block,
    BlockCache,
    BlockName,
    IndexCache,
    suffix_size,
)
from lakehead.storage.stream.inflating import InflatedBatches
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.tasks import TaskScope


class Ticket:
    """A read that waits for its turn."""

    __slots__ = ("granted", "is_urgent", "size", "stream_id")

    def __init__(self, stream_id: int, size: int, is_urgent: bool) -> None:
        self.stream_id = stream_id
        self.size = size
        self.is_urgent = is_urgent
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


_Queue = OrderedDict[int, deque[Ticket]]


class ReadBudget:
    """`capacity` bytes in flight; one read alone may be larger. A quarter is not for readahead."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.in_flight = 0
        self._urgent: _Queue = OrderedDict()
        self._ahead: _Queue = OrderedDict()

    async def acquire(self, ticket: Ticket) -> None:
        """Wait for the turn of a read. `release` follows, whatever becomes of the read."""
        self._enqueue(ticket)
        self._grant()
        try:
            await ticket.granted
        except asyncio.CancelledError:
            if ticket.granted.cancelled():
                self._remove(ticket)
            else:
                self.release(ticket)
            raise

    def release(self, ticket: Ticket) -> None:
        """Give back what a read took."""
        self.in_flight -= ticket.size
        self._grant()

    def hurry(self, ticket: Ticket) -> None:
        """Make a read ahead one that a reader waits for, queued already or not."""
        if not ticket.is_urgent:
            waits = self._remove(ticket)
            ticket.is_urgent = True
            if waits:
                self._enqueue(ticket)
                self._grant()

    def _enqueue(self, ticket: Ticket) -> None:
        queue = self._urgent if ticket.is_urgent else self._ahead
        queue.setdefault(ticket.stream_id, deque()).append(ticket)

    def _remove(self, ticket: Ticket) -> bool:
        """Take a read out of its queue; False: it was in none."""
        queue = self._urgent if ticket.is_urgent else self._ahead
        tickets = queue.get(ticket.stream_id)
        if tickets is None or ticket not in tickets:
            return False
        tickets.remove(ticket)
        if not tickets:
            del queue[ticket.stream_id]
        return True

    def _grant(self) -> None:
        for queue, limit in (
            (self._urgent, self.capacity),
            (self._ahead, self.capacity * 3 // 4),
        ):
            while queue:
                stream_id, tickets = next(iter(queue.items()))
                ticket = tickets[0]
                is_gone = ticket.granted.cancelled()
                if not is_gone and self.in_flight and self.in_flight + ticket.size > limit:
                    return
                tickets.popleft()
                if tickets:
                    queue.move_to_end(stream_id)
                else:
                    del queue[stream_id]
                if not is_gone:
                    self.in_flight += ticket.size
                    ticket.granted.set_result(None)


READAHEAD_MIN = 512 * 1024
READAHEAD_MAX = 32 * 1024 * 1024
_IDLE_S = 60.0
_PENANCE_S = 60.0
_READERS_MAX = 256


class Reader:
    """One reader's place in a stream: it has read [offset, end), and gets the range to fetch ahead.
    `mark` is the offset at which the next stretch is fetched: the middle of the last one, set by
    the fetch.
    """

    __slots__ = (
        "end",
        "mark",
        "meek_until",
        "object_key",
        "offset",
        "size",
        "stream_id",
        "used_at",
    )

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.offset = self.end = -1
        self.size = self.mark = 0
        self.used_at = self.meek_until = 0.0
        self.object_key = ""
        """The object up to which was fetched ahead. Indexes of those after it are on their way."""


class Readahead:
    """The readers of a node. `room` is how many bytes all of them together may fetch ahead."""

    def __init__(self, clock: Clock, *, room: int) -> None:
        self._clock = clock
        self._room = room
        self._readers: OrderedDict[Reader, None] = OrderedDict()
        self._by_stream: dict[int, list[Reader]] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def reader(self, stream_id: int, offset: int) -> Reader:
        """Return the reader that goes on at `offset`, or a new one.

        It may have been given less than was read for it, so a read inside its last one is its too.
        """
        self._expire()
        known = [
            reader
            for reader in self._by_stream.get(stream_id, ())
            if reader.offset <= offset <= reader.end
        ]
        if known:
            best = max(known, key=lambda reader: (reader.end == offset, reader.used_at))
        else:
            best = Reader(stream_id)
            self._by_stream.setdefault(stream_id, []).append(best)
        self._readers[best] = None
        self._readers.move_to_end(best)
        best.used_at = self._clock.monotonic()
        return best

    def advance(self, reader: Reader, offset: int, end: int, *, waited: bool) -> int:
        """Note a read of [offset, end) and return how many bytes to fetch ahead of `end` now.

        `waited`: some of it was not in memory, so the reader is faster than what is fetched ahead.
        """
        is_sequential = reader.offset < offset <= reader.end
        reader.offset, reader.end = offset, end
        if not is_sequential or end < reader.mark:
            return 0
        most = min(READAHEAD_MAX, self._share())
        if waited:
            reader.size = min(max(reader.size * 2, READAHEAD_MIN), most)
            if reader.used_at < reader.meek_until:
                reader.size = min(reader.size, READAHEAD_MIN)
        return min(reader.size, most)

    def wasted(self, reader: Reader) -> None:
        """Note that something fetched ahead for a reader was evicted before it was read."""
        reader.size = min(reader.size, READAHEAD_MIN)
        reader.meek_until = self._clock.monotonic() + _PENANCE_S

    def forget(self, stream_id: int) -> None:
        """Drop the readers of a stream."""
        for reader in self._by_stream.pop(stream_id, ()):
            del self._readers[reader]

    def _share(self) -> int:
        return self._room // max(1, sum(reader.size > 0 for reader in self._readers))

    def _expire(self) -> None:
        """Drop readers that have been idle for long, or are too many."""
        now = self._clock.monotonic()
        while self._readers:
            oldest = next(iter(self._readers))
            if len(self._readers) < _READERS_MAX and now - oldest.used_at < _IDLE_S:
                return
            del self._readers[oldest]
            readers = self._by_stream[oldest.stream_id]
            readers.remove(oldest)
            if not readers:
                del self._by_stream[oldest.stream_id]


_log = event_logger("storage.reader")

RUN_SIZE_MAX = 4 * 1024 * 1024
_EXPECTED_MAX = 32
INDEXES_AHEAD = 32
"""Objects whose indexes are read side by side for one that reads them one after the other."""
_ATTEMPTS = 3
_FETCH_S = 0.2
"""From then on a fetch returns what it has: a megabyte of small objects may be thousands of GETs,
one after the other, and a consumer that waited for all of them would get none for minutes.
"""


@dataclass(slots=True)
class ReadStats:
    """Cold reads since the start."""

    hits: int = 0
    """Blocks that were in the block cache when they were wanted."""
    misses: int = 0
    """Blocks that a reader had to wait for."""
    gets: int = 0
    """Ranged GETs of data."""
    get_bytes: int = 0
    ahead_bytes: int = 0
    """Bytes requested before a reader wanted them."""
    wasted: int = 0
    """Segments that were evicted with something in them that was fetched ahead and not read."""
    corrupt_blocks: int = 0
    """Blocks that failed their checksum twice."""


class _Wanted:
    """A block that is being fetched, or will be in this iteration of the loop."""

    __slots__ = ("block", "index", "item", "reader", "row", "stream_id", "ticket", "urgent")

    def __init__(self, index: ObjectIndex, row: int, stream_id: int) -> None:
        self.index = index
        self.row = row
        self.item = index.item(row)
        self.stream_id = stream_id
        self.urgent = False
        self.reader: Reader | None = None
        self.ticket: Ticket | None = None
        self.block: asyncio.Future[Block] = asyncio.get_running_loop().create_future()
        self.block.add_done_callback(_seen)


class _Taken:
    """Whole batches from an offset on, taken block after block: at least one, else up to
    `max_bytes`.
    """

    __slots__ = ("found", "position", "room", "used_up")

    def __init__(self, offset: int, max_bytes: int) -> None:
        self.found: list[memoryview] = []
        self.position = offset
        """The offset after the last of them."""
        self.room = max_bytes
        self.used_up: list[BlockName] = []
        """Blocks that were taken to their end."""

    def takes(self, name: BlockName, block: Block) -> bool:
        """Take from the block that holds `position`. Return true if more is wanted after it."""
        batches, end = block.fetch(self.position, self.room)
        if self.found and len(batches[0]) > self.room:
            return False
        self.found += batches
        self.position = end
        self.room -= sum(map(len, batches))
        if end < block.end_offset:
            return False
        self.used_up.append(name)
        return self.room > 0


class _Ahead:
    """A stretch of `size` bytes from `offset` on that is being fetched ahead of a reader."""

    __slots__ = ("expected", "extents", "left", "offset", "reader", "size")

    def __init__(self, reader: Reader, extents: Extents, offset: int, size: int) -> None:
        self.reader = reader
        self.extents = extents
        self.offset = offset
        self.size = self.left = size
        self.expected = 0
        """Indexes of extents below it are on their way."""


class ColdReader:
    """Reads batches from committed objects. `block_cache_size` bounds the block cache, half of
    which is for readahead; `index_cache_size` the indexes; `cold_read_max` what is on its way;
    `search_memory_max` what searches decompress.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        settings: StorageSettings,
        clock: Clock,
        scope: TaskScope,
    ) -> None:
        cache_size, in_flight_max = settings.block_cache_size, settings.cold_read_max
        self.stats = ReadStats()
        self.blocks = BlockCache(cache_size)
        self.indexes = IndexCache(
            store,
            scope,
            capacity=settings.index_cache_size,
            suffix_size=lambda key: suffix_size(metadata.state, key),
        )
        self.budget = ReadBudget(in_flight_max)
        self.searched = InflatedBatches(settings.search_memory_max)
        self.readahead = Readahead(clock, room=cache_size // 2)
        self._store = store
        self._clock = clock
        self._scope = scope
        self._metadata = metadata
        self._run_size_max = min(RUN_SIZE_MAX, cache_size // 8, in_flight_max // 4)
        self._wanted: dict[BlockName, _Wanted] = {}
        self._new: dict[str, list[_Wanted]] = {}
        self._next_entry: asyncio.Future[None] | None = None

    def expect_states(self, stream_ids: Iterable[int]) -> None:
        """Begin to read the indexes in which the states of streams are that will be opened soon: of
        those that move together, mostly one or two. Other indexes are read in their turn.
        """
        streams = self._metadata.state.streams
        known = (streams.get(stream_id) for stream_id in stream_ids)
        newest = {one.extents[-1].object_key for one in known if one is not None and one.extents}
        for key in sorted(newest)[:_EXPECTED_MAX]:
            self.indexes.expect(key)

    async def fetch(
        self, stream_id: int, extents: Callable[[], Extents], offset: int, max_bytes: int
    ) -> list[memoryview]:
        """Return whole batches from the one that contains `offset`: at least one, else up to
        `max_bytes`; fewer when a damaged block follows, or the store takes its time.

        `offset` lies within the extents. If it lies in an inherited tail, this waits until that is
        uploaded. Raises StoreUnavailable, ObjectNotFound, CorruptObject.
        """
        reader = self.readahead.reader(stream_id, offset)
        misses, began = self.stats.misses, self._clock.monotonic()
        taken = _Taken(offset, max_bytes)
        while True:
            is_late = self._clock.monotonic() - began > _FETCH_S
            if taken.found and (is_late or self.is_in_tail(extents(), taken.position)):
                break
            try:
                part = await self._block_at(stream_id, extents, taken.position, taken.room)
            except StorageError:
                if taken.found:
                    break
                raise
            if part is None or not taken.takes(*part):
                break
        self._note(reader, offset, taken, extents, waited=self.stats.misses > misses)
        return taken.found

    def fetch_cached(
        self, stream_id: int, extents: Callable[[], Extents], offset: int, max_bytes: int
    ) -> list[memoryview] | None:
        """Return what `fetch` would, if all of it is in the block cache; else None, and nothing is
        noted.
        """
        known, taken, blocks = extents(), _Taken(offset, max_bytes), 0
        while True:
            extent = known.find(taken.position)
            if extent is None:
                break
            index = self.indexes.get_cached(extent.object_key)
            row = -1 if index is None else index.find(stream_id, taken.position)
            if index is None or row < 0:
                return None
            name = (index.key, index.position(row))
            block = self.blocks.get(name)
            if block is None:
                return None
            blocks += 1
            if not taken.takes(name, block):
                break
        if not taken.found:
            return None
        self.stats.hits += blocks
        reader = self.readahead.reader(stream_id, offset)
        self._note(reader, offset, taken, extents, waited=False)
        return taken.found

    def _note(
        self,
        reader: Reader,
        offset: int,
        taken: "_Taken",
        extents: Callable[[], Extents],
        *,
        waited: bool,
    ) -> None:
        """Note a read from `offset` on, and begin to read ahead of it."""
        for name in taken.used_up:
            self.blocks.is_read(name)
        ahead = self.readahead.advance(reader, offset, taken.position, waited=waited)
        if ahead > 0:
            reader.mark = taken.position
            self._want_ahead(_Ahead(reader, extents(), taken.position, ahead))

    def forget(self, stream_id: int) -> None:
        """Drop what is kept about the reading of a stream."""
        self.readahead.forget(stream_id)

    def follow(self, state: MetadataImage, entry: Entry | None) -> None:
        """Follow the metadata log: drop what is cached of objects from which records were
        forgotten. If entries were passed over, those may be all that no stream refers to.
        """
        if self._next_entry is not None:
            self._next_entry.set_result(None)
            self._next_entry = None
        if entry is None:
            self.blocks.drop(
                {key for key in self.blocks.object_keys() if not _is_needed(state, key)}
            )
            return
        for record in entry.records:
            if isinstance(record, ReplaceObjects) and record.forgets >= 0:
                self.blocks.drop(record.sources)
                for key in record.sources:
                    self.indexes.drop(key)
                _log.info(
                    "records_forgotten",
                    certificate=record.forgets,
                    writer=entry.writer,
                    objects=record.sources,
                    streams=record.streams,
                )

    async def index(self, key: str) -> ObjectIndex:
        """Return an object's index, cached. Raises as `IndexCache.get`."""
        return await self.indexes.get(key)

    async def wait_all_uploaded(self, extents: Callable[[], Extents]) -> None:
        """Wait until no extent of a stream lies in an inherited tail."""
        while (tails := self._metadata.state.tails) and extents().among(tails):
            await self._entry()

    async def wait_uploaded(self, extents: Callable[[], Extents], offset: int) -> None:
        """Wait until the record at an offset does not lie in an inherited tail."""
        while self.is_in_tail(extents(), offset):
            await self._entry()

    def is_in_tail(self, extents: Extents, offset: int) -> bool:
        """Return true if the record at an offset lies in an inherited tail."""
        return self.tail_start(extents, offset) is not None

    def tail_start(self, extents: Extents, offset: int) -> int | None:
        """Return where the inherited tail begins that the record at an offset lies in; None: it
        lies in none.
        """
        tails = self._metadata.state.tails
        extent = extents.find(offset) if tails else None
        return extent.start_offset if extent is not None and extent.object_key in tails else None

    async def _entry(self) -> None:
        """Wait until an entry of the metadata log is applied."""
        if self._next_entry is None:
            self._next_entry = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next_entry)

    async def _block_at(
        self, stream_id: int, extents: Callable[[], Extents], offset: int, max_bytes: int
    ) -> tuple[BlockName, Block] | None:
        """Return the block that holds an offset; None when no extent does."""
        for attempt in range(1, _ATTEMPTS + 1):
            await self.wait_uploaded(extents, offset)
            extent = extents().find(offset)
            if extent is None:
                return None
            try:
                index = await self.indexes.get(extent.object_key)
                row = _row(index, stream_id, offset)
                block = await self._block(index, row, stream_id, max_bytes)
            except ObjectNotFound:
                # An older view of the stream: its objects may have been replaced since.
                self.indexes.drop(extent.object_key)
                await self._metadata.refresh()
                if attempt == _ATTEMPTS or extents().find(offset) == extent:
                    raise
                continue
            return (index.key, index.item(row).position), block
        raise AssertionError("the last attempt returns or raises")

    async def _block(self, index: ObjectIndex, row: int, stream_id: int, max_bytes: int) -> Block:
        """Return a block, fetching with it what else of the stream `max_bytes` will take."""
        item = index.item(row)
        block = self.blocks.get((index.key, item.position))
        if block is not None:
            self.stats.hits += 1
            return block
        self.stats.misses += 1
        wanted = self._want(index, row, stream_id, urgent=True)
        room = max_bytes - item.size
        while room > 0 and (row := row + 1) < len(index):
            item = index.item(row)
            if item.stream_id != stream_id:
                break
            if (index.key, item.position) not in self.blocks:
                self._want(index, row, stream_id, urgent=True)
            room -= item.size
        # Shielded: another reader may wait for the same bytes when this one is cancelled.
        return await asyncio.shield(wanted.block)

    def _want(
        self,
        index: ObjectIndex,
        row: int,
        stream_id: int,
        *,
        urgent: bool,
        reader: Reader | None = None,
    ) -> _Wanted:
        """Have a block fetched, with its neighbours that are wanted in this iteration."""
        name = (index.key, index.item(row).position)
        wanted = self._wanted.get(name)
        if wanted is None:
            wanted = self._wanted[name] = _Wanted(index, row, stream_id)
            wanted.reader = reader
            if not self._new:
                self._scope.spawn_apart(self._start(), name="plan reads")
            self._new.setdefault(index.key, []).append(wanted)
            if not urgent:
                self.stats.ahead_bytes += wanted.item.size
        if urgent and not wanted.urgent:
            wanted.urgent = True
            if wanted.ticket is not None:
                self.budget.hurry(wanted.ticket)
        return wanted

    async def _start(self) -> None:
        """Fetch the items requested in this iteration of the loop, in runs of adjacent ones."""
        new, self._new = self._new, {}
        runs: list[list[_Wanted]] = []
        try:
            for of_object in new.values():
                of_object.sort(key=lambda wanted: wanted.row)
                runs += _runs(of_object, self._run_size_max)
        except Exception as error:
            for of_object in new.values():
                self._give_up(of_object, error)
            raise
        for run in runs:
            size = sum(wanted.item.size for wanted in run)
            urgent = any(wanted.urgent for wanted in run)
            ticket = Ticket(run[0].stream_id, size, urgent)
            for wanted in run:
                wanted.ticket = ticket
            self._scope.spawn_apart(self._read(run, ticket), name=f"read {run[0].index.key}")

    def _give_up(self, run: list[_Wanted], error: Exception) -> None:
        """Fail the futures of blocks that will not come, with the reason."""
        for wanted in run:
            self._wanted.pop((wanted.index.key, wanted.item.position), None)
            if not wanted.block.done():
                wanted.block.set_exception(error)

    async def _read(self, run: list[_Wanted], ticket: Ticket) -> None:
        """Read a run and hand its blocks out; what is damaged fails alone."""
        try:
            await self.budget.acquire(ticket)
            try:
                await self._read_run(run, ticket.size)
            finally:
                self.budget.release(ticket)
        except StorageError as error:
            self._give_up(run, error)
        except Exception as error:
            self._give_up(run, error)
            raise
        finally:
            for wanted in run:
                self._wanted.pop((wanted.index.key, wanted.item.position), None)
                wanted.block.cancel()  # unless it is done: this node is being closed

    async def _read_run(self, run: list[_Wanted], size: int) -> None:
        key, start = run[0].index.key, run[0].item.position
        self.stats.gets += 1
        self.stats.get_bytes += size
        try:
            data = memoryview(await self._store.get_range(key, start, size))
        except CorruptObject:  # too short for the run: some of it may be there
            for wanted in run:
                await self._read_again(wanted)
            return
        blocks: dict[BlockName, Block] = {}
        for wanted in run:
            item = wanted.item
            place = item.position - start
            try:
                block = Block(key, item, data[place : place + item.size])
            except CorruptObject:
                await self._read_again(wanted)
                continue
            blocks[key, item.position] = block
            wanted.block.set_result(block)
        if blocks:
            self._keep(blocks, data, run[0].reader)

    async def _read_again(self, wanted: _Wanted) -> None:
        """Read a block that seemed damaged once more, alone: it may have been spoilt on its way."""
        key, item = wanted.index.key, wanted.item
        self.stats.gets += 1
        self.stats.get_bytes += item.size
        try:
            data = memoryview(await self._store.get_range(key, item.position, item.size))
            block = Block(key, item, data)
        except CorruptObject as error:
            self.stats.corrupt_blocks += 1
            _log.error("block_corrupt", key=key, position=item.position, stream_id=item.stream_id)
            wanted.block.set_exception(error)
            return
        wanted.block.set_result(block)
        self._keep({(key, item.position): block}, data, wanted.reader)

    def _keep(
        self, blocks: dict[BlockName, Block], data: memoryview, reader: Reader | None
    ) -> None:
        def on_wasted() -> None:
            if reader is not None:
                self.stats.wasted += 1
                self.readahead.wasted(reader)

        self.blocks.add(blocks, data, on_wasted)

    def _want_ahead(self, ahead: "_Ahead") -> None:
        """Have a stretch fetched before the reader comes; what lies behind an index that is not in
        memory, in a task. The reader meets what is damaged when it comes.
        """
        with contextlib.suppress(CorruptObject):
            while (key := self._object_ahead(ahead)) is not None:
                index = self.indexes.get_cached(key)
                if index is None:
                    self._scope.spawn(
                        self._read_ahead(ahead),
                        name=f"readahead {ahead.reader.stream_id}",
                        is_awaited=True,
                    )
                    return
                self._want_items(ahead, index)

    async def _read_ahead(self, ahead: "_Ahead") -> None:
        while (key := self._object_ahead(ahead)) is not None:
            self._want_items(ahead, await self.indexes.get(key))

    def _object_ahead(self, ahead: "_Ahead") -> str | None:
        """Return the object that a stretch goes on in; None at its end. The indexes of those after
        it are expected: small objects have little to read ahead each.
        """
        place = ahead.extents.index_of(ahead.offset) if ahead.left > 0 else -1
        if place < 0:
            return None
        key = ahead.extents[place].object_key
        if key in self._metadata.state.tails:
            return None
        if key != ahead.reader.object_key:
            first = max(ahead.expected, place)
            for extent in ahead.extents[first : place + INDEXES_AHEAD]:
                self.indexes.expect(extent.object_key)
            ahead.expected = place + INDEXES_AHEAD
            ahead.reader.object_key = key
        return key

    def _want_items(self, ahead: "_Ahead", index: ObjectIndex) -> None:
        """Want the items of one object that are in a stretch."""
        reader = ahead.reader
        row = _row(index, reader.stream_id, ahead.offset)
        while ahead.left > 0 and row < len(index):
            item = index.item(row)
            if item.stream_id != reader.stream_id:
                break
            if (index.key, item.position) not in self.blocks:
                self._want(index, row, reader.stream_id, urgent=False, reader=reader)
            ahead.left -= item.size
            if ahead.left >= ahead.size - max(ahead.size // 2, item.size):
                reader.mark = item.end_offset
            ahead.offset = item.end_offset
            row += 1


def _row(index: ObjectIndex, stream_id: int, offset: int) -> int:
    """Return the row of the item that holds an offset. Raises CorruptObject: it should."""
    row = index.find(stream_id, offset)
    if row < 0:
        reason = f"its index lacks offset {offset} of stream {stream_id}, which the log says it has"
        raise CorruptObject(index.key, 0, reason)
    return row


def _runs(wanted: list[_Wanted], size_max: int) -> list[list[_Wanted]]:
    """Cut what is wanted of one object, in order, into runs of adjacent items."""
    runs: list[list[_Wanted]] = []
    size, end = 0, -1
    for one in wanted:
        item: IndexItem = one.item
        if item.position != end or size + item.size > size_max:
            runs.append([])
            size = 0
        runs[-1].append(one)
        size += item.size
        end = item.position + item.size
    return runs


def _seen(future: asyncio.Future[Block]) -> None:
    """No reader needs to wait for a range that was fetched ahead, and an error there is not a
    crash.
    """
    if not future.cancelled():
        future.exception()


def _is_needed(state: MetadataImage, key: str) -> bool:
    known = state.objects.get(key)
    return known is not None and bool(known.stream_ids)
