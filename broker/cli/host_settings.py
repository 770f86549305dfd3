"""`lakehead settings`: the settings of a host that takes them from elsewhere.

A script of the host fetches them (`infra/terraform/modules/brokers`). These commands check them,
and restart the host's nodes with new ones while all other hosts serve.
"""

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from lakehead.broker.cli.cluster import open_cluster, open_log, run
from lakehead.broker.cli.help_page import CommandLine
from lakehead.broker.cli.nodes import leads
from lakehead.broker.cli.rolling.host_plan import Host
from lakehead.broker.cli.rolling.host_state import Expected, nodes_of
from lakehead.broker.cli.rolling.members import MIN_READY_S, Members, MinReadyOption, Waits
from lakehead.broker.setting_sources import load, without_effect
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.placement import node_commands
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.metadata.state import MetadataImage

_SERVICE = "lakehead.service"
_OF_SUPERVISOR = frozenset(
    {
        *("advertised_port", "ec2_notices", "extra_listeners", "host", "log_level"),
        *("metrics_port", "nodes", "port", "registry_port", "shutdown_timeout_ms"),
        *("table_registries", "wal"),
    }
)
"""What the supervisor reads when it starts: a rolling restart of its nodes does not change it."""

app = CommandLine(help="Check a host's settings, and restart its nodes with them.")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Settings as TOML.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="To wait for the nodes.", min=1)
]


@app.command("check")
def check(file: FileArgument) -> None:
    """Check a file of settings, with the environment, as lakehead start would read them.

    Status 0: nodes take it. Otherwise a line says why not.
    """
    read_settings(file)
    if ignored := without_effect(str(file)):
        typer.echo(f"lakehead: without effect here: {', '.join(ignored)}", err=True)


@app.command("serving")
def serving(
    file: FileArgument, timeout_s: TimeoutOption = 60, min_ready_s: MinReadyOption = MIN_READY_S
) -> None:
    """Wait until all nodes of this host serve, as the cluster's metadata has it."""
    settings = read_settings(file)
    run(_serving(settings, Waits(timeout_s=timeout_s, min_ready_s=min_ready_s)))


@app.command("roll")
def roll(
    file: FileArgument,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The settings to come.")],
    timeout_s: TimeoutOption = 600,
    min_ready_s: MinReadyOption = MIN_READY_S,
    restart: Annotated[
        str, typer.Option("--restart", metavar="COMMAND", help="Stops and starts all nodes.")
    ] = f"systemctl restart {_SERVICE}",
    reload: Annotated[
        str, typer.Option("--reload", metavar="COMMAND", help="Restarts node after node.")
    ] = f"systemctl reload {_SERVICE}",
) -> None:
    """Restart this host's nodes, so that they have the settings NEW in place of those in FILE.

    COMMAND is to put them in place. Before, the nodes are drained: an entry of the metadata log,
    which is refused unless all other hosts serve and none is drained, so of several hosts that want
    to restart one does. The only host of a cluster restarts node after node instead.
    """
    now, then = read_settings(file), read_settings(new)
    waits = Waits(timeout_s=timeout_s, min_ready_s=min_ready_s)
    run(_roll(now, then, waits, shlex.split(restart), shlex.split(reload)))


def read_settings(file: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of a file and the environment. Raises SettingsError where nodes would not
    start with them.
    """
    settings = load({}, environment, str(file))
    if settings.nodes != 1:
        node_commands(settings, {}, str(file))
    return settings


def host_of(settings: Settings) -> Host:
    """Return the host whose settings these are. Raises SettingsError."""
    if not settings.host_id:
        raise SettingsError("host.id is not given: nodes are found by it")
    count = settings.nodes or len(os.sched_getaffinity(0))
    ids = tuple(range(settings.node_id, settings.node_id + count))
    return Host(slot=settings.host_id, host_id=settings.host_id, node_ids=ids)


def other_hosts(state: MetadataImage, host: Host) -> dict[str, Expected]:
    """Return the other hosts of a cluster.

    One whose nodes are fenced and led nothing any more is gone for good, or will be back; it counts
    no more. But where a node was drained before it ended, a restart of that host is under way.
    """
    led = leads(state)
    there = {
        node.host_id
        for node in state.nodes.values()
        if not node.is_fenced or node.is_draining or led[node.node_id]
    }
    return {
        host_id: Expected(host=Host(slot=host_id, host_id=host_id), is_settled=False)
        for host_id in sorted(there - {host.host_id})
    }


def is_only_host(state: MetadataImage, host: Host) -> bool:
    """Whether no node is live but those of a host."""
    live = {node.host_id for node in state.nodes.values() if not node.is_fenced}
    return live <= {host.host_id}


def needs_restart(now: Settings, then: Settings) -> bool:
    """Whether something changes that the supervisor itself has to read."""
    names = (field.name for field in fields(Settings) if field.name in _OF_SUPERVISOR)
    return any(getattr(now, name) != getattr(then, name) for name in names)


async def _serving(settings: Settings, waits: Waits) -> None:
    async with _members(settings, waits) as members:
        await members.wait_newer(host_of(settings), {})


async def _roll(
    now: Settings,
    then: Settings,
    waits: Waits,
    restart: list[str],
    reload: list[str],
) -> None:
    async with _members(now, waits) as members:
        host = host_of(now)
        before = {node.node_id: node.epoch for node in nodes_of(members.state, [host])}
        if is_only_host(members.state, host):
            await _run_command(restart if needs_restart(now, then) else reload)
        else:
            await _drain(members, host)
            await _run_command(restart)
        await members.wait_newer(host_of(then), before)


async def _drain(members: Members, host: Host) -> None:
    try:
        others = other_hosts(members.state, host)
        await members.drain(others, [host])
        members.check_drained([host])
    except LakeheadError:
        await members.relent([host])
        raise


async def _run_command(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    if status := await process.wait():
        raise LakeheadError(f"{shlex.join(command)}: status {status}")


@asynccontextmanager
async def _members(settings: Settings, waits: Waits) -> AsyncIterator[Members]:
    store = open_cluster(settings.store_uri)
    try:
        log = await open_log(store, writer="settings")
        members = Members(log, waits)
        async with members.following():
            yield members
    finally:
        await store.close()
