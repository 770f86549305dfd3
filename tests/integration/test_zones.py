"""Clients that say where they are: a group gives each consumer the partitions led in its rack."""

import asyncio

from confluent_kafka import Consumer

from tests.support.node_cluster import LIMIT_S, NodeCluster, node_cluster

RACKS = {1: "zone-a", 2: "zone-b", 3: "zone-c"}


async def test_consumers_are_given_the_partitions_that_are_led_in_their_rack() -> None:
    """KIP-881: the assignor runs in the client, on the racks that metadata names. Without them it
    would give each consumer neighbours, which are led in different racks.
    """
    async with node_cluster(0) as cluster:
        for node_id, rack in RACKS.items():
            await cluster.start(node_id, broker_rack=rack)
        await cluster.until(cluster.is_whole)
        await cluster.nodes[1].replication_control.create("t", 6)
        await cluster.nodes[1].groups.partition_for("team")
        consumers = {rack: consumer_in(cluster, rack) for rack in RACKS.values()}
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    await asyncio.to_thread(poll_all, consumers)
                    given = {
                        rack: sorted(part.partition for part in consumer.assignment())
                        for rack, consumer in consumers.items()
                    }
                    if all(given.values()) and sum(map(len, given.values())) == 6:
                        break
        finally:
            for consumer in consumers.values():
                await asyncio.to_thread(consumer.close)
        leaders = cluster.leaders("t")
        for rack, partitions in given.items():
            assert {RACKS[leaders[index]] for index in partitions} == {rack}


def consumer_in(cluster: NodeCluster, rack: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{cluster.nodes[1].advertised_port}",
            "group.id": "team",
            "client.rack": rack,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe(["t"])
    return consumer


def poll_all(consumers: dict[str, Consumer]) -> None:
    for consumer in consumers.values():
        consumer.poll(0.05)
