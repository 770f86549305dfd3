"""`lakehead top`: the nodes of a cluster and its busiest partitions, live in a terminal."""

import asyncio
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, open_cluster, open_log, run
from lakehead.broker.cli.listing import output_console
from lakehead.broker.cli.node_network import CommandConfigOption
from lakehead.broker.cli.nodes import Responses, nudge_nodes
from lakehead.broker.cluster.node_status import busiest, node_rows
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.plain_text import moment, size_text

_PARTITIONS_SHOWN = 15
_NODES = {
    "node": "NODE",
    "state": "STATE",
    "address": "ADDRESS",
    "rack": "RACK",
    "leads": "LEADS",
    "bytes_in": "IN/S",
    "bytes_out": "OUT/S",
    "cpu": "CPU",
}


def top(
    path: PathOption = DEFAULT_PATH,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Seconds between looks.")
    ] = 2.0,
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, metavar="N", help="Look N times, and end."),
    ] = None,
    command_config: CommandConfigOption = None,  # noqa: ARG001 - by its callback
) -> None:
    """Show the nodes and the busiest partitions, live.

    Reads the metadata log and sends a heartbeat to each node. Into a pipe it writes one look after
    the other.
    """
    run(_watch(path, interval, count))


async def _watch(path: str, interval_s: float, count: int | None) -> None:
    console = output_console()
    store = open_cluster(path)
    try:
        log = await open_log(store, writer="reader")
        state = log.state
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            looks = 0
            while True:
                frame = _frame(state, await nudge_nodes(state), SystemClock().now_ms())
                if console.is_terminal:
                    live.update(frame, refresh=True)
                else:
                    console.print(frame)
                looks += 1
                if looks == count:
                    return
                await asyncio.sleep(interval_s)
                state = await log.refresh()
    finally:
        await store.close()


def _frame(state: MetadataImage, responses: Responses | None, now_ms: int) -> Group:
    stored = sum(item.size for item in state.objects.values())
    head = (
        f"cluster {state.cluster_id}  {moment(now_ms)[:19]} UTC  topics {len(state.topics)}  "
        f"partitions {len(state.streams)}  objects {len(state.objects)}, {size_text(stored)}"
    )
    nodes = Table(box=None, pad_edge=False, header_style="bold")
    for field, heading in _NODES.items():
        is_text = field in ("state", "address", "rack")
        nodes.add_column(heading, justify="left" if is_text else "right")
    for row in node_rows(state, responses):
        nodes.add_row(*(_cell(field, row[field]) for field in _NODES))
    return Group(Text(head), Text(), nodes, Text(), _busiest(state, responses))


def _cell(field: str, value: Any) -> str:
    if value is None:
        return "-"
    if field in ("bytes_in", "bytes_out"):
        return size_text(value)
    return f"{value:.0%}" if field == "cpu" else str(value)


def _busiest(state: MetadataImage, responses: Responses | None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("BUSIEST PARTITIONS")
    table.add_column("LEADER", justify="right")
    table.add_column("BYTES/S", justify="right")
    for one in busiest(state, responses, _PARTITIONS_SHOWN):
        name = f"{one.topic}-{one.partition}"
        table.add_row(name, str(one.node_id), size_text(one.rate))
    return table
