"""The options of the Spark source: what is taken, what is refused, and what the errors say."""

from collections.abc import Callable

import pytest

from lakehead.lake.positions import EARLIEST, LATEST, Position, TopicPartition
from lakehead.lake.source.options import (
    OPTIONS,
    ReadOptions,
    batch_options,
    options_table,
    read_options,
    stream_options,
)
from lakehead.storage.errors import SettingsError

GIVEN = {"path": "/cluster", "subscribe": "orders"}


def batch(**options: str) -> ReadOptions:
    return batch_options(GIVEN | options)


def stream(**options: str) -> ReadOptions:
    return stream_options(GIVEN | options)


BOTH = [
    ({"path": ""}, "option 'path' is missing"),
    ({"path": " ", "kafka.bootstrap.servers": "x:1"}, "Set 'path' to where they are"),
    ({"assign": '{"orders":[0]}'}, "Only one of the following options can be specified"),
    ({"subscribe": " ,"}, "No topics to subscribe to"),
    ({"subscripe": "x"}, "unknown option 'subscripe'"),
    ({"bootstrap.servers": "x:1"}, "unknown option 'bootstrap.servers'"),
    ({"kafka.auto.offset.reset": "earliest"}, "is not supported: set 'startingOffsets'"),
    ({"kafka.Enable.auto.commit": "true"}, "is not supported"),
    ({"kafka.key.deserializer": "x"}, "is not supported: keys are binary"),
    ({"kafka.value.deserializer": "x"}, "is not supported: values are binary"),
    ({"kafka.interceptor.classes": "x"}, "is not supported"),
    ({"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
    ({"startingOffsets": "first"}, "Expected option 'startingOffsets' to be JSON"),
    ({"startingOffsets": '{"orders":{"0":-3}}'}, "Expected option 'startingOffsets' to be JSON"),
    ({"startingOffsets": '{"orders":{"0":true}}'}, "Expected option 'startingOffsets' to be JSON"),
    ({"startingOffsets": '{"orders":[0]}'}, "Expected option 'startingOffsets' to be JSON"),
    ({"startingTimestamp": "-1"}, "option 'startingTimestamp' is milliseconds"),
    ({"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "to be JSON"),
    ({"startingOffsetsByTimestampStrategy": "none"}, "is error or latest"),
    ({"includeHeaders": "yes"}, "option 'includeHeaders' is true or false"),
    ({"failOnDataLoss": "1"}, "option 'failOnDataLoss' is true or false"),
    ({"minPartitions": "0"}, "option 'minPartitions' is a positive number"),
    ({"maxRecordsPerPartition": "-5"}, "option 'maxRecordsPerPartition' is a positive number"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is higher than"),
    ({"maxTriggerDelay": "a while"}, "is a time such as"),
    ({"tail": "all"}, "objects or wal"),
    ({"columns": "valeu"}, "unknown column 'valeu'"),
    ({"decode": "avro"}, "'decode' is none or declared or json"),
    ({"decode": "json", "subscribe": "a,b"}, "'decode' is for one topic"),
    ({"undecodable": "null"}, "'undecodable' is for values that are decoded"),
    ({"decode": "json", "undecodable": "skip"}, "'undecodable' is fail or null"),
]


@pytest.mark.parametrize("parse", [batch, stream])
@pytest.mark.parametrize(("options", "message"), BOTH)
def test_what_is_wrong_is_refused(
    parse: Callable[..., ReadOptions], options: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "Latest"}, "starting offset can't be latest for batch queries"),
        ({"startingOffsets": '{"orders":{"0":-1,"1":0}}'}, "orders-0 can't be latest"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "orders-0 can't be earliest"),
        (
            {"startingOffsets": '{"orders":{"0":9}}', "endingOffsets": '{"orders":{"0":8}}'},
            "the start offset 9 of orders-0 is greater than its end 8",
        ),
    ],
)
def test_what_is_wrong_in_a_batch_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        batch(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"startingOffsets": "group:g"}, "group:NAME is for batch queries"),
        ({"endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
    ],
)
def test_what_is_wrong_in_a_stream_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        stream(**options)


def test_one_of_three_strategies_is_needed() -> None:
    with pytest.raises(SettingsError, match="One of the following options must be specified"):
        read_options({"path": "/cluster"})
    with pytest.raises(SettingsError, match="Pattern to subscribe is empty"):
        read_options({"path": "/cluster", "subscribePattern": " "})
    with pytest.raises(SettingsError, match="subscribePattern"):
        read_options({"path": "/cluster", "subscribePattern": "("})
    with pytest.raises(SettingsError, match="No topicpartitions to assign"):
        read_options({"path": "/cluster", "assign": "{}"})
    with pytest.raises(SettingsError, match="Expected option 'assign' to be JSON"):
        read_options({"path": "/cluster", "assign": '{"orders":["0"]}'})


def test_a_query_of_the_kafka_source_needs_a_path_and_nothing_else() -> None:
    options = stream(
        **{
            "kafka.bootstrap.servers": "x:1",
            "kafka.group.id": "g",
            "kafka.security.protocol": "SASL_SSL",
            "groupIdPrefix": "p",
            "kafkaConsumer.pollTimeoutMs": "1",
            "fetchOffset.numRetries": "1",
            "KAFKA.ISOLATION.LEVEL": "READ_UNCOMMITTED",
        }
    )
    assert not options.read_committed


def test_timestamps_win_over_offsets() -> None:
    options = {"startingOffsets": "earliest"}
    assert batch(**options).bounds.starting == EARLIEST
    options |= {"startingOffsetsByTimestamp": '{"orders":{"0":7}}'}
    assert batch(**options).bounds.starting == {
        TopicPartition("orders", 0): Position("timestamp", 7)
    }
    options |= {"startingTimestamp": "8"}
    assert batch(**options).bounds.starting == Position("timestamp", 8)


def test_defaults_are_those_of_the_kafka_source_but_for_isolation() -> None:
    assert batch().bounds.starting == EARLIEST
    assert stream().bounds.starting == LATEST
    assert batch().bounds.ending == LATEST
    assert batch().bounds.fail_on_data_loss
    assert batch().read_committed
    assert not batch().reads_wal
    assert stream().delay_max_ms == 15 * 60 * 1000
    assert stream(maxTriggerDelay="90s").delay_max_ms == 90_000
    assert stream(maxTriggerDelay="1500").delay_max_ms == 1500


def test_the_table_of_options_names_each_once() -> None:
    table = options_table()
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    assert all(f"| `{option.name}` |" in table for option in OPTIONS)
