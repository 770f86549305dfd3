"""A single-node Apache Kafka: KRaft, broker and controller in one process, in a given folder."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.apache_kafka import tools
from bench.process import ServerFailed, ServerProcess, free_port
from bench.tls_and_sasl import TlsAndSasl

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"  # any 22 characters of base64url
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Xms1g",
    "-Xmx1g",
)
"""JVM options of kafka-server-start.sh."""


def kafka_server(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    secured: TlsAndSasl | None = None,
) -> ServerProcess:
    """A Kafka broker with its data in `folder`, formatted but not started; of default settings but
    for those given. Where it is `secured`, its clients use SASL_SSL.
    """
    port, controller_port = free_port(), free_port()
    properties = folder / "server.properties"
    own, users = ({}, []) if secured is None else secured.kafka(port, controller_port)
    every = {**own, **(settings or {})}
    properties.write_text(_properties(folder / "data", port, controller_port, every))
    formatted = tools.run(
        *("kafka-storage", "format", "--cluster-id", CLUSTER_ID, "--config", str(properties)),
        *users,
    )
    if formatted.returncode != 0:
        raise ServerFailed(f"Kafka could not format {folder}: {formatted.stderr}")
    command = tools.command("kafka-server-start", str(properties), jvm=JVM)
    return ServerProcess(
        "Apache Kafka",
        command,
        port=port,
        log=folder / "kafka.log",
        client=None if secured is None else secured.client,
    )


def _properties(data: Path, port: int, controller_port: int, settings: Mapping[str, str]) -> str:
    """Kafka's defaults; only ports, folder, the needs of a single node and these are set."""
    needed = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data,
        "num.partitions": 4,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    every = {**needed, **settings}
    return "".join(f"{name}={value}\n" for name, value in every.items())


def java_version() -> str:
    """First line of `java -version`, for the report."""
    shown = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return shown.stderr.splitlines()[0] if shown.stderr else "unknown"
