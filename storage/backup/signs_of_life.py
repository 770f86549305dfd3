"""Signs in a prefix that it is a cluster in use, and not a copy that a command may promote.

A copy has the same objects as its cluster, so a sign is a matter of time: a table's lease that has
not ended, a job that left a record of its run within the last minute, an object that was written
within it, and above all objects that come or go between two looks. Only the last one is proof: the
copy of a cluster that was lost this minute has fresh leases and objects as well.

Of objects, entries and checkpoints of the metadata count, uploads of nodes, and what is in their
write-ahead logs. Seals do not, nor objects named as a job's: an earlier try at the promotion leaves
both.
"""

from collections.abc import Mapping

from lakehead.storage.clock import Clock
from lakehead.storage.format.object_names import DataName
from lakehead.storage.garbage import listed
from lakehead.storage.jobs.run_record import RunRecords, RunState
from lakehead.storage.metadata.layout import CHECKPOINTS, ENTRIES
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectMeta, ObjectStore
from lakehead.storage.plain_text import moment
from lakehead.storage.wal.object.names import PREFIX as WAL_PREFIX
from lakehead.storage.wal.object.names import is_seal_size

FRESH_MS = 60_000
"""Age up to which an object is a sign that its prefix is written to."""
_RUNS = 20
_RESTORE = "restore"
"""The job whose runs do not count: an earlier try that was killed."""


class WatchedPrefix:
    """The objects of a cluster's prefix, from one look to the next."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: Mapping[str, ObjectMeta] | None = None

    async def first_sign(self, state: MetadataImage) -> str:
        """Return, in words, the first fresh sign in the prefix whose metadata are `state`; empty
        without one. Raises StoreUnavailable.
        """
        now_ms = self._clock.now_ms()
        for topic in state.topics.values():
            table = state.tables.get(topic.topic_id)
            if table is not None and table.until_ms > now_ms:
                until = moment(table.until_ms)
                return f"{table.holder} has the lease of the table of {topic.name} until {until}"
        for run in await RunRecords(self._store).newest(_RUNS, now_ms):
            if run.state is RunState.RUNNING and run.job != _RESTORE:
                return f"the job {run.job} runs on it ({run.holder}, {moment(run.updated_ms)})"
        self._seen = await self._objects()
        newest = max(self._seen.values(), key=lambda one: one.modified_ms, default=None)
        if newest is not None and now_ms - newest.modified_ms < FRESH_MS:
            age_s = max(now_ms - newest.modified_ms, 0) // 1000
            return f"{newest.key} was written {age_s} s ago"
        return ""

    async def change(self) -> str:
        """Return, in words, a change since the look before; empty without one. Raises
        StoreUnavailable.
        """
        before, now = self._seen, await self._objects()
        self._seen = now
        if before is None:
            return ""
        if written := [key for key, one in now.items() if before.get(key) != one]:
            return f"{max(written)} was written while it was watched"
        if gone := before.keys() - now.keys():
            return f"{min(gone)} was deleted while it was watched"
        return ""

    async def _objects(self) -> dict[str, ObjectMeta]:
        found = [*await self._store.list(ENTRIES), *await self._store.list(CHECKPOINTS)]
        found += [one for one in await listed(self._store) if _is_of_cluster(one)]
        return {one.key: one for one in found}


def _is_of_cluster(one: ObjectMeta) -> bool:
    if one.key.startswith(WAL_PREFIX):
        return not is_seal_size(one.size)
    return DataName.parse(one.key) is not None
