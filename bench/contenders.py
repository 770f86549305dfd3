"""The brokers that `make bench` compares: Lakehead and its peers, all started by it.

Contenders may share a server: Apache Kafka with a flush for each batch is a topic's config.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from bench.loads import Kind, Load
from bench.process import ServerProcess
from bench.tls_and_sasl import TlsAndSasl

Start = Callable[[Path, TlsAndSasl | None], ServerProcess]
"""Makes a server with its data in a folder, not started."""


def _lakehead(folder: Path, secured: TlsAndSasl | None) -> ServerProcess:
    return lakehead_server(folder, secured=secured)


def _kafka(folder: Path, secured: TlsAndSasl | None) -> ServerProcess:
    return kafka_server(folder, secured=secured)


SERVERS: dict[str, Start] = {"lakehead": _lakehead, "kafka": _kafka}


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
CONTENDERS = (LAKEHEAD, KAFKA, KAFKA_FLUSHING)
