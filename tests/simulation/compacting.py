"""Maintenance in a world: processes that compact streams, or merge small objects, beside the nodes,
and die of anything.

Batches of these worlds hold no records that can be read, so both must keep every byte of them; they
rewrite the objects all the same, and replace them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakehead.storage.clock import Clock
from lakehead.storage.compaction.log_compaction import LogCompaction, LogCompactionSettings
from lakehead.storage.compaction.object_compaction import ObjectCompaction
from lakehead.storage.compaction.object_compaction_plan import MergeItem, MergeRules, plan_merges
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.retrying import RetryingStore
from tests.simulation.processes import Processes

if TYPE_CHECKING:
    from tests.simulation.loop import SimulationLoop
    from tests.simulation.world import World


class Maintenance:
    """What the processes of a world's maintenance do, one after the other."""

    def __init__(
        self, world: World, loop: SimulationLoop, clock: Clock, seed: int, *, merges: bool
    ) -> None:
        self._world = world
        self._clock = clock
        self._rng = random.Random(f"maintenance {seed}")
        self._merges = merges
        self._processes = Processes(world, loop, self._rng, "m", self._live)

    async def keep(self) -> None:
        """Go on until cancelled."""
        await self._processes.keep()

    async def _live(self, name: str) -> None:
        store = self._store(name)
        log = await MetadataLog.open(store, writer_id=name, clock=self._clock, rng=self._rng)
        if self._merges:
            await self._merge(name, store, log)
        await self._compact(name, store, log)

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
            result = await ObjectCompaction(store, log, self._clock, rng, item).run()
            if result.is_done:
                self._world.trace.add(name, f"merged {item.sources}: {result.objects_after}")

    async def _compact(self, name: str, store: RetryingStore, log: MetadataLog) -> None:
        rng = self._rng
        for stream_id in rng.sample(list(log.state.streams), len(log.state.streams)):
            settings = LogCompactionSettings(
                until_ms=1 << 62,
                delete_retention_ms=0,
                map_memory=1024,
                group_size=rng.choice([1, 2000, 20_000]),
            )
            compaction = LogCompaction(
                store, log, self._clock, rng, stream_id=stream_id, settings=settings
            )
            result = await compaction.run()
            if result.passes:
                self._world.trace.add(name, f"compacted stream {stream_id}: {result.objects}")
            await log.refresh()
