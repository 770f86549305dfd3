"""Catch-up from S3: a consumer reads a topic that its broker has in a local S3 server alone.

The peer is obstore's client, which gets the same objects by ranges of 4 MiB, some at a time, and
drops them: as fast as that server gives them away. Both take turns in one run. The peer shares the
cores with the S3 server, the broker with its consumer too. The broker reads by that client, so the
peer's CPU is a part of the broker's.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import obstore
from obstore.store import S3Store

from bench.figures import Figure
from bench.lakehead_server import lakehead_server
from bench.librdkafka.performance import consume, produce
from bench.loads import KIB, MIB, Kind, Load
from bench.process import ServerProcess
from bench.s3_server import S3Server, running_server
from bench.workloads import Figures, RunFailed, create_topic

PART = "catch-up from S3"
TOPIC = "bench-catch-up"
PREFIX = "bench"
FILLED = Load(name=TOPIC, kind=Kind.PRODUCE)
READ = Load(name=TOPIC, kind=Kind.CONSUME, consumers=1)
RANGE = 4 * MIB
AT_ONCE = 8
ROUNDS = 3
IDLE_S, IDLE_CPU_S = 0.5, 0.02
STARTED_SECONDS_MAX = 30.0


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`. Raises MissingTool."""
    records = (256 if quick else 800) * MIB // KIB
    with running_server(folder / "s3") as s3:
        flags = ("--store", f"{s3.uri}/{PREFIX}")
        with lakehead_server(folder, *flags, environment=s3.environment) as server:
            create_topic(server, TOPIC, {})
            produce(server, TOPIC, FILLED, records)
        caught_up: list[Figures] = []
        got: list[Figures] = []
        for _ in range(ROUNDS):  # the end of a broker uploads all; the next has nothing in memory
            with lakehead_server(folder, *flags, environment=s3.environment) as server:
                _wait_started(server)
                caught_up.append(consume(server, TOPIC, READ, records))
            got.append(asyncio.run(gets(s3)))
    return [
        Figure(
            part=PART,
            name="rate",
            value=statistics.median(one.mb_per_second or 0.0 for one in caught_up),
            unit="MB/s",
            peer="obstore's GETs",
            peer_value=statistics.median(one.mb_per_second or 0.0 for one in got),
            goal=0.8,
        ),
        Figure(
            part=PART,
            name="CPU of the broker",
            value=statistics.median(one.cpu_seconds_per_gb or 0.0 for one in caught_up),
            unit="s/GB",
            goal=1.0,
            more_is_better=False,
        ),
        Figure(
            part=PART,
            name="CPU of obstore's GETs",
            value=statistics.median(one.cpu_seconds_per_gb or 0.0 for one in got),
            unit="s/GB",
            more_is_better=False,
        ),
    ]


def _wait_started(server: ServerProcess) -> None:
    """Wait until the broker does nothing: it loads packages in the background after its start."""
    before, deadline = -1.0, time.monotonic() + STARTED_SECONDS_MAX
    while (now := server.usage().cpu_seconds) > before + IDLE_CPU_S:
        if time.monotonic() > deadline:
            raise RunFailed("the broker does not come to rest")
        before = now
        time.sleep(IDLE_S)


async def gets(s3: S3Server) -> Figures:
    """Get the data of the cluster by ranges, some at a time; return rate and CPU of this client."""
    client = S3Store(
        s3.bucket,
        endpoint=s3.endpoint,
        region=s3.region,
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        client_options={"allow_http": True},
    )
    objects = await obstore.list(client, f"{PREFIX}/data").collect_async()
    ranges = [
        (one["path"], start, min(RANGE, one["size"] - start))
        for one in objects
        for start in range(0, one["size"], RANGE)
    ]
    waiting = iter(ranges)

    async def worker() -> None:
        for path, start, length in waiting:
            await obstore.get_range_async(client, path, start=start, length=length)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    mb = sum(length for *_, length in ranges) / MIB
    return Figures(mb_per_second=mb / took, cpu_seconds_per_gb=cpu / (mb / KIB))
