"""Backups and restores of clusters in folders, by the functions behind the commands."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from lakehead.broker.coordinator.group.restored_offsets import corrected_offsets
from lakehead.storage.backup.promotion import Promoted, promote_copy
from lakehead.storage.backup.pruning import Kept
from lakehead.storage.backup.restore import Restored, find_point, refuse_occupied, restore_cluster
from lakehead.storage.backup.run import BackupDone, Backups
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.batch_writer import KeyValue
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore, ObjectStore


def back_up(
    source: Path | ObjectStore,
    target: Path | ObjectStore,
    *,
    kept: Kept = Kept(),  # noqa: B008 - frozen
    times: int = 1,
    between: Callable[[], None] = lambda: None,
) -> BackupDone:
    """Make backups, by one process; return the last."""
    return asyncio.run(_back_up(_store(source), _store(target), kept, times, between))


def _store(place: Path | ObjectStore) -> ObjectStore:
    return FileStore(place) if isinstance(place, Path) else place


async def _back_up(
    source: ObjectStore,
    target: ObjectStore,
    kept: Kept,
    times: int,
    between: Callable[[], None],
) -> BackupDone:
    clock, rng = SystemClock(), random.Random(5)
    log = await MetadataLog.open(source, writer_id="backup/1", clock=clock, rng=rng)
    backups = await Backups.open(
        source, target, log, clock=clock, rng=random.SystemRandom(), kept=kept
    )
    done = await backups.make()
    for _ in range(times - 1):
        await asyncio.to_thread(between)
        done = await backups.make()
    return done


def bring_back(
    source: Path | ObjectStore, target: Path | None = None, number: int | None = None
) -> Restored:
    """Restore a cluster, in place without a target."""
    return asyncio.run(_bring_back(_store(source), target, number))


def promote(copy: Path | ObjectStore) -> Promoted:
    """Make a copy of a cluster's prefix the cluster, in place."""
    return asyncio.run(promoted(_store(copy)))


async def promoted(store: ObjectStore, *, seed: int | None = None) -> Promoted:
    clock = SystemClock()

    async def correct(where: ObjectStore, state: MetadataImage) -> dict[int, list[KeyValue]]:
        return await corrected_offsets(where, state, clock)

    rng = random.SystemRandom() if seed is None else random.Random(seed)
    return await promote_copy(store, correct=correct, clock=clock, rng=rng)


async def _bring_back(store: ObjectStore, target: Path | None, number: int | None) -> Restored:
    place = store if target is None else FileStore(target)
    clock = SystemClock()
    await refuse_occupied(place, is_in_place=target is None)

    async def correct(where: ObjectStore, state: MetadataImage) -> dict[int, list[KeyValue]]:
        return await corrected_offsets(where, state, clock)

    return await restore_cluster(
        await find_point(store, number),
        store,
        place,
        correct=correct,
        clock=clock,
        rng=random.SystemRandom(),
    )
