"""`lakehead certs`: certificates for a cluster with TLS, by an authority of its own."""

import ipaddress
import json
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.broker.security.private_file import write_private_file
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError

_HOST_NAME_MAX = 253
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(\*\.)?({_LABEL}\.)*(?![0-9]+$){_LABEL}")
"""Of labels as in RFC 1123, with `_`, which names of containers have, and `*` for the first one.
The last is not a number: that is a wrong address.
"""
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the files.")]
HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        help="A name or address by which clients and nodes reach a node. May be repeated. "
        "localhost, 127.0.0.1, ::1 and this machine's name are always among them.",
    ),
]
NodeOption = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NAME", help="A node; one certificate each. May be repeated."),
]
ClientOption = Annotated[
    list[str] | None,
    typer.Option(
        "--client", metavar="NAME", help="A client; User:CN=NAME to brokers. May be repeated."
    ),
]


def certs(
    folder: FolderArgument,
    host: HostOption = None,
    node: NodeOption = None,
    client: ClientOption = None,
    days: Annotated[int, typer.Option(help="Days of validity.", min=1, max=3650)] = 365,
    secret: Annotated[
        bool,
        typer.Option(
            "--secret",
            help="Write NODE.json, too: the value of the secret from which hosts on AWS take their "
            "certificate (docs/terraform.md).",
        ),
    ] = False,
) -> None:
    """Make certificates of nodes and clients for development.

    With an authority of their own.

    Run it again to renew them: the authority in the folder stays, and nodes load the new files by
    themselves. Keys are readable by their owner only. Keep ca.key away from the nodes.
    """
    _check_hosts(host or ())
    folder = folder.expanduser().absolute()
    authority = DevelopmentCa(folder, utc(SystemClock().now_ms()), days=days)
    hosts = dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname(), *(host or ())])
    nodes = [authority.issue(one, hosts=hosts) for one in node or ["node"]]
    for path in nodes if secret else ():
        text = json.dumps(authority.secret_of(path), indent=1)
        write_private_file(path.with_suffix(".json"), f"{text}\n".encode())
        typer.echo(f"secret: {path.with_suffix('.json')}")
    for name in client or ["client"]:
        path = authority.issue(name, is_client_only=True)
        properties = path.with_suffix(".properties")
        properties.write_text(_properties(path, authority.certificate_path))
        typer.echo(f"client {name}: {properties}")
    typer.echo(f"settings of {'the node' if len(nodes) == 1 else 'each node, with its own file'}:")
    typer.echo(_settings(nodes[0], authority.certificate_path))


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if len(host) > _HOST_NAME_MAX or _HOST_NAME.fullmatch(host) is None:
                raise SettingsError(
                    f"--host {host!r} is neither a host name nor an address: give --host once for "
                    "each, without a port"
                ) from None


def _properties(keys: Path, trusted: Path) -> str:
    return "".join(
        f"{line}\n"
        for line in (
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={trusted}",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={keys}",
        )
    )


def _settings(keys: Path, trusted: Path) -> str:
    return "\n".join(
        (
            'listeners = "SSL://localhost:9093"',
            f'"ssl.keystore.location" = "{keys}"',
            f'"ssl.truststore.location" = "{trusted}"',
            '"ssl.client.auth" = "required"',
        )
    )
