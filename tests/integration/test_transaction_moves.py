"""Transactions over several nodes: coordinators and partitions that are led elsewhere, and move."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import OFFSETS_TOPIC
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.metadata.records import AssignStreams
from tests.support.node_cluster import LIMIT_S, NodeCluster, node_cluster
from tests.support.transactional_client import STATES, TransactionalClient

NONE = ErrorCode.none
PLACES = [("orders", index) for index in range(3)]


@asynccontextmanager
async def cluster_with_topic(**flags: object) -> AsyncIterator[NodeCluster]:
    flags = {"transaction_state_log_num_partitions": 1, **flags}
    async with node_cluster(3, **flags) as cluster, asyncio.timeout(LIMIT_S):
        await cluster.nodes[1].replication_control.create("orders", 3)
        await cluster.until(cluster.is_even)
        yield cluster


async def producer(cluster: NodeCluster) -> TransactionalClient:
    client = TransactionalClient("tx", cluster)
    assert await client.find() is NONE
    await cluster.until(cluster.is_even)
    assert await client.initialize_at_last() is NONE
    return client


def marked(cluster: NodeCluster) -> int:
    """Partitions of the topic with one record in them: a marker."""
    return sum(
        partition.high_watermark
        for node in cluster.nodes.values()
        for place in PLACES
        if (partition := node.topics.partition(*place)) is not None
    )


async def move(cluster: NodeCluster, topic: str, index: int, node_id: int) -> None:
    """Have a node lead a partition."""
    metadata = cluster.nodes[1].engine.metadata
    stream = metadata.state.topics[topic].partitions[index]
    await metadata.commit([AssignStreams(node_id=node_id, stream_ids=(stream,))])
    await cluster.until(lambda: cluster.leaders(topic)[index] == node_id)
    await cluster.until(cluster.is_even)


async def test_markers_reach_partitions_on_every_node() -> None:
    async with cluster_with_topic() as cluster:
        client = await producer(cluster)
        assert len(set(cluster.leaders("orders"))) == 3
        assert await client.add(PLACES) == [NONE] * 3
        assert await client.end() is NONE
        await client.until("CompleteCommit")
        assert marked(cluster) == 3


@pytest.mark.parametrize("is_adding", [True, False])
async def test_partitions_ask_the_coordinator_on_another_node(is_adding: bool) -> None:
    async with cluster_with_topic() as cluster:
        client = await producer(cluster)
        assert await client.add(PLACES[:1]) == [NONE]
        for node in cluster.nodes.values():
            codes = await node.transactions.verify(
                "tx", *client.producer, PLACES[:2], is_adding=is_adding
            )
            absent = NONE if is_adding else ErrorCode.transaction_abortable
            assert codes == {PLACES[0]: NONE, PLACES[1]: absent}
            stale = client.producer[0], client.producer[1] - 1
            codes = await node.transactions.verify("tx", *stale, PLACES[:1], is_adding=is_adding)
            assert codes == {PLACES[0]: ErrorCode.producer_fenced}
        answers = await asyncio.gather(
            *(
                node.transactions.verify("tx", *client.producer, [place], is_adding=True)
                for node in cluster.nodes.values()
                for place in PLACES
                for _ in range(20)
            )
        )
        found = {code for codes in answers for code in codes.values()}
        # On a machine that is busy one may have waited too long for the others' to be stored.
        assert NONE in found
        assert found <= {NONE, ErrorCode.concurrent_transactions}


async def test_a_transaction_goes_on_when_its_coordinator_moves() -> None:
    async with cluster_with_topic() as cluster:
        client = await producer(cluster)
        assert await client.add(PLACES) == [NONE] * 3
        was = client.coordinator().node.node_id
        await move(cluster, STATES, 0, was % 3 + 1)
        assert client.coordinator().node.node_id != was
        assert await client.state() == "Ongoing"
        assert await client.end(is_commit=False) is NONE
        await client.until("CompleteAbort")
        assert marked(cluster) == 3
        assert await client.initialize_at_last() is NONE


async def test_a_coordinator_that_dies_between_decision_and_markers_is_finished_by_the_next() -> (
    None
):
    async with cluster_with_topic() as cluster:
        client = await producer(cluster)
        assert await client.add(PLACES) == [NONE] * 3
        node = client.coordinator().node

        async def lost(node_id: int, key: int, version: int, request: object) -> object:
            raise ConnectionResetError("the network is gone")

        node.inter_broker_client.send = lost  # type: ignore[method-assign]
        assert await client.end() is NONE
        assert await client.state() == "PrepareCommit"
        assert marked(cluster) == 0
        busy = ErrorCode.concurrent_transactions
        assert await client.end() is busy  # and no success of a transaction that is none
        assert await client.end(is_commit=False) is ErrorCode.invalid_txn_state
        assert await client.add(PLACES[:1]) == [busy]
        assert await client.initialize() is busy
        await move(cluster, STATES, 0, node.node_id % 3 + 1)
        await client.until("CompleteCommit")
        assert marked(cluster) == 3


async def test_markers_find_partitions_that_move_and_forget_those_that_are_deleted() -> None:
    async with cluster_with_topic() as cluster:
        client = await producer(cluster)
        await cluster.nodes[1].replication_control.create("gone", 2)
        await cluster.until(cluster.is_even)
        assert await client.add([*PLACES, ("gone", 0), ("gone", 1)]) == [NONE] * 5
        await move(cluster, "orders", 0, cluster.leaders("orders")[0] % 3 + 1)
        gone = cluster.nodes[2].topics.find("gone")
        assert gone is not None
        await cluster.nodes[2].replication_control.delete(gone.topic_id)
        assert await client.end() is NONE
        await client.until("CompleteCommit")
        assert marked(cluster) == 3


async def test_the_next_transaction_may_be_asked_for_before_the_last_ones_markers_come() -> None:
    async with cluster_with_topic() as cluster:
        client = await producer(cluster)
        coordinator = client.coordinator().node
        place = next(p for p in PLACES if coordinator.topics.partition(*p) is None)
        leader = next(n for n in cluster.nodes.values() if n.topics.partition(*place))
        partition = leader.topics.partition(*place)
        assert partition is not None
        adding = leader.transactions.verify("tx", *client.producer, [place], is_adding=True)
        assert await adding == {place: NONE}
        go_on, ask = asyncio.Event(), coordinator.inter_broker_client.send

        async def held_up(node_id: int, key: int, version: int, request: object) -> object:
            await go_on.wait()
            return await ask(node_id, key, version, request)

        coordinator.inter_broker_client.send = held_up  # type: ignore[method-assign]
        assert await client.end(5) is NONE
        producer_id, epoch = client.producer
        batch = encode_batch([(b"k", b"v")], 0, producer_id=producer_id, producer_epoch=epoch)
        header = read_header(batch)
        waiting = partition.verification(header, is_adding=True)
        verify = leader.transactions.verify("tx", *client.producer, [place], is_adding=True)
        answer = asyncio.ensure_future(verify)
        await asyncio.sleep(0.01)
        assert partition.high_watermark == 0
        go_on.set()
        assert await answer == {place: NONE}
        assert partition.high_watermark == 1
        partition.check_verified(header, waiting)


async def test_offsets_whose_partition_was_elsewhere_meanwhile_begin_no_transaction_there() -> None:
    """They were verified in a transaction that ended while another node led the partition."""
    async with cluster_with_topic(offsets_topic_num_partitions=1) as cluster:
        client = await producer(cluster)
        await cluster.nodes[1].groups.partition_for("g")
        await cluster.until(cluster.is_even)
        home = cluster.leaders(OFFSETS_TOPIC)[0]
        node = cluster.nodes[home]
        assert await client.add_offsets("g") is NONE
        is_verified, go_on, verify = asyncio.Event(), asyncio.Event(), node.transactions.verify

        async def held_up(*given: Any, **how: Any) -> Any:
            codes = await verify(*given, **how)
            is_verified.set()
            await go_on.wait()
            return codes

        node.transactions.verify = held_up  # type: ignore[method-assign]
        commit = client.commit_offset(cluster.client(home), "g", PLACES[0], 7)
        committing = asyncio.ensure_future(commit)
        await is_verified.wait()
        await move(cluster, OFFSETS_TOPIC, 0, home % 3 + 1)
        assert await client.end(is_commit=False) is NONE
        await client.until("CompleteAbort")
        await move(cluster, OFFSETS_TOPIC, 0, home)
        go_on.set()
        assert await committing is ErrorCode.not_coordinator
        partition = node.topics.partition(OFFSETS_TOPIC, 0)
        assert partition is not None
        assert not partition.producers.is_in_transaction(*client.producer)
