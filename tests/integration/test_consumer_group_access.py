"""Consumer groups under access rules: a member is given only topics that it may DESCRIBE."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_group import ConsumerGroup
from lakehead.broker.node import Node, start_node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.broker.security.standard_authorizer import CLASS_NAME
from lakehead.broker.settings import Settings
from tests.differential.trees import Tree, message
from tests.integration.test_consumer_group_requests import WireGroup
from tests.support.node_client import Client, close_clients

GROUP, ALLOWED, HIDDEN = "team", "allowed", "hidden"
LITERAL, ALLOW = 3, 3
DEADLINE_S = 60.0
NONE, REFUSED = ErrorCode.none, ErrorCode.topic_authorization_failed


async def ask(client: Client, key: int, version: int, tree: Tree) -> Any:
    return await client.ask(key, version, message(schema(key, version).request_class, tree))


async def allow(admin: Client, kind: ResourceType, name: str, operation: AclOperation) -> None:
    creation = {
        "resource_type": kind.value,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:ANONYMOUS",
        "host": "*",
        "operation": operation.value,
        "permission_type": ALLOW,
    }
    answer = await ask(admin, 30, 3, {"creations": [creation]})
    assert answer.results[0].error_code is NONE


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose client may read in the group, describe one of two topics, and no more."""
    settings = Settings(
        data=str(tmp_path),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        offsets_topic_num_partitions=2,
        authorizer_class_name=CLASS_NAME,
    )
    made = await start_node(settings, rng=random.Random(5))
    try:
        for topic in (ALLOWED, HIDDEN):
            await made.replication_control.create(topic, 2)
        await made.groups.partition_for(GROUP)
        await made.groups.loaded(GROUP)
        yield made
    finally:
        await close_clients()
        await made.close()


async def admin_of(node: Node) -> Client:
    admin = await Client.connect(node)
    admin.proof = NodeProof(secret=node.state.node_secret, to_node=node.node_id)
    return admin


async def test_a_member_gets_only_topics_that_it_may_describe(node: Node) -> None:
    admin = await admin_of(node)
    await allow(admin, ResourceType.GROUP, GROUP, AclOperation.READ)
    await allow(admin, ResourceType.TOPIC, ALLOWED, AclOperation.DESCRIBE)
    group = WireGroup(await Client.connect(node), GROUP)
    refused = await group.join("m", subscribed_topic_names=(ALLOWED, HIDDEN))
    assert refused.error_code is REFUSED
    assert (await group.described()).error_code is ErrorCode.group_id_not_found, "nothing was made"
    named = await group.join("m", subscribed_topic_names=(ALLOWED,))
    assert group.indexes(named) == [0, 1]
    changed = await group.heartbeat("m", 1, subscribed_topic_names=(HIDDEN,))
    assert changed.error_code is REFUSED
    matched = await group.join("n", subscribed_topic_names=None, subscribed_topic_regex=".*d.*")
    epoch, told = matched.member_epoch, matched
    async with asyncio.timeout(DEADLINE_S):
        while not any(resolved.topics for resolved in resolved_of(node)):
            told = await group.heartbeat("n", epoch)
            epoch = told.member_epoch
            await asyncio.sleep(0.02)
    assert [resolved.topics for resolved in resolved_of(node)] == [{ALLOWED}]


def resolved_of(node: Node) -> list[Any]:
    (live,) = (s.groups[GROUP] for s in node.groups.shards.loaded() if GROUP in s.groups)
    assert isinstance(live.group, ConsumerGroup)
    return list(live.group.store.regexes.values())


async def test_a_group_with_a_hidden_topic_is_not_shown(node: Node) -> None:
    admin = await admin_of(node)
    await allow(admin, ResourceType.GROUP, GROUP, AclOperation.DESCRIBE)
    await allow(admin, ResourceType.TOPIC, ALLOWED, AclOperation.DESCRIBE)
    everything = WireGroup(admin, GROUP)
    joined = await everything.join("m", subscribed_topic_names=(ALLOWED,))
    assert joined.error_code is NONE
    group = WireGroup(await Client.connect(node), GROUP)
    assert [one.member_id for one in (await group.described()).members] == ["m"]
    await everything.join("n", subscribed_topic_names=(HIDDEN,))
    hidden = await group.described()
    assert (hidden.error_code, hidden.members) == (REFUSED, ())
    assert hidden.error_message == (
        "The described group uses topics that the client is not authorized to describe."
    )
    assert len((await everything.described()).members) == 2
