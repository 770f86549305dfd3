"""Two engines that commit to one table on a real S3 server: what is lost without the table's lease,
and that nothing is with it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from bench.s3_server import S3Server
from lakehead.lake.tables.delta_table import location
from tests.support.declared_topics import configure
from tests.support.table_writer_process import LooksThenPuts, append, content, rows
from tests.support.template_process import ForkedPython
from tests.support.topic_writer import write_topic

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def table(s3_server: S3Server) -> str:
    """A table in a bucket, with a row."""
    uri = f"{s3_server.uri}/table"
    place, options = location(uri)
    write_deltalake(place, rows("first"), storage_options=options)
    return uri


def race(root: Path, table: str, engines: list[str], rounds: int) -> dict[int, int]:
    """Have processes commit to the table that topic `orders` of a new cluster declares. Returns how
    often each did, by its id.
    """
    write_topic(root, "orders", {0: [b"1"]})
    named = {"lakehead.table.enable": "true", "lakehead.table.path": table}
    configure(root, "orders", named)
    module = [sys.executable, "-m", "tests.support.table_writer_process", str(root), "orders"]
    processes = [
        ForkedPython(
            [*module, engine, str(rounds)],
            jobs=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for engine in engines
    ]
    told = [process.communicate(timeout=500) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(engines), told
    return {one.pid: int(out) for one, (out, _) in zip(processes, told, strict=True)}


def test_without_the_lease_a_commit_is_lost(table: str) -> None:
    slow = LooksThenPuts(table, "of the other engine")
    slow.look()
    append(table, "delta-rs")
    assert content(table) == ["delta-rs", "first"]
    slow.put()
    assert content(table) == ["first", "of the other engine"], "and nobody was told"


def test_without_the_lease_delta_rs_alone_conflicts(table: str) -> None:
    place, options = location(table)
    late = DeltaTable(place, storage_options=options)
    DeltaTable(place, storage_options=options).delete("who = 'first'")
    with pytest.raises(DeltaError):
        late.delete("who = 'first'")


def test_with_the_lease_no_commit_of_three_processes_is_lost(tmp_path: Path, table: str) -> None:
    rounds = 3
    done = race(tmp_path / "store", table, ["delta-rs", "looks-then-puts", "delta-rs"], rounds)
    assert set(done.values()) == {rounds}
    assert content(table) == sorted(
        ["first", *(f"{one} {n}" for one in done for n in range(rounds))]
    )
