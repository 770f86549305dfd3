"""The measured runs: Kafka's own performance tools against one server, their output as figures.

Units: MB is 2^20 bytes, as in the tools' output; milliseconds; CPU seconds per GB, GB as 2^30
bytes of record values.
"""

import os
import re
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.apache_kafka import tools
from bench.process import ServerProcess

RECORD_BYTES = 1024
PARTITIONS = 4
TRANSACTION_RECORDS = 100
TRANSACTION_RECORD_BYTES = 100
RUN_SECONDS_MAX = 300.0


class RunFailed(Exception):
    """A tool ended badly or printed nothing to measure; the message holds its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results of one run."""

    mb_per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_seconds_per_gb: float | None = None


def create_topic(server: ServerProcess, topic: str, config: Mapping[str, str]) -> None:
    """Create a topic of PARTITIONS partitions and wait for the response."""
    new = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1, config=dict(config))
    admin = _admin(server)  # held until the answer is there
    admin.create_topics([new])[topic].result(30)


def delete_topic(server: ServerProcess, topic: str) -> None:
    """Delete a topic and wait for the response."""
    admin = _admin(server)
    admin.delete_topics([topic])[topic].result(30)


def _admin(server: ServerProcess) -> AdminClient:
    return AdminClient({**server.librdkafka, "log_level": "3"})


def produce(server: ServerProcess, topic: str, records: int, batch_bytes: int) -> Figures:
    """ProducerPerformance as fast as it goes, acks=all, the Java producer's other defaults."""
    os.sync()  # what another run left dirty in the page cache is not this run's load
    before = server.usage().cpu_seconds
    output = _run(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", str(records)),
        *("--record-size", str(RECORD_BYTES), "--throughput", "-1"),
        *server.command_config(),
        *("--command-property", f"bootstrap.servers={server.bootstrap}"),
        *("acks=all", f"batch.size={batch_bytes}"),
    )
    cpu = server.usage().cpu_seconds - before
    lines = [line for line in output.splitlines() if "50th" in line]
    found = re.search(
        r"\(([\d.]+) MB/sec\).*?(\d+) ms 50th.*?(\d+) ms 99th", lines[-1] if lines else ""
    )
    if found is None:
        raise RunFailed(f"ProducerPerformance against {server.name}:\n{output}")
    return Figures(
        mb_per_second=float(found[1]),
        p50_ms=float(found[2]),
        p99_ms=float(found[3]),
        cpu_seconds_per_gb=_per_gb(cpu, records),
    )


def consume(server: ServerProcess, topic: str, records: int) -> Figures:
    """ConsumerPerformance over the whole topic; the rate of fetching, without the group's join."""
    before = server.usage().cpu_seconds
    output = _run(
        "kafka-consumer-perf-test",
        *("--topic", topic, "--num-records", str(records)),
        *("--bootstrap-server", server.bootstrap, "--timeout", "30000"),
        *server.command_config(),
    )
    cpu = server.usage().cpu_seconds - before
    rows = [line.split(", ") for line in output.splitlines() if line.count(", ") == 9]
    if len(rows) != 2:
        raise RunFailed(f"ConsumerPerformance against {server.name}:\n{output}")
    row = dict(zip(rows[0], rows[1], strict=True))
    if int(row["data.consumed.in.nMsg"]) < records:
        raise RunFailed(f"{server.name} gave {row['data.consumed.in.nMsg']} of {records} records")
    return Figures(
        mb_per_second=float(row["fetch.MB.sec"]), cpu_seconds_per_gb=_per_gb(cpu, records)
    )


def latency(server: ServerProcess, topic: str, records: int) -> Figures:
    """EndToEndLatency: one record at a time, acks=all, from send to the consumer's poll."""
    output = _run(
        "kafka-e2e-latency",
        *("--bootstrap-server", server.bootstrap, "--topic", topic),
        *("--num-records", str(records), "--producer-acks", "all"),
        *("--record-size", str(RECORD_BYTES)),
        *server.command_config(),
    )
    found = re.search(r"50th = (\d+), 99th = (\d+)", output)
    if found is None:
        raise RunFailed(f"EndToEndLatency against {server.name}:\n{output}")
    return Figures(p50_ms=float(found[1]), p99_ms=float(found[2]))


def transactions(server: ServerProcess, topic: str, count: int) -> Figures:
    """Transactions of TRANSACTION_RECORDS over all partitions, one after another, by librdkafka:
    from the begin of each to the end of its commit.
    """
    producer = Producer({**server.librdkafka, "transactional.id": topic})
    producer.init_transactions(30)
    value, times = b"v" * TRANSACTION_RECORD_BYTES, []
    for _ in range(count):
        began = time.perf_counter()
        producer.begin_transaction()
        for number in range(TRANSACTION_RECORDS):
            producer.produce(topic, value, partition=number % PARTITIONS)
        producer.commit_transaction(30)
        times.append(1000 * (time.perf_counter() - began))
    cuts = statistics.quantiles(times[count // 10 :], n=100)  # the first ones warm up
    return Figures(p50_ms=cuts[49], p99_ms=cuts[98])


def _per_gb(cpu_seconds: float, records: int) -> float:
    return cpu_seconds / (records * RECORD_BYTES / 2**30)


def _run(tool: str, *arguments: str) -> str:
    try:
        done = tools.run(tool, *arguments, timeout_s=RUN_SECONDS_MAX, jvm=tools.LONG_RUN)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{tool} did not end within {RUN_SECONDS_MAX:.0f} s") from error
    if done.returncode != 0:
        raise RunFailed(f"{tool}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
