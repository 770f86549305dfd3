"""Spark's batch read of the same records from Lakehead's objects and, with Spark's own Kafka
source, from Apache Kafka 4.2: one session, two cores, a sink that takes all and keeps nothing.

The first reads of each source are not counted: classes are loaded and the JVM compiles its code,
for some gigabytes. Kafka's broker runs on the same cores, because a read of Kafka needs it.
"""

import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from bench.apache_kafka.server import kafka_server
from bench.figures import Figure
from bench.lake._topics import MIB, Shape, Written, write_topic
from bench.lake._usage import ProcessWatch
from bench.process import ServerProcess
from bench.spark_kafka import spark_with_kafka
from bench.workloads import RunFailed, create_topic
from tests.support.lake_cluster import LakeCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

PART = "spark"
TOPIC = "documents"
PARTITIONS = 4
ROUNDS, UNCOUNTED = 3, 4
CODECS = ("none", "lz4", "zstd")
SHAPES = (
    *(Shape(batch_bytes=size, codec=codec) for size in (1_000_000, 16_000) for codec in CODECS),
    *(Shape(value_bytes=100, codec=codec) for codec in CODECS),
)
GOAL_MB_PER_S, GOAL_MRECORDS_PER_S, GOAL_RATIO = 600.0, 3.0, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Result of one source: median seconds of a read, and the resources of the processes."""

    seconds: float
    watch: ProcessWatch


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    session = spark_with_kafka()
    figures: list[Figure] = []
    try:
        for number, shape in enumerate(SHAPES[:3] if quick else SHAPES):
            place = folder / str(number)
            place.mkdir()
            figures += _compare(session, place, shape, (128 if quick else 1024) * MIB)
            shutil.rmtree(place)
    finally:
        session.stop()
    return figures


def _compare(session: "SparkSession", folder: Path, shape: Shape, size: int) -> list[Figure]:
    store = folder / "store"
    written = write_topic(LakeCluster(str(store)), TOPIC, shape, size=size, partitions=PARTITIONS)
    ours = _read(
        session.read.format("lakehead").option("path", str(store)).option("subscribe", TOPIC),
        written,
    )
    shutil.rmtree(store)
    with kafka_server(folder) as server:
        fill(server, shape, written)
        theirs = _read(
            session.read.format("kafka")
            .option("kafka.bootstrap.servers", server.bootstrap)
            .option("subscribe", TOPIC),
            written,
        )
    return _figures(shape, written, ours, theirs)


def _figures(shape: Shape, written: Written, ours: Read, theirs: Read) -> list[Figure]:
    megabytes, records = written.value_bytes / 1e6, written.records / 1e6
    is_large = shape.value_bytes == 1024
    kafka = "Spark's Kafka source"
    return [
        Figure(
            part=PART,
            name=f"{shape.title}: values",
            value=megabytes / ours.seconds,
            unit="MB/s",
            goal=GOAL_MB_PER_S if is_large and shape.codec == "none" else None,
        ),
        Figure(
            part=PART,
            name=f"{shape.title}: records",
            value=records / ours.seconds,
            unit="M/s",
            goal=None if is_large or shape.codec != "none" else GOAL_MRECORDS_PER_S,
        ),
        Figure(
            part=PART,
            name=f"{shape.title}: beside {kafka}",
            value=megabytes / ours.seconds,
            unit="MB/s",
            peer="Kafka",
            peer_value=megabytes / theirs.seconds,
            goal=GOAL_RATIO if is_large else None,
        ),
        *ours.watch.figures(PART, f"{shape.title}, Lakehead", written.value_bytes),
        *theirs.watch.figures(PART, f"{shape.title}, Kafka", written.value_bytes),
    ]


def _read(source: "DataFrameReader", written: Written) -> Read:
    def once() -> float:
        frame: DataFrame = source.load()
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    counted = source.load().count()  # loads classes and kernels, fills the page cache
    if counted != written.records:
        raise RunFailed(f"Spark sees {counted} records of {written.records}")
    for _ in range(UNCOUNTED):
        once()
    with ProcessWatch(ROUNDS) as watch:
        seconds = [once() for _ in range(ROUNDS)]
    return Read(seconds=statistics.median(seconds), watch=watch)


def fill(server: ServerProcess, shape: Shape, written: Written) -> None:
    """Produce as many records of the same values to Kafka, in batches of that size and codec."""
    create_topic(server, TOPIC, {})
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "linger.ms": 200,
            "batch.size": shape.batch_bytes,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 2_000_000,
            "compression.type": shape.codec,
            "log_level": 3,
        }
    )
    values = shape.values(max(4 * MIB // shape.value_bytes, 1), shape.value_bytes)
    for number in range(written.records):
        while True:
            try:
                producer.produce(
                    TOPIC,
                    values[number % len(values)],
                    key=b"key-%012d" % (number % len(values)),
                    partition=number % PARTITIONS,
                )
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        raise RunFailed("Kafka did not take all records")
