"""Maintenance in a world: processes that compact streams, or merge small objects, beside the nodes,
and die of anything.

Batches of these worlds hold no records that can be read, so both must keep every byte of them; they
rewrite the objects all the same, and replace them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from storage.clock import Clock
from storage.compaction.job import Compaction, CompactionSettings
from storage.compaction.merge import Merge
from storage.compaction.merge_plan import MergeItem, MergeRules, plan_merges
from storage.errors import LakeheadError
from storage.metadata.log import MetadataLog
from storage.object_store.retrying import RetryingStore
from tests.simulation.lives import Life

if TYPE_CHECKING:
    from tests.simulation.loop import SimulationLoop
    from tests.simulation.world import World


class Maintenance:
    """Starts one process after the other, until it is cancelled: then the last one dies too."""

    def __init__(
        self, world: World, loop: SimulationLoop, clock: Clock, seed: int, *, merges: bool
    ) -> None:
        self._world = world
        self._loop = loop
        self._clock = clock
        self._rng = random.Random(f"maintenance {seed}")
        self._merges = merges
        self._lives: list[Life] = []
        """Kept to the end: collecting what a dead process held would run its clean-up."""

    async def keep(self) -> None:
        """See the class."""
        rng = self._rng
        for number in range(1_000_000):
            await asyncio.sleep(rng.expovariate(0.7))
            dies_at = int(10 ** rng.uniform(0.5, 3.0)) if rng.random() < 0.4 else None
            life = Life(self._loop, f"m.{number}", dies_at=dies_at)
            self._lives.append(life)
            done = asyncio.Event()
            life.on_death.append(done.set)
            life.spawn(self._live(life), life.name)
            try:
                await self._wait(done, rng.uniform(0.2, 20.0))
                if not life.is_dead and rng.random() < 0.3:
                    life.freeze()
                    await asyncio.sleep(rng.uniform(0.1, 20.0))
                    life.thaw()
                    await self._wait(done, rng.uniform(0.1, 5.0))
            finally:
                life.kill()

    @staticmethod
    async def _wait(done: asyncio.Event, most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await done.wait()

    async def _live(self, life: Life) -> None:
        try:
            rng = self._rng
            store = self._store(life.name)
            log = await MetadataLog.open(store, writer_id=life.name, clock=self._clock, rng=rng)
            if self._merges:
                await self._merge(life.name, store, log)
            await self._compact(life.name, store, log)
        except LakeheadError as error:
            self._world.trace.add(life.name, f"gives up: {error!r}")
        except Exception as error:
            self._world.fail(error)
        life.kill()

    def _store(self, name: str) -> RetryingStore:
        """Return a job's store. What a job deletes is its own, and it will not commit it."""
        store = RetryingStore(self._world.store_of(name), rng=self._rng)
        delete, oracle = store.delete, self._world.oracle

        async def giving_up(keys: Sequence[str]) -> None:
            oracle.given_up.update(keys)
            await delete(keys)

        store.delete = giving_up  # type: ignore[method-assign]
        return store

    async def _merge(self, name: str, store: RetryingStore, log: MetadataLog) -> None:
        rng, state = self._rng, log.state
        rules = MergeRules(target_bytes=rng.choice([2000, 20_000]), count_min=2)
        items = list(plan_merges(state, rules))
        used = sorted(key for key, known in state.objects.items() if known.stream_ids)
        if used and rng.random() < 0.5:  # any objects, of any number of streams
            keys = rng.sample(used, rng.randint(1, len(used)))
            items = [MergeItem(sources=tuple(keys), streams=tuple(state.streams), size=0)]
        for item in items:
            result = await Merge(store, log, self._clock, rng, item).run()
            if result.is_done:
                self._world.trace.add(name, f"merged {item.sources}: {result.objects_after}")

    async def _compact(self, name: str, store: RetryingStore, log: MetadataLog) -> None:
        rng = self._rng
        for stream_id in rng.sample(list(log.state.streams), len(log.state.streams)):
            settings = CompactionSettings(
                until_ms=1 << 62,
                delete_retention_ms=0,
                map_memory=1024,
                group_size=rng.choice([1, 2000, 20_000]),
            )
            compaction = Compaction(
                store, log, self._clock, rng, stream_id=stream_id, settings=settings
            )
            result = await compaction.run()
            if result.passes:
                self._world.trace.add(name, f"compacted stream {stream_id}: {result.objects}")
            await log.refresh()
