"""The object store of a simulated world, and what each process sees of it.

A request runs outside of the process that made it: it reaches the bucket, late perhaps, even when
its sender has been killed or frozen since. So puts of the dead arrive after their successors have
taken over, which is what fencing is about.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lakehead.storage.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
)
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, Owns, every_key
from tests.simulation.lives import outside
from tests.simulation.world_trace import Trace

T = TypeVar("T")


@dataclass(slots=True)
class StoreWeather:
    """How the store behaves just now, to everybody."""

    faults: FaultProfile
    held: float = 0.0
    """Share of puts whose sender gets a timeout long before they arrive …"""
    held_s_max: float = 0.0
    """… up to this many seconds later."""


class Bucket:
    """Objects under one prefix, strict about put-if-absent. Tells its watchers what changes."""

    uri = "sim:"

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.objects: dict[str, bytes] = {}
        self.on_create: list[Callable[[str, bytes], None]] = []
        self.on_delete: list[Callable[[str, bytes], None]] = []
        self.plain: Callable[[str, bytes], bytes] = lambda _, body: body
        """Returns the content of an object, for judges; stored bytes may be encrypted."""
        self._modified: dict[str, int] = {}
        self._now_ms = now_ms

    def copy(self, *, empty: bool = False) -> Bucket:
        """Return another bucket, unwatched, with the same objects or none."""
        copied = Bucket(self._now_ms)
        if empty:
            return copied
        copied.objects.update(self.objects)
        copied._modified.update(self._modified)
        return copied

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`."""
        if key in self.objects:
            raise ObjectExists(key)
        body = self.objects[key] = b"".join(pieces)
        self._modified[key] = self._now_ms()
        for call in self.on_create:
            call(key, self.plain(key, body))

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectNotFound(key) from None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        body = await self.get(key)
        if start < 0 or start + length > len(body):
            raise CorruptObject(key, start, f"wanted {length} bytes, the object has {len(body)}")
        return body[start : start + length]

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        target[:] = await self.get_range(key, start, len(target))

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        body = await self.get(key)
        return body[max(0, len(body) - length) :], len(body)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > start_after)
        return [
            ObjectMeta(key=key, size=len(self.objects[key]), modified_ms=self._modified[key])
            for key in keys[:limit]
        ]

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        for key in keys:
            body = self.objects.pop(key, None)
            if body is not None:
                for call in self.on_delete:
                    call(key, body)

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        """See `ObjectStore.abort_uploads`: nothing is ever half written."""
        return 0

    async def close(self) -> None:
        """Nothing to release."""


class RemoteStore:
    """The bucket as one process reaches it, over a network with weather."""

    def __init__(
        self, bucket: Bucket, weather: StoreWeather, *, rng: random.Random, name: str, trace: Trace
    ) -> None:
        self.uri = bucket.uri
        self._bucket = bucket
        self._weather = weather
        self._rng = rng
        self._name = name
        self._trace = trace
        self._faulty = FaultyStore(bucket, rng=rng, profile=weather.faults)

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`."""
        body = b"".join(pieces)  # the request is on its way, whatever becomes of these buffers
        if self._rng.random() < self._weather.held:
            delay = self._rng.random() * self._weather.held_s_max
            outside(self._start, f"late put {key}", self._arrive(key, body, delay))
            await asyncio.sleep(min(delay, 1.0))
            raise OutcomeUnknown(f"injected: put of {key} timed out on its way")
        await self._send(f"put {key}", self._faulty.create(key, [body]))

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._send(f"get {key}", self._faulty.get(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See `ObjectStore.get_range`."""
        return await self._send(f"get {key}", self._faulty.get_range(key, start, length))

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        await self._send(f"get {key}", self._faulty.get_range_into(key, start, target))

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        return await self._send(f"get {key}", self._faulty.get_suffix(key, length))

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        return await self._send(
            f"list {prefix}", self._faulty.list(prefix, start_after=start_after, limit=limit)
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        wanted = list(keys)
        await self._send(f"delete {' '.join(wanted)}", self._faulty.delete(wanted))

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        """See `ObjectStore.abort_uploads`."""
        return await self._send(
            "abort uploads", self._faulty.abort_uploads(before_ms=before_ms, owns=owns)
        )

    async def close(self) -> None:
        """Nothing to release."""

    async def _send(self, what: str, request: Coroutine[Any, Any, T]) -> T:
        """Let the world carry out a request, and wait for its answer."""
        self._faulty.profile = self._weather.faults
        return await asyncio.shield(outside(self._start, what, request))

    def _start(self, what: str, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(self._observed(what, request), name=what)

    async def _observed(self, what: str, request: Coroutine[Any, Any, T]) -> T:
        try:
            answer = await request
        except StorageError as error:
            self._trace.add(self._name, f"{what}: {type(error).__name__}")
            raise
        self._trace.add(self._name, what)
        return answer

    async def _arrive(self, key: str, body: bytes, delay: float) -> None:
        await asyncio.sleep(delay)
        with suppress(ObjectExists):
            await self._bucket.create(key, [body])
