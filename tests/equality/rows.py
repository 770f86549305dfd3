"""The rows of a topic as every side has them, in one form, to be compared."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import DataFrame, SparkSession

import lakehead

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A record. Headers are None where a reader gives null; timestamp in milliseconds."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] | None
    timestamp: int
    timestamp_type: int


Rows = dict[tuple[int, int], Row]


class DoubleRow(Exception):
    """A side has a record twice."""


def _by_place(rows: Iterable[Row]) -> Rows:
    found: Rows = {}
    for row in rows:
        if found.setdefault((row.partition, row.offset), row) is not row:
            raise DoubleRow(f"twice: {row}")
    return found


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def spark_rows(frame: DataFrame) -> Rows:
    """The rows of a frame with the columns of Spark's Kafka source."""
    chosen = frame.selectExpr(
        *("partition", "offset", "key", "value", "headers"),
        *("unix_millis(timestamp) AS at", "timestampType"),
    )
    return _by_place(
        Row(
            row.partition,
            row.offset,
            _bytes(row.key),
            _bytes(row.value),
            None if row.headers is None else tuple((h.key, _bytes(h.value)) for h in row.headers),
            row.at,
            row.timestampType,
        )
        for row in chosen.collect()
    )


def table_frame(session: SparkSession, table: str, timestamp_type: int) -> DataFrame:
    """The Delta table of a topic with raw values, in the columns of Spark's Kafka source; tables
    keep no type of timestamp.
    """
    return (
        session.read.format("delta")
        .load(table)
        .selectExpr(
            *("_partition AS partition", "_offset AS offset", "_key AS key", "value"),
            *("_headers AS headers", "_timestamp AS timestamp"),
            f"{timestamp_type} AS timestampType",
        )
    )


def table_rows(session: SparkSession, table: str, timestamp_type: int) -> Rows:
    """The rows of a topic's Delta table."""
    return spark_rows(table_frame(session, table, timestamp_type))


def scan_rows(path: str, topic: str, **bounds: Any) -> Rows:
    """The rows of `lakehead.scan`."""
    table: pa.Table = lakehead.scan(path, topic, include_headers=True, **bounds).read_all()
    at = table.column("timestamp").cast(pa.int64()).to_pylist()
    return _by_place(
        Row(
            row["partition"],
            row["offset"],
            row["key"],
            row["value"],
            None
            if row["headers"] is None
            else tuple((one["key"], one["value"]) for one in row["headers"]),
            micros // 1000,
            row["timestampType"],
        )
        for row, micros in zip(table.drop_columns("timestamp").to_pylist(), at, strict=True)
    )


def consumer_rows(bootstrap: str, topic: str, partitions: int) -> Rows:
    """What a client that reads committed records alone is given."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "rows",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])
    rows: list[Row] = []
    ended: set[int] = set()
    try:
        while len(ended) < partitions:
            message = consumer.poll(60)
            assert message is not None, "the server gives nothing more"
            partition = message.partition()
            assert partition is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
                continue
            kind, at = message.timestamp()
            headers = message.headers()
            offset = message.offset()
            assert offset is not None
            rows.append(
                Row(
                    partition,
                    offset,
                    message.key(),
                    message.value(),
                    tuple(headers) if headers else None,  # type: ignore[arg-type]
                    at,
                    kind - 1,
                )
            )
    finally:
        consumer.close()
    return _by_place(rows)


def differences(sides: Mapping[str, Rows], *, at_most: int = 5) -> list[str]:
    """What other sides have other than the first; empty if all are equal."""
    (first, wanted), *others = sides.items()
    lines = [
        f"{first}: {wanted.get(place)}\n{name}: {rows.get(place)}"
        for name, rows in others
        for place in sorted(wanted.keys() | rows.keys())
        if wanted.get(place) != rows.get(place)
    ]
    return lines[:at_most]
