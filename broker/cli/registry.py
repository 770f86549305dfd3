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
    int, typer.Option(min=1, help="Of the topic when it is made; of other clusters than ours.")
]
KafkaConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings of librdkafka, name=value a line: SASL, TLS."),
]
UsersOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File of permitted users, name:password a line. None: all clients."
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
    kafka_config: KafkaConfigOption = None,
    users: UsersOption = None,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    timeout_ms: TimeoutOption = 20_000,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = LOG_FORMATS[0],
) -> None:
    """Serve a schema registry with Confluent's REST interface, and keep running until Ctrl-C or
    SIGTERM.

    Schemas are in a compacted topic of the cluster, so any number of registries may serve it.
    """
    from lakehead.connectors.schema_registry.server import run
    from lakehead.connectors.schema_registry.settings import (
        RegistrySettings,
        read_client_settings,
        read_users,
    )

    if is_supervised(os.environ):
        stop_with_supervisor(os.environ)
    configure_logs(log_level, log_format=log_format)
    client = {} if kafka_config is None else read_client_settings(kafka_config)
    settings = RegistrySettings(
        client={**client, "bootstrap.servers": bootstrap},
        topic=topic,
        replication_factor=replication_factor,
        host=host,
        port=port,
        timeout_ms=timeout_ms,
        users={} if users is None else read_users(users),
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    scheme = "https" if tls_cert else "http"

    def announce(address: str) -> None:
        typer.echo(f"lakehead is ready at {scheme}://{address}, schemas in topic {topic}")

    run(settings, on_ready=announce)
