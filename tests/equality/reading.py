"""Every reader of both servers' topics, as frames with the columns of Spark's Kafka source."""

import json
import random
import resource
import subprocess
import sys
import time
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command of ours that was run: its output, and its time and CPU in seconds."""

    status: int
    output: str
    seconds: float
    cpu_s: float


class Sides:
    """Readers. `place` is Lakehead's store, as a URI; `job_s` what a job may take in seconds."""

    def __init__(
        self, session: SparkSession, kafka: ServerProcess, place: str, *, job_s: float
    ) -> None:
        self.session = session
        self.place = place
        self._kafka = kafka
        self._job_s = job_s
        self._made: dict[str, Job] = {}

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
        self._made[topic] = self.job("materialize", topic)
        table = default_table_uri(self.place, topic)
        return table_frame(self.session, table, int(topic == STAMPED))

    def attest(self, topic: str) -> list[str]:
        """Attest the topic's table by the command, and print its cost beside that of
        `materialize`; return the verdict if it is not that of a table that is its topic.
        """
        done = self._run("attest", topic, "--json")
        try:
            report = json.loads(done.output)
        except ValueError:
            return [f"attest {topic} has no report: {done.output[-500:]}"]
        gigabytes = max(report["bytes_of_records"], 1) / 1e9
        print(
            f"  attest {topic}: {report['rows']} rows, {report['digests_that_match']} digests, "
            f"{done.seconds:.0f} s, {done.cpu_s / gigabytes:.1f} CPU s/GB (materialize: "
            f"{self._made[topic].seconds:.0f} s, {self._made[topic].cpu_s / gigabytes:.1f})",
            flush=True,
        )
        is_whole = not done.status and report["records"] and not report["not_attestable"]
        return [] if is_whole else [f"attest {topic}: {report}"]

    def job(self, *arguments: str) -> Job:
        """Run a command of ours on the cluster. Raises CalledProcessError if it fails."""
        done = self._run(*arguments)
        if done.status:
            raise subprocess.CalledProcessError(done.status, arguments, done.output)
        return done

    def _run(self, *arguments: str) -> Job:
        began, before = time.monotonic(), _cpu_of_children()
        done = subprocess.run(
            [sys.executable, "-m", "lakehead", *arguments, "--path", self.place],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=self._job_s,
        )
        return Job(
            status=done.returncode,
            output=done.stdout,
            seconds=time.monotonic() - began,
            cpu_s=_cpu_of_children() - before,
        )

    def _read(
        self, source: str, topic: str, place: Mapping[str, str], options: Mapping[str, str]
    ) -> DataFrame:
        reader = self.session.read.format(source).option("subscribe", topic)
        reader = reader.option("includeHeaders", "true")
        reader = reader.option("kafka.isolation.level", "read_committed")
        return reader.options(**place, **options).load()


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
