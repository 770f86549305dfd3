"""A transaction that is open in a partition and that no coordinator knows holds up all who read
what is committed there, for ever: Kafka's own tool finds it and ends it.

Verification keeps such ones from coming to be, so the partition is given the batch behind its back.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer

from lakehead.broker.node import Node, start_node
from lakehead.broker.partition.partition import Partition
from lakehead.broker.settings import Settings
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.record_batch import TRANSACTIONAL
from tests.support.kafka_tools import Tools, require_kafka_tools

TOPIC, LIMIT_S = "held-up", 20.0
LOST = 4242
"""The producer that nobody knows."""


@asynccontextmanager
async def node_at(folder: Path) -> AsyncIterator[Node]:
    settings = Settings(
        data=str(folder),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        offsets_topic_num_partitions=2,
        transaction_state_log_num_partitions=2,
    )
    node = await start_node(settings, rng=random.Random(7))
    try:
        yield node
    finally:
        await node.close()


def send(bootstrap: str, value: str, transactional_id: str | None = None) -> None:
    named = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer({"bootstrap.servers": bootstrap, **named})
    if transactional_id:
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
    producer.produce(TOPIC, value)
    if transactional_id:
        producer.commit_transaction(LIMIT_S)
    assert producer.flush(LIMIT_S) == 0


def committed(bootstrap: str) -> list[str]:
    """Read what is committed, to its end."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    isolation = {"isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**settings, **isolation, "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    found: list[str] = []
    while True:
        message = consumer.poll(LIMIT_S)
        assert message is not None, "neither a record nor the end"
        if message.error():
            break
        value = message.value()
        assert isinstance(value, bytes)
        found.append(value.decode())
    consumer.close()
    return found


async def hang(partition: Partition, node: Node) -> int:
    """Begin a transaction that nobody knows; return where."""
    batch = encode_batch(
        [(b"k", b"undecided")],
        node.clock.now_ms(),
        producer_id=LOST,
        producer_epoch=3,
        attributes=TRANSACTIONAL,
    )
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    offset = partition.append(memoryview(batch), done.set_result)
    assert await done is None
    return offset


async def test_kafkas_tool_finds_a_hanging_transaction_and_ends_it(tmp_path: Path) -> None:
    require_kafka_tools()
    async with node_at(tmp_path) as node:
        await node.replication_control.create(TOPIC, 1)
        bootstrap = f"127.0.0.1:{node.advertised_port}"
        tools = Tools(bootstrap)

        async def transactions(*arguments: str) -> list[list[str]]:
            shown = await asyncio.to_thread(tools, "kafka-transactions", *arguments)
            return [line.split() for line in shown.splitlines()]

        async def found() -> list[list[str]]:
            lines = await transactions("find-hanging", "--broker-id", "0", *soon)
            return [line[:6] for line in lines if line and line[0] == TOPIC]

        soon = ("--max-transaction-timeout", "0")
        await asyncio.to_thread(send, bootstrap, "before", "known")
        topic = node.topics.find(TOPIC)
        assert topic is not None
        partition = topic.served(0)
        start = await hang(partition, node)
        await asyncio.to_thread(send, bootstrap, "after", "known")
        assert await asyncio.to_thread(committed, bootstrap) == ["before"]
        assert await found() == [[TOPIC, "0", str(LOST), "3", "-1", str(start)]]
        where = ("--topic", TOPIC, "--partition", "0", "--start-offset", str(start))
        await transactions("abort", *where)
        assert partition.last_stable_offset == partition.high_watermark
        assert await found() == []
        assert await asyncio.to_thread(committed, bootstrap) == ["before", "after"]
    async with node_at(tmp_path) as node:
        bootstrap = f"127.0.0.1:{node.advertised_port}"
        assert await asyncio.to_thread(committed, bootstrap) == ["before", "after"]
