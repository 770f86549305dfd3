"""Requests of nodes are believed only from nodes: forged heartbeats, markers and additions."""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from lakehead.broker import api
from lakehead.broker.cluster.heartbeat import (
    ERROR_NONE,
    ERROR_STRANGER,
    Heartbeat,
    HeartbeatResponse,
    NodeLoad,
    decode_heartbeat,
    decode_heartbeat_response,
    encode_heartbeat,
)
from lakehead.broker.cluster.inter_broker_client import TcpNetwork
from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import encode_request, read_header
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_proof import NO_PROOF, NodeProof
from lakehead.storage.object_store import MemoryStore
from tests.support.node_client import Client, close_clients
from tests.support.node_cluster import NodeCluster
from tests.support.planned import balance

REFUSED = ErrorCode.cluster_authorization_failed
REGISTRY = api.registry()


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    made = NodeCluster(MemoryStore())
    try:
        for node_id in (1, 2):
            await made.start(node_id)
        yield made
    finally:
        await close_clients()
        for node in made.nodes.values():
            await node.close()


def proof_for(node: Node) -> NodeProof:
    return NodeProof(secret=node.state.node_secret, to_node=node.node_id)


async def beat(node: Node, heartbeat: Heartbeat, proof: NodeProof) -> HeartbeatResponse:
    channel = await TcpNetwork().connect("127.0.0.1", node.advertised_port, lambda: None)
    try:
        return decode_heartbeat_response(await channel.send(encode_heartbeat(heartbeat, 1, proof)))[
            1
        ]
    finally:
        channel.close()


def forged(node: Node, **given: Any) -> Heartbeat:
    """A heartbeat of node 2 with what anybody can know of it."""
    return Heartbeat(
        node_id=2, epoch=node.state.nodes[2].epoch, next_entry=2**62, is_leaving=True, **given
    )


async def test_a_heartbeat_without_proof_changes_nothing(cluster: NodeCluster) -> None:
    first = cluster.nodes[1]
    secret = first.state.node_secret
    proofs = [
        NO_PROOF,
        NodeProof(secret="00" * 32, to_node=1),
        NodeProof(secret=secret, to_node=2),  # said to another node, and repeated here
    ]
    member = first.lifecycle.membership._members[2]
    line = first.lifecycle._channels[2][0]
    for proof in proofs:
        load = NodeLoad(hottest=((0, -4194304.0),))
        answer = await beat(first, forged(first, load=load), proof)
        assert answer.error == ERROR_STRANGER
        assert not answer.is_known
        assert answer.next_entry == first.state.next_entry, "one that is behind may go on by it"
        assert not member.is_leaving
        assert member.load.hottest == ()
        assert line.known_entry <= first.state.next_entry
    answer = await beat(first, forged(first), proof_for(first))
    assert (answer.error, answer.is_known) == (ERROR_NONE, True)
    assert line.known_entry <= first.state.next_entry, "nor are far numbers believed from nodes"


async def test_the_command_line_is_answered_by_the_secret_alone(cluster: NodeCluster) -> None:
    first = cluster.nodes[1]
    asking = Heartbeat(node_id=-1, epoch=-1, next_entry=0)
    assert (await beat(first, asking, NO_PROOF)).error == ERROR_STRANGER
    assert (await beat(first, asking, proof_for(first))).error == ERROR_NONE


async def test_nodes_prove_themselves_to_each_other(cluster: NodeCluster) -> None:
    first, second = cluster.nodes[1], cluster.nodes[2]
    assert len(first.state.node_secret) == 64
    assert second.state.node_secret == first.state.node_secret
    assert first.state.node_secret not in repr(first.state)
    async with asyncio.timeout(30):
        while not all(set(node.lifecycle.ready()) == {1, 2} for node in (first, second)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def markers(*, is_commit: bool, coordinator_epoch: int) -> Any:
    module = schema(27, 1).request_module
    topic = entity(module, "WritableTxnMarkerTopic", name="t", partition_indexes=(0,))
    marker = entity(
        module,
        "WritableTxnMarker",
        producer_id=4242,
        producer_epoch=0,
        coordinator_epoch=coordinator_epoch,
        transaction_result=is_commit,
        topics=[topic],
    )
    return entity(module, "WriteTxnMarkersRequest", markers=[marker])


async def test_a_client_may_abort_a_hanging_transaction_and_nothing_else(
    cluster: NodeCluster,
) -> None:
    await cluster.nodes[1].replication_control.create("t", 1)
    leader = next(
        node
        for node in cluster.nodes.values()
        if node.metadata_cache.leader(("t", 0)) == node.node_id
    )
    client = await Client.connect(leader)

    async def mark(*, is_commit: bool, coordinator_epoch: int) -> ErrorCode:
        request = markers(is_commit=is_commit, coordinator_epoch=coordinator_epoch)
        answer = await client.ask(27, 1, request)
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    assert await mark(is_commit=True, coordinator_epoch=0) is REFUSED
    assert await mark(is_commit=False, coordinator_epoch=1) is REFUSED
    assert await mark(is_commit=False, coordinator_epoch=0) is ErrorCode.none
    client.proof = proof_for(leader)
    assert await mark(is_commit=True, coordinator_epoch=1) is ErrorCode.none
    client.proof = NO_PROOF
    assert await mark(is_commit=False, coordinator_epoch=1) is ErrorCode.none


@pytest.mark.parametrize("version", [4, 5])
async def test_additions_to_transactions_in_the_words_of_nodes_are_refused(
    cluster: NodeCluster, version: int
) -> None:
    module = schema(24, version).request_module
    request = entity(module, "AddPartitionsToTxnRequest", transactions=[])
    client = await Client.connect(cluster.nodes[1])
    assert (await client.ask(24, version, request)).error_code is REFUSED
    client.proof = proof_for(cluster.nodes[1])
    assert (await client.ask(24, version, request)).error_code is ErrorCode.none


ANY_RATE = st.floats(allow_nan=True, allow_infinity=True)
ANY_LOAD = st.builds(
    NodeLoad,
    bytes_in=ANY_RATE,
    bytes_out=ANY_RATE,
    cpu=ANY_RATE,
    hottest=st.lists(st.tuples(st.integers(-3, 7), ANY_RATE), max_size=80).map(tuple),
)


@given(st.lists(ANY_LOAD, min_size=2, max_size=2))
def test_no_load_that_is_said_spoils_a_plan(loads: list[NodeLoad]) -> None:
    said = []
    for load in loads:
        heartbeat = Heartbeat(node_id=1, epoch=0, next_entry=0, load=load)
        view = memoryview(encode_heartbeat(heartbeat, 1))[4:]
        said.append(decode_heartbeat(view, read_header(view, REGISTRY).body).load)
    for load in said:
        figures = [load.bytes_in, load.bytes_out, load.cpu, *(rate for _, rate in load.hottest)]
        assert all(math.isfinite(figure) and figure >= 0 for figure in figures)
        assert len(load.hottest) <= 64
    balance({0: [0, 1, 2], 1: [3, 4, 5, 6]}, dict(enumerate(said)), imbalance=0.1)


def test_a_heartbeat_longer_than_any_node_sends_is_malformed() -> None:
    long = Heartbeat(node_id=1, epoch=0, next_entry=0, heard=((1, 2),) * 200_000)
    view = memoryview(encode_heartbeat(long, 1))[4:]
    with pytest.raises(MalformedFrame):
        decode_heartbeat(view, read_header(view, REGISTRY).body)


@given(st.binary(max_size=100), st.integers(0, 2**31 - 2), st.data())
def test_a_proof_is_of_one_request_to_one_node(body: bytes, number: int, data: Any) -> None:
    secret = f"{random.Random(number).getrandbits(256):064x}"
    proof = NodeProof(secret=secret, to_node=3)
    given = proof.tags(63, 0, number, body)[-16:]
    view = memoryview(body)
    assert proof.is_given(63, 0, number, view, given)
    flipped = bytearray(given)
    flipped[data.draw(st.integers(0, 15))] ^= 1 << data.draw(st.integers(0, 7))
    assert not proof.is_given(63, 0, number, view, bytes(flipped))
    assert not proof.is_given(63, 0, number + 1, view, given)
    assert not proof.is_given(27, 0, number, view, given)
    assert not proof.is_given(63, 0, number, memoryview(body + b"x"), given)
    assert not NodeProof(secret=secret, to_node=4).is_given(63, 0, number, view, given)
    assert not NodeProof(secret="", to_node=3).is_given(63, 0, number, view, b"")


def test_a_request_in_old_encoding_bears_no_proof() -> None:
    request = entity(
        schema(24, 1).request_module,
        "AddPartitionsToTxnRequest",
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[],
    )
    proof = NodeProof(secret="11" * 32, to_node=1)
    frame = memoryview(encode_request(24, 1, 7, request, proof))[4:]
    assert read_header(frame, REGISTRY).proof == b""


async def test_a_turn_of_the_controller_that_crashes_is_not_the_end_of_its_node(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0

    def broken(*_: Any) -> Any:
        nonlocal crashes
        crashes += 1
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("lakehead.broker.cluster.controller._plan_key", broken)
        async with asyncio.timeout(30):
            while crashes < 3:  # noqa: ASYNC110 - turns come by themselves
                await asyncio.sleep(0.02)
    assert all(node.failure is None for node in cluster.nodes.values())
    await cluster.nodes[2].close()
    survivor = cluster.nodes[1]
    del cluster.nodes[2]
    assert survivor.failure is None
    await survivor.replication_control.create("after", 1)
