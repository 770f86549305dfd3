"""Recovery of another node: commit what a fenced node acknowledged and had not uploaded, so that
its streams may be opened anywhere.

A log of objects in the cluster's store is sealed, and one entry lists its objects. Any other log is
opened in the place of its node, which fences the node where it writes, and read. Of a log of
records, one entry makes what counts part of its streams, as an inherited tail, and another one
commits it when it is uploaded. Of a log of objects in another store, and at a feature level without
tails, one entry commits all at once. The first entry moves the node's floor beyond its last epoch,
which marks the node as recovered. So a recovering node may be killed at any time and another begins
again; of several that try, one commits and the others find nothing left to do.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from lakehead.storage.clock import Clock
from lakehead.storage.errors import StorageError
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.metadata.records import CommittedObject, Record
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.stream.inherited_tail import (
    TAILS_LEVEL,
    commit_tails,
    find_tail,
    inheritance,
)
from lakehead.storage.stream.recovery import (
    BLOCK_SIZE,
    Owner,
    RecoveringNode,
    Uncommitted,
    chosen_blocks,
    commit_left_in_cluster,
    discard_uncommitted,
    floor_of,
    take_objects,
    written_blocks,
)
from lakehead.storage.stream.registration import refuse_wrong_log
from lakehead.storage.stream.upload import Uploader, Writer
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.object import LogSealer
from lakehead.storage.wal.protocol import WalFloor, WalOwner, WriteAheadLog

_log = event_logger("storage.takeover")

OpenUnrecoveredWal = Callable[[NodeState, WalOwner], Awaitable[WriteAheadLog | None]]
"""Opens what a fenced node left in a log of its own, once nothing can be acknowledged there any
more; None when all that it had is in the cluster's store. The owner stands for the fenced node.
Raises StorageError, SettingsError.
"""


class Takeovers:
    """The takeovers by one live node."""

    def __init__(
        self,
        uploader: Uploader,
        *,
        store: ObjectStore,
        writer: Writer,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
    ) -> None:
        self._metadata = uploader.metadata
        self._uploader = uploader
        self._store = store
        self._writer = writer
        self._clock = clock
        self._rng = rng
        self._scope = scope

    async def run(self, node: NodeState, open_log: OpenUnrecoveredWal) -> int:
        """See `StreamEngine.take_over`."""
        if not _is_due(await self._metadata.refresh(), node):
            return 0
        log = await open_log(node, self.owner_of(node))
        failpoint("left_log_opened")
        try:
            if log is None:
                return await self._take_objects(node)
            state = await self._metadata.refresh()
            if not _is_due(state, node):
                return 0
            found = await log.identify(reach=state.nodes[node.node_id].log.position)
            refuse_wrong_log(state, node.node_id, found, node.wal or "this")
            if log.objects is None and state.metadata_version >= TAILS_LEVEL:
                return await self._inherit(node, log)
            return await self._copy(node, log)
        except StorageError:
            if not _is_due(await self._metadata.refresh(), node):
                return 0  # another node was quicker, and cleaned up
            raise
        finally:
            if log is not None:
                await log.close()

    def owner_of(self, node: NodeState) -> WalOwner:
        """Return the owner that stands for a fenced node while its log is opened."""
        return WalOwner(
            cluster_id=self._writer.cluster_id,
            node_id=node.node_id,
            incarnation=self._writer.incarnation,
            store=self._store,
            describe=lambda stream_id: self._metadata.state.stream_info(stream_id, None),
            clock=self._clock,
            rng=self._rng,
            scope=self._scope,
        )

    async def _take_objects(self, node: NodeState) -> int:
        return await take_objects(
            self._in_cluster(node),
            self._metadata,
            node_id=node.node_id,
            last_epoch=node.epoch,
            taker=self._taker(),
        )

    def _taker(self) -> RecoveringNode:
        return RecoveringNode(self._writer.node_id, self._writer.node_epoch)

    def _in_cluster(self, node: NodeState) -> LogSealer:
        return LogSealer(
            self._store,
            cluster_id=self._writer.cluster_id,
            node_id=node.node_id,
            sealer_id=self._writer.node_id,
            incarnation=self._writer.incarnation,
            clock=self._clock,
            rng=self._rng,
        )

    async def _inherit(self, node: NodeState, log: WriteAheadLog) -> int:
        """Let the node's streams be opened, then upload what its log holds of them."""
        state, position = self._metadata.state, None
        if not state.nodes[node.node_id].is_recovered:
            owner = Owner(node.node_id, node.epoch, self._taker())
            floor = WalFloor(node.epoch, 0)
            await commit_left_in_cluster(self._in_cluster(node), self._metadata, owner, floor)
            position = await self._inherit_tail(node, owner, log)
        found = await commit_tails(log, self._uploader, node.node_id, self._scope)
        position = found.position or position
        if position is not None:
            await _trim(log, position)
        _log.info("log_taken_over", node_id=node.node_id, epoch=node.epoch, objects=found.objects)
        return found.objects

    async def _inherit_tail(self, node: NodeState, owner: Owner, log: WriteAheadLog) -> int | None:
        """Make what counts in a log part of its streams; return where the log ends."""
        end, began = WalFloor(node.epoch + 1, 0), self._clock.monotonic()
        tail = await find_tail(log, self._metadata.state, node.node_id)
        seconds = round(self._clock.monotonic() - began, 3)
        objects = []
        if tail.ranges:
            with self._uploader.hurry():
                objects.append(await self._uploader.write_tail(tail.ranges, tail.infos))
        failpoint("tail_found")

        def plan(state: MetadataImage) -> Sequence[Record]:
            if floor_of(state, node.node_id) >= end:
                return ()
            if not objects:
                return (owner.commit((), end),)
            taker = self._writer.node_id, self._writer.node_epoch
            return (inheritance(node.node_id, node.epoch, taker, objects),)

        await self._metadata.commit_with(plan)
        failpoint("tail_inherited")
        _log.info("tail_inherited", dead_id=node.node_id, streams=len(tail.ranges), seconds=seconds)
        return tail.position

    async def _copy(self, node: NodeState, log: WriteAheadLog) -> int:
        """Upload and commit what counts in a log that is not in the cluster's store."""
        owner = Owner(node.node_id, node.epoch, self._taker())
        in_cluster = self._in_cluster(node)
        await commit_left_in_cluster(in_cluster, self._metadata, owner, WalFloor(node.epoch, 0))
        end, objects = WalFloor(node.epoch + 1, 0), log.objects
        now = floor_of(self._metadata.state, node.node_id)
        sealed = None if objects is None else await objects.seal(now, before=end.epoch)
        written: list[CommittedObject] = []
        position = None
        choice = Uncommitted(self._metadata.state, node.node_id)
        blocks = chosen_blocks(log, choice, BLOCK_SIZE)
        async with aclosing(written_blocks(blocks, self._uploader, self._scope)) as upload_sets:
            async for upload_set in upload_sets:
                position = upload_set.wal_position
                written += upload_set.objects
        found: list[CommittedObject] = []

        def plan(state: MetadataImage) -> Sequence[Record]:
            is_due = floor_of(state, node.node_id) < end
            found[:] = written if is_due else []
            return (owner.commit(found, end),) if is_due else ()

        state = await self._metadata.commit_with(plan)
        failpoint("left_log_committed")
        if objects is not None and sealed is not None:
            await discard_uncommitted(objects, sealed, state)
        elif position is not None:
            await _trim(log, position)
        _log.info("log_taken_over", node_id=node.node_id, epoch=node.epoch, objects=len(found))
        return len(found)


def _is_due(state: MetadataImage, node: NodeState) -> bool:
    """Return true if a node is still in the epoch that is to be recovered, and no node has
    done all of it.
    """
    now = state.nodes.get(node.node_id)
    return now is not None and now.epoch == node.epoch and not state.is_settled(now)


async def _trim(log: WriteAheadLog, position: int) -> None:
    """Spare the node's next start the reading of what is committed."""
    try:
        await log.trim(position)
    except (StorageError, OSError) as error:
        _log.warning("recovered_wal_not_trimmed", error=str(error))
