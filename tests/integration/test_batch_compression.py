"""Batches are compressed as their topic wants (compression.type), and any client reads them.

`BROKER=kafka` runs the same against Apache Kafka.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError

from bench.process import ServerProcess
from lakehead.storage.format.record_batch import iter_headers
from tests.support.broker_process import HASTY, server_under_test
from tests.support.kafka_tools import Tools, require_kafka_tools
from tests.support.topic_clients import CODECS, Produced, consume, make_topic, set_config
from tests.support.wire import Wire, fetch_request

LONG_AGO_MS = 1_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_under_test(tmp_path_factory.mktemp("codecs"), *HASTY) as running:
        yield running


def fetched_codecs(server: ServerProcess, topic: str) -> set[int]:
    """Codecs of a topic's batches, as the broker sends them."""
    with Wire(server.port) as wire:
        answer = wire.ask(fetch_request(topic, 0, 0))
    assert answer is not None
    records = 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4 + 4
    return {header.codec for _, header in iter_headers(answer[records:])}


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_batches_are_compressed_as_their_topic_wants(server: ServerProcess, wanted: str) -> None:
    topic = make_topic(server, f"wants-{wanted}", compression_type=wanted)
    values = []
    for codec in CODECS:
        values.append(codec.encode() * 300)
        assert Produced(server, codec)(topic, LONG_AGO_MS, values[-1]) is None
    read = consume(server, topic, len(CODECS))
    assert [message.value() for message in read] == values
    assert {message.timestamp() for message in read} == {(TIMESTAMP_CREATE_TIME, LONG_AGO_MS)}
    expected = 0 if wanted == "uncompressed" else CODECS.index(wanted)
    assert fetched_codecs(server, topic) == {expected}
    set_config(server, topic, "compression.type", "producer")
    assert Produced(server, "gzip")(topic, value=b"x" * 300) is None
    assert consume(server, topic, len(CODECS) + 1)[-1].value() == b"x" * 300


def test_a_batch_that_is_too_large_in_its_topics_codec_is_refused(server: ServerProcess) -> None:
    topic = make_topic(
        server, "inflated", compression_type="uncompressed", max_message_bytes="10000"
    )
    error = Produced(server, "zstd")(topic, value=b"x" * 20_000)
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert Produced(server, "zstd")(topic, value=b"x" * 9_000) is None
    assert consume(server, topic, 1)[0].value() == b"x" * 9_000


def test_kafkas_own_consumer_reads_what_was_compressed_again(server: ServerProcess) -> None:
    require_kafka_tools()
    for codec in CODECS[1:]:
        topic = make_topic(server, f"foreign-{codec}", compression_type=codec)
        assert Produced(server)(topic, value=codec.encode() * 50_000) is None
    read = Tools(server.bootstrap)(
        *("kafka-console-consumer", "--include", "foreign-.*", "--from-beginning"),
        *("--max-messages", "4", "--timeout-ms", "20000"),
    )
    assert sorted(read.split()) == sorted(codec * 50_000 for codec in CODECS[1:])
