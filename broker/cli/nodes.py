"""`lakehead nodes` and `lakehead drain`: the nodes of a cluster, and nodes that are to lead
nothing.

Both read the metadata log in the object store, and need no particular node to be up. `nodes` also
sends a request to every node: its response shows that it lives, and its traffic. `drain` commits to
the log itself, and then nudges the nodes.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
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
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.broker.cli.node_network import CommandConfigOption, node_network, own_network
from lakehead.broker.cli.progress import waiting
from lakehead.broker.cluster.heartbeat import HeartbeatResponse
from lakehead.broker.cluster.node_status import leads, node_rows, request_heartbeats
from lakehead.broker.settings import Settings
from lakehead.storage.errors import NotFound, RequestRefused, SettingsError
from lakehead.storage.metadata.records import DrainNode, Record
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.plain_text import address_text

POLL_S = 0.2

Responses = Mapping[int, HeartbeatResponse]
"""Responses of nodes to heartbeats, by node id."""

NodesArgument = Annotated[list[int], typer.Argument(metavar="NODE...", help="Ids of the nodes.")]


def list_nodes(
    path: PathOption = DEFAULT_PATH,
    as_json: JsonOption = False,
    command_config: CommandConfigOption = None,  # noqa: ARG001 - by its callback
) -> None:
    """List the nodes of a cluster, their state and traffic.

    STATE is live, cordoned (live, and gets no new partitions), draining, silent (live in the
    metadata, without a response to this command), unknown (live in the metadata, and this command
    has no certificate to reach it), fenced (its partitions wait for the recovery of its log) or
    gone. IN and OUT are bytes per second. The controller has a star. LOST LOG is the last
    write-ahead log that an operator gave up with accept.log.loss: the time, the epoch in which the
    node wrote to it, the number of open partitions.
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


async def _look(path: str) -> tuple[MetadataImage, Responses | None]:
    store = open_cluster(path)
    try:
        state = await read_state(store)
    finally:
        await store.close()
    return state, await nudge_nodes(state)


async def nudge_nodes(state: MetadataImage, settings: Settings | None = None) -> Responses | None:
    """Send the end of the metadata log to every live node; return the responses that come. None:
    nodes cannot be reached from here. With `settings`, as a node with these would.
    """
    network = node_network(state) if settings is None else own_network(settings, state)
    return None if network is None else await request_heartbeats(network, state)


async def responding_node(state: MetadataImage) -> str:
    """Return, in words, that a node of these metadata responds; empty if none does, or if nodes
    cannot be reached from here. One at the same address that was started by other metadata is none.
    """
    for node_id, response in sorted((await nudge_nodes(state) or {}).items()):
        node = state.nodes[node_id]
        if response.incarnation == node.incarnation:
            return f"node {node_id} responds at {address_text(node.host, node.port)}"
    return ""


def _loss(lost: dict[str, Any] | None) -> str | None:
    if lost is None:
        return None
    return f"{lost['at']}, epoch {lost['epoch']}, {lost['partitions']} partitions"


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
    """Move all that nodes lead to the other nodes.

    Nothing is assigned to them.

    They go on running. A drain ends with --undo, or when the node starts again. Several are drained
    together, such as all of a machine, so none of them is given what another one had.
    """
    if undo and wait:
        raise SettingsError("--wait waits for a drain, and --undo ends one: give one of them")
    with waiting(f"draining {_numbers(node_ids)}") if wait else nullcontext():
        led = run(_drain(path, node_ids, is_draining=not undo, wait=wait))
    for node_id, left in led.items():
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
    numbers = sorted(set(node_ids))
    return f"node{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
