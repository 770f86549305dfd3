"""What a running node does about garbage by itself.

Objects without a reference go once this process has seen them so for the grace period, by its
monotonic clock: a wall clock that jumps hurries nothing. That costs no request while there is
nothing to delete. The bucket is listed only now and then, for what crashes left.
"""

import asyncio
from dataclasses import dataclass

import structlog

from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.garbage.judgement import Verdict
from lakehead.storage.garbage.sweep import Doomed, SweepTimes, delete, find_garbage, perform
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.stream.settings import StorageSettings

_log = structlog.get_logger("storage.garbage")


@dataclass(slots=True)
class GarbageStats:
    """What a node has done about garbage since its start."""

    waiting: int = 0
    """Objects without a reference that wait for the end of the grace period."""
    deleted_objects: int = 0
    deleted_bytes: int = 0
    sweeps: int = 0
    """Times the bucket was listed."""
    failures: int = 0
    """Times the store or the metadata log refused; the next turn tries again."""


class GarbageCollector:
    """The garbage of one node: of objects that it wrote, in this epoch or earlier ones; and, if its
    id is the lowest of the living, of those whose writers are gone.

    An object goes `garbage_grace_s` after its last reference, within `garbage_interval_s`; the
    bucket is listed every `garbage_sweep_s`.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        settings: StorageSettings,
        clock: Clock,
        *,
        node_id: int,
    ) -> None:
        self.stats = GarbageStats()
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._node_id = node_id
        self._settings = settings
        self._seen: dict[str, float] = {}
        self._swept_at = clock.monotonic()

    async def run(self) -> None:
        """Take a turn every interval, for ever."""
        while True:
            await asyncio.sleep(self._settings.garbage_interval_s)
            try:
                await self.turn()
            except LakeheadError as error:
                self.stats.failures += 1
                _log.warning("garbage_turn_failed", error=str(error))

    async def turn(self) -> None:
        """Delete what has had its grace; sweep the bucket if it is time to."""
        state, now = self._metadata.state, self._clock.monotonic()
        seen = self._seen
        self._seen = {key: seen.get(key, now) for key in sorted(state.unreferenced)}
        doomed = [
            Doomed(key=key, size=state.objects[key].size, verdict=Verdict.UNREFERENCED)
            for key, since in self._seen.items()
            if now - since >= self._settings.garbage_grace_s and self._is_ours(state, key)
        ]
        self.stats.waiting = len(self._seen) - len(doomed)
        if doomed:
            await delete(doomed, self._store, self._metadata)
            self._count(len(doomed), sum(one.size for one in doomed))
        if now - self._swept_at >= self._settings.garbage_sweep_s:
            self._swept_at = now
            await self._sweep()

    async def _sweep(self) -> None:
        if not self._is_lowest(self._metadata.state):
            return
        settings = SweepTimes(grace_ms=1 << 62)  # those are not a matter of the wall clock here
        plan = await find_garbage(self._store, self._metadata, self._clock, settings)
        result = await perform(plan, self._store, self._metadata)
        self.stats.sweeps += 1
        self._count(result.deleted, result.deleted_bytes)

    def _count(self, objects: int, size: int) -> None:
        self.stats.deleted_objects += objects
        self.stats.deleted_bytes += size
        if objects:
            _log.info("garbage_deleted", objects=objects, bytes=size, node_id=self._node_id)

    def _is_ours(self, state: ClusterState, key: str) -> bool:
        writer = state.objects[key].node_id
        if writer == self._node_id:
            return True
        node = state.nodes.get(writer)
        return (node is None or node.is_fenced) and self._is_lowest(state)

    def _is_lowest(self, state: ClusterState) -> bool:
        living = [node_id for node_id, node in state.nodes.items() if not node.is_fenced]
        return self._node_id == min(living, default=self._node_id)
