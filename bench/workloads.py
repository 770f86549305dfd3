"""The measured runs: Kafka's own performance tools against one server, their output as figures.

Units: MB is 2^20 bytes, as in the tools' output; milliseconds; CPU seconds per GB, GB as 2^30
bytes of record values.
"""

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.apache_kafka import tools
from bench.loads import Load
from bench.process import ServerProcess

PARTITIONS = 4
TRANSACTION_RECORDS = 100
RUN_SECONDS_MAX = 600.0


class RunFailed(Exception):
    """A tool ended badly or printed nothing to measure; the message holds its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results of one run; None if it does not measure that."""

    mb_per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    cpu_seconds_per_gb: float | None = None
    """Of the server."""
    peak_rss_bytes: float | None = None
    """Of the server since it started, at the end of the run."""
    offered_mb_per_second: float | None = None
    """Rate that a paced producer was given."""
    requests_per_gb: float | None = None
    """To the object store, with the uploads that follow a run."""
    dollars_per_tb: float | None = None
    """Price of those requests at S3 Standard's list prices; TB as 2^40 bytes of values."""


def create_topic(
    server: ServerProcess, topic: str, config: Mapping[str, str], partitions: int = PARTITIONS
) -> None:
    """Create a topic and wait for the response."""
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config))
    admin = _admin(server)  # held until the response is there
    admin.create_topics([new])[topic].result(60)


@contextmanager
def made_topic(
    server: ServerProcess, topic: str, config: Mapping[str, str], partitions: int = PARTITIONS
) -> Iterator[None]:
    """Create a topic, and delete it after the block, also after one that failed. After Ctrl-C it
    stays: the signal has ended the server too, and its data goes with it.
    """
    create_topic(server, topic, config, partitions)
    try:
        yield
    finally:
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            admin = _admin(server)
            admin.delete_topics([topic])[topic].result(60)


def _admin(server: ServerProcess) -> AdminClient:
    return AdminClient({**server.librdkafka, "log_level": "3"})


def produce(
    server: ServerProcess,
    topic: str,
    load: Load,
    records: int,
    mb_per_second: float | None = None,
) -> Figures:
    """ProducerPerformance with `acks=all`, as fast as it goes or at a given rate."""
    os.sync()  # pages that another run left dirty are not this run's load
    rate = -1 if mb_per_second is None else max(1, int(mb_per_second * 2**20 / load.record_bytes))
    before = server.usage().cpu_seconds
    output = _run(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", str(records)),
        *("--record-size", str(load.record_bytes), "--throughput", str(rate)),
        *server.command_config(),
        *_transactional(topic, load),
        *("--command-property", f"bootstrap.servers={server.bootstrap}"),
        *("acks=all", f"batch.size={load.batch_bytes}", f"linger.ms={load.linger_ms}"),
        f"compression.type={load.compression}",
        f"enable.idempotence={str(load.idempotent).lower()}",
    )
    usage = server.usage()
    made = produced(output)
    return Figures(
        mb_per_second=made.mb_per_second,
        p50_ms=made.p50_ms,
        p99_ms=made.p99_ms,
        p999_ms=made.p999_ms,
        cpu_seconds_per_gb=per_gb(usage.cpu_seconds - before, records, load),
        peak_rss_bytes=usage.peak_rss_bytes,
        offered_mb_per_second=mb_per_second,
    )


def _transactional(topic: str, load: Load) -> tuple[str, ...]:
    if not load.transaction_ms:
        return ()
    return (
        *("--transactional-id", topic),
        *("--transaction-duration-ms", str(load.transaction_ms)),
    )


def produced(output: str) -> Figures:
    """Parse the last line of ProducerPerformance. Raises RunFailed."""
    lines = [line for line in output.splitlines() if "50th" in line]
    found = re.search(
        r"\(([\d.]+) MB/sec\).*?(\d+) ms 50th.*?(\d+) ms 99th, (\d+) ms 99.9th",
        lines[-1] if lines else "",
    )
    if found is None:
        raise RunFailed(f"ProducerPerformance:\n{output}")
    rate, p50, p99, p999 = (float(text) for text in found.groups())
    return Figures(mb_per_second=rate, p50_ms=p50, p99_ms=p99, p999_ms=p999)


def consume(server: ServerProcess, topic: str, load: Load, records: int) -> Figures:
    """ConsumerPerformance over the whole topic; the rate of fetching, without the group's join."""
    before = server.usage().cpu_seconds
    output = _run(
        "kafka-consumer-perf-test",
        *("--topic", topic, "--num-records", str(records)),
        *("--bootstrap-server", server.bootstrap, "--timeout", "30000"),
        *server.command_config(),
    )
    usage = server.usage()
    return Figures(
        mb_per_second=consumed(output, records),
        cpu_seconds_per_gb=per_gb(usage.cpu_seconds - before, records, load),
        peak_rss_bytes=usage.peak_rss_bytes,
    )


def consumed(output: str, records: int) -> float:
    """Parse the report of ConsumerPerformance: MB/s of fetching. Raises RunFailed, also if it has
    seen fewer records.
    """
    rows = [line.split(", ") for line in output.splitlines() if line.count(", ") == 9]
    if len(rows) != 2:
        raise RunFailed(f"ConsumerPerformance:\n{output}")
    row = dict(zip(rows[0], rows[1], strict=True))
    if int(row["data.consumed.in.nMsg"]) < records:
        raise RunFailed(f"{row['data.consumed.in.nMsg']} of {records} records were consumed")
    return float(row["fetch.MB.sec"])


def latency(server: ServerProcess, topic: str, load: Load, records: int) -> Figures:
    """EndToEndLatency: one record at a time, acks=all, from send to the consumer's poll."""
    output = _run(
        "kafka-e2e-latency",
        *("--bootstrap-server", server.bootstrap, "--topic", topic),
        *("--num-records", str(records), "--producer-acks", "all"),
        *("--record-size", str(load.record_bytes)),
        *server.command_config(),
    )
    return end_to_end(output)


def end_to_end(output: str) -> Figures:
    """Parse the report of EndToEndLatency. Raises RunFailed."""
    found = re.search(r"50th = (\d+), 99th = (\d+), 99.9th = (\d+)", output)
    if found is None:
        raise RunFailed(f"EndToEndLatency:\n{output}")
    p50, p99, p999 = (float(text) for text in found.groups())
    return Figures(p50_ms=p50, p99_ms=p99, p999_ms=p999)


def transactions(server: ServerProcess, topic: str, load: Load, count: int) -> Figures:
    """Transactions of TRANSACTION_RECORDS over all partitions, one after another, by librdkafka:
    from the begin of each to the end of its commit.
    """
    producer = Producer({**server.librdkafka, "transactional.id": topic})
    producer.init_transactions(30)
    value, times = b"v" * load.record_bytes, []
    for _ in range(count):
        began = time.perf_counter()
        producer.begin_transaction()
        for number in range(TRANSACTION_RECORDS):
            producer.produce(topic, value, partition=number % load.partitions)
        producer.commit_transaction(30)
        times.append(1000 * (time.perf_counter() - began))
    cuts = statistics.quantiles(times[count // 10 :], n=100)  # the first ones warm up
    return Figures(p50_ms=cuts[49], p99_ms=cuts[98])


def per_gb(cpu_seconds: float, records: int, load: Load) -> float:
    """Return CPU seconds for 2^30 bytes of the load's values."""
    return cpu_seconds / (records * load.record_bytes / 2**30)


def _run(tool: str, *arguments: str) -> str:
    try:
        done = tools.run(tool, *arguments, timeout_s=RUN_SECONDS_MAX, jvm=tools.LONG_RUN)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{tool} did not end within {RUN_SECONDS_MAX:.0f} s") from error
    if done.returncode != 0:
        raise RunFailed(f"{tool}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
