"""`lakehead registry`: a schema registry over the cluster's own topic, in the foreground."""

import os
from pathlib import Path
from typing import Annotated

import typer

from lakehead.broker.observability.event_log import LOG_FORMATS, configure_logs
from lakehead.broker.supervisor.lifeline import is_supervised, stop_with_supervisor

_BOOTSTRAP = "127.0.0.1:9092"


BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap",
        "-b",
        metavar="HOST:PORT,...",
        envvar="LAKEHEAD_REGISTRY_BOOTSTRAP",
        help="Brokers of the cluster that holds the schemas.",
    ),
]
HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
]
TopicOption = Annotated[str, typer.Option(help="Topic of the schemas; made if there is none.")]
ReplicationOption = Annotated[
    int,
    typer.Option(min=1, help="Replication factor of a new topic of schemas. Lakehead ignores it."),
]
CommandConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        "--kafka-config",
        metavar="FILE",
        help="Settings of a Kafka client, name=value a line: SASL and TLS by the names of Java's "
        "clients, or by librdkafka's.",
    ),
]
UsersOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File of permitted users, name:password a line. None: all clients."
    ),
]
TokensOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File of permitted users, name:token a line, by Bearer."),
]
RolesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of roles, name:role:subjects a line, with the role read, write or admin, and "
        "subjects as a name or as prefix*. None: each user has all roles.",
    ),
]
CertificateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate in PEM: serves https.")
]
KeyOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its key in PEM, if the file has none.")
]
TimeoutOption = Annotated[
    int, typer.Option(min=1000, metavar="MS", help="Longest wait for a response of the cluster.")
]
LogLevelOption = Annotated[
    str,
    typer.Option(metavar="debug|info|warning|error", help="Least severe events that are logged."),
]
LogFormatOption = Annotated[
    str, typer.Option(metavar="|".join(LOG_FORMATS), help="Form of the log's lines.")
]


def registry(
    bootstrap: BootstrapOption = _BOOTSTRAP,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8081,
    topic: TopicOption = "_schemas",
    replication_factor: ReplicationOption = 1,
    command_config: CommandConfigOption = None,
    users: UsersOption = None,
    tokens: TokensOption = None,
    roles: RolesOption = None,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    timeout_ms: TimeoutOption = 20_000,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = LOG_FORMATS[0],
) -> None:
    """Serve a schema registry, until Ctrl-C or SIGTERM.

    It has Confluent's REST interface.

    Schemas are in a compacted topic of the cluster, so any number of registries may serve it.
    """
    from lakehead.connectors.kafka_client_config import read_client_config
    from lakehead.connectors.schema_registry.access import Access
    from lakehead.connectors.schema_registry.server import run
    from lakehead.connectors.schema_registry.settings import RegistrySettings

    if is_supervised(os.environ):
        stop_with_supervisor(os.environ)
    configure_logs(log_level, log_format=log_format)
    client = {} if command_config is None else read_client_config(command_config)
    settings = RegistrySettings(
        client={**client, "bootstrap.servers": bootstrap},
        topic=topic,
        replication_factor=replication_factor,
        host=host,
        port=port,
        timeout_ms=timeout_ms,
        access=Access(users=users, tokens=tokens, roles=roles),
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    scheme = "https" if tls_cert else "http"

    def announce(address: str) -> None:
        typer.echo(f"lakehead is ready at {scheme}://{address}, schemas in topic {topic}")

    run(settings, on_ready=announce)
