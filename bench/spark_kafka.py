"""Spark with its own Kafka source and sink, `format("kafka")`: a client for tests and, on a real
Kafka, the comparison for the lake.

    from bench.spark_kafka import spark_with_kafka

    session = spark_with_kafka()
    frame = (
        session.read.format("kafka")  # or readStream
        .option("kafka.bootstrap.servers", server.bootstrap)
        .option("subscribe", "documents")
        .option("startingOffsets", "earliest")  # a batch may also have endingOffsets
        .option("kafka.isolation.level", "read_committed")
        .load()  # key, value, topic, partition, offset, timestamp, timestampType
    )
    frame.write.format("noop").mode("overwrite").save()  # reads all and keeps nothing

The same session has `format("lakehead")` and Delta, so that one process measures both:

- `kafka_server(folder)` of `bench.apache_kafka.server` and `lakehead_server(folder)` of
  `bench.lakehead_server` are servers with the same face (`with ... as server`, `server.bootstrap`).
- Spark runs one task for each partition unless `minPartitions` is larger. For a fair comparison
  give both sources the same cores (`master="local[2]"` is the default) and the same partitions.
- Records with times of long ago fall to retention, on Kafka half a minute after it started: give
  both servers `log.retention.ms=-1`.
- The first query of a session compiles and loads classes: show it apart, or do not count it.
- Consumers are kept for five minutes in each executor. A new server on an old port confuses them:
  start servers on fresh ports, or a session for each.
- A stream keeps its offsets in its checkpoint, none in the broker's groups. The sink writes each
  record at least once, without transactions.

A process has one Spark session: this must be the first to make it. The jars come from Maven Central
at the first use (10 MB). The provider of tokens is of one release for all Sparks: not each has one
at Maven Central, and the needed part has not changed.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from bench.maven import Artefact, MissingTool, jars_folder
from lakehead.lake.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARKS = ("4.0", "4.1", "4.2")
_FOR_ALL = (
    Artefact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.1"),
    Artefact("org.apache.kafka", "kafka-clients", "3.9.2"),
    Artefact("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""The dependencies that pyspark lacks; codecs and loggers are among its own jars."""


def spark_kafka_jars() -> Path:
    """Folder with the jars of the Kafka source of this pyspark; fetched now if they are not here
    yet.

    Raises MissingTool if Java or a fitting Spark is missing, or the jars cannot be fetched.
    """
    release = version("pyspark")
    if not release.startswith(tuple(f"{one}." for one in _SPARKS)):
        raise MissingTool(f"Spark's Kafka source is here for pyspark {', '.join(_SPARKS)} only")
    source = Artefact("org.apache.spark", "spark-sql-kafka-0-10_2.13", release)
    return jars_folder(f"spark-{release}-kafka", [source, *_FOR_ALL], with_needed=False)


def spark_with_kafka(
    *, master: str = "local[2]", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a new Spark session that has `format("kafka")`, with Lakehead's source and Delta.

    Raises MissingTool as `spark_kafka_jars`, SettingsError as `lakehead.lake.spark.spark_session`.
    """
    # Not spark.jars: that is how Delta's come. In local mode the driver's class path is all.
    jars = {"spark.driver.extraClassPath": f"{spark_kafka_jars()}/*"}
    return spark_session(app_name="spark-kafka", master=master, config={**jars, **(config or {})})
