"""Producers write to leaders of their own zone (KIP-1123): the Java client 4.4, the first one with
it, and three nodes in three zones.
"""

import asyncio
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench.apache_kafka.jars import clients_jars_directory
from bench.apache_kafka.tools import QUICK_START
from bench.maven import MissingTool
from tests.support.node_cluster import LIMIT_S, NodeCluster
from tests.support.zone_cluster import RACKS, bootstrap, zones
from tests.support.zone_reader import PARTITIONS, TOPIC

CLIENT_VERSION = "4.4.0"
PROGRAM = Path(__file__).parents[1] / "clients" / "ZoneProducer.java"
COUNT = 1000


@pytest.fixture(scope="module")
def jars() -> Path:
    """The client's jars; without them the tests are skipped."""
    try:
        return clients_jars_directory(CLIENT_VERSION)
    except MissingTool as missing:
        pytest.skip(str(missing))


async def produce(jars: Path, cluster: NodeCluster, rack: str, *key: str) -> None:
    """Produce COUNT records from a zone, without a key if none is given."""
    command = ["java", *QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    command += ["-cp", f"{jars}/*", str(PROGRAM), bootstrap(cluster), rack, TOPIC, str(COUNT), *key]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr, done.stderr  # such as of a setting that it does not know


def ends(cluster: NodeCluster) -> dict[int, list[int]]:
    """Return the ends of the partitions that each node leads, by its id."""
    found: dict[int, list[int]] = {}
    for index, node_id in enumerate(cluster.leaders(TOPIC)):
        partition = cluster.nodes[node_id].topics.by_name[TOPIC].served(index)
        found.setdefault(node_id, []).append(partition.stream.confirmed_offset)
    return found


def produce_requests(cluster: NodeCluster) -> Counter[int]:
    """Return how many Produce requests each node has had, by its id."""
    nodes = cluster.nodes.items()
    return Counter({one: node.dispatcher.requests_total["Produce"] for one, node in nodes})


async def test_what_producers_write_crosses_no_zone(jars: Path) -> None:
    """No other node has a Produce request, and each leader partition of the zone has records."""
    async with zones() as cluster:
        expected = dict.fromkeys(RACKS, 0)
        for node_id, rack in RACKS.items():
            before = produce_requests(cluster)
            await produce(jars, cluster, rack)
            assert (produce_requests(cluster) - before).keys() == {node_id}
            expected[node_id] = COUNT
            by_leader = ends(cluster)
            assert {one: sum(its) for one, its in by_leader.items()} == expected
            assert len(by_leader[node_id]) == PARTITIONS // len(RACKS)
            assert min(by_leader[node_id]) > 0


async def test_a_producer_whose_zone_has_no_node_writes_to_all_leaders(jars: Path) -> None:
    async with zones() as cluster:
        await produce(jars, cluster, "zone-x")
        by_leader = {one: sum(its) for one, its in ends(cluster).items()}
        assert sum(by_leader.values()) == COUNT
        assert min(by_leader.values()) > 0


async def test_a_key_decides_the_partition_whatever_the_zone(jars: Path) -> None:
    async with zones() as cluster:
        for rack in ("zone-a", "zone-b"):
            await produce(jars, cluster, rack, "key")
        counts = [count for its in ends(cluster).values() for count in its]
        assert sorted(counts) == [0] * (PARTITIONS - 1) + [2 * COUNT]
