"""Every reader of both servers' topics, as frames with the columns of Spark's Kafka source."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.lakehead_server import ROOT
from bench.process import ServerProcess
from lakehead.lake.declaration.table_declaration import default_table_uri
from tests.equality.rows import table_frame
from tests.equality.steps import RECORDS, STAMPED

SCANNED = (
    "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A part of `RECORDS`: as options of Spark's sources, and as arguments of `lakehead.scan`."""

    options: dict[str, str]
    bounds: dict[str, Any]


class Sides:
    """Readers. `place` is Lakehead's store, as a URI; `job_s` what a job may take in seconds."""

    def __init__(
        self, session: SparkSession, kafka: ServerProcess, place: str, *, job_s: float
    ) -> None:
        self.session = session
        self.place = place
        self._kafka = kafka
        self._job_s = job_s

    def theirs(self, topic: str, **options: str) -> DataFrame:
        """Spark's Kafka source on Apache Kafka."""
        return self._read(
            "kafka", topic, {"kafka.bootstrap.servers": self._kafka.bootstrap}, options
        )

    def ours(self, topic: str, **options: str) -> DataFrame:
        """Our source, with the same options."""
        return self._read("lakehead", topic, {"path": self.place}, options)

    def scanned(self, topic: str, **bounds: Any) -> DataFrame:
        """`lakehead.scan`, done by a task of Spark's."""
        place = self.place

        def scan(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import lakehead

            columns = [part.split()[0] for part in SCANNED.split(", ")[:6]]
            yield from lakehead.scan(
                place, topic, columns=[*columns, "headers"], copy=True, rows_max=8192, **bounds
            )

        return self.session.range(0, 1, 1, 1).mapInArrow(scan, SCANNED)

    def table(self, topic: str) -> DataFrame:
        """The topic's table, brought up by the command."""
        self.job("materialize", topic)
        table = default_table_uri(self.place, topic)
        return table_frame(self.session, table, int(topic == STAMPED))

    def job(self, *arguments: str) -> None:
        """Run a command of ours on the cluster."""
        subprocess.run(
            [sys.executable, "-m", "lakehead", *arguments, "--path", self.place],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=self._job_s,
        )

    def _read(
        self, source: str, topic: str, place: Mapping[str, str], options: Mapping[str, str]
    ) -> DataFrame:
        reader = self.session.read.format(source).option("subscribe", topic)
        reader = reader.option("includeHeaders", "true")
        reader = reader.option("kafka.isolation.level", "read_committed")
        return reader.options(**place, **options).load()


def drawn_ranges(
    rng: random.Random, ends: Mapping[tuple[str, int], int], times: range, count: int
) -> Iterator[Range]:
    """Yield `count` ranges of offsets, wherever these fall, and as many of `times`."""
    for _ in range(count):
        spans = {
            partition: sorted(rng.randrange(end + 1) for _ in range(2))
            for (topic, partition), end in ends.items()
            if topic == RECORDS
        }
        asked = [{partition: both[at] for partition, both in spans.items()} for at in range(2)]
        yield Range(
            options={
                name: json.dumps({RECORDS: {str(n): at for n, at in offsets.items()}})
                for name, offsets in zip(("startingOffsets", "endingOffsets"), asked, strict=True)
            },
            bounds={"starting_offsets": asked[0], "ending_offsets": asked[1]},
        )
    for _ in range(count):
        first, last = sorted(rng.choice(times) for _ in range(2))
        yield Range(
            options={
                "startingTimestamp": str(first),
                "endingTimestamp": str(last),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            bounds={"starting_timestamp": first, "ending_timestamp": last},
        )
