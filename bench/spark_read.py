"""Spark's batch read of a topic: `python -m bench.spark_read`.

A broker takes 1 GB of JSON records of 1 KiB from a Kafka client and stops, so that everything is
in stream objects. Then Spark reads the topic with the `lakehead` source into a sink that takes
everything and keeps nothing. The time of starting the session is not counted; the first read is
shown apart, because it compiles.

    RECORDS=1048576   number of records
    ROUNDS=3          number of reads
"""

import json
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

import psutil
from confluent_kafka import Producer

from bench import workloads
from bench.lakehead_server import lakehead_server
from bench.process import ServerProcess
from lakehead.lake.spark import spark_session

TOPIC = "documents"
RECORD_BYTES = 1024
SAMPLE_SECONDS = 0.05
GOAL_MB_PER_SECOND = 200.0


def documents(count: int) -> list[bytes]:
    """JSON documents of 1 KiB: ids, words and a filling that does not compress to nothing."""
    rng = random.Random(7)
    made = []
    for number in range(count):
        document = {
            "id": number,
            "customer": rng.randrange(100_000),
            "amount": round(rng.uniform(1, 500), 2),
            "city": rng.choice(("Oslo", "Lima", "Pune", "Quito")),
            "note": "",
        }
        room = RECORD_BYTES - len(json.dumps(document))
        document["note"] = rng.randbytes(room // 2 + 1).hex()[:room]
        made.append(json.dumps(document).encode())
    return made


def fill(server: ServerProcess, records: int) -> None:
    """Produce the records, uncompressed, over four partitions."""
    workloads.create_topic(server, TOPIC, {})
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "linger.ms": 20, "batch.size": 1_000_000}
    )
    values = documents(min(records, 4096))
    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, values[number % len(values)], partition=number % 4)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        raise SystemExit("the broker did not take all records")


class PeakMemory:
    """The most resident bytes of this process and its children while a `with` runs."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        root = psutil.Process()
        while not self._stop.wait(SAMPLE_SECONDS):
            total = 0
            for member in (root, *root.children(recursive=True)):
                try:
                    total += member.memory_full_info().pss  # what forked workers share counts once
                except psutil.Error:
                    continue  # it has just ended
            self.peak_bytes = max(self.peak_bytes, total)


def main() -> None:
    """Fill a topic, read it, print the figures."""
    records = int(os.environ.get("RECORDS", str(1 << 20)))
    rounds = int(os.environ.get("ROUNDS", "3"))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with lakehead_server(folder) as server:
            fill(server, records)
        store = f"file:{folder}/data/store"
        began = time.perf_counter()
        spark = spark_session(app_name="bench", delta=False)
        print(f"session start {time.perf_counter() - began:.1f} s (not counted)")
        frame = (
            spark.read.format("lakehead").option("path", store).option("subscribe", TOPIC).load()
        )
        rates = []
        with PeakMemory() as memory:
            for number in range(rounds + 1):
                began = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                seconds = time.perf_counter() - began
                rate = records * RECORD_BYTES / 2**20 / seconds
                kind = "first read" if number == 0 else f"read {number}"
                print(f"{kind}: {seconds:.2f} s, {rate:.0f} MB/s")
                rates.append(rate)
        counted = frame.count()
        if counted != records:
            raise SystemExit(f"Spark sees {counted} records of {records}")
        median = statistics.median(rates[1:])
        print(
            f"median {median:.0f} MB/s (goal {GOAL_MB_PER_SECOND:.0f}), "
            f"peak memory of Python and JVM {memory.peak_bytes / 2**20:.0f} MB"
        )
        spark.stop()


if __name__ == "__main__":
    main()
