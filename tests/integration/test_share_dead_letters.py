"""Dead letters of share groups at a node: records that are rejected, or delivered as often as they
may be, come to the topic of the group with what its headers say, and no trouble with that topic
holds up the group.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.partition.partition import Topic
from lakehead.broker.share.dead_letter_writer import AUTO_CREATE, GROUP_ENABLE
from lakehead.broker.share.led_share_partition import LedSharePartition
from lakehead.broker.share.share_counts import LetterOutcome
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.format.record_batch import iter_headers
from lakehead.storage.format.records import KafkaRecord, iter_kafka_records
from lakehead.storage.metadata.records import GroupConfig
from lakehead.storage.object_store import MemoryStore
from tests.integration.test_node_protocol import running, until, with_topic
from tests.support.node_client import Client, close_clients
from tests.support.node_cluster import LIMIT_S, node_cluster
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.share_member import ACCEPT, REJECT, RELEASE, ShareMember, share

LETTERS = "dlq.team"
NONE = ErrorCode.none
COUNT = 6
RECORDS = [
    TestRecord(offset=n, key=b"k%d" % n, value=b"v%d" % n, headers=(("own", b"x"),))
    for n in range(COUNT)
]


async def configure(node: Node, **configs: str) -> None:
    given: dict[str, str | None] = {
        "errors.deadletterqueue.topic.name": LETTERS,
        **{name.replace("_", "."): value for name, value in configs.items()},
    }
    await node.engine.metadata.commit([GroupConfig(group="team", configs=given)])


async def letter_topic(node: Node, partitions: int = 1, **configs: str) -> None:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    await node.replication_control.create(LETTERS, partitions, {GROUP_ENABLE: "true", **given})


async def produce(client: Client, codec: str = "none", partition: int = 0) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    client.produce(batch, partition=partition)
    assert (await client.produced())[0] == 0


@asynccontextmanager
async def shared(**settings: object) -> AsyncIterator[tuple[Node, Client, ShareMember]]:
    """A node with six records in partition 0 of a topic, and a member of a group."""
    async with running(None, **settings) as node, asyncio.timeout(LIMIT_S):
        client = await with_topic(node)
        await share(node)
        await produce(client)
        yield node, client, await ShareMember.connect(node, "a")


def led(node: Node, partition: int = 0) -> LedSharePartition:
    key = SharePartitionKey("team", node.topics.by_name["t"].id_bytes, partition)
    found = node.share_partitions.find(key)
    assert found is not None
    return found


async def settled(node: Node, offset: int = COUNT, partition: int = 0) -> None:
    """Wait until everything below an offset is done."""
    machine = led(node, partition).machine
    await until(lambda: machine.start_offset == offset)


async def records(topic: Topic, index: int = 0) -> list[KafkaRecord]:
    partition = topic.partitions[index]
    assert partition is not None
    found: list[KafkaRecord] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        for piece in await partition.stream.fetch(offset, 1 << 20):
            for position, header in iter_headers(piece):
                found += iter_kafka_records(piece[position : position + header.size])
                offset = header.end_offset
    return found


async def letters(node: Node, index: int = 0) -> dict[int, KafkaRecord]:
    """Dead letters by the offset of their record; each is there once."""
    found = await records(node.topics.by_name[LETTERS], index)
    by_offset = {int(told(one)["offset"]): one for one in found}
    assert len(by_offset) == len(found)
    return by_offset


def told(letter: KafkaRecord) -> dict[str, str]:
    """What the headers of a dead letter say."""
    return {
        name.removeprefix("__dlq.errors."): (value or b"").decode()
        for name, value in letter.headers
    }


def counted(node: Node) -> tuple[int, int]:
    """Dead letters that were written, and that were given up."""
    counts = node.share_partitions.counts.dead_letters_total
    return counts[LetterOutcome.WRITTEN], counts[LetterOutcome.FAILED]


async def test_rejected_records_come_to_the_dead_letter_topic_with_their_headers_alone() -> None:
    async with shared() as (node, _, a):
        await configure(node)
        await letter_topic(node)
        assert await a.fetch([0]) == {0: [(0, 5, 1)]}
        kinds = [ACCEPT, REJECT, REJECT, ACCEPT, REJECT, ACCEPT]
        assert await a.code({0: [(0, 5, kinds)]}) is NONE
        await settled(node)
        found = await letters(node)
        assert list(found) == [1, 2, 4]
        assert told(found[4]) == {
            "topic": "t",
            "partition": "0",
            "offset": "4",
            "group": "team",
            "delivery.count": "1",
            "message": "Offset rejected by client.",
        }
        assert {(one.key, one.value) for one in found.values()} == {(None, None)}
        assert counted(node) == (3, 0)
        assert await a.fetch() == {}


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_letters_have_keys_and_values_where_the_group_wants_that(codec: str) -> None:
    async with shared() as (node, client, a):
        await configure(node, **{"errors.deadletterqueue.copy.record.enable": "true"})
        await letter_topic(node)
        await produce(client, codec)
        assert await a.fetch([0]) == {0: [(0, 11, 1)]}
        assert await a.code({0: [(0, 1, [REJECT]), (2, 6, [ACCEPT]), (7, 11, [REJECT])]}) is NONE
        await settled(node, 12)
        found = await letters(node)
        assert {offset: (one.key, one.value) for offset, one in found.items()} == {
            offset: (b"k%d" % (offset % COUNT), b"v%d" % (offset % COUNT))
            for offset in (0, 1, *range(7, 12))
        }
        assert all("own" not in told(one) for one in found.values())


async def test_records_that_are_in_objects_alone_are_copied_too() -> None:
    store = MemoryStore()
    async with running(store) as node:
        client = await with_topic(node)
        await share(node)
        await produce(client)
        await configure(node, **{"errors.deadletterqueue.copy.record.enable": "true"})
        await letter_topic(node)
    async with running(store) as node, asyncio.timeout(LIMIT_S):
        partition = node.topics.by_name["t"].partitions[0]
        assert partition is not None
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0]) == {0: [(0, 5, 1)]}
        assert partition.stream.fetch_cached(0, 1) is None
        assert await a.code({0: [(0, 5, [REJECT])]}) is NONE
        await settled(node)
        values = [one.value for one in (await letters(node)).values()]
        assert values == [b"v%d" % number for number in range(COUNT)]


async def test_a_record_that_was_delivered_as_often_as_it_may_be_is_a_dead_letter() -> None:
    async with shared(group_share_delivery_count_limit=2) as (node, _, a):
        await configure(node)
        await letter_topic(node)
        one: dict[str, Any] = {"max_records": 1, "share_acquire_mode": 1}
        assert await a.fetch([0], **one) == {0: [(0, 0, 1)]}
        assert await a.fetch(acks={0: [(0, 0, [RELEASE])]}, **one) == {0: [(0, 0, 2)]}
        assert await a.code({0: [(0, 0, [RELEASE])]}) is NONE
        await settled(node, 1)
        (letter,) = (await letters(node)).values()
        assert told(letter)["message"] == "Offset delivery count exceeded the threshold."
        assert told(letter)["delivery.count"] == "2"


async def test_the_last_lock_that_runs_out_makes_a_dead_letter() -> None:
    limits = {"delivery_count_limit": 2, "min_record_lock_duration_ms": 1000}
    async with shared(**{f"group_share_{name}": limits[name] for name in limits}) as (node, _, a):
        await configure(node, share_record_lock_duration_ms="1000")
        await letter_topic(node)
        await a.fetch([0])
        assert await a.fetch(wait_ms=60_000) == {0: [(0, 5, 2)]}
        await settled(node)
        found = await letters(node)
        assert {told(one)["message"] for one in found.values()} == {
            "Offset delivery count exceeded the threshold."
        }
        assert list(found) == list(range(COUNT))


async def test_letters_are_spread_as_their_records_are() -> None:
    async with shared() as (node, client, a):
        await configure(node)
        await letter_topic(node, 2)
        await produce(client, partition=1)
        assert await a.fetch([1]) == {1: [(0, 5, 1)]}
        assert await a.code({1: [(0, 5, [REJECT])]}) is NONE
        await settled(node, partition=1)
        assert await letters(node) == {}
        assert {told(one)["partition"] for one in (await letters(node, 1)).values()} == {"1"}


async def test_letters_beyond_the_size_of_a_batch_go_in_several() -> None:
    async with shared() as (node, _, a):
        await configure(node, **{"errors.deadletterqueue.copy.record.enable": "true"})
        await letter_topic(node, max_message_bytes="500")
        assert await a.fetch([0]) == {0: [(0, 5, 1)]}
        assert await a.code({0: [(0, 5, [REJECT])]}) is NONE
        await settled(node)
        assert list(await letters(node)) == list(range(COUNT))
        assert node.share_partitions.counts.dead_letter_requests_total[LetterOutcome.WRITTEN] > 1


@pytest.mark.parametrize(
    ("name", "settings", "configs", "reason"),
    [
        (LETTERS, {}, None, "does not exist"),
        (LETTERS, {}, {}, GROUP_ENABLE),
        ("letters", {}, {GROUP_ENABLE: "true"}, "does not begin with dlq."),
        ("__letters", {"errors.deadletterqueue.topic.name.prefix": ""}, None, "internal"),
        ("dlq./", {AUTO_CREATE: True}, None, "not a valid topic name"),
        (LETTERS, {}, {GROUP_ENABLE: "true", "cleanup.policy": "compact"}, "without key"),
    ],
)
async def test_a_topic_that_must_not_be_used_holds_up_no_group(
    name: str, settings: dict[str, object], configs: dict[str, str] | None, reason: str
) -> None:
    async with shared(**settings) as (node, _, a):
        await configure(node, **{"errors.deadletterqueue.topic.name": name})
        if configs is not None:
            await node.replication_control.create(name, 1, configs)
        with structlog.testing.capture_logs() as logged:
            assert await a.fetch([0]) == {0: [(0, 5, 1)]}
            for first in (0, 3):
                assert await a.code({0: [(first, first + 2, [REJECT])]}) is NONE
                await settled(node, first + 3)
        (event,) = [one for one in logged if one["event"] == "dead_letters_given_up"]
        assert reason in event["reason"]
        assert (event["group"], event["partition"]) == ("team", "t-0")
        assert counted(node) == (0, COUNT)


async def test_a_missing_topic_is_created_if_the_cluster_allows_that() -> None:
    async with shared(**{AUTO_CREATE: True}) as (node, _, a):
        await configure(node)
        assert await a.fetch([0]) == {0: [(0, 5, 1)]}
        assert await a.code({0: [(0, 5, [REJECT])]}) is NONE
        await settled(node)
        assert list(await letters(node)) == list(range(COUNT))
        topic = node.state.topics[LETTERS]
        assert dict(topic.configs) == {
            GROUP_ENABLE: "true",
            "message.timestamp.type": "CreateTime",
        }
        assert len(topic.partitions) == 2


async def test_a_share_partition_is_let_go_once_its_letters_are_written() -> None:
    async with shared(group_share_delivery_count_limit=2) as (node, _, a):
        await configure(node)
        await letter_topic(node)
        await a.fetch([0])
        assert await a.fetch(acks={0: [(0, 5, [RELEASE])]}) == {0: [(0, 5, 2)]}
        a.client.writer.close()
        await until(lambda: not len(node.share_partitions))
        assert list(await letters(node)) == list(range(COUNT))
        b = await ShareMember.connect(node, "b")
        assert await b.fetch([0], wait_ms=300) == {}, "they were stored as done"


async def test_another_node_that_leads_the_topic_gets_the_letters() -> None:
    async with node_cluster(2) as cluster, asyncio.timeout(LIMIT_S):
        node, other = cluster.nodes[1], cluster.nodes[2]
        await node.replication_control.create("t", 1, replicas=[(1,)])
        await node.replication_control.create(LETTERS, 1, {GROUP_ENABLE: "true"}, replicas=[(2,)])
        await cluster.until(cluster.is_even)
        await configure(node)
        await node.share_coordinator.partition_for("team:x:0")
        await cluster.until(cluster.is_even)
        key = SharePartitionKey("team", node.topics.by_name["t"].id_bytes, 0)
        await node.services.share_states.initialize(key, 1, 0)
        try:
            await produce(await Client.connect(node))
            a = await ShareMember.connect(node, "a")
            assert await a.fetch([0]) == {0: [(0, 5, 1)]}
            assert await a.code({0: [(0, 5, [REJECT])]}) is NONE
            await settled(node)
            assert list(await letters(other)) == list(range(COUNT))
        finally:
            await close_clients()
