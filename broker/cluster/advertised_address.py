"""Whether the address that clients and other nodes are told leads to this node."""

from ipaddress import ip_address

import structlog

from lakehead.broker.cluster.heartbeat import ERROR_OTHER_CLUSTER, Heartbeat
from lakehead.broker.cluster.namesake import ask_once
from lakehead.broker.cluster.network import PeerNetwork
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import ClusterState, NodeState

TIMEOUT_S = 2.0
_log = structlog.get_logger("broker.cluster")


async def check_advertised_address(
    network: PeerNetwork, own: NodeState, state: ClusterState
) -> bool:
    """Ask there who answers, as a client would; return whether all is well.

    Raises SettingsError when it is another node: clients would take that for this one. When nobody
    answers, or nobody on another machine could be answered, it warns only: some networks lead
    everybody to a node except the node itself.
    """
    asking = Heartbeat(node_id=-1, epoch=-1, next_entry=0, cluster_id=state.cluster_id)
    proof = NodeProof(secret=state.node_secret, to_node=own.node_id)
    answer = await ask_once(network, own.host, own.port, asking, TIMEOUT_S, proof)
    if answer is None:
        _warn(own, "no node answers there")
        return False
    if answer.incarnation != own.incarnation:
        other = "of another cluster" if answer.error == ERROR_OTHER_CLUSTER else "of this cluster"
        raise SettingsError(
            f"advertised.host and advertised.port of node {own.node_id} lead to node "
            f"{answer.node_id} {other}, at {own.host}:{own.port}: give this node's own address"
        )
    hosts = {node.host_id for node in state.nodes.values() if not node.is_fenced}
    if _is_loopback(own.host) and not hosts <= {"", own.host_id}:
        _warn(own, "nodes on other machines cannot reach a loopback address")
        return False
    return True


def _warn(own: NodeState, reason: str) -> None:
    _log.warning(
        "advertised_address_unreachable",
        node_id=own.node_id,
        host=own.host,
        port=own.port,
        reason=reason,
        remedy="clients and other nodes are sent there: set advertised.host and advertised.port "
        "to what they reach",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
