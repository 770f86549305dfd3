"""The listeners of a node, by Kafka's settings: addresses to listen at, each with a name, a
security protocol, and the address that clients of it get.

`listeners` is the full form; `host` and `port` are the short one, of a single listener PLAINTEXT.
Addresses that clients get are registered with the node (`RegisterNode.endpoints`), so a client gets
those of the listener that it connected to, of every node. They may be patterns: {node.id} and
{rack} in the host, {20000+node.id} for the port, so that one text serves all nodes. Nodes talk over
`inter.broker.listener.name`.
"""

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Protocol

from immutables import Map

from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.security.security_protocol import SecurityProtocol
from lakehead.broker.settings import OVERRIDE_PREFIX, Settings
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.endpoints import Endpoint, endpoints_text, parse_endpoints
from lakehead.storage.plain_text import address_text

_PORT_MAX = 65535
_BOUND = re.compile(r"(?P<name>.*)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>\d+)")
"""Kafka's grammar, without its negative ports."""
_ADVERTISED = re.compile(
    r"(?P<name>.*)://\[?(?P<host>(?:[0-9a-zA-Z\-%._:]|\{node\.id\}|\{rack\})*)\]?:"
    r"(?:(?P<port>\d+)|\{(?P<first>\d+)\+node\.id\})"
)
_NAME = re.compile(r"[^\s,:=/]+")


class Known(Protocol):
    """A node as the metadata knows it; `lakehead.storage.metadata.state.NodeState`."""

    @property
    def node_id(self) -> int:
        """Its id."""

    @property
    def host(self) -> str:
        """The host of its listener for other nodes."""

    @property
    def port(self) -> int:
        """See `host`."""

    @property
    def rack(self) -> str | None:
        """Its zone."""

    @property
    def endpoints(self) -> str:
        """Addresses by listener; see `lakehead.storage.metadata.endpoints`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    """The pattern of the addresses that clients get. `port` is that of all nodes, or with
    `is_counted` that of node 0; 0: the port listened at.
    """

    host: str
    port: int
    is_counted: bool = False

    @property
    def is_pattern(self) -> bool:
        """Return true if nodes have different addresses by it."""
        return self.is_counted or "{" in self.host

    def address(self, node_id: int, rack: str | None) -> Address:
        """Return the address of a node."""
        host = self.host.replace("{node.id}", str(node_id)).replace("{rack}", rack or "")
        return Address(host, self.port + (node_id if self.is_counted else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listener: its name in capitals, `host` and `port` to listen at (an empty host: all
    addresses; port 0: a free one), and what clients get. Without `advertised` no client gets an
    address of it.
    """

    name: str
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    host: str = ""
    port: int = 0
    advertised: Advertised | None = None
    is_inter_broker: bool = False
    """True for the listener that nodes use between each other."""
    overrides: Mapping[str, str] = field(default_factory=Map)
    """The settings `listener.name.<name>.*`, by the rest of the name."""

    @property
    def prefix(self) -> str:
        """The beginning of the names of its own settings."""
        return f"{OVERRIDE_PREFIX}{self.name.lower()}."


class Listeners:
    """The listeners of a node, by name. Raises SettingsError."""

    def __init__(self, settings: Settings) -> None:
        protocols = _protocols(settings.listener_security_protocol_map)
        extra = _parsed("extra.listeners", _BOUND, settings.extra_listeners)
        extra_advertised = _parsed(
            "extra.advertised.listeners", _ADVERTISED, settings.extra_advertised_listeners
        )
        if extra.keys() != extra_advertised.keys():
            odd = ", ".join(sorted(extra.keys() ^ extra_advertised.keys()))
            raise SettingsError(
                f"extra.listeners and extra.advertised.listeners name the same listeners; {odd} "
                "is in one of them only"
            )
        bound = _parsed("listeners", _BOUND, listeners_of(settings))
        parsed = _parsed("advertised.listeners", _ADVERTISED, settings.advertised_listeners)
        for name in extra:
            if name in bound or name in parsed:
                raise SettingsError(f"extra.listeners: {name} is a listener already")
            # A further listener is PLAINTEXT unless the map says more.
            protocols.setdefault(name, SecurityProtocol.PLAINTEXT)
        if stray := parsed.keys() - bound.keys():
            raise SettingsError(
                f"advertised.listeners: {', '.join(sorted(stray))} is not in listeners"
            )
        has_advertised = bool(settings.advertised_listeners)
        found: dict[str, Listener] = {}
        for name, match in (bound | extra).items():
            if name not in protocols:
                raise SettingsError(
                    f"listeners: {name} has no security protocol: add {name}:SSL or another to "
                    "listener.security.protocol.map"
                )
            advertised = None
            if name in extra_advertised:
                advertised = _advertised("extra.advertised.listeners", extra_advertised[name])
            elif name in parsed:
                advertised = _advertised("advertised.listeners", parsed[name])
            elif not has_advertised:
                advertised = _advertised_as_bound(match["host"], settings, len(found))
            port = int(match["port"])
            if port > _PORT_MAX:
                raise SettingsError(f"listeners: port {port} of {name} is above {_PORT_MAX}")
            found[name] = Listener(
                name=name,
                protocol=protocols[name],
                host=match["host"],
                port=port,
                advertised=advertised,
            )
        _check_ports(found)
        between = _inter_broker_name(settings, found)
        self.all: dict[str, Listener] = {
            name: replace(
                one,
                is_inter_broker=name == between,
                overrides=_overrides(settings, one.prefix),
            )
            for name, one in found.items()
        }
        """In the order of the settings."""
        self._node_id = settings.node_id
        for one in self.all.values():
            _check_advertised(one, settings)

    @property
    def first(self) -> Listener:
        """The first of the settings."""
        return next(iter(self.all.values()))

    @property
    def inter_broker(self) -> Listener:
        """The one that nodes use between each other."""
        return next(one for one in self.all.values() if one.is_inter_broker)

    def address(self, name: str, node: Known) -> Address | None:
        """Return where a client that came by a listener reaches a node; None if the node has no
        address for it.
        """
        found = parse_endpoints(node.endpoints).get(name)
        if found is not None:
            return Address(found.host, found.port)
        if node.endpoints:
            return None
        # The node registered before nodes said more than one address.
        one = self.all.get(name)
        if one is None or one.is_inter_broker or one.advertised is None:
            return Address(node.host, node.port)
        if not one.advertised.is_pattern:
            return Address(node.host, node.port) if node.node_id == self._node_id else None
        return one.advertised.address(node.node_id, node.rack)

    def own_addresses(self, ports: Mapping[str, int], rack: str | None) -> dict[str, Address]:
        """Return this node's addresses by listener, that between nodes first; `ports` are those
        that the listeners are bound to.
        """
        found = {}
        for one in sorted(self.all.values(), key=lambda one: not one.is_inter_broker):
            if one.advertised is not None:
                host, port = one.advertised.address(self._node_id, rack)
                found[one.name] = Address(host, port or ports[one.name])
        return found

    def endpoints(self, addresses: Mapping[str, Address]) -> str:
        """Return these addresses as a registration has them."""
        return endpoints_text(
            Endpoint(name, self.all[name].protocol.value, host, port)
            for name, (host, port) in addresses.items()
        )


def listeners_of(settings: Settings) -> str:
    """Return the setting `listeners`, from its short form if it is not given."""
    return settings.listeners or f"PLAINTEXT://{address_text(settings.host, settings.port)}"


def counted_up(setting: str, listeners: str, index: int) -> str:
    """Return a setting of listeners for the `index`-th node of a machine: with its ports counted up
    where they are numbers other than 0. Raises SettingsError.
    """
    form = _ADVERTISED if "advertised" in setting else _BOUND

    def counted() -> Iterator[str]:
        for name, found in _parsed(setting, form, listeners).items():
            groups = found.groupdict()
            if groups["port"] is None:
                port = f"{{{groups['first']}+node.id}}"
            else:
                port = str(int(groups["port"]) + (index if int(groups["port"]) else 0))
            yield f"{name}://{address_text(groups['host'], port)}"

    return ",".join(counted())


def ports_of(settings: Settings) -> dict[str, int]:
    """Return the ports to listen at, by listener. Raises SettingsError."""
    return {name: one.port for name, one in Listeners(settings).all.items()}


def refuse_meta_address(setting: str, host: str) -> None:
    """Raise SettingsError if `host` is a meta-address such as 0.0.0.0, which a process can listen
    on but no client can connect to.
    """
    try:
        is_meta = ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return
    if is_meta:
        raise SettingsError(
            f"{setting}: clients and other nodes cannot connect to {host}: set the name or "
            "address by which they reach this machine"
        )


def _parsed(setting: str, form: re.Pattern[str], text: str) -> dict[str, re.Match[str]]:
    found: dict[str, re.Match[str]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = form.fullmatch(part)
        if match is None or not _NAME.fullmatch(match["name"]):
            raise SettingsError(
                f"{setting}: {part!r} is not NAME://host:port, like INTERNAL://0.0.0.0:9094; an "
                "advertised host may have {node.id} and {rack}, its port be {20000+node.id}"
            )
        name = match["name"].upper()
        if name in found:
            raise SettingsError(
                f"{setting}: {name} is named twice: each listener has a different name"
            )
        found[name] = match
    return found


def _protocols(text: str) -> dict[str, SecurityProtocol]:
    found: dict[str, SecurityProtocol] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (item.strip().upper() for item in part.rpartition(":"))
        if not name or protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise SettingsError(
                f"listener.security.protocol.map: {part!r} is not NAME:PROTOCOL, with one of "
                f"{known}"
            )
        if name in found:
            raise SettingsError(f"listener.security.protocol.map: {name} is named twice")
        found[name] = SecurityProtocol[protocol]
    return found


def _advertised(setting: str, parsed: re.Match[str]) -> Advertised:
    port = int(parsed["port"] or parsed["first"])
    if not 0 < port <= _PORT_MAX:
        raise SettingsError(
            f"{setting}: port {port} of {parsed['name']} is not from 1 to {_PORT_MAX}"
        )
    if not parsed["host"]:
        raise SettingsError(f"{setting}: {parsed['name']} has no host that clients can connect to")
    refuse_meta_address(setting, parsed["host"])
    return Advertised(host=parsed["host"], port=port, is_counted=parsed["first"] is not None)


def _advertised_as_bound(host: str, settings: Settings, index: int) -> Advertised:
    """Return what clients get where `advertised.listeners` is not given."""
    port = settings.advertised_port if index == 0 and not settings.listeners else 0
    return Advertised(host=settings.advertised_host or host or socket.getfqdn(), port=port)


def _check_advertised(one: Listener, settings: Settings) -> None:
    if one.advertised is None:
        return
    refuse_meta_address(
        "advertised.listeners" if settings.listeners else "advertised.host", one.advertised.host
    )
    port = one.advertised.address(settings.node_id, None).port
    if port > _PORT_MAX:
        raise SettingsError(
            f"advertised.listeners: {one.name} of node {settings.node_id} would be at port {port}"
        )


def _check_ports(found: Mapping[str, Listener]) -> None:
    """Refuse one port for two listeners, except of an IPv4 and an IPv6 address, as Kafka does."""
    taken: dict[int, list[Listener]] = {}
    for one in found.values():
        if one.port:
            taken.setdefault(one.port, []).append(one)
    for port, same in taken.items():
        families = {_family(one.host) for one in same}
        if len(same) > 1 and (len(same) > 2 or families != {4, 6}):
            names = " and ".join(one.name for one in same)
            raise SettingsError(f"listeners: {names} have one port, {port}")


def _family(host: str) -> int:
    try:
        return ip_address(host).version
    except ValueError:
        return 0


def _inter_broker_name(settings: Settings, found: Mapping[str, Listener]) -> str:
    """Return the name of the listener between nodes: as Kafka finds it, or the only one that it can
    be.
    """
    name = settings.inter_broker_listener_name.strip().upper()
    protocol = settings.security_inter_broker_protocol.strip().upper()
    if name and protocol:
        raise SettingsError(
            "set one of inter.broker.listener.name and security.inter.broker.protocol, not both"
        )
    setting = "inter.broker.listener.name" if name else "security.inter.broker.protocol"
    if not name and protocol:
        if protocol not in SecurityProtocol.__members__:
            raise SettingsError(f"{setting}: {protocol} is not a security protocol")
        name = protocol
    if not name:
        able = [one for one in found.values() if one.advertised is not None]
        # As in Kafka PLAINTEXT is the default, wherever it stands.
        plain = SecurityProtocol.PLAINTEXT.value
        able.sort(key=lambda one: (one.name != plain, one.protocol.is_sasl))
        if not able:
            raise SettingsError(
                "listeners: nodes talk to each other over one of them, and none has an address in "
                "advertised.listeners"
            )
        return able[0].name
    one = found.get(name)
    if one is None or one.advertised is None:
        raise SettingsError(
            f"{setting}: {name} is not a listener with an address in advertised.listeners"
        )
    return name


def _overrides(settings: Settings, prefix: str) -> Mapping[str, str]:
    return Map(
        {
            name.removeprefix(prefix): value
            for name, value in settings.listener_overrides.items()
            if name.startswith(prefix)
        }
    )
