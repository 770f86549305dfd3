"""`lakehead settings`: the settings of nodes, and those of a host that takes them from elsewhere.

A script of the host fetches them (`infra/terraform/modules/brokers`). These commands check them,
restart the host's nodes with new ones while all other hosts serve, and copy the host's secrets.
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

from lakehead.broker.cli.cluster import holds_cluster, open_cluster, open_log, run
from lakehead.broker.cli.help_page import CommandLine
from lakehead.broker.cli.rolling.host_plan import Host
from lakehead.broker.cli.rolling.host_state import Expected, nodes_of
from lakehead.broker.cli.rolling.members import MIN_READY_S, Members, MinReadyOption, Waits
from lakehead.broker.cli.setting_list import list_settings
from lakehead.broker.cluster.node_status import leads
from lakehead.broker.network.listeners import Listeners
from lakehead.broker.observability.event_log import configure_logs
from lakehead.broker.security.host_secrets import HostSecrets
from lakehead.broker.setting_sources import load, unknown_variables, without_effect
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.placement import node_commands
from lakehead.storage.config_providers import call_aws
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.metadata.state import MetadataImage

_SERVICE = "lakehead.service"
_OF_SUPERVISOR = frozenset(
    {
        *("advertised_listeners", "advertised_port", "ec2_notices", "extra_advertised_listeners"),
        *("extra_listeners", "host", "listeners", "log_level"),
        *("metrics_port", "nodes", "port", "shutdown_timeout_ms"),
        *("registry_host", "registry_kafka_config", "registry_port", "registry_roles"),
        *("registry_tls_cert", "registry_tls_key", "registry_tokens", "registry_users"),
        *("table_registries", "wal"),
    }
)
"""Settings that the supervisor reads at its start: a rolling restart of nodes changes none."""

app = CommandLine(help="List and search settings; check and roll a host's.")
app.command("list")(list_settings)

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
    for line in unknown_variables(os.environ):
        typer.echo(f"lakehead: {line}", err=True)
    if ignored := without_effect(str(file)):
        typer.echo(f"lakehead: without effect here: {', '.join(ignored)}", err=True)


@app.command("secrets")
def secrets(
    file: FileArgument,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder for the copies, in memory.")
    ],
    prefix: Annotated[
        str,
        typer.Option("--prefix", help="Beginning of the names of the secrets, before /tls."),
    ],
    region: Annotated[str, typer.Option("--region", help="AWS Region of the secrets.")],
    admin: Annotated[
        str, typer.Option("--admin", metavar="USER", help="Name of the first user.")
    ] = "admin",
) -> None:
    """Copy this host's secrets from AWS Secrets Manager to files, for nodes with the settings FILE.

    host.pem and ca.pem are from PREFIX/tls, and are written if nodes would accept the certificate
    at their address; nodes.properties names both for --command-config of this host's commands.
    first-admin is from PREFIX/first-admin, as long as there is no cluster yet.
    Nodes load new certificates by themselves. Status 0: nodes can start, by the last good copies
    if a secret is bad or out of reach. Otherwise an event names the secret that has to get a value.
    """
    settings = read_settings(file)
    configure_logs(settings.log_level, log_format=settings.log_format)

    def read(name: str) -> str:
        response = call_aws("secretsmanager", region, "get_secret_value", {"SecretId": name})
        return str(response.get("SecretString", ""))

    copies = HostSecrets(folder, prefix, read)
    is_ready = copies.update_tls(_node_address(settings))
    if _has_cluster(settings, folder):
        copies.remove_admin()
    else:
        is_ready &= copies.update_admin(admin)
    if not is_ready:
        raise typer.Exit(1)


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
    """Return true if no node is live but those of a host."""
    live = {node.host_id for node in state.nodes.values() if not node.is_fenced}
    return live <= {host.host_id}


def needs_restart(now: Settings, then: Settings) -> bool:
    """Return true if a setting changes that the supervisor itself reads."""
    names = (field.name for field in fields(Settings) if field.name in _OF_SUPERVISOR)
    return any(getattr(now, name) != getattr(then, name) for name in names)


def _node_address(settings: Settings) -> str:
    """Return the host by which other nodes reach the nodes of this one."""
    listener = Listeners(settings).inter_broker
    if listener.advertised is None:
        return settings.advertised_host
    return listener.advertised.address(settings.node_id, settings.broker_rack or None).host


def _has_cluster(settings: Settings, folder: Path) -> bool:
    """Return true if the store has a cluster, which is noted: a cluster does not go away."""
    note = folder / "cluster-exists"
    if not note.exists():
        if not run(holds_cluster(settings.store_address)):
            return False
        note.touch()
    return True


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
    store = open_cluster(settings.store_address)
    try:
        log = await open_log(store, writer="settings")
        members = Members(log, waits)
        async with members.following():
            yield members
    finally:
        await store.close()
