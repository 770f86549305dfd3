"""`lakehead nodes` and `lakehead drain`: the nodes of a cluster, and nodes that are to lead
nothing.

Both read the metadata log in the object store, and need no particular node to be up. `nodes` also
sends a request to every node: its response shows that it lives, and its traffic. `drain` commits to
the log itself, and then nudges the nodes.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import (
    DEFAULT_PATH,
    PathOption,
    open_cluster,
    open_log,
    read_state,
    run,
)
from lakehead.broker.cli.listing import JsonOption, moment, show_rows
from lakehead.broker.cli.node_network import CommandConfigOption, node_network
from lakehead.broker.cluster.cordons import is_cordoned
from lakehead.broker.cluster.heartbeat import Heartbeat, HeartbeatResponse
from lakehead.broker.cluster.inter_broker_client import probe
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.storage.errors import NotFound, RequestRefused, SettingsError
from lakehead.storage.metadata.records import DrainNode, Record
from lakehead.storage.metadata.state import MetadataImage, NodeState

NOT_A_NODE = -1
"""The node id in a heartbeat of a process that is not a node."""
REQUEST_TIMEOUT_S = 1.0
POLL_S = 0.2

NodesArgument = Annotated[list[int], typer.Argument(metavar="NODE...", help="Ids of the nodes.")]


def list_nodes(
    path: PathOption = DEFAULT_PATH,
    as_json: JsonOption = False,
    command_config: CommandConfigOption = None,  # noqa: ARG001 - by its callback
) -> None:
    """List the nodes of a cluster: state, address, what they lead and their traffic.

    STATE is live, cordoned (live, and gets no new partitions), draining, silent (live in the
    metadata, without a response to this command), fenced (its partitions wait for the recovery of
    its log) or gone. IN and OUT are bytes per
    second. The controller has a star. LOST LOG is the last write-ahead log that an operator gave up
    with accept.log.loss: the time, the epoch in which the node wrote to it, the number of open
    partitions.
    """
    state, responses = run(_look(path))
    columns = {
        "node": "NODE",
        "controller": "",
        "epoch": "EPOCH",
        "state": "STATE",
        "address": "ADDRESS",
        "rack": "RACK",
        "host": "HOST",
        "leads": "LEADS",
        "bytes_in": "IN",
        "bytes_out": "OUT",
        "cpu": "CPU",
        "lost_log": "LOST LOG",
    }
    rows = node_rows(state, responses)
    if not as_json:
        for row in rows:
            row["controller"] = "*" if row["controller"] else ""
            row["cpu"] = None if row["cpu"] is None else f"{row['cpu']:.0%}"
            row["lost_log"] = _loss(row["lost_log"])
    show_rows(rows, columns, as_json)


async def _look(path: str) -> tuple[MetadataImage, Mapping[int, HeartbeatResponse]]:
    store = open_cluster(path)
    try:
        state = await read_state(store)
    finally:
        await store.close()
    return state, await nudge_nodes(state)


async def nudge_nodes(state: MetadataImage) -> dict[int, HeartbeatResponse]:
    """Send the end of the metadata log to every live node; return the responses that come."""
    network = node_network(state)
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
    state: MetadataImage, responses: Mapping[int, HeartbeatResponse]
) -> list[dict[str, Any]]:
    """Return the fields of each node, with `responses` to heartbeats by node id."""
    led = leads(state)
    rows = []
    for node_id, node in sorted(state.nodes.items()):
        response = responses.get(node_id)
        rows.append(
            {
                "node": node_id,
                "controller": node_id == state.controller.node_id and not node.is_fenced,
                "epoch": node.epoch,
                "state": _state_of(
                    node,
                    led[node_id],
                    responds=response is not None,
                    is_cordoned=is_cordoned(state, node_id),
                ),
                "address": f"{node.host}:{node.port}",
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


def _loss(lost: dict[str, Any] | None) -> str | None:
    if lost is None:
        return None
    return f"{lost['at']}, epoch {lost['epoch']}, {lost['partitions']} partitions"


def leads(state: MetadataImage) -> Counter[int]:
    """Count the streams that each node has open."""
    return Counter(stream.node_id for stream in state.streams.values() if stream.is_open)


def _state_of(node: NodeState, leads: int, *, responds: bool, is_cordoned: bool) -> str:
    if node.is_fenced:
        return "fenced" if leads else "gone"
    if not responds:
        return "silent"
    if node.is_draining:
        return "draining"
    return "cordoned" if is_cordoned else "live"


def drain(
    node_ids: NodesArgument,
    path: PathOption = DEFAULT_PATH,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the node lead again like any other.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when the node leads nothing any more.")
    ] = False,
    command_config: CommandConfigOption = None,  # noqa: ARG001 - by its callback
) -> None:
    """Move everything that nodes lead to the other nodes, and assign nothing to them.

    They go on running. A drain ends with --undo, or when the node starts again. Several are drained
    together, such as all of a machine, so none of them is given what another one had.
    """
    if undo and wait:
        raise SettingsError("--wait waits for a drain, and --undo ends one: give one of them")
    for node_id, left in run(_drain(path, node_ids, is_draining=not undo, wait=wait)).items():
        if undo:
            typer.echo(f"node {node_id} may lead again")
        elif left:
            plural = "s" * (left > 1)
            typer.echo(f"node {node_id} is draining: it leads {left} partition{plural} yet")
        else:
            typer.echo(f"node {node_id} is drained: it leads nothing")


async def _drain(
    path: str, node_ids: Sequence[int], *, is_draining: bool, wait: bool
) -> dict[int, int]:
    """Commit the drain; return what each node leads after it, or after the wait."""
    store = open_cluster(path)

    def plan(state: MetadataImage) -> Sequence[Record]:
        nodes = [_drainable(state, node_id) for node_id in dict.fromkeys(node_ids)]
        if is_draining:
            _check_heirs(state, node_ids)
        return [
            DrainNode(node_id=node.node_id, epoch=node.epoch, is_draining=is_draining)
            for node in nodes
            if node.is_draining != is_draining
        ]

    try:
        log = await open_log(store, writer="drain")
        state = await log.commit_with(plan)
        await nudge_nodes(state)
        while wait and any(leads(state)[node_id] for node_id in node_ids):
            await asyncio.sleep(POLL_S)
            state = await log.refresh()
            for node_id in node_ids:
                if not _drainable(state, node_id).is_draining:
                    raise RequestRefused(f"node {node_id} drains no more: it started again")
    finally:
        await store.close()
    led = leads(state)
    return {node_id: led[node_id] for node_id in node_ids}


def _drainable(state: MetadataImage, node_id: int) -> NodeState:
    node = state.nodes.get(node_id)
    if node is None:
        known = _numbers(state.nodes)
        raise NotFound(f"there is no node {node_id} in this cluster: it has {known}")
    if node.is_fenced:
        raise RequestRefused(f"node {node_id} is not live: what it led goes to others by itself")
    return node


def _check_heirs(state: MetadataImage, node_ids: Collection[int]) -> None:
    for other in state.nodes.values():
        if other.node_id not in node_ids and not other.is_fenced and not other.is_draining:
            return
    nodes = _numbers(node_ids)
    words = "is the only one that" if len(set(node_ids)) == 1 else "are the only ones that"
    raise RequestRefused(f"{nodes} {words} may lead: start another, or end the drain of one")


def _numbers(node_ids: Iterable[int]) -> str:
    return "node " + ", ".join(str(node_id) for node_id in sorted(node_ids))
