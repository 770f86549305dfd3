"""The object store of a cluster: its semantics, its speed, and its clock beside ours.

Objects are written below `check/` and deleted again.
"""

import random
import statistics
from collections.abc import Awaitable

from lakehead.broker.diagnosis.finding import Finding, failed, ok, warning
from lakehead.storage.clock import Clock
from lakehead.storage.errors import ObjectExists, SettingsError, StorageError
from lakehead.storage.object_store import ObjectStore, check_store

_PREFIX = "check/"
_TRIES = 5
_BODY = bytes(4096)
_SLOW_PUT_S = 0.2
_SKEW_MS = 2_500
"""S3 gives times in whole seconds."""


async def try_store(store: ObjectStore, *, clock: Clock, rng: random.Random) -> list[Finding]:
    """Try out a store as nodes use it. `store` raises errors at once, without retries."""
    try:
        await check_store(store, rng=rng)
        return await _Trial(store, clock, f"{_PREFIX}doctor-{rng.getrandbits(64):016x}").run()
    except SettingsError as error:
        return [failed("object store", str(error), "change the store's settings or permissions")]
    except StorageError as error:
        return [failed("object store", str(error), "see that the store can be reached from here")]


class _Trial:
    def __init__(self, store: ObjectStore, clock: Clock, prefix: str) -> None:
        self._store = store
        self._clock = clock
        self._keys = [f"{prefix}-{number}" for number in range(_TRIES)]

    async def run(self) -> list[Finding]:
        try:
            return await self._tried()
        finally:
            await self._store.delete(self._keys)

    async def _tried(self) -> list[Finding]:
        store, uri = self._store, self._store.uri
        before = self._clock.now_ms()
        puts = [await self._timed(store.create(key, [_BODY])) for key in self._keys]
        after = self._clock.now_ms()
        gets = [await self._timed(store.get(key)) for key in self._keys]
        try:
            await store.create(self._keys[0], [_BODY])
        except ObjectExists:
            pass
        else:
            advice = "two writers of one name both succeed, and data is lost: use another store"
            return [failed("object store", f"{uri} writes over objects", advice)]
        listed = {item.key: item for item in await store.list(self._keys[0][:-1])}
        if listed.keys() < set(self._keys):
            advice = "an object that was written is not listed: use another store"
            return [failed("object store", f"{uri} lists {len(listed)} of {_TRIES}", advice)]
        modified = listed[self._keys[-1]].modified_ms
        return [
            _speed(uri, statistics.median(puts), statistics.median(gets)),
            _skew(modified, before, after),
        ]

    async def _timed(self, call: Awaitable[object]) -> float:
        begun = self._clock.monotonic()
        await call
        return self._clock.monotonic() - begun


def _speed(uri: str, put_s: float, get_s: float) -> Finding:
    found = f"{uri}: conditional puts; put {put_s * 1000:.1f} ms, get {get_s * 1000:.1f} ms"
    if put_s > _SLOW_PUT_S:
        advice = "producers wait for a put with an object WAL: use a bucket of this region"
        return warning("object store", found, advice)
    return ok("object store", found)


def _skew(modified_ms: int, before_ms: int, after_ms: int) -> Finding:
    """Compare the store's time of an object with ours before and after it was written."""
    ahead = max(before_ms - modified_ms, 0) - max(modified_ms - after_ms, 0)
    if abs(ahead) <= _SKEW_MS:
        return ok("clock", "agrees with the store's")
    words = "ahead of" if ahead > 0 else "behind"
    found = f"{abs(ahead) / 1000:.1f} s {words} the store's"
    return warning("clock", found, "run chrony or systemd-timesyncd on this machine")
