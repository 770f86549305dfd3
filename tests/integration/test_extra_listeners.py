"""Clients that come by a further listener reach every node by it, and by nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import free_port
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import IDEMPOTENT, QUICK_RECONNECT
from tests.support.waiting import wait_until

LIMIT_S = 60.0


class Pair:
    """Nodes 0 and 1, each with a further listener at a port counted up by node id."""

    def __init__(self, folder: Path) -> None:
        self.first = free_port()
        self.nodes = []
        for node_id in range(2):
            place = folder / str(node_id)
            place.mkdir()
            flags = (
                *HASTY,
                *("--store", f"file:{folder}/store", "--node.id", str(node_id)),
                *("--extra.listeners", f"LINK://127.0.0.1:{self.first + node_id}"),
                *("--extra.advertised.listeners", f"LINK://localhost:{{{self.first}+node.id}}"),
                *("--auto.leader.rebalance.enable", "false"),
            )
            self.nodes.append(BrokerProcess(place, flags))

    @property
    def link(self) -> str:
        return f"127.0.0.1:{self.first}"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        for node in made.nodes:
            node.start()
        yield made
    finally:
        for node in made.nodes:
            node.kill()


def told(bootstrap: str) -> set[tuple[int, str, int]]:
    """The nodes that Metadata tells of."""
    found = AdminClient({"bootstrap.servers": bootstrap, **QUICK_RECONNECT}).list_topics(timeout=20)
    return {(one.id, str(one.host), one.port) for one in found.brokers.values()}


def test_clients_of_a_further_listener_reach_every_node_by_it(pair: Pair) -> None:
    first = pair.first
    by_link = {(0, "localhost", first), (1, "localhost", first + 1)}
    assert wait_until(lambda: told(pair.link) == by_link, LIMIT_S)
    mains = {(n, "127.0.0.1", node.port) for n, node in enumerate(pair.nodes)}
    assert told(pair.nodes[0].bootstrap) == mains, "others are told of the main one, as before"

    admin = AdminClient({"bootstrap.servers": pair.link, **QUICK_RECONNECT})
    described = admin.describe_cluster().result(LIMIT_S)
    assert {(one.id, one.host, one.port) for one in described.nodes} == by_link
    topic = NewTopic("t", num_partitions=2, replica_assignment=[[0], [1]])
    assert wait_until(lambda: admin.create_topics([topic])["t"].exception(LIMIT_S) is None, LIMIT_S)
    producer = Producer({"bootstrap.servers": pair.link, **IDEMPOTENT})
    for index in range(2):
        producer.produce("t", b"to node %d" % index, partition=index)
    assert producer.flush(LIMIT_S) == 0
    config = {"bootstrap.servers": pair.link, "group.id": "g", **QUICK_RECONNECT}
    consumer = Consumer({**config, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(2)])
        values = {message.value() for message in consumer.consume(2, timeout=LIMIT_S)}
        assert values == {b"to node 0", b"to node 1"}
        committed = consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        assert committed is not None, "the coordinator is found by the listener, too"
        assert committed[0].error is None
    finally:
        consumer.close()


def test_an_address_that_is_taken_is_one_line(tmp_path: Path, pair: Pair) -> None:
    taken = (
        *("--extra.listeners", f"LINK://127.0.0.1:{pair.first}"),
        *("--extra.advertised.listeners", "LINK://localhost:1"),
    )
    late = BrokerProcess(tmp_path / "0", (*HASTY, "--node.id", "9", *taken))
    with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{pair.first}"):
        late.start()
