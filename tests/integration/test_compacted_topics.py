"""Compacted topics and retention, as clients see them on a broker that maintains itself."""

import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.kafka_tools import require_kafka_tools, run
from tests.support.waiting import wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka import KafkaConsumer
    from kafka import TopicPartition as PythonPartition

EAGER = ("--maintenance.interval.ms", "50", "--log.retention.check.interval.ms", "200")
DEADLINE_S = 60.0
Pair = tuple[int, bytes | None, bytes | None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path_factory.mktemp("compacted"), (*HASTY, *EAGER))
    running.start()
    yield running
    running.kill()


def make_topic(broker: BrokerProcess, name: str, partitions: int = 1, **configs: str) -> str:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=named)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([topic])[name].result(DEADLINE_S)
    return name


def set_config(broker: BrokerProcess, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def produce(
    broker: BrokerProcess,
    topic: str,
    pairs: Sequence[tuple[bytes, bytes | None]],
    codec: str = "gzip",
) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "compression.type": codec}
    )
    for key, value in pairs:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(DEADLINE_S) == 0


def read(broker: BrokerProcess, topic: str, offset: int = 0) -> list[Pair]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True}
    )
    found: list[Pair] = []
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        while True:
            message = consumer.poll(DEADLINE_S)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append((message.offset() or 0, message.key(), message.value()))
    finally:
        consumer.close()


def read_by_python(broker: BrokerProcess, topic: str, end: int) -> list[Pair]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=30_000)
    place = PythonPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    found: list[Pair] = []
    try:
        while consumer.position(place) < end:
            for records in consumer.poll(timeout_ms=500).values():
                found += [(one.offset, one.key, one.value) for one in records]
    finally:
        consumer.close()
    return found


def newest(pairs: Sequence[tuple[bytes, bytes | None]]) -> list[Pair]:
    last = {key: (offset, key, value) for offset, (key, value) in enumerate(pairs)}
    return sorted(last.values())


def test_consumers_come_to_see_the_newest_record_of_each_key(broker: BrokerProcess) -> None:
    topic = make_topic(broker, "newest", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    pairs: list[tuple[bytes, bytes | None]] = [(b"k%d" % (n % 7), b"%d" % n) for n in range(500)]
    pairs += [(b"u%d" % n, b"once") for n in range(20)]
    pairs += [(b"k3", None)]
    produce(broker, topic, pairs)
    assert wait_until(lambda: read(broker, topic) == newest(pairs), DEADLINE_S)
    assert read_by_python(broker, topic, len(pairs)) == newest(pairs)
    for offset in (0, 250, 493, 500, 519):
        wanted = [pair for pair in newest(pairs) if pair[0] >= offset]
        assert read(broker, topic, offset) == wanted
    pairs += [(b"k1", b"again"), (b"k2", b"again")]
    produce(broker, topic, pairs[-2:])
    assert wait_until(lambda: read(broker, topic) == newest(pairs), DEADLINE_S)


def test_batches_of_every_codec_are_read_by_every_client(broker: BrokerProcess) -> None:
    """What compaction compresses anew, and tombstones that it has marked, Java's client included:
    it checks more than others do.
    """
    require_kafka_tools()
    topic = make_topic(broker, "codecs", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    pairs: list[tuple[bytes, bytes | None]] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        name = codec.encode()
        batch: list[tuple[bytes, bytes | None]] = [
            (b"shared", name),
            (name, b"value of " + name * 10_000),
            (b"gone " + name, None),
            (b"shared", name + b" again"),
        ]
        produce(broker, topic, batch, codec=codec)
        pairs += batch
    assert wait_until(lambda: read(broker, topic) == newest(pairs), DEADLINE_S)
    shown = run(
        *("kafka-console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--from-beginning", "--max-messages", str(len(newest(pairs)))),
        *("--timeout-ms", "20000"),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.key=true"),
    )
    lines = [line.split("\t") for line in shown.stdout.splitlines()]
    found = [(int(at.removeprefix("Offset:")), key, value) for at, key, value in lines]
    wanted = [
        (at, (key or b"").decode(), "null" if value is None else value.decode())
        for at, key, value in newest(pairs)
    ]
    assert found == wanted, shown.stderr


def test_what_was_compacted_is_compacted_after_a_restart(tmp_path: Path) -> None:
    running = BrokerProcess(tmp_path, (*HASTY, *EAGER))
    running.start()
    try:
        topic = make_topic(running, "t", cleanup_policy="compact")
        pairs: list[tuple[bytes, bytes | None]] = [(b"k%d" % (n % 5), b"%d" % n) for n in range(99)]
        produce(running, topic, pairs)
        assert wait_until(lambda: read(running, topic) == newest(pairs), DEADLINE_S)
        running.kill()
        running.start()
        assert read(running, topic) == newest(pairs)
    finally:
        running.kill()


class Answers:
    """Produces records and notes what becomes of each."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.errors: dict[bytes, int] = {}
        # What is sent to a partition before `wait` is one batch: it lingers, and is not sent
        # piecemeal while the client learns of leaders.
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 30_000, "acks": "all"}
        )
        self._producer.list_topics(timeout=DEADLINE_S)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes) -> None:
        self._producer.produce(topic, value, key, partition, on_delivery=self._settle)

    def _settle(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        self.errors[value] = 0 if error is None else error.code()

    def wait(self) -> dict[bytes, int]:
        assert self._producer.flush(DEADLINE_S) == 0
        return self.errors


def test_records_without_a_key_are_refused_and_their_neighbours_are_not(
    broker: BrokerProcess,
) -> None:
    """The batch is refused, and says which record it is for; other batches are taken (KIP-467)."""
    topic = make_topic(broker, "keys", partitions=2, cleanup_policy="compact,delete")
    other = make_topic(broker, "any")
    answers = Answers(broker)
    answers.send(topic, 0, b"a", b"before")
    answers.send(topic, 0, None, b"keyless")
    answers.send(topic, 0, b"b", b"after")
    answers.send(topic, 0, None, b"keyless too")
    answers.send(topic, 1, b"c", b"elsewhere")
    answers.send(topic, 1, b"", b"empty key")
    answers.send(other, 0, None, b"not compacted")
    found = answers.wait()
    assert found == {
        b"before": KafkaError._INVALID_DIFFERENT_RECORD,
        b"keyless": KafkaError.INVALID_RECORD,
        b"keyless too": KafkaError.INVALID_RECORD,
        b"after": KafkaError._INVALID_DIFFERENT_RECORD,
        b"elsewhere": 0,
        b"empty key": 0,
        b"not compacted": 0,
    }
    assert read(broker, topic) == []


def test_a_topic_that_becomes_compacted_loses_what_has_no_key(broker: BrokerProcess) -> None:
    topic = make_topic(broker, "late")
    answers = Answers(broker)
    for number in range(6):
        answers.send(topic, 0, None if number % 2 else b"k", b"%d" % number)
    assert set(answers.wait().values()) == {0}
    set_config(broker, topic, "cleanup.policy", "compact")
    assert wait_until(lambda: read(broker, topic) == [(4, b"k", b"4")], DEADLINE_S)
    # Consumers get to the end though the last record is gone, also from within the gap.
    assert read_by_python(broker, topic, 6) == [(4, b"k", b"4")]
    assert read(broker, topic, 5) == []
    produce(broker, topic, [(b"x", b"y")])
    assert read(broker, topic, 5) == [(6, b"x", b"y")]


def start_offset(broker: BrokerProcess, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)
        return low
    finally:
        consumer.close()


def test_old_records_are_removed_and_young_ones_are_not(broker: BrokerProcess) -> None:
    topic = make_topic(broker, "aged", retention_ms=str(3_600_000))
    now_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for age_ms in (7_200_000, 0):
        for number in range(5):
            producer.produce(topic, b"%d" % number, timestamp=now_ms - age_ms)
        assert producer.flush(DEADLINE_S) == 0
        # What lies in one object goes as a whole: the old ones get one of their own.
        assert wait_until(lambda: start_offset(broker, topic) == 5, DEADLINE_S)
    assert [offset for offset, _, _ in read(broker, topic, 5)] == [5, 6, 7, 8, 9]


def test_a_partition_that_is_too_large_gives_up_its_oldest_records(broker: BrokerProcess) -> None:
    topic = make_topic(broker, "sized", retention_bytes="20000", retention_ms="-1")
    producer, sent = Producer({"bootstrap.servers": broker.bootstrap}), 0

    def has_shrunk() -> bool:
        nonlocal sent
        producer.produce(topic, b"%d" % sent + b"y" * 15_000)
        assert producer.flush(DEADLINE_S) == 0
        sent += 1
        return start_offset(broker, topic) > 0

    assert wait_until(has_shrunk, DEADLINE_S)
    start = start_offset(broker, topic)
    left = [offset for offset, _, _ in read(broker, topic, start)]
    assert left == list(range(start, sent))
    assert len(left) * 15_000 >= 20_000
