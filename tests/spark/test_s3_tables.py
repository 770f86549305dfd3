"""Delta tables on a real S3 server: delta-spark beside delta-rs, and why there is a lease."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from bench.s3_server import S3Server
from lakehead.lake.spark import cache_folder
from lakehead.lake.tables.delta_table import location
from tests.integration.test_two_engines_on_s3 import race
from tests.support.declared_topics import configure
from tests.support.table_writer_process import content, rows
from tests.support.topic_writer import write_topic

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,
    pytest.mark.skipif(
        not list(cache_folder().glob("*-s3a.jars")),
        reason="the jars of s3a (690 MB) are not in the cache: see docs/tables/upsert.md",
    ),
]


def test_both_engines_on_one_bucket(s3_server: S3Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.s3_delta_process", s3_server.uri],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["mixed"] == found["rs"] == found["after upkeep"]
    assert found["read by spark"] == len(found["rs"]) == 6
    assert found["last offset"] == 79
    # Two engines at once, without a lease: what delta-rs had committed is gone.
    assert found["after a race"] == ["first"]


def test_with_the_lease_delta_spark_and_delta_rs_take_turns(
    tmp_path: Path, s3_server: S3Server
) -> None:
    table, rounds = f"{s3_server.uri}/turns", 6
    place, options = location(table)
    write_deltalake(place, rows("first"), storage_options=options)
    by_delta_rs, by_spark = race(tmp_path / "store", table, ["delta-rs", "spark"], rounds).items()
    wanted = [f"{by_delta_rs[0]} {number}" for number in range(rounds)]
    assert content(table) == sorted(["first", *wanted])
    history = DeltaTable(place, storage_options=options).history()
    done = [str(entry.get("operation")) for entry in history].count("OPTIMIZE")
    assert done == by_spark[1] > 0


def test_sql_reads_a_table_in_a_bucket(tmp_path: Path, s3_server: S3Server) -> None:
    """With credentials that lie in a profile file, for the cluster's tools and for Spark."""
    write_topic(tmp_path / "store", "orders", {0: [b'{"id":%d}' % n for n in range(5)]})
    place = f"{s3_server.uri}/tables/orders?path_style=true"
    named = {"enable": "true", "path": place, "value.format": "json"}
    configs = {f"lakehead.table.{name}": value for name, value in named.items()}
    configure(tmp_path / "store", "orders", configs)
    profile = tmp_path / "credentials"
    profile.write_text(
        f"[default]\naws_access_key_id = {s3_server.access_key}\n"
        f"aws_secret_access_key = {s3_server.secret_key}\n"
    )
    environment = os.environ | {"AWS_SHARED_CREDENTIALS_FILE": str(profile)}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del environment[name]

    def lakehead(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "lakehead", *arguments, "--path", str(tmp_path)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    brought_up = lakehead("materialize", "orders")
    assert brought_up.returncode == 0, brought_up.stderr
    both = (
        f"SELECT count(*) AS n, sum(id) AS ids FROM delta.`{place}`;"
        "SELECT topic, files, records_behind, error FROM lakehead.tables"
    )
    read = lakehead("sql", "--format", "json", "-e", both)
    assert [json.loads(line) for line in read.stdout.splitlines()] == [
        {"n": 5, "ids": 10},
        {"topic": "orders", "files": 1, "records_behind": 0, "error": None},
    ], read.stderr
    told = lakehead("sql", "--no-s3", "-e", f"FROM delta.`{place}`")
    assert (told.returncode, told.stderr.count("\n")) == (1, 1)
    assert "lakehead sql --s3" in told.stderr
