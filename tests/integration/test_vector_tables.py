"""Tables by upsert with deletion vectors: no file is rewritten, readers agree, and maintenance, a
killed run or a changed declaration loses no row.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from lakehead.lake.jobs.attest import JOB as ATTEST
from lakehead.lake.jobs.attest import AttestOptions
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.forget import JOB as FORGET
from lakehead.lake.jobs.forget_options import ForgetOptions
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_lease import TableLeases
from lakehead.lake.jobs.table_maintenance import Hold, TableTarget, look, optimize, targets, vacuum
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.jobs.vector_purge import purge
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables import logical_files
from lakehead.lake.tables.delta_table import CommitConflict, Table, open_table
from lakehead.storage.clock import SystemClock
from lakehead.storage.jobs.job import run_job
from tests.support import materialize_process
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

TOPIC = "states"
Model = dict[bytes, bytes]
DECLARED = {
    "lakehead.table.enable": "true",
    "lakehead.table.mode": "upsert",
    "lakehead.table.deletion.vectors": "true",
}


class Topic:
    """A topic with a declared table, and the rows that the table is to have."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "store"
        self.place = folder / "table"
        self.model: Model = {}

    def write(self, number: int, keys: range, *, gone: range = range(0)) -> None:
        """Write a value of a round for some keys, and null values for others."""
        puts = {b"k%d" % key: b"v%d.%d" % (number, key) for key in keys}
        nulls = {b"k%d" % key: None for key in gone}
        records = [
            TestRecord(offset=0, timestamp=1, key=key, value=value, headers=())
            for key, value in {**puts, **nulls}.items()
        ]
        write_topic(self.root, TOPIC, {0: records})
        self.model |= puts
        for key in nulls:
            self.model.pop(key, None)

    def catch_up(self, **configs: str) -> None:
        """Bring the table up, as declared."""
        named = {f"lakehead.table.{name.replace('_', '.')}": text for name, text in configs.items()}
        place = {"lakehead.table.path": str(self.place)}
        configure(self.root, TOPIC, DECLARED | place | named)
        outcomes: list[Any] = []
        tables = DeclaredTables(str(self.root), topics=[TOPIC], workers=1)
        tables.catch_up(all_of_them=True, on_table=outcomes.append)
        tables.close()
        assert [one.error for one in outcomes] == [None]

    def round(self, number: int, keys: range, *, gone: range = range(0), **configs: str) -> None:
        """Write and bring up."""
        self.write(number, keys, gone=gone)
        self.catch_up(**configs)

    def target(self) -> TableTarget:
        (target,) = targets(store_reader(str(self.root)).open_catalog(), [TOPIC])
        return target

    def table(self) -> Table:
        table = open_table(str(self.place))
        assert table is not None
        return table

    def vectors(self) -> int:
        """How many rows vectors have deleted."""
        files = self.table().logical_files().files.values()
        return sum(file.vector.rows for file in files if file.vector is not None)

    def check(self) -> None:
        """Lakehead and delta-rs read the rows that are to be there."""
        held = self.table().rows(["_key", "value"], None).to_pydict()
        assert dict(zip(held["_key"], held["value"], strict=True)) == self.model
        assert len(held["_key"]) == len(self.model) == self.table().count()
        query = QueryBuilder().register("t", DeltaTable(self.place))
        found = pa.table(query.execute("SELECT _key, value FROM t")).to_pydict()
        assert sorted(zip(found["_key"], found["value"], strict=True)) == sorted(self.model.items())

    def data_files(self) -> set[str]:
        return {path.name for path in self.place.glob("*.parquet")}


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return Topic(tmp_path)


@pytest.fixture
def hold(topic: Topic) -> Hold:
    """Holds the lease of the table, which is there when this is used."""

    @contextmanager
    def held() -> Iterator[None]:
        leases = TableLeases.open(str(topic.root))
        try:
            with leases.held(topic.target().topic_id):
                yield
        finally:
            leases.close()

    return held


def test_changes_add_a_file_and_rewrite_none(topic: Topic) -> None:
    topic.round(0, range(100))
    (first,) = topic.data_files()
    for number in range(1, 4):
        before = topic.data_files()
        topic.round(number, range(number * 5, number * 5 + 7), gone=range(90, 92))
        topic.check()
        assert first in topic.table().logical_files().files
        assert len(topic.data_files() - before) == 1
    assert topic.vectors() == 2 + 7 + 7 + 7
    protocol = DeltaTable(topic.place).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["deletionVectors"]
    topic.round(4, range(0), gone=range(100))
    assert topic.table().logical_files().files == {}, "a file without rows is removed"
    topic.check()


@pytest.mark.parametrize(
    "step", ["table_vectors_set", "merge_vectors_written", "table_commit_prepared"]
)
def test_a_run_that_is_killed_is_taken_up_by_the_next(topic: Topic, step: str) -> None:
    settings = MaterializeSettings(
        path=str(topic.root),
        topic=TOPIC,
        table=str(topic.place),
        value_format="raw",
        mode="upsert",
        takes_vectors=True,
        workers=1,
    )
    topic.write(0, range(50))
    if step != "table_vectors_set":
        materialize(settings)
        topic.write(1, range(7), gone=range(20, 23))
    process = materialize_process.start(settings, failpoint=step)
    materialize_process.finish(process)
    assert process.returncode not in (0, 1), step
    materialize(settings)
    topic.check()


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_optimize_purges_what_is_deleted_and_vacuum_keeps_what_is_needed(
    topic: Topic, hold: Hold, monkeypatch: pytest.MonkeyPatch, has_checkpoint: bool
) -> None:
    topic.round(0, range(2000))
    scattered = range(0, 1000, 7)  # too many for the log
    topic.round(1, scattered)
    (dead,) = topic.place.glob("*.bin")
    topic.round(2, range(1, 1000, 7))
    live = next(path for path in topic.place.glob("*.bin") if path != dead)
    if has_checkpoint:  # the removal of the dead one is read from there
        DeltaTable(topic.place).create_checkpoint()
        monkeypatch.setattr(logical_files, "_ENTRIES_MAX", 0)
    stray = topic.place / "deletion_vector_00000000-0000-4000-8000-000000000000.bin"
    stray.write_bytes(b"of a killed run")
    for path in (dead, live, stray):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert vacuum(topic.target(), hold).names == (stray.name,)
    assert {path.name for path in topic.place.glob("*.bin")} == {dead.name, live.name}
    topic.check()
    found = look(topic.target())
    assert found.is_due, "286 of 2286 rows are deleted"
    assert optimize(topic.target(), hold).error is None
    assert topic.vectors() == 0
    topic.check()


@pytest.mark.parametrize(("hours", "is_kept"), [(168, False), (24 * 30, True)])
def test_vacuum_with_a_longer_retention_keeps_vectors_that_checkpoints_have_left_out(
    topic: Topic, hold: Hold, monkeypatch: pytest.MonkeyPatch, hours: int, is_kept: bool
) -> None:
    topic.round(0, range(2000))
    topic.round(1, range(0, 1000, 7))
    (dead,) = topic.place.glob("*.bin")
    topic.round(2, range(1, 1000, 7))
    for path in topic.place.glob("*.bin"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    now_ms = SystemClock().now_ms()
    for entry in (topic.place / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] = now_ms - 10 * 24 * 3600 * 1000
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
    DeltaTable(topic.place).create_checkpoint()
    monkeypatch.setattr(logical_files, "_ENTRIES_MAX", 0)
    assert vacuum(topic.target(), hold, retention_hours=hours).error is None
    assert dead.exists() == is_kept
    topic.check()


def test_a_few_deleted_rows_are_left_to_later(topic: Topic, hold: Hold) -> None:
    topic.round(0, range(1000))
    topic.round(1, range(20))
    assert not look(topic.target()).is_due
    topic.round(2, range(30, 40), optimize_deleted_percent="2")
    assert look(topic.target()).is_due


def test_a_table_that_takes_no_vectors_any_more_is_rewritten_and_purged(
    topic: Topic, hold: Hold
) -> None:
    topic.round(0, range(100))
    topic.round(1, range(10))
    assert topic.vectors() == 10
    topic.round(2, range(5, 15), deletion_vectors="false")
    topic.check()
    assert not topic.table().takes_vectors
    assert optimize(topic.target(), hold).error is None
    assert topic.vectors() == 0
    topic.round(3, range(3), deletion_vectors="false")
    assert topic.vectors() == 0
    topic.check()


def test_checkpoints_keep_the_vectors(topic: Topic) -> None:
    topic.round(0, range(100))
    topic.round(1, range(10))
    DeltaTable(topic.place).create_checkpoint()
    for entry in (topic.place / "_delta_log").glob("*.json"):
        if entry.name < f"{DeltaTable(topic.place).version():020}.json":
            entry.unlink()
    topic.round(2, range(20, 25))
    assert topic.vectors() == 15
    topic.check()


def test_a_rebuild_replaces_files_with_vectors(topic: Topic) -> None:
    topic.round(0, range(100))
    topic.round(1, range(10), gone=range(50, 60))
    tables = DeclaredTables(str(topic.root), topics=[TOPIC], workers=1)
    tables.rebuild(TOPIC)
    tables.close()
    topic.check()
    assert topic.vectors() == 0
    topic.round(2, range(5))
    topic.check()


def test_forget_rewrites_files_whose_rows_a_vector_has_deleted(topic: Topic) -> None:
    topic.round(0, range(100))
    topic.round(1, range(10), gone=range(20, 21))
    assert topic.vectors() == 11
    # Both were replaced or deleted by a vector, and their bytes are in the first file.
    forget = run_job(FORGET, str(topic.root), ForgetOptions(topic=TOPIC, keys=("k3", "k20")))
    assert forget.records == 4
    del topic.model[b"k3"]
    topic.check()
    for path in topic.table().logical_files().files:
        keys = pq.read_table(topic.place / path, columns=["_key"]).column("_key").to_pylist()
        assert not {b"k3", b"k20"} & set(keys), path


def test_attest_compares_the_rows_that_vectors_leave(topic: Topic) -> None:
    topic.round(0, range(100))
    topic.round(1, range(10), gone=range(20, 25))
    result = run_job(ATTEST, str(topic.root), AttestOptions(topic=TOPIC))
    assert result.found() == ()
    assert result.rows == len(topic.model)


@pytest.mark.parametrize("job", ["compact", "z_order", "delete", "purge"])
def test_files_that_get_vectors_while_they_are_rewritten_stay(topic: Topic, job: str) -> None:
    topic.round(0, range(100))
    topic.round(1, range(100, 120))
    before = topic.table()
    files = list(before.data_files())
    topic.round(2, range(10), gone=range(20, 30))
    with pytest.raises((DeltaError, CommitConflict)):
        if job == "compact":
            before.handle.optimize.compact()
        elif job == "z_order":
            before.handle.optimize.z_order(["_offset"])
        elif job == "delete":
            before.handle.delete("_offset = 50")
        else:
            purge(before, files, file_bytes=1 << 20)
    topic.check()


def test_vectors_of_files_with_several_row_groups_delete_the_rows_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of more than a million rows has several. PyArrow counts the rows of the whole file
    for each.
    """
    write = pq.ParquetWriter.write_table

    def in_groups(writer: Any, rows: Any, row_group_size: int | None = None) -> None:
        write(writer, rows, row_group_size=30)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", in_groups)
    topic = Topic(tmp_path)
    topic.round(0, range(100))
    assert {pq.ParquetFile(one).num_row_groups for one in topic.place.glob("*.parquet")} == {4}
    topic.round(1, range(5, 95, 10), gone=range(7, 97, 10))
    assert topic.vectors() == 18
    topic.check()
    topic.round(2, range(40, 60), gone=range(90, 100))
    topic.check()
