"""One incarnation of a node in a simulated world: the real engine, and clients at work on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakehead.storage.clock import Clock
from lakehead.storage.errors import (
    EntryRejected,
    OffsetOutOfRange,
    StorageError,
    WalCorrupted,
    WalFull,
    WrongLog,
)
from lakehead.storage.metadata.records import CreateStream, CreateTopic, DeleteTopic, Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from tests.simulation.ledger import Violation
from tests.simulation.lives import Life
from tests.simulation.taking_over import take_over
from tests.simulation.told_states import ToldStates, check_stored
from tests.simulation.wals import OpenWal

if TYPE_CHECKING:
    from tests.simulation.world import World

SETTINGS = StorageSettings(
    upload_size=12 * 1024,
    upload_age_s=0.5,
    stream_object_size=4 * 1024,
    cache_size=32 * 1024,
    block_cache_size=16 * 1024,
    metadata_poll_s=0.5,
    garbage_grace_s=2.0,
    garbage_interval_s=0.7,
    garbage_sweep_s=3.0,
    metadata_checkpoint_entries=20,
)
IN_FLIGHT_MAX = 5


class Incarnation:
    """A process of a node: opens the engine, serves, and dies of whatever ends it."""

    def __init__(
        self,
        world: World,
        life: Life,
        node_id: int,
        clock: Clock,
        open_wal: OpenWal,
    ) -> None:
        self.world = world
        self.life = life
        self.name = life.name
        self.node_id = node_id
        self.streams: dict[int, Stream] = {}
        self.rng: random.Random = world.rng
        self.engine: StreamEngine | None = None
        self.is_serving = False
        self.refused_log = False
        """It did not start, since its log is not the node's."""
        self._work: asyncio.Task[None] | None = None
        self.clock = clock
        self._open_wal = open_wal
        self._scope = TaskScope(self._crashed, on_failure=self._crashed)

    def note(self, what: str) -> None:
        """Say something in the world's trace."""
        self.world.trace.add(self.name, what)

    # ------------------------------------------------------------- from start to end

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Open the engine, then do `work`; exit when the engine fails."""
        self.life.spawn(self._guarded(self._run(work)), f"{self.name} main")

    def exit(self, reason: str) -> None:
        """End the process."""
        self.note(f"exits: {reason}")
        self.is_serving = False
        self.life.kill()

    async def stop(self) -> None:
        """Shut down cleanly, as a broker does: administrators first, then what producers sent."""
        assert self.engine is not None
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        await self.engine.close()
        await self._scope.close()
        self.exit("stopped")

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self.engine = await StreamEngine.open(
                store=self.world.store_of(self.name),
                open_wal=self._open_wal,
                node=NodeIdentity(node_id=self.node_id, host="h", port=1),
                clock=self.clock,
                rng=self.rng,
                settings=SETTINGS,
                scope=self._scope,
            )
        except WalCorrupted as error:
            if self.world.is_alone(self):  # nobody else wrote meanwhile
                raise Violation(f"{self.name} does not start: {error}") from error
            self.exit(f"did not start: {error!r}")
            return
        except (StorageError, OSError) as error:
            self.refused_log = isinstance(error, WrongLog)
            self.exit(f"did not start: {error!r}")
            return
        self.note(f"runs, epoch {self.engine.node_epoch}")
        self.engine.metadata.subscribe(self._close_deleted)
        self.begin(self._watch(), "watch")
        self._work = self.begin(work(), "work")

    async def _watch(self) -> None:
        assert self.engine is not None
        error = await self.engine.wait_failed()
        self.note(f"failed: {error!r}")
        await asyncio.sleep(self.rng.random())  # lives on for a while, and must do no harm
        self.exit("failed")

    def begin(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start something that may end by any error of storage, and by no other."""
        return self.life.spawn(self._guarded(coro), f"{self.name} {name}")

    async def _guarded(self, coro: Coroutine[Any, Any, None]) -> None:
        try:
            await coro
        except (StorageError, OSError) as error:
            self.note(f"gave up: {error!r}")
        except Exception as error:
            self.world.fail(error)

    def _crashed(self, name: str, error: BaseException) -> None:
        if isinstance(error, (StorageError, OSError)):
            self.note(f"task {name} ended: {error!r}")
            self.exit(f"task {name} crashed")
        elif isinstance(error, Exception):
            self.world.fail(error)

    def _close_deleted(self, state: MetadataImage) -> None:
        assert self.engine is not None
        for stream_id in [s for s in self.streams if s not in state.streams]:
            self.engine.close_deleted(self.streams.pop(stream_id))

    # ------------------------------------------------------------- what clients do

    async def serve(self) -> None:
        """Open streams, make some, and let clients loose on them."""
        await self.open_streams()
        if len(self.streams) < 2 and self.world.wants_topic():
            await self.create_topic()
        self.is_serving = True
        for _ in range(self.rng.randint(1, 12)):
            await asyncio.sleep(self.rng.expovariate(2.0))
            await self._operate()

    async def open_streams(self) -> None:
        """Own what this node owned when it died, and what nobody owns."""
        assert self.engine is not None
        state = self.engine.metadata.state
        mine = [s.stream_id for s in state.streams.values() if self._may_open(s.is_open, s.node_id)]
        for stream_id in sorted(mine):
            await self.open_stream(stream_id)

    async def open_stream(self, stream_id: int) -> None:
        """Become the owner of a stream, if nobody else is quicker."""
        assert self.engine is not None
        try:
            opened = await self.engine.open_streams([stream_id])
        except EntryRejected as error:
            self.note(f"stream {stream_id} is not ours: {error}")
            return
        await self._opened(opened[0])

    def _may_open(self, is_open: bool, node_id: int) -> bool:
        return node_id == self.node_id if is_open else node_id < 0 or self.rng.random() < 0.7

    async def _opened(self, stream: Stream) -> None:
        stream_id = stream.stream_id
        self.streams[stream_id] = stream
        self.check_offsets(stream)
        stored = await stream.load_state()
        end = stored.end_offset
        check_stored(stream_id, stored)
        stream.state_snapshot = ToldStates(stored, self.rng).snapshot
        reached = end if stored.states else 0
        async for header, _ in stream.state_batches(end):
            reached = header.end_offset
        if reached < stream.confirmed_offset:  # though all of it may be trimmed
            raise Violation(
                f"stream {stream_id}: its state knows producers up to {reached}, not "
                f"{stream.confirmed_offset}"
            )
        self.begin(self._produce(stream), f"producer of {stream_id}")
        self.begin(self._consume(stream), f"consumer of {stream_id}")

    def check_offsets(self, stream: Stream) -> None:
        """Judge what the owner of a stream sees of it, if it is the owner still."""
        assert self.engine is not None
        oracle = self.world.oracle
        if stream.stream_id not in oracle.state.streams:
            return
        if oracle.is_current(self.node_id, self.engine.node_epoch):
            ledger = self.world.ledger
            ledger.check_offsets(stream.stream_id, stream.start_offset, stream.confirmed_offset)

    async def create_topic(self) -> None:
        """Make a topic of a few partitions and open them."""
        assert self.engine is not None
        topic_id = f"{self.rng.getrandbits(128):032x}"
        name = f"t{self.rng.randrange(3)}"  # the name of a deleted one, now and then
        count = self.rng.randint(1, 3)

        def plan(state: MetadataImage) -> list[Record]:
            first = state.next_stream_id
            return [
                CreateTopic(name=name, topic_id=topic_id),
                *(
                    CreateStream(stream_id=first + n, topic_id=topic_id, partition=n)
                    for n in range(count)
                ),
            ]

        state = await self.engine.metadata.commit_with(plan)
        topic = state.topic_by_id(topic_id)
        self.note(f"made topic {name}: {topic and topic.partitions}")
        if topic is not None:
            for stream in await self.engine.open_streams(topic.partitions):
                await self._opened(stream)

    async def _produce(self, stream: Stream) -> None:
        in_flight: list[asyncio.Future[None]] = []
        pace = self.rng.choice([0.0, 0.02, 0.3])
        for _ in range(self.rng.randint(3, 25)):
            if pace and self.rng.random() < 0.7:
                await asyncio.sleep(self.rng.random() * pace)
            await self._wait_writable(stream)
            done = self._append(stream)
            if done is not None:
                in_flight.append(done)
            if len(in_flight) == IN_FLIGHT_MAX:
                await in_flight.pop(0)
        for done in in_flight:
            await done

    async def _wait_writable(self, stream: Stream) -> None:
        assert self.engine is not None
        while stream.is_open and not self.engine.writable():  # noqa: ASYNC110 - as clients do
            await asyncio.sleep(0.05)

    def _append(self, stream: Stream) -> asyncio.Future[None] | None:
        """Append a batch; the future ends when it is answered. None: no room just now."""
        offset, count = stream.next_offset, self.rng.randint(1, 4)
        size = self.rng.choice([20, 200, 2000, 6000])
        batch = self.world.ledger.attempt(
            stream.stream_id, stream.epoch, offset, count, size, self.clock.now_ms()
        )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_zombie = self.world.is_superseded(self)

        def answer(error: Exception | None) -> None:
            if error is not None:
                done.cancel()
                return
            self.note(f"acknowledges {stream.stream_id}@{offset}+{count}")
            self._check_answer(stream, offset + count, is_zombie=is_zombie)
            self.world.ledger.acknowledge(stream.stream_id, offset, bytes(batch))
            if not done.done():
                done.set_result(None)

        try:
            stream.append(batch, count=count, max_timestamp=0, on_done=answer)
        except WalFull:
            return None
        return done

    def _check_answer(self, stream: Stream, end: int, *, is_zombie: bool) -> None:
        if stream.confirmed_offset < end:
            self.world.fail(Violation(f"{self.name}: acknowledged above the high watermark"))
        if is_zombie:
            self.world.fail(Violation(f"{self.name} took a batch after its successor ran"))

    async def _consume(self, stream: Stream) -> None:
        confirmed = 0
        for _ in range(self.rng.randint(0, 6)):
            await asyncio.sleep(self.rng.random())
            if stream.confirmed_offset < confirmed:
                raise Violation(f"{self.name}: {stream.stream_id}'s high watermark went back")
            confirmed = stream.confirmed_offset
            if stream.start_offset < confirmed:
                offset = self.rng.randrange(stream.start_offset, confirmed)
                try:
                    found = await stream.fetch(offset, 4096)
                except OffsetOutOfRange:
                    continue  # trimmed meanwhile
                self.world.ledger.saw(stream.stream_id, found, offset)

    async def _operate(self) -> None:
        """One operation of an administrator, or of another node's reader."""
        assert self.engine is not None
        kind = self.rng.choice(self.world.operations)
        if kind == "topic" and self.world.wants_topic():
            try:
                await self.create_topic()
            except EntryRejected:
                pass  # the name is taken
        elif kind == "adopt":
            await self.open_streams_of_nobody()
        elif kind == "take over":
            others = [n for n in sorted(self.engine.metadata.state.nodes) if n != self.node_id]
            if others:
                with suppress(EntryRejected):
                    await take_over(self, self.rng.choice(others))
        elif kind == "upload":
            await self.engine.upload_now()
        elif kind == "read":
            await self.read_any()
        elif self.streams:
            stream = self.rng.choice(list(self.streams.values()))
            if kind == "trim":
                await self._trim(stream)
            elif kind == "delete":
                await self._delete_topic_of(stream)

    async def open_streams_of_nobody(self) -> None:
        """Take a closed stream."""
        assert self.engine is not None
        state = self.engine.metadata.state
        closed = [s.stream_id for s in state.streams.values() if not s.is_open]
        if closed:
            await self.open_stream(self.rng.choice(sorted(closed)))

    async def read_any(self) -> None:
        """Read committed data of any stream from objects, whoever owns it."""
        assert self.engine is not None
        metadata = self.engine.metadata
        readable = sorted(s.stream_id for s in metadata.state.streams.values() if s.extents)
        if not readable:
            return
        stream_id = self.rng.choice(readable)
        stream = metadata.state.stream(stream_id)
        offset = self.rng.randrange(stream.start_offset, stream.end_offset)
        extents = stream.extents
        found = await self.engine.reader.fetch(stream_id, lambda: extents, offset, 4096)
        self.world.ledger.saw(stream_id, found, offset)

    async def _trim(self, stream: Stream) -> None:
        known = self.world.oracle.state.streams.get(stream.stream_id)
        if known is None or known.start_offset > stream.confirmed_offset:
            return  # deleted, or in other hands by now
        offset = self.rng.randint(stream.start_offset, stream.confirmed_offset)
        ledger = self.world.ledger.stream(stream.stream_id)
        ledger.trimming = max(ledger.trimming, offset)
        await stream.trim(offset)
        ledger.trimmed = max(ledger.trimmed, offset)
        self.note(f"trimmed {stream.stream_id} to {offset}")

    async def _delete_topic_of(self, stream: Stream) -> None:
        assert self.engine is not None
        known = self.engine.metadata.state.streams.get(stream.stream_id)
        if known is None:
            return
        topic = self.engine.metadata.state.topic_by_id(known.topic_id)
        assert topic is not None
        ledgers = [self.world.ledger.stream(stream_id) for stream_id in topic.partitions]
        for ledger in ledgers:
            ledger.deleting = True
        try:
            await self.engine.metadata.commit([DeleteTopic(topic_id=topic.topic_id)])
        except EntryRejected:
            return  # somebody else has deleted it
        for ledger in ledgers:
            ledger.deleted = True
        self.note(f"deleted topic {topic.name}: {topic.partitions}")
