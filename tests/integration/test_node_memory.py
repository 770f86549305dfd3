"""The memory of a node with default settings, under as much as one client produces and reads."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.lakehead_server import lakehead_server
from tests.support.traffic import create_topic

MIB = 1 << 20
PARTITIONS = 4
RECORD = bytes(range(256)) * 256
RECORDS = 700 * MIB // len(RECORD)
BYTES_MAX = 700_000_000


@pytest.mark.slow
def test_a_node_under_full_load_has_less_than_700_mb_of_memory(tmp_path: Path) -> None:
    with lakehead_server(tmp_path) as server:
        create_topic(server.bootstrap, "full", PARTITIONS)
        producer = Producer(
            server.librdkafka | {"batch.size": MIB, "linger.ms": 5, "enable.idempotence": True}
        )
        for number in range(RECORDS):
            while True:
                try:
                    producer.produce("full", RECORD, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(120) == 0
        consumer = Consumer(server.librdkafka | {"group.id": "all", "enable.auto.commit": False})
        consumer.assign([TopicPartition("full", one, 0) for one in range(PARTITIONS)])
        read = 0
        while read < RECORDS:
            messages = consumer.consume(10_000, 60)
            assert messages
            read += len(messages)
        consumer.close()
        assert server.usage().peak_rss_bytes < BYTES_MAX
