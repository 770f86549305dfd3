"""The differences between the nodes of a machine: ids and ports counted up, a slice of the WAL
each.

A node gets the flags that the user set for all, and its own on top. Environment and settings file
reach it as they reached the supervisor, so a restarted node reads them again.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lakehead.broker.configs.table_places import registries_with_own
from lakehead.broker.network.listeners import counted_up
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError

_PORT_MAX = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCommand:
    """A process to run: `arguments` are those of `lakehead`. It is a node, or named otherwise."""

    node_id: int | str
    arguments: tuple[str, ...]

    def with_port(self, port: int) -> "NodeCommand":
        """Return the same node at a port of its own: the last flag of a name counts."""
        return NodeCommand(node_id=self.node_id, arguments=(*self.arguments, f"--port={port}"))


def node_commands(
    settings: Settings, flags: Mapping[str, str | None], config: str | None
) -> tuple[NodeCommand, ...]:
    """Return the nodes of a machine, by id.

    `settings` are those of the supervisor, `flags` what of them was given as flags (None: was not),
    `config` the settings file. Raises SettingsError for what several nodes cannot share.
    """
    count = settings.nodes or len(os.sched_getaffinity(0))
    _check_ports(settings, count)
    if settings.store_uri.startswith("memory:"):
        raise SettingsError(
            f"store: {settings.store_uri} is within one process: several nodes need one that all "
            "of them reach"
        )
    wal = shared_wal(settings, count)
    given = {name: value for name, value in flags.items() if value is not None}
    commands = []
    for index in range(count):
        own = {"nodes": "1", "node.id": str(settings.node_id + index), "wal": wal}
        if settings.extra_listeners:
            own["extra.listeners"] = counted_up(settings.extra_listeners, index)
        own["registry.port"] = "-1"  # one beside all of them
        own["table.registries"] = registries_with_own(settings)
        own["ec2.notices"] = ""  # the supervisor's to watch
        for name, port in (
            ("port", settings.port),
            ("advertised.port", settings.advertised_port),
            ("metrics.port", settings.metrics_port),
        ):
            own[name] = str(port + index if port > 0 else port)
        arguments = [f"--{name}={value}" for name, value in (given | own).items()]
        if config is not None:
            arguments.append(f"--config={config}")
        commands.append(
            NodeCommand(node_id=settings.node_id + index, arguments=("start", *arguments))
        )
    return tuple(commands)


def registry_command(settings: Settings, bootstrap: str) -> NodeCommand:
    """Return the schema registry beside the nodes, whose addresses are `bootstrap`, by commas."""
    return NodeCommand(
        node_id="registry",
        arguments=(
            *("registry", f"--bootstrap-server={bootstrap}", f"--host={settings.host}"),
            *(f"--port={settings.registry_port}", f"--log-level={settings.log_level}"),
            f"--log-format={settings.log_format}",
        ),
    )


def shared_wal(settings: Settings, count: int) -> str:
    """Return the address of the WAL for each of `count` nodes: a block WAL has a slice for each.

    `wal.size` is what each node gets. A file that was made for fewer nodes grows.
    """
    uri = settings.wal or f"block:{Path(settings.data).absolute()}/wal"
    place, _, query = uri.partition("?")
    if not place.startswith("block:"):
        return uri
    options = [option for option in query.split("&") if option]
    named = {option.partition("=")[0] for option in options}
    if "slices" not in named:
        options.append(f"slices={count}")
    if "size" not in named:
        size = settings.wal_size * count
        options.append(f"size={size}")
        path = Path(place.removeprefix("block:"))
        if "grow" not in named and path.is_file() and path.stat().st_size < size:
            options.append("grow=yes")
    return f"{place}?{'&'.join(options)}"


def _check_ports(settings: Settings, count: int) -> None:
    taken: dict[int, str] = {}
    for name, first in (("port", settings.port), ("metrics.port", settings.metrics_port)):
        if first <= 0:
            continue
        last = first + count - 1
        if last > _PORT_MAX:
            raise SettingsError(f"{name}: {count} nodes from {first} on would end at port {last}")
        for port in range(first, last + 1):
            if port in taken:
                raise SettingsError(
                    f"{name}: port {port} would be taken twice, for {taken[port]} and for {name}: "
                    f"{count} nodes need {count} ports in a row for each"
                )
            taken[port] = name
    if settings.registry_port in taken:
        raise SettingsError(
            f"registry.port: port {settings.registry_port} is that of a node "
            f"({taken[settings.registry_port]}): choose another"
        )
    if settings.advertised_port + count - 1 > _PORT_MAX:
        raise SettingsError(f"advertised.port: {count} nodes do not fit above it")
