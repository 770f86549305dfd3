"""A node takes over what another one left: fences it, commits its log, opens its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehead.storage.errors import EntryRejected
from lakehead.storage.metadata.records import FenceNode, Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.stream.recovery import RecoveringNode, take_objects
from lakehead.storage.wal.object.seal import LogSealer

if TYPE_CHECKING:
    from tests.simulation.node import Incarnation


async def take_over(one: Incarnation, node_id: int) -> None:
    """Let a process take over a node, dead or alive. Raises EntryRejected: others came first."""
    assert one.engine is not None
    metadata = one.engine.metadata
    last_epoch = metadata.state.nodes[node_id].epoch

    def fence(state: MetadataImage) -> list[Record]:
        node = state.nodes[node_id]
        if node.epoch != last_epoch:
            raise EntryRejected(f"node {node_id} has come back")
        return [] if node.is_fenced else [FenceNode(node_id=node_id, epoch=last_epoch)]

    state = await metadata.commit_with(fence)
    one.note(f"fenced node {node_id} in epoch {last_epoch}")
    log = LogSealer(
        RetryingStore(one.world.store_of(one.name), rng=one.rng),
        cluster_id=state.cluster_id,
        node_id=node_id,
        sealer_id=one.node_id,
        incarnation=f"{one.rng.getrandbits(64):016x}",
        clock=one.clock,
        rng=one.rng,
    )
    taker = RecoveringNode(one.node_id, one.engine.node_epoch)
    count = await take_objects(log, metadata, node_id=node_id, last_epoch=last_epoch, taker=taker)
    one.note(f"took over node {node_id}: {count} objects")
    left = [
        stream.stream_id
        for stream in metadata.state.streams.values()
        if stream.is_open and stream.node_id == node_id
    ]
    for stream_id in left:
        await one.open_stream(stream_id)
