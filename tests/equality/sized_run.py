"""One portion of a run at size: gigabytes to both servers, then every reader's rows compared as
`digests` does, none of them collected.

The compacted topic is read from Apache Kafka before it is compacted there: these are all rows that
may be in it.
"""

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.sql import DataFrame, SparkSession

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from bench.process import ServerProcess
from tests.equality.both_sides import COMPACTION, DECLARED, SeedResult, stopped_at_the_end
from tests.equality.digests import hashed, newest, strangers, unequal
from tests.equality.reading import Sides, drawn_ranges
from tests.equality.sending import DEADLINE_S, Traffic
from tests.equality.sized_steps import FIRST_MS, SPREAD_MS, Pool, sized_rounds, sized_workload
from tests.equality.steps import COMPACTED, RECORDS, STAMPED
from tests.support.broker_process import KEEPING

PORTION_BYTES = 2_000_000_000
"""Of keys and values, so that no more of the disk is used at a time than some four times this."""
SETTINGS = {**KEEPING, "log.message.timestamp.after.max.ms": str(2**63 - 1)}
RANGES = 3
"""Of offsets, and as many of times."""
_GROWING = COMPACTION | {"cleanup.policy": "delete"}


@dataclass(slots=True)
class _Found:
    rows: int = 0
    reads: int = 0
    faults: list[str] = field(default_factory=list)

    def compare(self, what: str, sides: Mapping[str, DataFrame]) -> None:
        began = time.monotonic()
        rows, lines = unequal(sides)
        self.rows += rows
        self.reads += len(sides)
        self.faults += [f"{what}: {line}" for line in lines]
        seconds = time.monotonic() - began
        print(f"  {what}: {rows} rows by {', '.join(sides)}, {seconds:.0f} s", flush=True)


def run_portion(session: SparkSession, folder: Path, seed: int, size: int) -> SeedResult:
    """Write `size` bytes of keys and values to both servers, and compare. Raises UnequalTraffic."""
    for name in ("kafka", "lakehead"):
        (folder / name).mkdir()
    kafka = kafka_server(folder / "kafka", {**SETTINGS, "log.cleaner.backoff.ms": "200"})
    flags = (text for name, value in SETTINGS.items() for text in (f"--{name}", value))
    lakehead = lakehead_server(folder / "lakehead", *flags)
    found, pool = _Found(), Pool(seed)
    records = int(size / pool.record_bytes)
    times = range(FIRST_MS, FIRST_MS + records * 8 // 10 + SPREAD_MS)
    with ExitStack() as servers:
        for server in (kafka, lakehead):
            servers.enter_context(stopped_at_the_end(server))
        declared = {RECORDS: DECLARED, STAMPED: DECLARED, COMPACTED: COMPACTION | DECLARED}
        ends = _written(kafka, seed, pool, records, {COMPACTED: _GROWING})
        assert ends == _written(lakehead, seed, pool, records, declared)
        assert lakehead.stop() == 0, f"see {lakehead.log}"
        place = f"file:{folder}/lakehead/data/store"
        sides = Sides(session, kafka, place, job_s=60 + size / 1e6)
        _compacted(found, sides, kafka, ends[COMPACTED, 0], folder)
        _whole_topics(found, sides)
        for one in drawn_ranges(random.Random(seed), ends, times, RANGES):
            frames = {
                "Kafka": sides.theirs(RECORDS, **one.options),
                "source": sides.ours(RECORDS, **one.options),
                "scan": sides.scanned(RECORDS, **one.bounds),
            }
            found.compare(str(one.bounds), {name: hashed(rows) for name, rows in frames.items()})
    return SeedResult(
        rows=found.rows,
        reads=found.reads,
        faults=tuple(f"seed {seed}: {line}" for line in found.faults),
    )


def _written(
    server: ServerProcess,
    seed: int,
    pool: Pool,
    records: int,
    configs: Mapping[str, Mapping[str, str]],
) -> dict[tuple[str, int], int]:
    began = time.monotonic()
    with Traffic(server) as traffic:
        traffic.create_topics(configs)
        traffic.perform(sized_rounds(seed, pool, records // 10))
        traffic.perform(sized_workload(seed, pool, records * 8 // 10))
        print(f"  {server.name} written: {time.monotonic() - began:.0f} s", flush=True)
        return traffic.ends


def _whole_topics(found: _Found, sides: Sides) -> None:
    for topic in (RECORDS, STAMPED):
        frames = {
            "source": sides.ours(topic),
            "scan": sides.scanned(topic),
            "table": sides.table(topic),
        }
        found.faults += sides.attest(topic)
        theirs = {"Kafka": sides.theirs(topic)}
        if topic == STAMPED:  # each server gives its own time
            found.compare(topic, _hashed(frames))
            timeless = theirs | {"source": frames["source"]}
            found.compare(f"{topic} but times", _hashed(timeless, is_timed=False))
        else:
            found.compare(topic, _hashed(theirs | frames))


def _hashed(frames: Mapping[str, DataFrame], **how: bool) -> dict[str, DataFrame]:
    return {name: hashed(rows, **how) for name, rows in frames.items()}


def _compacted(found: _Found, sides: Sides, kafka: ServerProcess, end: int, folder: Path) -> None:
    """Servers compact at other moments: equal is the newest record of each key, and every other
    row is one that was there.
    """
    hashed(sides.theirs(COMPACTED)).write.parquet(str(folder / "before"))
    before = sides.session.read.parquet(str(folder / "before"))
    _compact(kafka, end, folder / "kafka" / "data")
    sides.job("compact-topics", COMPACTED)
    ours = _hashed(
        {
            "source": sides.ours(COMPACTED),
            "scan": sides.scanned(COMPACTED),
            "table": sides.table(COMPACTED),
        }
    )
    found.compare(COMPACTED, ours)
    found.faults += sides.attest(COMPACTED)
    after = {"Kafka": hashed(sides.theirs(COMPACTED)), "source": ours["source"]}
    last = {name: newest(rows) for name, rows in ({"before": before} | after).items()}
    found.compare(f"{COMPACTED}, newest of each key", last)
    for name, rows in after.items():
        if others := strangers(rows, before):
            found.faults.append(f"{COMPACTED}, {name}: {others} rows are not what was sent")
        if rows.count() >= end:
            found.faults.append(f"{COMPACTED}, {name}: is not compacted")


def _compact(kafka: ServerProcess, end: int, data: Path) -> None:
    """Have Kafka compact the topic, and wait until it has done so with more than the half."""
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        COMPACTED,
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(DEADLINE_S)
    deadline = time.monotonic() + 2 * DEADLINE_S
    while _cleaned(data / "cleaner-offset-checkpoint") <= end // 2:
        assert time.monotonic() < deadline, f"{kafka.name} does not compact"
        time.sleep(0.2)


def _cleaned(checkpoint: Path) -> int:
    """Return up to which offset Kafka's cleaner has come with the topic, 0: not yet."""
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    offsets = [int(line.split()[2]) for line in lines if line.startswith(f"{COMPACTED} 0 ")]
    return offsets[0] if offsets else 0
