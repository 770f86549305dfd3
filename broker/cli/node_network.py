"""Connections of commands to nodes. Nodes that talk by TLS take them from a client with a
certificate: `--command-config` names its settings, in a file as Kafka's own tools have it. On a
listener with SASL a command authenticates as nodes do, by the secret that the metadata have.
"""

import os
import random
import ssl
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lakehead.broker.cli.cluster import COMMAND_CONFIG
from lakehead.broker.cluster.inter_broker_client import PeerNetwork, TcpNetwork
from lakehead.broker.cluster.sasl_network import SaslNetwork
from lakehead.broker.network.listeners import Listeners
from lakehead.broker.network.tls_contexts import TlsContexts
from lakehead.broker.security.key_store import client_context, load_material
from lakehead.broker.security.security_protocol import SecurityProtocol
from lakehead.broker.settings import Settings
from lakehead.storage.config_providers import ConfigProviders, parse_properties
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.endpoints import parse_endpoints
from lakehead.storage.metadata.state import MetadataImage

_COMMAND_ID = 2**31 - 1
"""The id by which a command authenticates to nodes: the last one, which no node should have."""
_MECHANISM = "SCRAM-SHA-512"  # nodes take each other by any SCRAM mechanism
_CERTIFICATES = ("ssl.keystore.location", "ssl.keystore.key")
"""Settings of a client that give it a certificate, of which it needs one."""
_DEFAULTS = {
    "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
}


def _choose(file: str | None) -> str | None:
    if file:
        os.environ[COMMAND_CONFIG] = file  # commands that this one runs get it, too
    return file


CommandConfigOption = Annotated[
    str | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar=COMMAND_CONFIG,
        callback=_choose,
        help="Settings of a Kafka client with TLS (client.properties), for nodes that talk by TLS.",
    ),
]


def node_network(state: MetadataImage) -> PeerNetwork | None:
    """Return the network to the nodes of a cluster; None, and a line on standard error, where they
    talk by TLS and no certificate for it is named. Raises SettingsError.
    """
    protocols = _protocols(state)
    network = _tcp_network(protocols)
    if network is None or not any(protocol.is_sasl for protocol in protocols):
        return network
    return _authenticated(network, _COMMAND_ID, _MECHANISM, state)


def own_network(settings: Settings, state: MetadataImage) -> PeerNetwork:
    """Return the network by which a node with these settings reaches others. Raises
    SettingsError.
    """
    listeners = Listeners(settings)
    between = listeners.inter_broker
    contexts = TlsContexts(listeners.all.values(), settings)
    network = TcpNetwork(partial(contexts.client_context, between.name))
    if not between.protocol.is_sasl:
        return network
    mechanism = settings.sasl_mechanism_inter_broker_protocol
    return _authenticated(network, settings.node_id, mechanism, state)


def _authenticated(
    network: TcpNetwork, node_id: int, mechanism: str, state: MetadataImage
) -> SaslNetwork:
    authenticated = SaslNetwork(network, node_id, mechanism, random.SystemRandom())
    authenticated.secret = lambda: state.node_secret
    return authenticated


def _tcp_network(protocols: Collection[SecurityProtocol]) -> TcpNetwork | None:
    file = os.environ.get(COMMAND_CONFIG)
    if not any(protocol.is_tls for protocol in protocols):
        return TcpNetwork()
    if not file:
        _report(
            "nodes of this cluster talk by TLS: name the settings of a client with a certificate "
            f"by --command-config ({_CERTIFICATES[0]}), else nodes are not reached"
        )
        return None
    given = _client_settings(Path(file))
    context = _context(Path(file), given)
    if SecurityProtocol.SSL in protocols and not any(given.get(name) for name in _CERTIFICATES):
        _report(
            f"{file} names no certificate ({_CERTIFICATES[0]}), and nodes of this cluster let in "
            "none without: they are not reached"
        )
        return None
    return TcpNetwork(lambda: context)


_reported: set[str] = set()


def _report(line: str) -> None:
    """Write a line on standard error, once: `top` looks again and again."""
    if line not in _reported:
        _reported.add(line)
        typer.echo(f"lakehead: {line}", err=True)


def client_tls(file: Path) -> ssl.SSLContext:
    """Return the context of a client by a file of its settings. Raises SettingsError."""
    return _context(file, _client_settings(file))


def _client_settings(file: Path) -> dict[str, str]:
    """Return the settings in a client's file, with references replaced. Raises SettingsError."""
    try:
        given = parse_properties(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"cannot read {file}: {reason}") from None
    providers = ConfigProviders(os.environ)
    return {name: str(providers.resolved(name, value)) for name, value in given.items()}


def _context(file: Path, found: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context of a client with the settings in a file. Raises SettingsError."""
    protocol = found.get("security.protocol", "SSL").upper()
    if protocol not in SecurityProtocol.__members__ or not SecurityProtocol[protocol].is_tls:
        raise SettingsError(f"{file}: security.protocol is {protocol}, and nodes talk by SSL")

    def value(name: str) -> str:
        return found.get(name, _DEFAULTS.get(name, ""))

    try:
        return client_context(load_material(value), value)
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from None


def _protocols(state: MetadataImage) -> set[SecurityProtocol]:
    """Return the protocols by which live nodes talk to others."""
    found = set()
    for node in state.nodes.values():
        between = next(iter(parse_endpoints(node.endpoints).values()), None)
        if not node.is_fenced and between is not None:
            protocol = SecurityProtocol.__members__.get(between.protocol)
            if protocol is not None:
                found.add(protocol)
    return found
