"""`lakehead import` of messages in the formats from before Kafka 0.11, which Apache Kafka 4 still
reads and no longer writes: they are put into its log by hand.
"""

import gzip
import json
import struct
import zlib
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.apache_kafka.server import kafka_server
from bench.maven import MissingTool
from tests.integration.test_kafka_import import run_import
from tests.support.broker_process import BrokerProcess
from tests.support.traffic import new_consumer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TIME_MS = 1_500_000_000_000
GZIP = 1
Message = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp (-1 in the first format), key and value."""


def encoded(one: Message, magic: int, attributes: int = 0) -> bytes:
    """Return a message of a message set, in format 0 or 1."""
    offset, timestamp, *fields = one
    body = struct.pack(">bb", magic, attributes)
    body += struct.pack(">q", timestamp) if magic else b""
    for part in fields:
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message


def put_into_log(data: Path, log: bytes) -> None:
    """Have this be the log of `old-0`, and the broker look it through when it starts."""
    folder = data / "old-0"
    for file in folder.iterdir():
        if file.suffix in {".log", ".index", ".timeindex", ".snapshot"}:
            file.unlink()
    (folder / "00000000000000000000.log").write_bytes(log)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (data / name).unlink(missing_ok=True)
    (data / "replication-offset-checkpoint").unlink(missing_ok=True)


def records(bootstrap: str, count: int) -> list[Message]:
    consumer = new_consumer(bootstrap, {})
    try:
        consumer.assign([TopicPartition("old", 0, 0)])
        found: list[Message] = []

        def has_all() -> bool:
            found.extend(
                (one.offset() or 0, one.timestamp()[1], one.key(), one.value())
                for one in consumer.consume(count, 1.0)
            )
            return len(found) >= count

        assert wait_until(has_all, 60)
    finally:
        consumer.close()
    return found


def test_messages_of_old_formats_keep_offsets_times_and_contents(tmp_path: Path) -> None:
    first: list[Message] = [
        (number, -1, b"k" if number % 2 else None, None if number % 7 == 3 else b"%d" % number)
        for number in range(20)
    ]
    second: list[Message] = [
        (number, TIME_MS + number, b"k" if number % 2 else None, b"%d" % number)
        for number in range(20, 40)
    ]
    third: list[Message] = [(number, TIME_MS + number, b"k", b"gz") for number in range(40, 45)]
    inner = b"".join(encoded((offset - 40, *rest), 1) for offset, *rest in third)  # type: ignore[arg-type]
    wrapper = encoded((44, TIME_MS + 44, None, gzip.compress(inner)), 1, GZIP)
    log = b"".join(encoded(one, 0) for one in first) + b"".join(encoded(one, 1) for one in second)
    (tmp_path / "kafka").mkdir()
    try:
        kafka = kafka_server(tmp_path / "kafka", {"log.retention.ms": "-1"})
    except MissingTool as missing:
        pytest.skip(str(missing))
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("old", 1, 1)])["old"].result(30)
        assert wait_until((tmp_path / "kafka" / "data" / "old-0").is_dir, 30)
    put_into_log(tmp_path / "kafka" / "data", log + wrapper)
    folder = tmp_path / "imported" / "data"
    with kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(10):
            producer.produce("old", b"new %d" % number, timestamp=TIME_MS)
        assert producer.flush(30) == 0
        (row,) = map(json.loads, run_import(kafka.bootstrap, folder).splitlines())
        assert row["records"] == 55
        (row,) = map(json.loads, run_import(kafka.bootstrap, folder, "--verify").splitlines())
        assert row["same"]
    new: list[Message] = [(45 + number, TIME_MS, None, b"new %d" % number) for number in range(10)]
    broker = BrokerProcess(folder.parent)
    broker.start()
    try:
        assert records(broker.bootstrap, 55) == [*first, *second, *third, *new]
    finally:
        broker.stop()
