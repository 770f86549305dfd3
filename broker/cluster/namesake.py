"""Asking one address who is there: before a node takes an id that another may be using."""

import asyncio

from lakehead.broker.cluster.heartbeat import (
    Heartbeat,
    HeartbeatAnswer,
    decode_answer,
    encode_heartbeat,
)
from lakehead.broker.cluster.network import PeerNetwork
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.node_proof import NO_PROOF, NodeProof
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import ClusterState

ANSWER_TIMEOUT_S = 1.0


async def ask_once(
    network: PeerNetwork,
    host: str,
    port: int,
    heartbeat: Heartbeat,
    timeout_s: float,
    proof: NodeProof = NO_PROOF,
) -> HeartbeatAnswer | None:
    """Send one heartbeat and return the answer; None when no node of Lakehead gives one in time."""
    try:
        async with asyncio.timeout(timeout_s):
            channel = await network.connect(host, port, lambda: None)
            try:
                frame = encode_heartbeat(heartbeat, 1, proof)
                _, answer = decode_answer(await channel.ask(frame))
            finally:
                channel.close()
    except (OSError, TimeoutError, MalformedFrame):
        return None
    return answer


async def refuse_namesake(
    network: PeerNetwork, state: ClusterState, node_id: int, *, timeout_s: float = ANSWER_TIMEOUT_S
) -> None:
    """Raise SettingsError when a live process of this cluster serves under this id already.

    One that does not answer is taken for dead, and what it may still be doing is fenced.
    """
    known = state.nodes.get(node_id)
    if known is None or known.is_fenced:
        return
    asking = Heartbeat(
        node_id=-1, epoch=-1, next_entry=state.next_entry, cluster_id=state.cluster_id
    )
    proof = NodeProof(secret=state.node_secret, to_node=node_id)
    answer = await ask_once(network, known.host, known.port, asking, timeout_s, proof)
    if answer is None or answer.error or (answer.node_id, answer.epoch) != (node_id, known.epoch):
        return
    raise SettingsError(
        f"node {node_id} is alive at {known.host}:{known.port}: this node runs already; "
        "to start one more beside it, give that a node.id, a port and a write-ahead log of its own"
    )
