"""Accidents of a table beside a run that materializes it: others delete files, entries of its log
or the table itself, two runs meet, clocks go back. Each record is in the table once.
"""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import OnError
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_run import RecordUnreadable, TableRun
from lakehead.lake.jobs.table_settings import MaterializeSettings, Unguarded
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import TableUnavailable, open_table
from lakehead.lake.tables.owner import OtherTopic
from lakehead.lake.tables.table_history import commits_since
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError, ObjectNotFound
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.small_groups import inflate_little
from tests.support.topic_writer import write_topic

RECORDS = 120
KEYS = 40


def change(number: int) -> TestRecord:
    key = number % KEYS
    value = json.dumps({"id": key, "n": number, "text": "x" * 400}).encode()
    return TestRecord(offset=0, timestamp=1_700_000_000_000 + number, key=b"%d" % key, value=value)


@pytest.fixture
def settings(tmp_path: Path) -> MaterializeSettings:
    return MaterializeSettings(
        path=str(tmp_path / "cluster"),
        topic="orders",
        table=str(tmp_path / "table"),
        schema="id bigint, n bigint, text string",
        mode="upsert",
        keys=("id",),
        scd=2,
        workers=1,
        split_bytes=8_000,
        merge_bytes=20_000,
    )


def write(settings: MaterializeSettings, first: int = 0, partition: int = 0) -> None:
    records = [change(n) for n in range(first, first + RECORDS)]
    write_topic(
        Path(settings.path),
        "orders",
        {partition: records},
        partitions=2,
        batch_records=10,
        codec="zstd",
    )


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    inflate_little(monkeypatch, 5_000)


def batches_of(records: Sequence[TestRecord]) -> list[bytes]:
    return [encode_batch(records[n : n + 10], codec="zstd") for n in range(0, len(records), 10)]


def run_of(settings: MaterializeSettings) -> TableRun:
    return TableRun(settings, store_reader(settings.path), Unguarded())


def turn(run: TableRun, settings: MaterializeSettings) -> None:
    run.catch_up(store_reader(settings.path).open_catalog(), rounds_max=1)


def begun(settings: MaterializeSettings) -> tuple[LakeCluster, TableRun]:
    """Write the topic, of one partition, and return its cluster and a run after the first commit of
    a round with more.
    """
    made = LakeCluster(settings.path)
    write_topic_of_one(made)
    run = run_of(settings)
    turn(run, settings)
    assert run.has_more
    return made, run


def write_topic_of_one(made: LakeCluster) -> None:
    """Create the topic and write its records."""
    made.create_topic("orders", 1)
    records = [replace(change(n), offset=n) for n in range(RECORDS)]
    made.write({("orders", 0): batches_of(records)})


def check(settings: MaterializeSettings, count: int = RECORDS) -> None:
    """Each record is a row of history, once, and each key has one current row: its newest."""
    columns = ["_offset", "id", "n", "_is_current"]
    table = open_table(settings.table)
    assert table is not None
    rows = table.rows(columns, None).to_pylist()
    assert Counter(row["n"] for row in rows) == Counter(range(count))
    current = {row["id"]: row["n"] for row in rows if row["_is_current"]}
    assert len(current) == sum(row["_is_current"] for row in rows)
    assert current == {n % KEYS: n for n in range(count)}


def staged(settings: MaterializeSettings) -> list[Path]:
    """Files below the root that no commit names."""
    named = {Path(path).name for path in DeltaTable(settings.table).file_uris()}
    return [path for path in Path(settings.table).glob("*.parquet") if path.name not in named]


@pytest.mark.parametrize("commits", [0, 1])
def test_a_run_whose_staged_files_are_vacuumed_makes_them_again(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """As by VACUUM of another engine with no retention. The same run goes on."""
    write(settings)
    run = run_of(settings)
    for _ in range(commits):
        turn(run, settings)
    removed: list[int] = []

    def vacuum(_name: str) -> None:
        if _name == "materialize_files_written" or commits:
            for path in staged(settings):
                path.unlink()
                removed.append(1)

    with monkeypatch.context() as patch:
        patch.setattr("lakehead.lake.jobs.table_run.failpoint", vacuum)
        if commits:
            vacuum("")
        with pytest.raises(ObjectNotFound):
            turn(run, settings)
    assert removed
    run.catch_up(store_reader(settings.path).open_catalog())
    check(settings)


def test_a_table_that_is_dropped_between_commits_of_a_round_is_made_again(
    settings: MaterializeSettings,
) -> None:
    write(settings)
    run = run_of(settings)
    turn(run, settings)
    assert run.has_more
    shutil.rmtree(settings.table)
    with pytest.raises(TableUnavailable):
        turn(run, settings)
    assert not list(Path(settings.table).glob("_delta_log/*.json"))
    materialize(settings)
    check(settings)


def test_a_partition_that_is_added_between_commits_of_a_round_is_read_too(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    made, run = begun(settings)
    made.add_partitions("orders", 1)
    more = [replace(change(RECORDS + n), offset=n) for n in range(20)]
    made.write({("orders", 1): [encode_batch(more)]})
    run.catch_up(store_reader(settings.path).open_catalog())
    check(settings, RECORDS + 20)


def test_a_topic_that_is_made_again_between_commits_of_a_round_is_refused(
    settings: MaterializeSettings,
) -> None:
    made, run = begun(settings)
    before = DeltaTable(settings.table).version()
    made.delete_topic("orders")
    write_topic_of_one(made)
    with pytest.raises(OtherTopic):
        turn(run, settings)
    assert DeltaTable(settings.table).version() == before


@pytest.mark.parametrize("takes_vectors", [False, True])
@pytest.mark.parametrize("scd", [1, 2])
def test_runs_at_once_have_each_record_once(
    settings: MaterializeSettings, scd: int, takes_vectors: bool
) -> None:
    settings = replace(settings, scd=scd, takes_vectors=takes_vectors)
    write(settings)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            materialize(settings)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [error for error in failures if not isinstance(error, LakeheadError)] == []
    materialize(settings)
    if scd == 2:
        check(settings)
        return
    table = open_table(settings.table)
    assert table is not None
    rows = table.rows(["id", "n"], None).to_pylist()
    assert {row["id"]: row["n"] for row in rows} == {n % KEYS: n for n in range(80, 120)}
    assert len(rows) == KEYS


def test_a_checkpoint_that_is_missing_is_named_with_the_remedy(
    settings: MaterializeSettings,
) -> None:
    """The entries of the log are still there, and the table is read from them."""
    write(settings)
    materialize(settings)
    DeltaTable(settings.table).create_checkpoint()
    log = Path(settings.table) / "_delta_log"
    write(settings, RECORDS)
    materialize(settings)
    for checkpoint in log.glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    write(settings, 2 * RECORDS)
    with pytest.raises(TableUnavailable, match="delete _delta_log/_last_checkpoint"):
        materialize(settings)
    (log / "_last_checkpoint").unlink()
    materialize(settings)
    check(settings, 3 * RECORDS)


def test_a_clock_that_goes_back_changes_no_row(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [2_000_000_000_000]

    def back(_self: Any) -> int:
        times[0] -= 86_400_000
        return times[0]

    monkeypatch.setattr(SystemClock, "now_ms", back)
    for first in (0, RECORDS, 2 * RECORDS):
        write(settings, first)
        materialize(settings)
    check(settings, 3 * RECORDS)
    table = open_table(settings.table)
    assert table is not None
    found = commits_since(table, -1)
    held = 0
    for one in found:
        first, end = one.change.offsets[0]
        assert first == held
        held = end
    assert held == 3 * RECORDS


@pytest.mark.parametrize("mode", ["append", "upsert", "scd2", "vectors"])
def test_a_table_whose_data_files_are_gone_says_so(
    settings: MaterializeSettings, mode: str
) -> None:
    """A run that needs none of them goes on."""
    more: dict[str, dict[str, Any]] = {
        "append": {"mode": "append", "keys": (), "scd": 1},
        "upsert": {"scd": 1},
        "scd2": {},
        "vectors": {"scd": 1, "takes_vectors": True},
    }
    settings = replace(settings, **more[mode])
    write(settings)
    materialize(settings)
    write(settings, RECORDS)
    files = [Path(path.removeprefix("file://")) for path in DeltaTable(settings.table).file_uris()]
    for path in files:
        path.unlink()
    if mode == "append":
        assert materialize(settings).records == RECORDS
        return
    with pytest.raises(TableUnavailable) as caught:
        materialize(settings)
    assert "\n" not in str(caught.value)
    assert settings.table in str(caught.value)


def test_a_data_file_that_is_gone_is_no_unexpected_error_of_an_estimate(
    settings: MaterializeSettings,
) -> None:
    """The size of rows that changes keep columns of is that of the first file's rows."""
    write(settings)
    materialize(settings)
    run = run_of(replace(settings, value_format="debezium"))
    run._look_at(open_table(settings.table))
    assert run._kept_row_bytes() > 0
    for path in Path(settings.table).glob("*.parquet"):
        path.unlink()
    run = run_of(replace(settings, value_format="debezium"))
    run._look_at(open_table(settings.table))
    assert run._kept_row_bytes() == 0


def test_values_that_change_their_type_within_a_round(settings: MaterializeSettings) -> None:
    """A new field is followed between two commits; what no column holds pauses at its record."""
    values: list[Any] = [json.dumps({"id": n, "v": n}).encode() for n in range(60)]
    values += [json.dumps({"id": n, "v": n, "w": "new"}).encode() for n in range(60, 95)]
    values += [json.dumps({"id": n, "v": {"a": n}}).encode() for n in range(95, 120)]
    write_topic(Path(settings.path), "orders", {0: values}, batch_records=10, codec="zstd")
    plain = replace(settings, schema=None, scd=1, sample_records=5, merge_bytes=3000)
    with pytest.raises(RecordUnreadable, match="offset 95: "):
        materialize(plain)
    rows = DeltaTable(plain.table).to_pyarrow_table(columns=["id", "v", "w"]).to_pylist()
    held = {row["id"]: (row["v"], row["w"]) for row in rows}
    assert len(rows) == 95
    assert held == {n: (n, "new" if n >= 60 else None) for n in range(95)}


@pytest.mark.parametrize("on_error", ["dead_letter", "drop", "pause"])
def test_a_flood_of_dead_letters_is_there_once_whenever_a_run_ends(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch, on_error: OnError
) -> None:
    values: list[Any] = [b"{%d" % n if n % 20 else change(n) for n in range(2000)]
    write_topic(Path(settings.path), "orders", {0: values}, batch_records=50, codec="zstd")
    flooded = replace(settings, on_error=on_error, merge_bytes=4000, split_bytes=2000)
    left = [0]

    def fail(name: str) -> None:
        if name.endswith("committed"):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    for module in ("jobs.table_run", "jobs.dead_letters", "tables.delta_table"):
        monkeypatch.setattr(f"lakehead.lake.{module}.failpoint", fail)
    for nth in (1, 2, 3, 4, 5, 7, 11):
        left[0] = nth
        try:
            materialize(flooded)
        except (KeyboardInterrupt, RecordUnreadable):
            continue
    left[0] = 0
    if on_error == "pause":
        with pytest.raises(RecordUnreadable, match="offset 1: "):
            materialize(flooded)
        return
    materialize(flooded)
    rows = DeltaTable(flooded.table).to_pyarrow_table(columns=["_offset"]).to_pydict()["_offset"]
    assert sorted(rows) == list(range(0, 2000, 20))
    if on_error == "dead_letter":
        held = DeltaTable(flooded.dead_letters).to_pyarrow_table(columns=["_offset"])
        letters: Sequence[int] = held.to_pydict()["_offset"]
        assert sorted(letters) == [n for n in range(2000) if n % 20]
    else:
        table = open_table(flooded.table)
        assert table is not None
        assert table.txn_version("lakehead:dropped") == 1900
