"""A process that commits to the declared table of a topic, again and again, under its lease.

`python -m tests.support.table_writer_process CLUSTER TOPIC ENGINE ROUNDS` with ENGINE one of

- `delta-rs`: a row each time, put if its entry of the log is absent;
- `looks-then-puts`: a row each time, as delta-spark's log store for S3 commits it (it needs a JVM
  of 700 MB of jars): it looks which entry is the next one, and whether it is absent, then puts it;
- `spark`: delta-spark's OPTIMIZE, from when there are files to merge.

Rows are called after the process's id. Prints how often it committed.
"""

import json
import os
import sys
from contextlib import closing

import boto3
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lakehead.lake.jobs.table_lease import TableLeases
from lakehead.lake.jobs.table_maintenance import TableTarget, look, optimize, targets
from lakehead.lake.tables.data_file import write_data_file
from lakehead.lake.tables.delta_table import location
from lakehead.storage.object_store.s3.settings import parse_uri

WAIT_S = 120.0


def rows(name: str) -> pa.Table:
    return pa.table({"who": [name]})


def append(uri: str, name: str) -> None:
    place, options = location(uri)
    write_deltalake(place, rows(name), mode="append", storage_options=options)


def content(uri: str) -> list[str]:
    place, options = location(uri)
    held = DeltaTable(place, storage_options=options).to_pyarrow_table()
    names: list[str] = sorted(held["who"].to_pylist())
    return names


class LooksThenPuts:
    """A commit in the two steps that delta-spark's log store for S3 takes."""

    def __init__(self, uri: str, name: str) -> None:
        self._settings = parse_uri(uri)
        file = write_data_file(uri, rows(name))
        added = {
            "path": file.path,
            "size": file.size_bytes,
            "partitionValues": {},
            "modificationTime": 0,
            "dataChange": True,
            "stats": file.statistics,
        }
        self._entry = json.dumps({"add": added}) + "\n"
        self._version = -1

    def look(self) -> None:
        place = {"Bucket": self._settings.bucket, "Prefix": f"{self._settings.prefix}/_delta_log/"}
        with closing(boto3.client("s3")) as client:
            keys = [one["Key"] for one in client.list_objects_v2(**place)["Contents"]]
        versions = [key.rsplit("/", 1)[1] for key in keys]
        self._version = 1 + max(int(one[:20]) for one in versions if one.endswith(".json"))

    def put(self) -> None:
        key = f"{self._settings.prefix}/_delta_log/{self._version:020d}.json"
        with closing(boto3.client("s3")) as client:
            client.put_object(Bucket=self._settings.bucket, Key=key, Body=self._entry.encode())


def main() -> int:
    cluster, topic, engine, rounds = *sys.argv[1:4], int(sys.argv[4])
    leases = TableLeases.open(cluster)
    done = 0
    with closing(leases):
        (target,) = targets(leases.catalog(), [topic])
        for number in range(rounds):
            if engine == "spark":
                while not done and not look(target).small_files:
                    pass  # quicker than the other: there is nothing to merge yet
                done += optimized(leases, target)
                continue
            with leases.held(target.topic_id, wait_s=WAIT_S):
                if engine == "delta-rs":
                    append(target.uri, f"{os.getpid()} {number}")
                else:
                    commit = LooksThenPuts(target.uri, f"{os.getpid()} {number}")
                    commit.look()
                    commit.put()
            done += 1
    sys.stdout.write(f"{done}\n")
    return 0


def optimized(leases: TableLeases, target: TableTarget) -> bool:
    result = optimize(target, lambda: leases.held(target.topic_id, wait_s=WAIT_S), engine="spark")
    if result.error is not None:
        raise result.error
    return result.files_after < result.files


if __name__ == "__main__":
    sys.exit(main())
