"""One seed: the same traffic to Apache Kafka and to Lakehead, then every reader's rows compared.

What Spark's Kafka source reads from Apache Kafka is what is right. Lakehead's node is stopped
before its topics are read in place.
"""

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import ROOT, lakehead_server
from bench.process import ServerProcess
from storage.metadata.table_declaration import default_table_uri
from tests.equality.rows import Rows, consumer_rows, differences, scan_rows, spark_rows, table_rows
from tests.equality.sending import DEADLINE_S, Traffic
from tests.equality.steps import (
    COMPACTED,
    FIRST_MS,
    PARTITIONS,
    RECORDS,
    STAMPED,
    compacted_rounds,
    workload,
)
from tests.support.broker_process import HASTY, KEEPING

COMPACTION = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "30000",
}
DECLARED = {"lakehead.table.enable": "true", "lakehead.table.value.format": "raw"}
EAGER = ("--maintenance.interval.ms", "50", "--log.retention.check.interval.ms", "200")
RANGES = 6
"""Of offsets, and as many of timestamps, for each seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What was compared: rows of Kafka's side over all reads, and what was not equal."""

    rows: int
    reads: int
    faults: tuple[str, ...]


class Sides:
    """Readers of both servers' topics. `place` is Lakehead's store, as a URI."""

    def __init__(self, session: SparkSession, kafka: ServerProcess, place: str) -> None:
        self._session = session
        self._kafka = kafka
        self.place = place

    def theirs(self, topic: str, **options: str) -> Rows:
        """Spark's Kafka source on Apache Kafka."""
        return self._read(
            "kafka", topic, {"kafka.bootstrap.servers": self._kafka.bootstrap}, options
        )

    def ours(self, topic: str, **options: str) -> Rows:
        """Our source, with the same options."""
        return self._read("lakehead", topic, {"path": self.place}, options)

    def scan(self, topic: str, **bounds: Any) -> Rows:
        """`lake.scan`."""
        return scan_rows(self.place, topic, **bounds)

    def table(self, topic: str) -> Rows:
        """The topic's table, brought up by the command."""
        subprocess.run(
            [sys.executable, "-m", "broker.cli", "materialize", topic, "--path", self.place],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=300,
        )
        return table_rows(
            self._session, default_table_uri(self.place, topic), int(topic == STAMPED)
        )

    def _read(
        self, source: str, topic: str, place: Mapping[str, str], options: Mapping[str, str]
    ) -> Rows:
        reader = self._session.read.format(source).option("subscribe", topic)
        reader = reader.option("includeHeaders", "true")
        reader = reader.option("kafka.isolation.level", "read_committed")
        return spark_rows(reader.options(**place, **options).load())


def run_seed(session: SparkSession, folder: Path, seed: int, records: int) -> SeedResult:
    """Do a seed's traffic to both servers, and compare. Raises UnequalTraffic."""
    for name in ("kafka", "lakehead"):
        (folder / name).mkdir()
    cleaner = {"log.cleaner.backoff.ms": "200"}
    kafka = kafka_server(folder / "kafka", {**KEEPING, **cleaner})
    keeping = (text for name, value in KEEPING.items() for text in (f"--{name}", value))
    lakehead = lakehead_server(folder / "lakehead", *HASTY, *EAGER, *keeping)
    with _stopped_at_the_end(kafka), _stopped_at_the_end(lakehead):
        ends = [
            _written(kafka, seed, records, {COMPACTED: COMPACTION}),
            _written(
                lakehead,
                seed,
                records,
                {RECORDS: DECLARED, STAMPED: DECLARED, COMPACTED: COMPACTION | DECLARED},
            ),
        ]
        assert ends[0] == ends[1], ends
        committed = {
            topic: consumer_rows(lakehead.bootstrap, topic, count)
            for topic, count in PARTITIONS.items()
        }
        lakehead.stop()
        sides = Sides(session, kafka, f"file:{folder}/lakehead/data/store")
        found = [
            _whole_topics(sides, committed),
            _compacted(sides, seed, records),
            _ranges(sides, seed, ends[0]),
        ]
    return SeedResult(
        rows=sum(one.rows for one in found),
        reads=sum(one.reads for one in found),
        faults=tuple(f"seed {seed}: {line}" for one in found for line in one.faults),
    )


@contextlib.contextmanager
def _stopped_at_the_end(server: ServerProcess) -> Iterator[None]:
    try:
        server.start()
        yield
    finally:
        if server.is_running:
            server.kill()


def _written(
    server: ServerProcess, seed: int, records: int, configs: Mapping[str, Mapping[str, str]]
) -> dict[tuple[str, int], int]:
    """Do all traffic and wait until compaction has run; the ends of partitions."""
    rounds = compacted_rounds(seed, records)
    with Traffic(server) as traffic:
        traffic.create_topics(configs)
        traffic.perform(rounds)
        traffic.perform(workload(seed, records))
        deadline = time.monotonic() + 2 * DEADLINE_S
        # All but the last round can be cleaned on either: that is what tells that it was.
        dirty = sum(len(one.records) for one in rounds) - len(rounds[-1].records)
        while (
            sum(at < dirty for _, at in consumer_rows(server.bootstrap, COMPACTED, 1)) > dirty / 2
        ):
            assert time.monotonic() < deadline, f"{server.name} does not compact"
            time.sleep(0.2)
        return traffic.ends


def _whole_topics(sides: Sides, committed: Mapping[str, Rows]) -> SeedResult:
    faults: list[str] = []
    rows = 0
    for topic in (RECORDS, STAMPED):
        theirs = sides.theirs(topic)
        ours = {
            "source": sides.ours(topic),
            "scan": sides.scan(topic),
            "table": sides.table(topic),
            "consumer": committed[topic],
        }
        faults += differences(ours)
        if topic == STAMPED:  # each server gives its own time
            theirs, ours = _timeless(theirs), {"source": _timeless(ours["source"])}
        faults += differences({"Kafka": theirs, **ours})
        rows += len(theirs)
    return SeedResult(rows=rows, reads=10, faults=tuple(faults))


def _timeless(rows: Rows) -> Rows:
    return {place: replace(row, timestamp=0) for place, row in rows.items()}


def _compacted(sides: Sides, seed: int, records: int) -> SeedResult:
    """Servers compact at other moments: equal is the newest record of each key, and every other
    row is one that was sent to this offset. Our readers see the very same rows.
    """
    sent = [one for write in compacted_rounds(seed, records) for one in write.records]
    newest = {one.key: offset for offset, one in enumerate(sent)}
    theirs = sides.theirs(COMPACTED)
    ours = {"source": sides.ours(COMPACTED), "scan": sides.scan(COMPACTED)}
    faults = differences({**ours, "table": sides.table(COMPACTED)})
    wanted = {(0, offset): theirs[0, offset] for offset in newest.values()}
    kept = {place: row for place, row in ours["source"].items() if place in wanted}
    faults += differences({"Kafka's newest": wanted, "source's newest": kept})
    for rows in (theirs, ours["source"]):
        faults += [
            f"not what was sent: {row}"
            for (_, offset), row in rows.items()
            if (row.key, row.value, row.headers or ())
            != (sent[offset].key, sent[offset].value, sent[offset].headers)
        ]
        faults += [f"{len(rows)} rows: not compacted"] * (len(rows) >= len(sent))
    return SeedResult(rows=len(theirs), reads=4, faults=tuple(faults))


def _ranges(sides: Sides, seed: int, ends: Mapping[tuple[str, int], int]) -> SeedResult:
    """Reads between offsets, wherever these fall, and between times."""
    rng = random.Random(seed)
    faults: list[str] = []
    rows = 0
    for _ in range(RANGES):
        span = {
            partition: sorted(rng.randrange(sides_end + 1) for _ in range(2))
            for (topic, partition), sides_end in ends.items()
            if topic == RECORDS
        }
        options = {
            name: json.dumps({RECORDS: {str(p): both[at] for p, both in span.items()}})
            for at, name in enumerate(("startingOffsets", "endingOffsets"))
        }
        theirs = sides.theirs(RECORDS, **options)
        scanned = sides.scan(
            RECORDS,
            starting_offsets={p: both[0] for p, both in span.items()},
            ending_offsets={p: both[1] for p, both in span.items()},
        )
        both = {"Kafka": theirs, "source": sides.ours(RECORDS, **options), "scan": scanned}
        faults += [f"{options}: {line}" for line in differences(both)]
        rows += len(theirs)
    for _ in range(RANGES):
        times = sorted(FIRST_MS + rng.randrange(1_010_000) for _ in range(2))
        options = {
            "startingTimestamp": str(times[0]),
            "endingTimestamp": str(times[1]),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        theirs = sides.theirs(RECORDS, **options)
        scanned = sides.scan(RECORDS, starting_timestamp=times[0], ending_timestamp=times[1])
        both = {"Kafka": theirs, "source": sides.ours(RECORDS, **options), "scan": scanned}
        faults += [f"{options}: {line}" for line in differences(both)]
        rows += len(theirs)
    return SeedResult(rows=rows, reads=RANGES * 6, faults=tuple(faults))
