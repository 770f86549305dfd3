"""How a node that starts becomes the owner of its id: under the next epoch, so that no other is."""

from typing import TYPE_CHECKING

from storage.errors import Fenced
from storage.failpoints import failpoint
from storage.format.feature_level import LOWEST_LEVEL, NEWEST_LEVEL
from storage.metadata.log import MetadataLog
from storage.metadata.records import Record, RegisterNode
from storage.metadata.state import ClusterState
from storage.stream.uploader import Writer
from storage.wal.protocol import Claim

if TYPE_CHECKING:
    from storage.stream.engine import NodeIdentity


async def register(metadata: MetadataLog, node: "NodeIdentity", incarnation: str) -> Writer:
    """Begin the node's next epoch, in the metadata; return who writes objects in it.

    Raises Fenced when another incarnation has begun a later one by the time that this is known.
    """
    planned: list[RegisterNode] = []

    def plan(state: ClusterState) -> list[Record]:
        planned[:] = [_registration(state, node, incarnation)]
        return [*planned]

    state = await metadata.commit_with(plan)
    failpoint("node_registered")
    own, known = planned[0], state.nodes.get(node.node_id)
    if known is None or known.epoch != own.epoch:
        raise Fenced(f"node {node.node_id} epoch {own.epoch} has a successor already")
    return Writer(
        cluster_id=state.cluster_id,
        node_id=node.node_id,
        node_epoch=own.epoch,
        incarnation=incarnation,
    )


def claim(state: ClusterState, node: "NodeIdentity") -> Claim:
    """Return whom a node that starts may have its own volume back from, by what the cluster knows.

    It is judged before the node registers. That does no harm: whoever recovers its log meanwhile
    is refused by the device, or by the metadata, and this node reads again what is there.
    """
    elsewhere = [known for known in state.nodes.values() if known.host_id != node.host_id]
    return Claim(
        other_hosts=tuple(sorted({known.host_id for known in elsewhere} - {""})),
        live_nodes=frozenset(
            known.node_id
            for known in elsewhere
            if not known.is_fenced and known.node_id != node.node_id
        ),
    )


def _registration(state: ClusterState, node: "NodeIdentity", incarnation: str) -> RegisterNode:
    known = state.nodes.get(node.node_id)
    last = state.retired_nodes.get(node.node_id, -1) if known is None else known.epoch
    return RegisterNode(
        node_id=node.node_id,
        epoch=last + 1,
        incarnation=incarnation,
        host=node.host,
        port=node.port,
        rack=node.rack,
        host_id=node.host_id,
        wal=node.wal,
        process=node.process,
        min_level=LOWEST_LEVEL,
        max_level=NEWEST_LEVEL,
    )
