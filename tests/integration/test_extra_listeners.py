"""Clients that come by a further listener reach every node by it, and by nothing else: through a
load balancer that leads where Terraform's module private_link leads.
"""

import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import free_port
from lakehead.broker.network.listeners import counted_up
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.supervised import supervised
from tests.support.tcp_forwarder import Address, Forwarder, forwarding
from tests.support.traffic import IDEMPOTENT, QUICK_RECONNECT
from tests.support.waiting import wait_until
from tests.terraform.link_rendering import links

LIMIT_S = 60.0
FIRST_IDS = {"a-0": 0, "b-0": 100}


class Network:
    """Names and addresses of a module's outputs, as loopback addresses of this test alone.

    There is no DNS here, so the rack of a zone is the address that RACK.DOMAIN would have.
    """

    def __init__(self, link: Mapping[str, Any]) -> None:
        port = free_port()
        self._net = f"127.{port >> 8}.{port & 255}"
        self.is_zonal = bool(link["client"]["racks"])
        self.hosts = {"a-0": f"{self._net}.1", "b-0": f"{self._net}.2"}
        self.zones = (
            {"a-0": f"{self._net}.11", "b-0": f"{self._net}.12"}
            if self.is_zonal
            else dict.fromkeys(FIRST_IDS, f"{self._net}.10")
        )
        """Where the load balancer is in the zone of a host."""
        domain = link["client"]["domain"]
        told = link["settings"]["extra.advertised.listeners"]
        assert f"{{rack}}.{domain}" in told if self.is_zonal else f"//{domain}:" in told
        told = told.replace(f"{{rack}}.{domain}", "{rack}").replace(domain, f"{self._net}.10")
        self._settings = link["settings"] | {"extra.advertised.listeners": told}
        self._listeners = link["listeners"]
        self.first = link["client"]["ports"]["first"]
        self.bootstrap = ",".join(
            f"{zone}:{link['client']['ports']['bootstrap']}"
            for zone in sorted({*self.zones.values()})
        )

    def flags(self, slot: str, index: int = 0) -> tuple[str, ...]:
        """Of the `index`-th node of a host, or of the host's supervisor."""
        settings = {
            **{name: str(value) for name, value in self._settings.items()},
            "node.id": str(FIRST_IDS[slot] + index),
            "broker.rack": self.zones[slot],
        }
        bound = settings["extra.listeners"].replace("0.0.0.0", self.hosts[slot])
        settings["extra.listeners"] = counted_up("extra.listeners", bound, index)
        return tuple(text for name, value in settings.items() for text in (f"--{name}", value))

    def told(self, *node_ids: int) -> set[tuple[int, str, int]]:
        """What clients of the listener are told of nodes."""
        slots = {node_id: "a-0" if node_id < FIRST_IDS["b-0"] else "b-0" for node_id in node_ids}
        return {(one, self.zones[slots[one]], self.first + one) for one in node_ids}

    def listeners(self) -> dict[Address, list[Address]]:
        """Of each address of the load balancer where it leads: within its zone, if it is zonal."""
        found: dict[Address, list[Address]] = {}
        for port, targets in self._listeners.items():
            for target in targets:
                listener = (self.zones[target["slot"]], int(port))
                found.setdefault(listener, []).append((self.hosts[target["slot"]], target["port"]))
        return found


@dataclass
class Pair:
    """The first node of a host and the second of another, of whose zones each has a name."""

    network: Network
    nodes: dict[int, BrokerProcess]
    forwarder: Forwarder


def common(folder: Path) -> tuple[str, ...]:
    return (
        *HASTY,
        *("--store", f"file:{folder}/store", "--auto.leader.rebalance.enable", "false"),
    )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    network = Network(links()["zonal"])
    nodes = {}
    for slot, index in (("a-0", 0), ("b-0", 1)):
        place = tmp_path / slot
        place.mkdir()
        flags = (*common(tmp_path), *network.flags(slot, index))
        nodes[FIRST_IDS[slot] + index] = BrokerProcess(place, flags)
    try:
        for node in nodes.values():
            node.start()
        with forwarding(network.listeners()) as forwarder:
            yield Pair(network, nodes, forwarder)
    finally:
        for node in nodes.values():
            node.kill()


def told(client: Mapping[str, Any]) -> set[tuple[int, str, int]]:
    """The nodes that Metadata tells of."""
    found = AdminClient({**client, **QUICK_RECONNECT}).list_topics(timeout=20)
    return {(one.id, str(one.host), one.port) for one in found.brokers.values()}


def check_clients_reach(node_ids: list[int], network: Network, client: Mapping[str, Any]) -> None:
    """Produce to each node, consume from each and commit, as a client of the listener."""
    expected = network.told(*node_ids)
    assert wait_until(lambda: told(client) == expected, LIMIT_S), told(client)
    admin = AdminClient({**client, **QUICK_RECONNECT})
    described = admin.describe_cluster().result(LIMIT_S)
    assert {(one.id, one.host, one.port) for one in described.nodes} == expected
    replicas = [[node_id] for node_id in node_ids]
    topic = NewTopic("t", num_partitions=len(replicas), replica_assignment=replicas)
    assert wait_until(lambda: admin.create_topics([topic])["t"].exception(LIMIT_S) is None, LIMIT_S)
    producer = Producer({**client, **IDEMPOTENT})
    for index, node_id in enumerate(node_ids):
        producer.produce("t", b"to node %d" % node_id, partition=index)
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**client, "group.id": "g", "enable.auto.commit": False, **QUICK_RECONNECT})
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(len(node_ids))])
        values = {message.value() for message in consumer.consume(len(node_ids), timeout=LIMIT_S)}
        assert values == {b"to node %d" % node_id for node_id in node_ids}
        committed = consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        assert committed is not None, "the coordinator is found by the listener, too"
        assert committed[0].error is None
    finally:
        consumer.close()


def test_clients_of_a_further_listener_reach_every_node_by_it(pair: Pair) -> None:
    network = pair.network
    check_clients_reach([0, 101], network, {"bootstrap.servers": network.bootstrap})
    mains = {(node_id, "127.0.0.1", node.port) for node_id, node in pair.nodes.items()}
    main = {"bootstrap.servers": pair.nodes[0].bootstrap}
    assert told(main) == mains, "others are told of the main one, as before"
    ports = {port for (_, port), count in pair.forwarder.passed.items() if count}
    assert ports == {9092, 20000, 20101}, "nothing came another way"


def test_an_address_that_is_taken_is_one_line(tmp_path: Path, pair: Pair) -> None:
    taken = f"{pair.network.hosts['a-0']}:9192"
    flags = ("--extra.listeners", f"LINK://{taken}", "--extra.advertised.listeners", "LINK://x:1")
    late = BrokerProcess(tmp_path / "a-0", (*HASTY, "--node.id", "9", *flags))
    with pytest.raises(Exception, match=f"cannot listen on {taken}"):
        late.start()


@contextmanager
def hosts(folder: Path, network: Network) -> Iterator[None]:
    """Both hosts with all their nodes, each under its supervisor."""
    with ExitStack() as stack:
        made = []
        for slot in FIRST_IDS:
            place = folder / slot
            place.mkdir()
            flags = (*common(folder), *network.flags(slot))
            made.append(stack.enter_context(supervised(place, 2, *flags)))
        for host in made:
            host.wait_ready()
        yield


@pytest.mark.slow
def test_a_name_for_all_zones_leads_to_all_nodes_of_all_hosts_and_by_tls(tmp_path: Path) -> None:
    """With `cross_zone` and `certificate_arn`: the load balancer speaks TLS, brokers do not."""
    network = Network(links()["cross_zone"])
    address = network.zones["a-0"]
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=lake", "-addext", f"subjectAltName=IP:{address}",
         "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    client = {
        "bootstrap.servers": network.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificate),
    }
    with hosts(tmp_path, network), forwarding(network.listeners(), tls) as forwarder:
        check_clients_reach([0, 1, 100, 101], network, client)
        ports = {port for (_, port), count in forwarder.passed.items() if count}
        assert ports >= {9092, 20000, 20001, 20100, 20101}


@pytest.mark.slow
def test_names_of_zones_lead_to_all_nodes_of_all_hosts(tmp_path: Path) -> None:
    network = Network(links()["zonal"])
    with hosts(tmp_path, network), forwarding(network.listeners()):
        client = {"bootstrap.servers": network.bootstrap}
        check_clients_reach([0, 1, 100, 101], network, client)
