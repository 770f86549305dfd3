"""How a node that starts becomes the owner of its id: under the next epoch, so that no other is."""

from typing import TYPE_CHECKING

from storage.failpoints import failpoint
from storage.metadata.log import MetadataLog
from storage.metadata.records import Record, RegisterNode
from storage.metadata.state import ClusterState
from storage.stream.uploader import Writer

if TYPE_CHECKING:
    from storage.stream.engine import NodeIdentity


async def register(metadata: MetadataLog, node: "NodeIdentity", incarnation: str) -> Writer:
    """Begin the node's next epoch, in the metadata; return who writes objects in it."""
    state = await metadata.commit_with(lambda now: _registration(now, node, incarnation))
    failpoint("node_registered")
    return Writer(
        cluster_id=state.cluster_id,
        node_id=node.node_id,
        node_epoch=state.nodes[node.node_id].epoch,
        incarnation=incarnation,
    )


def _registration(state: ClusterState, node: "NodeIdentity", incarnation: str) -> list[Record]:
    known = state.nodes.get(node.node_id)
    last = state.retired_nodes.get(node.node_id, -1) if known is None else known.epoch
    return [
        RegisterNode(
            node_id=node.node_id,
            epoch=last + 1,
            incarnation=incarnation,
            host=node.host,
            port=node.port,
            rack=node.rack,
            host_id=node.host_id,
            wal=node.wal,
        )
    ]
