"""The differences between the nodes of a machine: ids and ports counted up, a slice of the WAL
each.

A node gets the flags that the user set for all, and its own on top. Environment and settings file
reach it as they reached the supervisor, so a restarted node reads them again.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lakehead.broker.configs.table_places import own_registry, registries_with_own
from lakehead.broker.network.listeners import counted_up, ports_of
from lakehead.broker.settings import OVERRIDE_PREFIX, Settings
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
        for name, listeners in (
            ("listeners", settings.listeners),
            ("advertised.listeners", settings.advertised_listeners),
            ("extra.listeners", settings.extra_listeners),
            ("extra.advertised.listeners", settings.extra_advertised_listeners),
        ):
            if listeners:
                own[name] = counted_up(name, listeners, index)
        own["registry.port"] = "-1"  # one beside all of them
        own["table.registries"] = registries_with_own(settings)
        own["console.registry"] = settings.console_registry or own_registry(settings)
        own["ec2.notices"] = ""  # the supervisor's to watch
        for name, port in (
            ("port", settings.port),
            ("advertised.port", settings.advertised_port),
            ("metrics.port", settings.metrics_port),
        ):
            own[name] = str(port + index if port > 0 else port)
        arguments = [_argument(name, value) for name, value in (given | own).items()]
        if config is not None:
            arguments.append(f"--config={config}")
        commands.append(
            NodeCommand(node_id=settings.node_id + index, arguments=("start", *arguments))
        )
    return tuple(commands)


def _argument(name: str, value: str) -> str:
    is_override = name.startswith(OVERRIDE_PREFIX)
    return f"--override={name}={value}" if is_override else f"--{name}={value}"


def registry_command(settings: Settings, bootstrap: str) -> NodeCommand:
    """Return the schema registry beside the nodes, whose addresses are `bootstrap`, by commas."""
    is_guarded = settings.registry_tls_cert and (
        settings.registry_users or settings.registry_tokens
    )
    host = settings.registry_host or (settings.host if is_guarded else "127.0.0.1")
    files = {
        "users": settings.registry_users,
        "tokens": settings.registry_tokens,
        "roles": settings.registry_roles,
        "tls-cert": settings.registry_tls_cert,
        "tls-key": settings.registry_tls_key,
        "command-config": settings.registry_kafka_config,
    }
    return NodeCommand(
        node_id="registry",
        arguments=(
            *("registry", f"--bootstrap-server={bootstrap}", f"--host={host}"),
            *(f"--port={settings.registry_port}", f"--log-level={settings.log_level}"),
            f"--log-format={settings.log_format}",
            *(f"--{name}={file}" for name, file in files.items() if file),
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
    firsts = [("metrics.port", settings.metrics_port)]
    for listener, first in ports_of(settings).items():
        firsts.insert(-1, ("port" if first == settings.port else listener, first))
    for name, first in firsts:
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
