"""The first query of a Spark session on a small topic, beside that of Spark's Kafka source.

Each query has a process, a JVM and a session of its own. The time is that from `load` to all rows
in Python: Python workers start in it, import what they need, and load or compile kernels. Kafka's
broker runs all the time. Sources take turns, A B B A.
"""

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.apache_kafka.server import kafka_server
from bench.figures import Figure
from bench.lake._topics import MIB, Shape, write_topic
from bench.lake.spark import PARTITIONS, TOPIC, fill
from bench.spark_kafka import spark_with_kafka
from bench.workloads import RunFailed
from tests.support.lake_cluster import LakeCluster

PART = "first_query"
SHAPE = Shape(batch_bytes=16_000)
ROUNDS = 2
GOAL_RATIO = 1.0


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    store = folder / "store"
    written = write_topic(LakeCluster(str(store)), TOPIC, SHAPE, size=MIB, partitions=PARTITIONS)
    seconds: dict[str, list[float]] = {"lakehead": [], "kafka": []}
    with kafka_server(folder) as server:
        fill(server, SHAPE, written)
        places = {"lakehead": str(store), "kafka": server.bootstrap}
        for source in ("lakehead", "kafka", "kafka", "lakehead") * (1 if quick else ROUNDS):
            seconds[source].append(_first_query(source, places[source], written.records))
    shutil.rmtree(store)
    return [
        Figure(
            part=PART,
            name="first query of a session, 1 MiB",
            value=statistics.median(seconds["lakehead"]),
            unit="s",
            peer="Spark's Kafka source",
            peer_value=statistics.median(seconds["kafka"]),
            goal=GOAL_RATIO,
            more_is_better=False,
        )
    ]


def _first_query(source: str, place: str, records: int) -> float:
    """Return its seconds, of a process that is started for it."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, source, place, str(records)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunFailed(f"the first query of {source} failed with status {done.returncode}")
    return float(done.stdout)


def _query(source: str, place: str, records: int) -> float:
    session = spark_with_kafka()
    name = "path" if source == "lakehead" else "kafka.bootstrap.servers"
    began = time.perf_counter()
    rows = session.read.format(source).option(name, place).option("subscribe", TOPIC).load()
    found = len(rows.select("key", "value", "offset").collect())
    taken = time.perf_counter() - began
    session.stop()
    if found != records:
        raise RunFailed(f"{source} has {found} records of {records}")
    return taken


if __name__ == "__main__":
    print(_query(sys.argv[1], sys.argv[2], int(sys.argv[3])))
