"""What a topic's configs ask of records: timestamps of whom and within which bounds, and sizes.

`BROKER=kafka` runs the same against Apache Kafka.
"""

import os
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    TopicPartition,
)

from bench.process import ServerProcess
from tests.support.broker_process import HASTY, server_under_test
from tests.support.topic_clients import (
    CODECS,
    SECONDS_MAX,
    THE_BROKER,
    Produced,
    consume,
    make_topic,
    set_config,
)

LONG_AGO_MS = 1_000_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_under_test(tmp_path_factory.mktemp("rules"), *HASTY) as running:
        yield running


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("codec", CODECS)
def test_records_get_the_time_of_their_appending(server: ServerProcess, codec: str) -> None:
    topic = make_topic(server, f"stamped-{codec}", message_timestamp_type="LogAppendTime")
    produced = Produced(server, codec)
    before = now_ms()
    for timestamp in (LONG_AGO_MS, now_ms() + 100 * HOUR_MS, 0):
        assert produced(topic, timestamp, b"v" * 500) is None
    after = now_ms()
    read = consume(server, topic, 3)
    for message in [*(message for _, message in produced.answers), *read]:
        kind, stamped = message.timestamp()
        assert before <= stamped <= after
        if message in read:
            assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert [message.value() for message in read] == [b"v" * 500] * 3
    times = [message.timestamp()[1] for message in read]
    assert times == sorted(times)


def test_the_broker_is_told_of_the_type_while_it_runs(server: ServerProcess) -> None:
    topic = make_topic(server, "changed")
    produced = Produced(server)
    assert produced(topic, LONG_AGO_MS) is None
    set_config(server, topic, "message.timestamp.type", "LogAppendTime")
    assert produced(topic, LONG_AGO_MS) is None
    set_config(server, topic, "message.timestamp.type", "CreateTime")
    assert produced(topic, LONG_AGO_MS) is None
    kinds = [message.timestamp()[0] for message in consume(server, topic, 3)]
    created, appended = TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME
    assert kinds == [created, appended, created]


def test_offsets_are_found_by_the_time_of_appending(server: ServerProcess) -> None:
    topic = make_topic(server, "searched", message_timestamp_type="LogAppendTime")
    produced = Produced(server)
    for _ in range(3):
        assert produced(topic, LONG_AGO_MS) is None
    times = [message.timestamp()[1] for message in consume(server, topic, 3)]
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "searchers"})
    for asked, found in (
        (LONG_AGO_MS, 0),
        (times[-1], times.index(times[-1])),
        (times[-1] + 1, -1),
    ):
        place = consumer.offsets_for_times([TopicPartition(topic, 0, asked)], SECONDS_MAX)[0]
        assert place.offset == found
    consumer.close()


def test_timestamps_out_of_bounds_are_refused(server: ServerProcess) -> None:
    topic = make_topic(
        server,
        "bounded",
        message_timestamp_before_max_ms=str(HOUR_MS),
        message_timestamp_after_max_ms=str(2 * HOUR_MS),
    )
    other = make_topic(server, "unbounded")
    produced = Produced(server)
    for timestamp in (now_ms() - 2 * HOUR_MS, now_ms() + 3 * HOUR_MS, LONG_AGO_MS):
        error = produced(topic, timestamp)
        assert error is not None
        assert error.code() == KafkaError.INVALID_TIMESTAMP
    for timestamp in (now_ms() - HOUR_MS // 2, now_ms() + HOUR_MS, 0):
        assert produced(topic, timestamp) is None
    assert produced(other, LONG_AGO_MS) is None
    consume(server, topic, 3)
    set_config(server, topic, "message.timestamp.before.max.ms", str(2**63 - 1))
    assert produced(topic, LONG_AGO_MS) is None


def test_a_topic_may_take_larger_and_smaller_batches_than_others(server: ServerProcess) -> None:
    small = make_topic(server, "small", max_message_bytes="1000")
    large = make_topic(server, "large", max_message_bytes="3000000")
    usual = make_topic(server, "usual")
    produced = Produced(server)
    sizes = {small: 900, usual: 1_000_000, large: 2_900_000}
    for topic, size in sizes.items():
        assert produced(topic, value=b"x" * size) is None
        too_large = {small: 1000, usual: 1_100_000, large: 3_100_000}[topic]
        error = produced(topic, value=b"x" * too_large)
        assert error is not None
        assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    set_config(server, small, "max.message.bytes", "5000")
    assert produced(small, value=b"x" * 4000) is None
    consume(server, small, 2)


@pytest.mark.skipif(
    os.environ.get("BROKER") == "kafka", reason="Kafka answers before it does what it is told"
)
def test_defaults_of_all_topics_are_changed_while_the_broker_runs(server: ServerProcess) -> None:
    plain, own = make_topic(server, "plain"), make_topic(server, "own", max_message_bytes="9000")
    produced = Produced(server)
    set_config(server, THE_BROKER, "message.max.bytes", "5000")
    set_config(server, THE_BROKER, "log.message.timestamp.type", "LogAppendTime")
    assert produced(plain, value=b"x" * 6000) is not None
    assert produced(own, value=b"x" * 6000) is None
    assert produced(plain, LONG_AGO_MS, b"x") is None
    assert consume(server, plain, 1)[0].timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
    set_config(server, THE_BROKER, "message.max.bytes", None)
    set_config(server, THE_BROKER, "log.message.timestamp.type", None)
    assert produced(plain, LONG_AGO_MS, b"x" * 6000) is None
    assert consume(server, plain, 2)[1].timestamp() == (TIMESTAMP_CREATE_TIME, LONG_AGO_MS)
