"""Clients that are not ours, each with the same two verbs: write records, read them back."""

import asyncio
import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AsyncPartition
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.waiting import wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PythonPartition
    from kafka import codec as python_codec

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S = 60.0
FIRST_TIMESTAMP = 1_700_000_000_000


class Item(NamedTuple):
    """A record as any client sees it; the timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int = FIRST_TIMESTAMP


ITEMS = tuple(
    Item(
        key=(None, b"", b"key-%d" % number)[number % 3],
        value={4: None, 7: b""}.get(
            number % 15, b'{"number": %d, "text": "%s"}' % (number, b"ab" * 50)
        ),
        headers=(("trace", b"%d" % number), ("empty", b"")) if number % 2 else (),
        timestamp=FIRST_TIMESTAMP + 10 * number,
    )
    for number in range(300)
)
"""What every client writes: keys and values that are null or empty, headers, times of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignClient:
    """A client: `write(bootstrap, topic, codec)` sends ITEMS to partition 0, `read(bootstrap,
    topic)` returns all of them. One that is not `exact` writes keys and values alone, null as
    empty.
    """

    name: str
    write: Callable[[str, str, str], None]
    read: Callable[[str, str], list[Item]]
    codecs: tuple[str, ...] = CODECS
    exact: bool = True


def _confluent_writes(bootstrap: str, topic: str, codec: str) -> None:
    reports: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 20,
        }
    )
    for item in ITEMS:
        producer.produce(
            topic,
            item.value,
            item.key,
            partition=0,
            headers=list(item.headers),
            timestamp=item.timestamp,
            on_delivery=lambda error, message: reports.append(error or message.offset()),
        )
    assert producer.flush(DEADLINE_S) == 0
    assert reports == list(range(len(ITEMS)))


def _confluent_reads(bootstrap: str, topic: str) -> list[Item]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    items: list[Item] = []

    def poll() -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None
            assert message.offset() == len(items)
            headers: Any = message.headers() or ()
            _, timestamp = message.timestamp()
            items.append(Item(message.key(), message.value(), tuple(headers), timestamp))
        return len(items) >= len(ITEMS)

    assert wait_until(poll, DEADLINE_S)
    consumer.close()
    return items


def _kafka_python_writes(bootstrap: str, topic: str, codec: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
    )
    with contextlib.closing(producer):
        for item in ITEMS:
            producer.send(
                topic,
                item.value,
                item.key,
                headers=list(item.headers),
                partition=0,
                timestamp_ms=item.timestamp,
            )
        producer.flush(DEADLINE_S)


def _kafka_python_reads(bootstrap: str, topic: str) -> list[Item]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    place = PythonPartition(topic, 0)
    consumer.assign([place])
    items: list[Item] = []

    def poll() -> bool:
        for message in consumer.poll(200).get(place, []):
            assert message.offset == len(items)
            headers = tuple(message.headers)
            items.append(Item(message.key, message.value, headers, message.timestamp))
        return len(items) >= len(ITEMS)

    with contextlib.closing(consumer):
        assert wait_until(poll, DEADLINE_S)
    return items


def _aiokafka_writes(bootstrap: str, topic: str, codec: str) -> None:
    async def write() -> None:
        compression = None if codec == "none" else codec
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=compression, linger_ms=20
        ) as producer:
            sent = [
                await producer.send(
                    topic,
                    item.value,
                    item.key,
                    partition=0,
                    headers=list(item.headers),
                    timestamp_ms=item.timestamp,
                )
                for item in ITEMS
            ]
            for answer in sent:
                await answer

    asyncio.run(asyncio.wait_for(write(), DEADLINE_S))


def _aiokafka_reads(bootstrap: str, topic: str) -> list[Item]:
    async def read() -> list[Item]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        items: list[Item] = []
        await consumer.start()
        try:
            consumer.assign([AsyncPartition(topic, 0)])
            while len(items) < len(ITEMS):
                message = await consumer.getone()
                assert message.offset == len(items)
                headers = tuple(message.headers)
                items.append(Item(message.key, message.value, headers, message.timestamp))
        finally:
            await consumer.stop()
        return items

    return asyncio.run(asyncio.wait_for(read(), DEADLINE_S))


PIP_CLIENTS = (
    ForeignClient(name="confluent", write=_confluent_writes, read=_confluent_reads),
    ForeignClient(
        name="kafka-python",
        write=_kafka_python_writes,
        read=_kafka_python_reads,
        codecs=tuple(
            name for name in CODECS if name == "none" or getattr(python_codec, f"has_{name}")()
        ),
    ),
    ForeignClient(name="aiokafka", write=_aiokafka_writes, read=_aiokafka_reads),
)
"""The clients that pip installs."""
