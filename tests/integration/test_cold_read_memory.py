"""A broker reads back far more than its settings allow in memory, while producers go on."""

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.storage.cold_read import MemoryWatch
from tests.support.forked_server import forked_server
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until

MIB = 1 << 20
SIZE = 320 * MIB
VALUE = bytes(range(256)) * 128
PARTITIONS = 4
SETTINGS = {
    "cache.size": 16 * MIB,
    "block.cache.size": 16 * MIB,
    "index.cache.size": 4 * MIB,
    "cold.read.size": 8 * MIB,
    "wal.pending.size": 8 * MIB,
}
FETCH = 8 * MIB
COPIES = 2 * FETCH + 96 * MIB
"""Of frames and responses on their way, and what the allocator keeps of freed ones."""
FLAGS = (
    *(part for name, value in SETTINGS.items() for part in (f"--{name}", str(value))),
    *("--fetch.max.bytes", str(FETCH), "--upload.size", str(8 * MIB)),
    *("--upload.age.ms", "200", "--wal.size", str(64 * MIB)),
)


def test_memory_of_a_long_cold_read_is_bounded_by_the_settings(tmp_path: Path) -> None:
    bound = sum(SETTINGS.values()) + COPIES
    assert bound < SIZE * 2 // 3, "or it would show nothing"
    with forked_server(tmp_path, *FLAGS) as server:
        create_topic(server.bootstrap, "cold", PARTITIONS)
        watch = MemoryWatch(server.process.pid)
        idle = watch.process.memory_info().rss
        watch.start()
        producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5})
        produce(producer, SIZE)
        assert producer.flush(60) == 0
        left = SIZE // len(VALUE)
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "cold"})
        consumer.assign([TopicPartition("cold", number, 0) for number in range(PARTITIONS)])

        def is_over() -> bool:
            nonlocal left
            for message in consumer.consume(500, timeout=1.0):
                assert message.error() is None
                assert message.value() == VALUE
                left -= 1
            producer.produce("cold", VALUE, partition=0)  # the foreground goes on
            producer.poll(0)
            return left <= 0

        assert wait_until(is_over, 60.0), f"{left} records are missing"
        consumer.close()
        assert producer.flush(30) == 0
        watch.stop()
    assert watch.peak - idle < bound, f"{(watch.peak - idle) / MIB:.0f} of {bound / MIB:.0f} MiB"


def produce(producer: Producer, size: int) -> None:
    """Produce `size` bytes in turns to the partitions."""
    for number in range(size // len(VALUE)):
        while True:
            try:
                producer.produce("cold", VALUE, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
