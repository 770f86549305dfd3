"""What the tests of object WALs share: the metadata's part for one node, stores to look into."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.errors import ObjectExists, OutcomeUnknown
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.object_store import MemoryStore, ObjectMeta, ObjectStore
from lakehead.storage.object_store.protocol import Owns, every_key
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import (
    Buffer,
    ObjectWal,
    ObjectWalSettings,
    WalListener,
    WalOwner,
    WalRecord,
)
from lakehead.storage.wal.object import BatchingSettings, LogSealer, WalName
from lakehead.storage.wal.object.names import is_seal_size
from lakehead.storage.wal.protocol import LogIdentity, SealedLog, WalFloor, WalObjects, WalPart

CLUSTER = "c" * 32
QUICK = ObjectWalSettings(
    capacity=1024 * 1024,
    put_timeout_s=1.0,
    batching=BatchingSettings(
        object_size=16 * 1024, object_size_max=64 * 1024, linger_s=0.0, in_flight_start=8
    ),
)


def crashed(name: str, error: BaseException) -> None:
    raise AssertionError(f"task {name} crashed: {error!r}") from error


def make_owner(
    store: ObjectStore,
    *,
    node_id: int = 0,
    incarnation: str = "a",
    clock: Clock | None = None,
    seed: int = 0,
    scope: TaskScope | None = None,
    cluster_id: str = CLUSTER,
) -> WalOwner:
    return WalOwner(
        cluster_id=cluster_id,
        node_id=node_id,
        incarnation=incarnation.ljust(16, "."),
        store=store,
        describe=lambda stream_id: StreamInfo(stream_id=stream_id, topic="t"),
        clock=clock or SystemClock(),
        rng=random.Random(seed),
        scope=scope or TaskScope(crashed),
    )


def make_wal(
    store: ObjectStore, settings: ObjectWalSettings = QUICK, *, incarnation: str = "a"
) -> ObjectWal:
    return ObjectWal(store, make_owner(store, incarnation=incarnation), settings, are_shared=True)


def make_sealer(
    store: ObjectStore, *, node_id: int = 0, seed: int = 1, cluster_id: str = CLUSTER
) -> LogSealer:
    return LogSealer(
        store,
        cluster_id=cluster_id,
        node_id=node_id,
        sealer_id=9,
        incarnation="taker",
        clock=SystemClock(),
        rng=random.Random(seed),
    )


async def seal(store: ObjectStore, *, before: int = 1, floor: WalFloor | None = None) -> SealedLog:
    return await make_sealer(store).seal(floor or WalFloor(0, 0), before=before)


def offsets(log: SealedLog, stream_id: int = 1) -> list[int]:
    """Base offsets of the objects' ranges of a stream, in order."""
    return [
        span.start_offset
        for item in log.objects
        for span in item.ranges
        if span.stream_id == stream_id
    ]


def numbers(store: MemoryStore, *, tombstones: bool) -> list[tuple[int, int]]:
    """(epoch, number) of the tombstones in a store, or of the other WAL objects."""
    names = [(WalName.parse(key), is_seal_size(len(body))) for key, body in store.objects.items()]
    return sorted(
        (name.epoch, name.number) for name, is_one in names if name and is_one == tombstones
    )


class FlooredWal:
    """An ObjectWal as a log that stands for itself: what the metadata knows of it is kept here.

    `reopen()` is a restart of the node, under its next epoch.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings: ObjectWalSettings = QUICK,
        *,
        floor: WalFloor | None = None,
        before: int = 0,
        seed: int = 0,
    ) -> None:
        self.store = store
        self.floor = floor or WalFloor(0, 0)
        self.before = before
        self._settings = settings
        self._seed = seed
        self._scope = TaskScope(crashed)
        owner = make_owner(store, incarnation=f"life {seed}", seed=seed, scope=self._scope)
        self.inner = ObjectWal(store, owner, settings, are_shared=True)
        self._ends: list[int] = []
        self._floors: list[WalFloor] = []

    def reopen(self, store: ObjectStore | None = None) -> FlooredWal:
        return FlooredWal(
            store or self.store,
            self._settings,
            floor=self.floor,
            before=self.before,
            seed=self._seed + 1,
        )

    @property
    def objects(self) -> WalObjects | None:
        return self.inner.objects

    @property
    def next_position(self) -> int:
        return self.inner.next_position

    @property
    def released_position(self) -> int:
        return self.inner.released_position

    @property
    def trimmed_position(self) -> int:
        return self.inner.trimmed_position

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    @property
    def pending_bytes(self) -> int:
        return self.inner.pending_bytes

    async def identify(self, *, reach: int = -1) -> LogIdentity | None:
        return await self.inner.identify(reach=reach)

    async def recover(self) -> AsyncGenerator[WalRecord, None]:
        sealed = await self.inner.seal(self.floor, before=self.before)
        names = [WalName.parse(item.key) for item in sealed.objects]
        self._floors = [WalFloor(name.epoch, name.number + 1) for name in names if name]
        self._ends = []
        async with aclosing(self.inner.recover()) as records:
            async for record in records:
                self._ends.append(record.end_position)
                yield record

    async def survey(self) -> AsyncGenerator[WalPart, None]:
        async with aclosing(self.recover()) as records:
            async for record in records:
                yield WalPart(record.end_position, record)

    async def start(self, *, epoch: int, listener: WalListener) -> None:
        await self.inner.start(epoch=epoch, listener=listener)
        self.before = max(self.before, epoch + 1)

    def append(
        self, stream_id: int, epoch: int, base_offset: int, count: int, payload: Buffer
    ) -> int:
        return self.inner.append(stream_id, epoch, base_offset, count, payload)

    async def trim(self, position: int) -> None:
        own = self.inner.floor_at(position)
        await self.inner.trim(position)
        recovered = bisect_right(self._ends, position)
        if recovered:
            assert len(self._ends) == len(self._floors), "only objects of one record are trimmed"
            self.floor = max(self.floor, self._floors[recovered - 1])
        if own.number:
            self.floor = max(self.floor, own)

    async def close(self) -> None:
        await self.inner.close()
        await self._scope.close()


class HeldStore:
    """A store whose puts wait until the test says what becomes of each, in any order.

    A held put may land with or without an answer, or never; and land long after its writer is gone.
    Reads and deletes go through.
    """

    def __init__(self, inner: MemoryStore) -> None:
        self.uri = inner.uri
        self.inner = inner
        self.held: dict[int, tuple[str, bytes, asyncio.Future[None]]] = {}
        self._count = 0

    def numbers(self) -> list[int]:
        """Numbers of the WAL objects whose puts are held, in the order of their arrival."""
        names = [WalName.parse(key) for key, _, _ in self.held.values()]
        return [name.number for name in names if name]

    def settle(
        self, number: int, *, lands: bool = True, answers: bool = True, which: int = 0
    ) -> None:
        """Decide a held put of a number: the oldest, or the `which` oldest after it."""
        self.decide(self.tickets(number)[which], lands=lands, answers=answers)

    def tickets(self, number: int) -> list[int]:
        """Return the tickets of a number's held puts, in the order of their arrival."""
        names = {ticket: WalName.parse(key) for ticket, (key, _, _) in self.held.items()}
        return [ticket for ticket, name in names.items() if name and name.number == number]

    def decide(self, ticket: int, *, lands: bool = True, answers: bool = True) -> None:
        """Decide a held put by its ticket."""
        key, body, future = self.held.pop(ticket)
        error: Exception | None = None
        if lands and key in self.inner.objects:
            error = ObjectExists(key)
        elif lands:
            self.inner.objects[key] = body
        if future.done():
            return
        if error is not None and answers:
            future.set_exception(error)
        elif answers and lands:
            future.set_result(None)
        else:
            future.set_exception(OutcomeUnknown(f"held: no answer for {key}"))

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        self.held[self._count] = (key, b"".join(pieces), future)
        await future

    async def get(self, key: str) -> bytes:
        return await self.inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self.inner.get_range(key, start, length)

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        await self.inner.get_range_into(key, start, target)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        return await self.inner.get_suffix(key, length)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        return await self.inner.list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.inner.delete(keys)

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        return await self.inner.abort_uploads(before_ms=before_ms, owns=owns)

    async def close(self) -> None:
        await self.inner.close()


async def turns(count: int = 20) -> None:
    """Let everything that can go on without the test go on."""
    for _ in range(count):
        await asyncio.sleep(0)
