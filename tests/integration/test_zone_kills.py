"""Consumers read in their zone while a node process is killed: all that was produced, once."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from lakehead.broker.settings import RACK_AWARE
from tests.support.forked_server import ForkedServer, forked_server
from tests.support.waiting import wait_until
from tests.support.zone_reader import PARTITIONS, TOPIC, ZoneReader, numbers, produce

ZONES = ("zone-a", "zone-b", "zone-c")
SHORT, LONG = 100, 3000
LIMIT_S = 120.0
FLAGS = (
    *("--wal", "object:", "--wal.size", "64m", "--cache.size", "16m", "--no-maintain"),
    *("--upload.age.ms", "300", "--metadata.poll.ms", "50", "--metrics.port", "-1"),
    *("--replica.selector.class", RACK_AWARE),
)


class Zones:
    """A node process in each zone, on one store."""

    def __init__(self, folder: Path, tail: str) -> None:
        self.nodes = [self._node(folder, number, tail) for number in range(len(ZONES))]
        self.servers = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @staticmethod
    def _node(folder: Path, number: int, tail: str) -> ForkedServer:
        own = folder / str(number)
        own.mkdir()
        place = ("--store", f"file:{folder / 'store'}", "--node.id", str(number))
        zone = ("--broker.rack", ZONES[number], "--host.id", f"host-{number}")
        return forked_server(own, *FLAGS, *place, *zone, "--replica.read.tail", tail)

    def kill(self, number: int) -> None:
        """End a node as a power cut does."""
        self.nodes[number].process.kill()
        self.nodes[number].process.wait(timeout=30)


@pytest.fixture(params=["leader", "wal"])
def zones(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Zones]:
    zones = Zones(tmp_path, request.param)
    with ExitStack() as running:
        for node in zones.nodes:
            running.enter_context(node)
        admin = AdminClient({"bootstrap.servers": zones.servers})
        assert wait_until(lambda: len(admin.list_topics(timeout=10).brokers) == 3, LIMIT_S)
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            made.result(LIMIT_S)
        yield zones


def test_a_killed_node_costs_consumers_of_no_zone_a_record(zones: Zones) -> None:
    """Node 0 leads partitions that the others serve, and serves partitions that they lead."""
    with ExitStack() as readers:
        consumers = [
            readers.enter_context(closing(ZoneReader(zones.servers, zone))) for zone in ZONES
        ]
        produce(zones.servers, range(SHORT))
        assert wait_until(lambda: all(one.has(SHORT) for one in consumers), LIMIT_S)
        producer = threading.Thread(target=produce, args=(zones.servers, range(SHORT, LONG)))
        producer.start()
        assert wait_until(lambda: consumers[1].has(SHORT + 20), LIMIT_S)
        zones.kill(0)
        producer.join(LIMIT_S)
        assert not producer.is_alive()
        assert wait_until(lambda: all(one.has(LONG) for one in consumers), LIMIT_S)
        for consumer in consumers:
            for partition in range(PARTITIONS):
                assert consumer.found[partition] == numbers(LONG)
