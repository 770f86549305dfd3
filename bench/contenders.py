"""The brokers that `make bench` compares: Lakehead and its peers, all started by it.

Contenders may share a server: Apache Kafka with a flush for each batch is a topic's config.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from bench.loads import Kind, Load
from bench.maven import MissingTool
from bench.process import ServerProcess, free_port
from bench.s3_server import running_server
from bench.tansu import tansu_server
from bench.tls_and_sasl import TlsAndSasl

Start = Callable[[Path, TlsAndSasl | None], AbstractContextManager[ServerProcess]]
"""Runs a server with its data in a folder within a `with`. Raises MissingTool."""


def _lakehead(folder: Path, secured: TlsAndSasl | None) -> ServerProcess:
    return lakehead_server(folder, secured=secured, metrics_port=free_port())


@contextmanager
def _lakehead_s3(folder: Path, secured: TlsAndSasl | None) -> Iterator[ServerProcess]:
    with running_server(folder / "s3") as s3:
        server = lakehead_server(
            folder,
            *("--store", f"{s3.uri}/bench", "--wal", "object:"),
            environment=s3.environment,
            secured=secured,
            metrics_port=free_port(),
        )
        with server:
            yield server


@contextmanager
def _tansu(folder: Path, secured: TlsAndSasl | None) -> Iterator[ServerProcess]:
    if secured is not None:
        raise MissingTool("Tansu is measured without TLS alone")
    with running_server(folder / "s3") as s3, tansu_server(folder, s3) as server:
        yield server


def _kafka(folder: Path, secured: TlsAndSasl | None) -> ServerProcess:
    return kafka_server(folder, secured=secured)


SERVERS: dict[str, Start] = {
    "lakehead": _lakehead,
    "lakehead-s3": _lakehead_s3,
    "kafka": _kafka,
    "tansu": _tansu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server, and the topics that it is measured with."""

    key: str
    name: str
    server: str
    """Its key in SERVERS."""
    topic_config: Mapping[str, str] = field(default_factory=dict)
    kinds: frozenset[Kind] = frozenset(Kind)
    """Loads that it takes part in."""
    volume: float = 1.0
    """Of the bytes of a run: a slow one moves fewer in the same time."""
    by_default: bool = True
    """Part of a run without a choice of contenders."""
    sets_full_rate: bool = True
    """Paced loads are a share of the lowest full rate of these."""

    def takes(self, load: Load) -> bool:
        """Return true if it takes part in a load."""
        return load.kind in self.kinds


LAKEHEAD = Contender(key="lakehead", name="Lakehead", server="lakehead")
KAFKA = Contender(key="kafka", name="Kafka", server="kafka")
KAFKA_FLUSHING = Contender(
    key="kafka-flush",
    name="Kafka, flush.messages=1",
    server="kafka",
    topic_config={"flush.messages": "1"},
    kinds=frozenset({Kind.PRODUCE, Kind.PACED, Kind.LATENCY, Kind.TRANSACTIONS, Kind.TAIL}),
    volume=0.25,
    sets_full_rate=False,
)
LAKEHEAD_S3 = Contender(
    key="lakehead-s3",
    name="Lakehead, object WAL",
    server="lakehead-s3",
    by_default=False,
    sets_full_rate=False,
)
TANSU = Contender(
    key="tansu",
    name="Tansu on S3",
    server="tansu",
    volume=0.25,
    by_default=False,
    sets_full_rate=False,
)
CONTENDERS = (LAKEHEAD, KAFKA, KAFKA_FLUSHING, LAKEHEAD_S3, TANSU)
