"""Access rules in a cluster: in force everywhere within a second, and audit events in a topic."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.broker.security.standard_authorizer import CLASS_NAME
from lakehead.storage.format.record_batch import iter_headers
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.object_store import MemoryStore
from tests.integration.test_acl_requests import ask, rule, selected
from tests.support.node_client import Client, close_clients
from tests.support.node_cluster import NodeCluster

DENIED = ErrorCode.group_authorization_failed
GROUP_RULE = rule(resource_type=3, resource_name="g", operation=8)


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    made = NodeCluster(MemoryStore())
    try:
        for node_id in (1, 2, 3):
            await made.start(
                node_id,
                authorizer_class_name=CLASS_NAME,
                audit_topic="audit",
                num_partitions=1,
                metadata_poll_ms=60_000,
            )
        await made.until(made.is_whole)
        yield made
    finally:
        await close_clients()
        for node in made.nodes.values():
            await node.close()


async def admin_of(node: Node) -> Client:
    client = await Client.connect(node)
    client.proof = NodeProof(secret=node.state.node_secret, to_node=node.node_id)
    return client


async def code_of(client: Client) -> ErrorCode:
    """What DescribeGroups says about the group: the rules of the responding node decide."""
    answer = await ask(client, 15, 5, {"groups": ["g"]})
    code: ErrorCode = answer.groups[0].error_code
    return DENIED if code is DENIED else ErrorCode.none


async def until_all_say(clients: list[Client], wanted: ErrorCode) -> float:
    began = time.monotonic()
    for client in clients:
        while await code_of(client) is not wanted:
            await asyncio.sleep(0.001)
            assert time.monotonic() - began < 30
    return time.monotonic() - began


async def test_a_rule_is_in_force_at_every_node_within_a_second(cluster: NodeCluster) -> None:
    """Nodes read on when a heartbeat names a newer entry; their own polls are a minute apart."""
    admin = await admin_of(cluster.nodes[1])
    clients = [await Client.connect(node) for node in cluster.nodes.values()]
    times = []
    for _ in range(5):
        await ask(admin, 30, 3, {"creations": [GROUP_RULE]})
        times.append(await until_all_say(clients, ErrorCode.none))
        await ask(admin, 31, 3, {"filters": [selected()]})
        times.append(await until_all_say(clients, DENIED))
    print("seconds until every node decides by a change:", [f"{one:.3f}" for one in times])
    assert sorted(times)[len(times) // 2] < 1


async def test_a_node_that_hears_nothing_allows_nothing_after_its_session(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 3 is cut off from the store and from the others; the right is revoked meanwhile."""
    admin, cut = await admin_of(cluster.nodes[1]), cluster.nodes[3]
    await ask(admin, 30, 3, {"creations": [GROUP_RULE]})
    client = await Client.connect(cut)
    await until_all_say([client], ErrorCode.none)

    async def never(**_: Any) -> Any:
        await asyncio.sleep(3600)

    monkeypatch.setattr(cut.engine.metadata, "refresh", never)
    monkeypatch.setattr(cut.lifecycle.session, "note_response", lambda *_: None)
    began = time.monotonic()
    await ask(admin, 31, 3, {"filters": [selected()]})
    codes = []
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        while time.monotonic() - began < 30:
            codes.append(await code_of(client))
            await asyncio.sleep(0.05)
    assert set(codes) <= {ErrorCode.none, DENIED}
    assert cut.dispatcher.cut_off_total == 1
    assert ErrorCode.none not in codes[-1:] or time.monotonic() - began < 10


async def test_audit_events_of_every_node_are_in_the_topic(cluster: NodeCluster) -> None:
    """One node leads its partition; the others send theirs there."""
    for node in cluster.nodes.values():
        assert await code_of(await Client.connect(node)) is DENIED
    nodes = list(cluster.nodes.values())
    await cluster.until(
        lambda: all(node.audit_topic and node.audit_topic.written_total == 1 for node in nodes)
    )
    leader = next(
        one
        for node in nodes
        if (one := node.topics.partition("audit", 0)) is not None and one.stream.is_open
    )
    found = []
    for piece in await leader.stream.fetch(0, 1 << 20):
        for position, header in iter_headers(piece):
            batch = piece[position : position + header.size]
            found += [json.loads(record.value or b"") for record in iter_kafka_records(batch)]
    assert {event["node_id"] for event in found} == {1, 2, 3}
    for event in found:
        assert event["event"] == "authorization_denied"
        assert event["principal"] == "User:ANONYMOUS"
        assert event["resource"] == "g"
        assert event["api"] == "DescribeGroups"
    assert sum(node.services.audit.denied_total for node in nodes) == 3, "writing makes no events"


async def test_events_beyond_the_queue_are_dropped_and_counted(cluster: NodeCluster) -> None:
    topic = cluster.nodes[1].audit_topic
    assert topic is not None
    for number in range(20_000):
        topic.offer({"event": "e", "principal": f"User:{number}"})
    assert 0 < topic.dropped_total < 20_000
    kept = 20_000 - topic.dropped_total
    await cluster.until(lambda: topic.written_total == kept)
