"""A running cluster goes from PLAINTEXT to SASL_SSL by three rolling restarts: listeners are added,
nodes move to one of their own, PLAINTEXT is removed. Clients are served in every phase.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.process import ServerProcess, free_port
from lakehead.broker.cli.cluster import load_state, run
from lakehead.broker.cluster.node_status import leads
from lakehead.storage.metadata.endpoints import parse_endpoints
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.forked_server import forked_server
from tests.support.secure_cluster import Rule, SecureCluster, add_password, add_user
from tests.support.traffic import (
    IDEMPOTENT,
    QUICK_RECONNECT,
    ProducerThread,
    create_topic,
    new_consumer,
    read_log,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NODES, TOPIC, PARTITIONS, LIMIT_S = 3, "t", 6, 60.0
FLAGS = (
    *("--wal.size", "64m", "--cache.size", "16m", "--metadata.poll.ms", "50"),
    *("--offsets.topic.num.partitions", "2", "--transaction.state.log.num.partitions", "6"),
    *("--no-maintain", "--broker.session.timeout.ms", "10000"),
)
PLAIN: Mapping[str, str] = {}
QUOTAS = {"producer_byte_rate": 1e9}
HOST = "127.0.0.1"


class Member:
    """One node on its own ports, over many lives."""

    def __init__(self, folder: Path, node_id: int, secure: SecureCluster) -> None:
        self.node_id = node_id
        self.ports = {name: free_port() for name in ("PLAINTEXT", "CLIENTS", "NODES")}
        self._folder = folder / str(node_id)
        self._folder.mkdir()
        self._store = folder / "store"
        self._secure = secure
        self._server: ServerProcess | None = None

    @property
    def log(self) -> str:
        """All that it printed in all its lives."""
        return (self._folder / "lakehead.log").read_text()

    def start(self, phase: Mapping[str, str]) -> None:
        """Start it with the listeners of a phase, and wait until it listens."""
        names = phase["listeners"].split(",")
        settings = {
            "node.id": str(self.node_id),
            "store": f"file:{self._store}",
            "wal": f"block:{self._folder}/wal",
            "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL,NODES:SSL"),
            "ssl.keystore.location": str(self._secure.folder / "node.pem"),
            "ssl.truststore.location": str(self._secure.authority),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            **phase,
            "listeners": ",".join(f"{name}://{HOST}:{self.ports[name]}" for name in names),
        }
        flags = [text for name, value in settings.items() for text in (f"--{name}", value)]
        self._server = forked_server(self._folder, *FLAGS, *flags, port=self.ports[names[0]])
        self._server.start()

    def stop(self) -> None:
        assert self._server is not None
        assert self._server.stop() == 0

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()


AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
FIRST = {"listeners": "PLAINTEXT"}
ADDED = {
    "listeners": "PLAINTEXT,CLIENTS,NODES",
    "inter.broker.listener.name": "PLAINTEXT",
    "super.users": "User:admin;User:ANONYMOUS",
    **AUTHORIZER,
}
MOVED = ADDED | {"inter.broker.listener.name": "NODES"}
CLOSED = MOVED | {"listeners": "CLIENTS,NODES", "super.users": "User:admin"}
RULES = (
    Rule("TOPIC", TOPIC, "LITERAL", ("READ", "WRITE")),
    Rule("TOPIC", "secure-committed", "LITERAL", ("READ", "WRITE")),
    Rule("TRANSACTIONAL_ID", "secure-", "PREFIXED", ("WRITE", "DESCRIBE")),
    Rule("GROUP", "reader", "LITERAL", ("READ",)),
)


class Cluster:
    """Three nodes on one store."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.secure = SecureCluster.make(folder / "ca", [HOST])
        self.nodes = [Member(folder, node_id, self.secure) for node_id in range(NODES)]

    def bootstrap(self, listener: str) -> str:
        return ",".join(f"{HOST}:{node.ports[listener]}" for node in self.nodes)

    def wait_together(self) -> None:
        """Wait until all nodes lead."""

        def are_there() -> bool:
            led = leads(run(load_state(str(self.store))))
            return {node_id for node_id, count in led.items() if count} == set(range(NODES))

        assert wait_until(are_there, LIMIT_S)

    def endpoints(self) -> set[tuple[str, ...]]:
        """Return the listeners that nodes have registered, the one between nodes first."""
        nodes = run(load_state(str(self.store))).nodes.values()
        return {tuple(parse_endpoints(node.endpoints)) for node in nodes}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        for node in made.nodes:
            node.kill()


class Traffic:
    """A producer by one listener, that goes on until it is finished."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        listener: str,
        security: Mapping[str, str | int | float],
        history: History,
    ) -> None:
        self.security = security
        self.bootstrap = cluster.bootstrap(listener)
        self._name = name
        self._commits = 0
        self.producer = ProducerThread(
            name,
            self.bootstrap,
            TOPIC,
            partitions=PARTITIONS,
            history=history,
            config={**IDEMPOTENT, **security},
            records_per_s=100,
        )
        self.producer.start()

    def goes_on(self) -> None:
        """Fail unless records are acknowledged in every partition from now on, and transactions
        over all of them become visible: their markers are requests between nodes.
        """
        enough = self.producer.acknowledged + 10 * PARTITIONS
        assert wait_until(lambda: self.producer.acknowledged >= enough, LIMIT_S)
        for number in range(3):  # coordinators on several nodes
            self._commit(number)
        self._commits += 1

    def _commit(self, number: int) -> None:
        topic = f"{self._name}-committed"
        config = {"bootstrap.servers": self.bootstrap, **QUICK_RECONNECT, **self.security}
        producer = Producer({**config, "transactional.id": f"{self._name}-{number}"})
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, b"x", partition=partition)
        producer.commit_transaction(LIMIT_S)
        expected = PARTITIONS * (self._commits * 3 + number + 1)

        assert self._committed(topic, expected) == expected

    def _committed(self, topic: str, enough: int) -> int:
        """Return how many records a topic shows to a reader of what is committed."""
        consumer = new_consumer(
            self.bootstrap, {**self.security, "isolation.level": "read_committed"}
        )
        seen = 0
        try:
            consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
            deadline = time.monotonic() + LIMIT_S
            while seen < enough and time.monotonic() < deadline:
                seen += sum(one.error() is None for one in consumer.consume(1000, 0.2))
        finally:
            consumer.close()
        return seen


def roll(cluster: Cluster, phase: Mapping[str, str], *traffic: Traffic) -> None:
    """Restart node after node in a phase, while clients work."""
    for node in cluster.nodes:
        node.stop()
        node.start(phase)
        for one in traffic:
            one.goes_on()


def test_a_running_cluster_goes_from_plaintext_to_sasl_ssl(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.start(FIRST)
    everyone = cluster.bootstrap("PLAINTEXT")
    for topic in (TOPIC, "plain-committed", "secure-committed"):
        create_topic(everyone, topic, PARTITIONS)
    cluster.wait_together()
    history = History()
    plain = Traffic(cluster, "plain", "PLAINTEXT", PLAIN, history)
    plain.goes_on()

    roll(cluster, ADDED, plain)
    assert cluster.endpoints() == {("PLAINTEXT", "CLIENTS", "NODES")}
    admin = cluster.secure.user("admin", "first words")
    user = cluster.secure.user("app", "other words")
    add_password(AdminClient({"bootstrap.servers": everyone}), admin)
    add_user(cluster.bootstrap("CLIENTS"), admin, user, rules=RULES, quotas=QUOTAS)

    secure = Traffic(cluster, "secure", "CLIENTS", user.librdkafka, history)
    secure.goes_on()
    roll(cluster, MOVED, plain, secure)
    assert cluster.endpoints() == {("NODES", "PLAINTEXT", "CLIENTS")}

    assert plain.producer.finish() == 0, "the clients by PLAINTEXT are moved"
    roll(cluster, CLOSED, secure)
    assert cluster.endpoints() == {("NODES", "CLIENTS")}
    assert secure.producer.finish() == 0
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": everyone, "log_level": 0}).list_topics(timeout=5)
    log = read_log(secure.bootstrap, TOPIC, PARTITIONS, security=user.librdkafka)
    assert violations(history, log) == []
    nodes = run(load_state(str(cluster.store))).nodes.values()
    assert [node.epoch for node in nodes] == [3] * NODES, "none was fenced while it ran"
    for node in cluster.nodes:
        assert "Traceback" not in node.log
