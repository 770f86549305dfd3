"""Further addresses that a node listens at, for clients that reach it another way: by a PrivateLink
endpoint, a load balancer of their zone, from another network.

As with Kafka's `advertised.listeners`, a client gets the addresses of the listener that it
connected to. They follow from a node's id and rack by one pattern for all nodes, so no node needs a
report of those of another. Nodes talk over the main listener, `host` and `port`.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError

MAIN = "PLAINTEXT"
_LISTENER = re.compile(r"(?P<name>[A-Z][A-Z0-9_-]*)://(?P<host>[^:/\s]*):(?P<port>\d+)")
_ADVERTISED = re.compile(
    r"(?P<name>[A-Z][A-Z0-9_-]*)://(?P<host>[^:/\s]+):"
    r"(?:(?P<port>\d+)|\{(?P<first>\d+)\+node\.id\})"
)
_PLACEHOLDERS = ("{node.id}", "{rack}")
_PORT_MAX = 65535


class Known(Protocol):
    """A node as the metadata knows it; `lakehead.storage.metadata.state.NodeState`."""

    @property
    def node_id(self) -> int:
        """Its id."""

    @property
    def host(self) -> str:
        """The host of its main listener."""

    @property
    def port(self) -> int:
        """See `host`."""

    @property
    def rack(self) -> str | None:
        """Its zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A further address: `host` and `port` to listen at, and the pattern of the addresses that
    clients get.
    """

    name: str
    host: str
    port: int
    host_pattern: str
    advertised_port: int
    """Of all nodes, or with `is_counted` of node 0."""
    is_counted: bool

    def address(self, node: Known) -> Address:
        """Return where clients of this listener reach a node."""
        host = self.host_pattern.replace("{node.id}", str(node.node_id))
        host = host.replace("{rack}", node.rack or "")
        return Address(host, self.advertised_port + (node.node_id if self.is_counted else 0))


class Listeners:
    """The further listeners of a node, by name. Raises SettingsError."""

    def __init__(self, settings: Settings) -> None:
        bound = _parsed("extra.listeners", _LISTENER, settings.extra_listeners)
        told = _parsed(
            "extra.advertised.listeners", _ADVERTISED, settings.extra_advertised_listeners
        )
        if bound.keys() != told.keys():
            odd = ", ".join(sorted(bound.keys() ^ told.keys()))
            raise SettingsError(
                f"extra.listeners and extra.advertised.listeners name the same listeners; {odd} "
                "is in one of them only"
            )
        self.all = {name: _listener(name, bound[name], told[name]) for name in bound}
        ports = [settings.port, *(one.port for one in self.all.values())]
        if len({*ports}) < len(ports):
            raise SettingsError("extra.listeners: two listeners of a node have one port")
        for one in self.all.values():
            port = one.advertised_port + settings.node_id
            if one.is_counted and port > _PORT_MAX:
                raise SettingsError(
                    f"extra.advertised.listeners: {one.name} of node {settings.node_id} would be "
                    f"at port {port}"
                )

    def address(self, name: str, node: Known) -> Address:
        """Return where a client that came by a listener reaches a node."""
        one = self.all.get(name)
        return Address(node.host, node.port) if one is None else one.address(node)


def counted_up(listeners: str, index: int) -> str:
    """Return the setting `extra.listeners` of the `index`-th node of a machine. Raises
    SettingsError.
    """
    found = _parsed("extra.listeners", _LISTENER, listeners)
    return ",".join(
        f"{name}://{one['host']}:{int(one['port']) + index}" for name, one in found.items()
    )


def _parsed(setting: str, form: re.Pattern[str], text: str) -> dict[str, re.Match[str]]:
    found: dict[str, re.Match[str]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = form.fullmatch(part)
        if match is None:
            raise SettingsError(
                f"{setting}: {part!r} is not NAME://host:port, like PRIVATE://0.0.0.0:9192; a host "
                "that clients are told may have {node.id} and {rack}, its port be {20000+node.id}"
            )
        if match["name"] == MAIN or match["name"] in found:
            raise SettingsError(
                f"{setting}: {match['name']} is named twice: {MAIN} is host and port, and each "
                "further listener has a name of its own"
            )
        found[match["name"]] = match
    return found


def _listener(name: str, bound: re.Match[str], told: re.Match[str]) -> Listener:
    rest = told["host"]
    for placeholder in _PLACEHOLDERS:
        rest = rest.replace(placeholder, "")
    if "{" in rest or "}" in rest:
        raise SettingsError(
            f"extra.advertised.listeners: {told['host']!r} has another placeholder than "
            f"{' and '.join(_PLACEHOLDERS)}"
        )
    port = int(told["port"] or told["first"])
    if not 0 < int(bound["port"]) <= _PORT_MAX or not 0 < port <= _PORT_MAX:
        raise SettingsError(f"extra.listeners: a port of {name} is not from 1 to {_PORT_MAX}")
    return Listener(
        name=name,
        host=bound["host"],
        port=int(bound["port"]),
        host_pattern=told["host"],
        advertised_port=port,
        is_counted=told["first"] is not None,
    )
