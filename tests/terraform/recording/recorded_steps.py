"""What brokers, Spark and Airflow do to a bucket, step by step, each through its own door.

Each has a bucket with a cluster under `lakehead` and tables under `tables`, as the Terraform
module lays them out. Programs are real; so is the S3 server.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.lakehead_server import lakehead_server
from bench.process import ServerProcess
from bench.s3_server import S3Server
from tests.support.waiting import wait_until
from tests.terraform.recording.s3_door import S3Door

ROOT = Path(__file__).resolve().parents[3]
PREFIX = "lakehead"
TABLES = "tables"
STEP_S = 1200
SMALL = 300
BIG_MIB = 68
"""More than 64 MiB: what merges them, or makes a table of them, uploads in parts."""
FLAGS = (
    *("--wal.size", "64m", "--upload.size", "8m", "--upload.age.ms", "300"),
    *("--metadata.checkpoint.entries", "10", "--metadata.poll.ms", "50"),
    *("--offsets.topic.num.partitions", "2", "--nodes", "1", "--message.max.bytes", "2m"),
)
TABLE = {"lakehead.table.enable": "true", "lakehead.table.freshness.ms": "1000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A bucket with a cluster, as it is reached through a door, or directly without one."""

    server: S3Server
    bucket: str
    door: S3Door | None = None

    @property
    def store(self) -> str:
        """The cluster's URI."""
        return f"s3://{self.bucket}/{PREFIX}"

    @property
    def tables(self) -> str:
        """Where tables go."""
        return f"s3://{self.bucket}/{TABLES}"

    @property
    def environment(self) -> dict[str, str]:
        """What leads programs there."""
        endpoint = self.server.endpoint if self.door is None else self.door.endpoint
        return self.server.environment | {"AWS_ENDPOINT_URL": endpoint}

    def note(self, run: str) -> None:
        """Say what is done from here on."""
        if self.door is not None:
            self.door.run = run
            print(f"  {run}", flush=True)

    def run(self, run: str, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
        """Run a Python module with arguments; returns what it printed."""
        self.note(run)
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        if done.returncode not in ok:
            raise RuntimeError(f"{run}: {(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def lakehead(self, run: str, command: str, *options: str, ok: tuple[int, ...] = (0,)) -> str:
        """Run a command of ours on the cluster."""
        return self.run(run, "lakehead", command, "--path", self.store, *options, ok=ok)

    def leave_upload(self) -> None:
        """Leave behind an upload in parts, as a crash does."""
        client = boto3.client(
            "s3",
            endpoint_url=self.server.endpoint,
            region_name=self.server.region,
            aws_access_key_id=self.server.access_key,
            aws_secret_access_key=self.server.secret_key,
        )
        client.create_multipart_upload(Bucket=self.bucket, Key=f"{PREFIX}/data/00/left-behind")
        client.close()


@contextmanager
def broker(place: Place, run: str, *flags: str) -> Iterator[ServerProcess]:
    """A broker on the place's cluster."""
    place.note(run)
    with (
        tempfile.TemporaryDirectory(prefix="lakehead-recording-") as folder,
        lakehead_server(
            Path(folder), "--store", place.store, *FLAGS, *flags, environment=place.environment
        ) as server,
    ):
        yield server


def create_topics(bootstrap: str, *, tables: str = "") -> None:
    """Make the topics; with a place for tables, two of them declare theirs."""
    declared: Mapping[str, str] = TABLE if tables else {}

    def table(name: str, more: Mapping[str, str]) -> dict[str, str]:
        place = {"lakehead.table.path": f"{tables}/{name}"} if tables else {}
        return {**declared, **place, **more} if tables else {}

    keyed = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    topics = {
        "orders": table(
            "orders",
            {"lakehead.table.value.format": "json", "lakehead.table.on.error": "dead_letter"},
        ),
        "keyed": keyed
        | table(
            "keyed",
            {
                "lakehead.table.value.format": "json",
                "lakehead.table.mode": "upsert",
                "lakehead.table.keys": "id",
            },
        ),
        "big": table("big", {"lakehead.table.value.format": "raw"}),
        "short": {"retention.bytes": "1"},
        "gone": {},
    }
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(
        [NewTopic(name, 1, 1, config=config) for name, config in topics.items()]
    ).values():
        made.result(30)


def produce(bootstrap: str, *, big: bool = True) -> None:
    """Write to all topics; to `orders` also what is no JSON, to `big` what cannot be compressed."""
    rng = random.Random(1)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000, "linger.ms": 5}
    )
    for number in range(SMALL):
        value = json.dumps({"id": number % 7, "amount": number}).encode()
        for topic in ("orders", "keyed", "short", "gone"):
            producer.produce(topic, key=b"%d" % (number % 7), value=value)
    producer.produce("orders", value=b"no JSON")
    for _ in range(BIG_MIB * 2 if big else 1):
        producer.produce("big", value=rng.randbytes(512 * 1024))
        producer.flush(30)
    assert producer.flush(60) == 0


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic, and wait until no broker knows it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for gone in admin.delete_topics([name]).values():
        gone.result(30)
    assert wait_until(lambda: name not in admin.list_topics(timeout=10).topics, 30)


def filled(place: Place, *, tables: str = "") -> None:
    """Make the cluster, with records in objects, directly: this is not what is recorded."""
    straight = Place(server=place.server, bucket=place.bucket)
    with broker(straight, "", "--wal", "object:", "--maintain", "false") as server:
        create_topics(server.bootstrap, tables=tables)
        produce(server.bootstrap)
        delete_topic(server.bootstrap, "gone")


# --------------------------------------------------------------------------------- the three


def of_broker(place: Place) -> None:
    """A broker's life, and the commands that its host is for."""
    with broker(place, "start, object WAL", "--wal", "object:") as server:
        place.note("produce")
        create_topics(server.bootstrap)
        produce(server.bootstrap)
        place.note("delete a topic")
        delete_topic(server.bootstrap, "gone")
        server.process.kill()
        server.process.wait()
    with broker(place, "recovery of an object WAL", "--wal", "object:") as server:
        produce(server.bootstrap, big=False)
    with broker(place, "start, block WAL", "--node.id", "7") as server:
        produce(server.bootstrap, big=False)
    place.lakehead("compact", "compact-objects", "--count", "2")
    place.lakehead("compact by keys", "compact-topics")
    place.lakehead("retention", "apply-retention")
    place.leave_upload()
    place.lakehead("sweep", "sweep", "--yes", "--grace", "0", "--margin", "0")
    place.lakehead("leak-check", "leak-check", ok=(0, 1))
    place.lakehead("verify", "verify")
    place.lakehead("rebuild-catalog", "rebuild-catalog", "--replace", "--yes")


def of_spark(place: Place) -> None:
    """Reads in place and tables, by delta-spark with s3a and by delta-rs."""
    filled(place)
    module = "tests.terraform.recording.spark_programs"
    place.run("reads, streams, MERGE, OPTIMIZE, VACUUM", module, place.store, place.tables)
    table = f"{place.tables}/by-delta-rs"
    place.run(
        "tables without a declaration",
        *("lakehead", "materialize", "orders", "--path", place.store, "--table", table),
        *("--value-format", "raw"),
    )


JOBS: Mapping[str, Mapping[str, Any]] = {
    "compact_objects": {"count_min": 2},
    "compact_topics": {},
    "apply_retention": {},
    "materialize": {"all_of_them": True},
    "optimize": {"all_of_them": True},
    "vacuum": {"all_of_them": True},
    "replay": {"topic": "orders"},
    "backfill": {"topic": "orders", "begin": "earliest"},
    "rebuild_table": {"topic": "orders"},
    "sweep": {"grace_s": 0, "margin_s": 0},
    "verify": {},
}


def of_airflow(place: Place) -> None:
    """Every job by its operator, and what sensors look at."""
    filled(place, tables=place.tables)
    place.leave_upload()
    module = "tests.terraform.recording.airflow_programs"
    for job, options in JOBS.items():
        place.run(f"job {job}", module, "job", place.store, job, json.dumps(options))
    place.run("sensors", module, "look", place.store)
    replaced = json.dumps({"replace": True})
    place.run("job rebuild_catalog", module, "job", place.store, "rebuild_catalog", replaced)
