"""The nodes of a cluster as an observer sees them: their state in the metadata, and their responses
to a heartbeat of a process that is not a node.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from lakehead.broker.cluster.cordons import is_cordoned
from lakehead.broker.cluster.heartbeat import Heartbeat, HeartbeatResponse
from lakehead.broker.cluster.inter_broker_client import PeerNetwork, probe
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.plain_text import address_text, moment

NOT_A_NODE = -1
"""The node id in a heartbeat of a process that is not a node."""
REQUEST_TIMEOUT_S = 1.0


async def request_heartbeats(
    network: PeerNetwork, state: MetadataImage
) -> Mapping[int, HeartbeatResponse]:
    """Send the end of the metadata log to every live node; return the responses that come, by node
    id.
    """
    heartbeat = Heartbeat(
        node_id=NOT_A_NODE,
        epoch=NOT_A_NODE,
        next_entry=state.next_entry,
        cluster_id=state.cluster_id,
    )
    responses: dict[int, HeartbeatResponse] = {}

    async def request(node: NodeState) -> None:
        proof = NodeProof(secret=state.node_secret, to_node=node.node_id)
        response = await probe(network, node.host, node.port, heartbeat, REQUEST_TIMEOUT_S, proof)
        if response is None:
            return
        if (response.node_id, response.epoch) == (node.node_id, node.epoch):
            responses[node.node_id] = response

    async with asyncio.TaskGroup() as group:
        for node in state.nodes.values():
            if not node.is_fenced:
                group.create_task(request(node))
    return responses


def node_rows(
    state: MetadataImage, responses: Mapping[int, HeartbeatResponse] | None
) -> list[dict[str, Any]]:
    """Return the fields of each node, with `responses` to heartbeats by node id. None: heartbeats
    cannot be sent from here.
    """
    led = leads(state)
    silent = "unknown" if responses is None else "silent"
    rows = []
    for node_id, node in sorted(state.nodes.items()):
        response = None if responses is None else responses.get(node_id)
        rows.append(
            {
                "node": node_id,
                "controller": node_id == state.controller.node_id and not node.is_fenced,
                "epoch": node.epoch,
                "state": _state_of(
                    node,
                    led[node_id],
                    silent="" if response is not None else silent,
                    is_cordoned=is_cordoned(state, node_id),
                ),
                "address": address_text(node.host, node.port),
                "rack": node.rack,
                "host": node.host_id or None,
                "leads": led[node_id],
                "bytes_in": None if response is None else round(response.load.bytes_in),
                "bytes_out": None if response is None else round(response.load.bytes_out),
                "cpu": None if response is None else round(response.load.cpu, 3),
                "lost_log": _lost_log(node),
            }
        )
    return rows


class BusyPartition(NamedTuple):
    """A partition, the node that opened it, and its traffic in bytes per second."""

    topic: str
    partition: int
    node_id: int
    rate: int


def busiest(
    state: MetadataImage, responses: Mapping[int, HeartbeatResponse] | None, most: int
) -> list[BusyPartition]:
    """Return the partitions with the most traffic by the nodes' responses, the busiest first."""
    rates: Counter[int] = Counter()
    for response in (responses or {}).values():
        for stream_id, rate in response.load.hottest:
            rates[stream_id] += round(rate)
    found = []
    for stream_id, rate in rates.most_common(most):
        stream = state.streams.get(stream_id)
        topic = None if stream is None else state.topic_by_id(stream.topic_id)
        if stream is not None and topic is not None and rate:
            found.append(BusyPartition(topic.name, stream.partition, stream.node_id, rate))
    return found


def _lost_log(node: NodeState) -> dict[str, Any] | None:
    lost = node.lost_log
    if lost is None:
        return None
    return {
        "log_id": lost.log_id,
        "epoch": lost.epoch,
        "at": moment(lost.time_ms),
        "partitions": lost.streams,
    }


def leads(state: MetadataImage) -> Counter[int]:
    """Count the streams that each node has open."""
    return Counter(stream.node_id for stream in state.streams.values() if stream.is_open)


def _state_of(node: NodeState, leads: int, *, silent: str, is_cordoned: bool) -> str:
    """Return the state of a node; `silent` is that of one without a response."""
    if node.is_fenced:
        return "fenced" if leads else "gone"
    if silent:
        return silent
    if node.is_draining:
        return "draining"
    return "cordoned" if is_cordoned else "live"
