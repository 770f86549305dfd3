"""Kafka's own tools move leadership between nodes, elect preferred leaders, and notice no move."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from bench.apache_kafka import tools as own_jvm
from lakehead.storage.metadata.records import AssignStreams
from tests.support.kafka_tools import require_kafka_tools, run
from tests.support.node_cluster import NodeCluster, node_cluster


async def tool(
    cluster: NodeCluster, name: str, *arguments: str, runs_beside_others: bool = False
) -> str:
    """Run a tool beside the nodes; one that fails fails the test. One that runs beside other tools
    has a JVM of its own.
    """
    at = ("--bootstrap-server", f"127.0.0.1:{cluster.nodes[1].advertised_port}")
    runs = own_jvm.run if runs_beside_others else run
    done = await asyncio.to_thread(runs, name, *at, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plan_file(folder: Path, replicas: list[list[int]]) -> str:
    """Write a reassignment of topic `t` as the tool reads it."""
    partitions = [
        {"topic": "t", "partition": index, "replicas": nodes}
        for index, nodes in enumerate(replicas)
    ]
    path = folder / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


async def test_partitions_are_reassigned_and_verified(tmp_path: Path) -> None:
    require_kafka_tools()
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 3, replicas=[(1,), (2,), (3,)])
        plan = plan_file(tmp_path, [[3], [1], [2]])
        arguments = ("--reassignment-json-file", plan)
        started = await tool(cluster, "kafka-reassign-partitions", *arguments, "--execute")
        assert "Successfully started partition reassignments" in started
        await cluster.until(lambda: cluster.leaders("t") == [3, 1, 2])
        verified = await tool(cluster, "kafka-reassign-partitions", *arguments, "--verify")
        assert verified.count("is completed") == 3
        listed = await tool(cluster, "kafka-reassign-partitions", "--list")
        assert "No partition reassignments found" in listed
        described = await tool(cluster, "kafka-topics", "--describe", "--topic", "t")
        assert "Leader: 3\tReplicas: 3\tIsr: 3" in described


async def test_a_tool_makes_a_plan_for_the_brokers_that_are_named(tmp_path: Path) -> None:
    require_kafka_tools()
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 4)
        topics = tmp_path / "topics.json"
        topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "t"}]}))
        made = await tool(
            cluster,
            *("kafka-reassign-partitions", "--topics-to-move-json-file", str(topics)),
            *("--broker-list", "1,2", "--generate"),
        )
        plan = tmp_path / "plan.json"
        plan.write_text(made.rpartition("Proposed partition reassignment configuration\n")[2])
        execute = ("--reassignment-json-file", str(plan), "--execute")
        await tool(cluster, "kafka-reassign-partitions", *execute)
        await cluster.until(lambda: set(cluster.leaders("t")) == {1, 2})


async def test_preferred_leaders_are_elected() -> None:
    require_kafka_tools()
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 2, replicas=[(2,), (2,)])
        await cluster.stop(2)
        await cluster.until(lambda: 2 not in cluster.leaders("t"))
        await cluster.start(2)
        await cluster.until(cluster.is_whole)
        election = ("--election-type", "preferred", "--all-topic-partitions")
        elected = await tool(cluster, "kafka-leader-election", *election)
        assert "Successfully completed leader election (PREFERRED) for partitions" in elected
        assert cluster.leaders("t") == [2, 2]


async def test_java_clients_go_on_while_everything_moves(tmp_path: Path) -> None:
    """Topic and coordinator move all the time; every record arrives once, and nobody rebalances."""
    require_kafka_tools()
    config = tmp_path / "client.properties"
    config.write_text("retries=2147483647\nenable.idempotence=true\n")
    count = ("--topic", "t", "--max-messages", "1500")
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 6)
        await cluster.nodes[1].groups.partition_for("g")
        producing = asyncio.create_task(
            tool(
                cluster,
                *("kafka-verifiable-producer", *count, "--throughput", "500"),
                *("--command-config", str(config)),
                runs_beside_others=True,
            )
        )
        consuming = asyncio.create_task(
            tool(
                cluster,
                *("kafka-verifiable-consumer", *count, "--group-id", "g", "--verbose"),
                runs_beside_others=True,
            )
        )
        moved = await move_until(cluster, producing)
        sent, read = events(await producing), events(await consuming)
    names = Counter(event["name"] for event in sent)
    assert (names["producer_send_success"], names["producer_send_error"]) == (1500, 0)
    places = Counter(
        (event["partition"], event["offset"]) for event in read if event["name"] == "record_data"
    )
    assert (len(places), places.total()) == (1500, 1500)
    assert sum(event["name"] == "partitions_assigned" for event in read) == 1
    assert moved > 10


async def move_until(cluster: NodeCluster, done: asyncio.Task[Any]) -> int:
    """Move half of all partitions to some node, again and again; return how many moves that was."""
    rng, moved = random.Random(3), 0
    while not done.done():
        await asyncio.wait([done], timeout=0.2)
        topics = cluster.nodes[1].state.topics.values()
        streams = tuple(s for topic in topics for s in topic.partitions if rng.random() < 0.5)
        move = AssignStreams(node_id=rng.choice((1, 2, 3)), stream_ids=streams)
        await cluster.nodes[1].engine.metadata.commit([move])
        moved += len(streams)
    return moved


def events(output: str) -> list[dict[str, Any]]:
    """What a verifiable client says, one event a line."""
    return [json.loads(line) for line in output.splitlines()]
