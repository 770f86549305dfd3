"""Nodes in this process, one in each of three zones, for clients with racks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lakehead.broker.settings import RACK_AWARE
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.zone_reader import PARTITIONS, TOPIC

RACKS = {1: "zone-a", 2: "zone-b", 3: "zone-c"}


@asynccontextmanager
async def zones(**flags: object) -> AsyncIterator[NodeCluster]:
    """A node in each zone, and a topic whose partitions all of them lead."""
    async with node_cluster(0) as cluster:
        for node_id, rack in RACKS.items():
            await cluster.start(
                node_id, broker_rack=rack, replica_selector_class=RACK_AWARE, **flags
            )
        await cluster.until(cluster.is_whole)
        await cluster.nodes[1].replication_control.create(TOPIC, PARTITIONS)
        await cluster.until(lambda: -1 not in cluster.leaders(TOPIC))
        yield cluster


def bootstrap(cluster: NodeCluster) -> str:
    """Return `bootstrap.servers` of all nodes."""
    return ",".join(f"127.0.0.1:{node.advertised_port}" for node in cluster.nodes.values())
