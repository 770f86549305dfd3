"""Transactions go on while their partitions, and those of their coordinators, change leaders."""

import asyncio
import random
from collections.abc import Callable
from itertools import count

import pytest
from confluent_kafka import KafkaException, Producer

from lakehead.storage.metadata.records import AssignStreams
from tests.support.node_cluster import LIMIT_S, NodeCluster, node_cluster
from tests.support.transaction_traffic import read_all, settle

TRANSACTIONS, PARTITIONS = 40, 3
STATE_TOPIC = "__transaction_state"


def bootstrap(cluster: NodeCluster) -> str:
    ports = [node.advertised_port for node in cluster.nodes.values()]
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def transact(servers: str, is_enough: Callable[[], bool]) -> list[str]:
    """Commit transactions over all partitions, abort some; return what was committed."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "mover"})
    producer.init_transactions(LIMIT_S)
    committed: list[str] = []
    for number in count():
        if number >= TRANSACTIONS and is_enough():
            break
        while not _transaction(producer, number, is_commit=bool(number % 4), into=committed):
            pass  # the client had to abort it, and does it again
    return committed


def _transaction(producer: Producer, number: int, *, is_commit: bool, into: list[str]) -> bool:
    values = [f"{number:04}-{record}" for record in range(2 * PARTITIONS)]
    producer.begin_transaction()
    try:
        for record, value in enumerate(values):
            producer.produce("t", value.encode(), partition=record % PARTITIONS)
            producer.flush(LIMIT_S)
        if is_commit:
            producer.commit_transaction(LIMIT_S)
            into += values
            return True
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(LIMIT_S)
        return False
    producer.abort_transaction(LIMIT_S)
    return True


async def move_for_ever(cluster: NodeCluster, topics: tuple[str, ...]) -> None:
    rng, metadata = random.Random(5), cluster.nodes[1].engine.metadata
    while True:
        await asyncio.sleep(0.15)
        for name in topics:
            topic = metadata.state.topics.get(name)
            if topic is None:
                continue
            stream_id = rng.choice(topic.partitions)
            node_id = rng.choice(sorted(cluster.nodes))
            await metadata.commit([AssignStreams(node_id=node_id, stream_ids=(stream_id,))])


@pytest.mark.parametrize(
    "topics", [("t",), pytest.param(("t", STATE_TOPIC), marks=pytest.mark.slow)]
)
async def test_what_is_committed_is_read_though_leaders_change(topics: tuple[str, ...]) -> None:
    async with node_cluster(**{"transaction.state.log.num.partitions": 1}) as cluster:
        await cluster.nodes[1].replication_control.create("t", PARTITIONS)
        await cluster.until(cluster.is_even)
        servers = bootstrap(cluster)

        def moves() -> int:
            return sum(node.engine.hand_overs.stats.streams for node in cluster.nodes.values())

        mover = asyncio.ensure_future(move_for_ever(cluster, topics))
        try:
            async with asyncio.timeout(6 * LIMIT_S):
                committed = await asyncio.to_thread(transact, servers, lambda: moves() > 3)
        finally:
            mover.cancel()
        await asyncio.to_thread(settle, servers, "mover")
        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.to_thread(read_all, servers, "t", PARTITIONS) == committed
        for node in cluster.nodes.values():
            for partition in node.topics.led():
                open_now = [pid for pid, e in partition.producers if e.transaction_start >= 0]
                assert open_now == []
