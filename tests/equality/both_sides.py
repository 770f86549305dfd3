"""One seed: the same traffic to Apache Kafka and to Lakehead, then every reader's rows compared.

What Spark's Kafka source reads from Apache Kafka is what is right. Lakehead's node is stopped
before its topics are read in place.
"""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from bench.process import ServerProcess
from tests.equality.reading import Sides, drawn_ranges
from tests.equality.rows import Rows, consumer_rows, differences, scan_rows, spark_rows
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
TIMES = range(FIRST_MS, FIRST_MS + 1_010_000)
"""Of records, and a little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What was compared: rows of Kafka's side over all reads, and what was not equal."""

    rows: int
    reads: int
    faults: tuple[str, ...]


def run_seed(session: SparkSession, folder: Path, seed: int, records: int) -> SeedResult:
    """Do a seed's traffic to both servers, and compare. Raises UnequalTraffic."""
    for name in ("kafka", "lakehead"):
        (folder / name).mkdir()
    cleaner = {"log.cleaner.backoff.ms": "200"}
    kafka = kafka_server(folder / "kafka", {**KEEPING, **cleaner})
    keeping = (text for name, value in KEEPING.items() for text in (f"--{name}", value))
    lakehead = lakehead_server(folder / "lakehead", *HASTY, *EAGER, *keeping)
    with stopped_at_the_end(kafka), stopped_at_the_end(lakehead):
        (ends, decided), (others, _) = (
            _written(kafka, seed, records, {COMPACTED: COMPACTION}),
            _written(
                lakehead,
                seed,
                records,
                {RECORDS: DECLARED, STAMPED: DECLARED, COMPACTED: COMPACTION | DECLARED},
            ),
        )
        assert ends == others, (ends, others)
        committed = {
            topic: consumer_rows(lakehead.bootstrap, topic, count)
            for topic, count in PARTITIONS.items()
        }
        lakehead.stop()
        place = f"file:{folder}/lakehead/data/store"
        sides = Sides(session, kafka, place, job_s=300)
        found = [
            _whole_topics(sides, committed),
            _compacted(sides, seed, records),
            _ranges(sides, seed, decided),
        ]
    return SeedResult(
        rows=sum(one.rows for one in found),
        reads=sum(one.reads for one in found),
        faults=tuple(f"seed {seed}: {line}" for one in found for line in one.faults),
    )


@contextlib.contextmanager
def stopped_at_the_end(server: ServerProcess) -> Iterator[None]:
    """The server runs, and at the end it does not."""
    try:
        server.start()
        yield
    finally:
        if server.is_running:
            server.kill()


def _written(
    server: ServerProcess, seed: int, records: int, configs: Mapping[str, Mapping[str, str]]
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Do all traffic and wait until compaction has run; the ends of partitions, and how far they
    are decided.
    """
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
        return traffic.ends, traffic.decided


def _whole_topics(sides: Sides, committed: Mapping[str, Rows]) -> SeedResult:
    faults: list[str] = []
    rows = 0
    for topic in (RECORDS, STAMPED):
        theirs = spark_rows(sides.theirs(topic))
        ours = {
            "source": spark_rows(sides.ours(topic)),
            "scan": scan_rows(sides.place, topic),
            "table": spark_rows(sides.table(topic)),
            "consumer": committed[topic],
        }
        faults += differences(ours)
        faults += sides.attest(topic)
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
    theirs = spark_rows(sides.theirs(COMPACTED))
    ours = {"source": spark_rows(sides.ours(COMPACTED)), "scan": scan_rows(sides.place, COMPACTED)}
    faults = differences({**ours, "table": spark_rows(sides.table(COMPACTED))})
    faults += sides.attest(COMPACTED)
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
    faults: list[str] = []
    rows = 0
    for one in drawn_ranges(random.Random(seed), ends, TIMES, RANGES):
        theirs = spark_rows(sides.theirs(RECORDS, **one.options))
        both = {
            "Kafka": theirs,
            "source": spark_rows(sides.ours(RECORDS, **one.options)),
            "scan": scan_rows(sides.place, RECORDS, **one.bounds),
        }
        faults += [f"{one.options}: {line}" for line in differences(both)]
        rows += len(theirs)
    return SeedResult(rows=rows, reads=RANGES * 6, faults=tuple(faults))
