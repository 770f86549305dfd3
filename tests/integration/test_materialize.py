"""The job `materialize` over real objects and real Delta tables."""

import datetime as dt
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakehead.lake.jobs import table_run as job
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_item import SharedItem, TableItemResult, make_shared_files
from lakehead.lake.jobs.table_run import RecordUnreadable
from lakehead.lake.jobs.table_schema import SchemaConflict
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.storage.errors import SettingsError, UnknownTopic
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import Value, write_topic


def order(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"order {number}"}).encode()


def rows(table: str) -> list[dict[str, Any]]:
    held: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_table().to_pylist()
    return held


def places(table: str) -> Counter[tuple[int, int]]:
    return Counter((row["_partition"], row["_offset"]) for row in rows(table))


@pytest.fixture
def settings(tmp_path: Path) -> MaterializeSettings:
    return MaterializeSettings(
        path=str(tmp_path / "cluster"),
        topic="orders",
        table=str(tmp_path / "orders_table"),
        workers=1,
    )


def with_(settings: MaterializeSettings, **changes: Any) -> MaterializeSettings:
    fields = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    return MaterializeSettings(**(fields | changes))


def test_records_become_rows_with_where_they_came_from(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    record = TestRecord(
        offset=0,
        timestamp=1_700_000_000_123,
        key=b"k",
        value=order(7),
        headers=(("trace", b"1"), ("empty", None)),
    )
    write_topic(tmp_path / "cluster", "orders", {0: [record, None]}, codec="zstd")
    result = materialize(settings)
    assert (result.records, result.files, result.commits) == (2, 1, 1)
    assert rows(settings.table) == [
        {
            "id": 7,
            "name": "order 7",
            "_topic": "orders",
            "_partition": 0,
            "_offset": 0,
            "_timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=dt.UTC),
            "_key": b"k",
            "_headers": [{"key": "trace", "value": b"1"}, {"key": "empty", "value": None}],
        },
        {
            "id": None,
            "name": None,
            "_topic": "orders",
            "_partition": 0,
            "_offset": 1,
            "_timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC),
            "_key": None,
            "_headers": None,
        },
    ]


def test_every_run_adds_what_is_new_and_nothing_else(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    for count in (100, 1, 0, 250):
        values = {n: [order(i) for i in range(count)] for n in range(3)} if count else {}
        write_topic(tmp_path / "cluster", "orders", values, partitions=3)
        assert materialize(settings).records == 3 * count
        assert materialize(settings).commits == 0
    assert places(settings.table) == Counter((p, o) for p in range(3) for o in range(351))
    assert DeltaTable(settings.table).protocol().min_reader_version == 1
    assert DeltaTable(settings.table).protocol().min_writer_version == 2


def test_work_is_spread_over_processes_and_commits(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    values = {n: [order(i) for i in range(1000)] for n in range(4)}
    write_topic(tmp_path / "cluster", "orders", values, partitions=4)
    told: list[tuple[int, int]] = []
    spread = with_(settings, workers=2, split_bytes=20_000, commit_bytes=100_000)
    result = materialize(spread, on_progress=lambda done, total: told.append((done, total)))
    assert result.commits > 1
    assert result.files > result.commits
    assert places(settings.table) == Counter((p, o) for p in range(4) for o in range(1000))
    assert told[-1][0] == told[-1][1] == result.bytes_read
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len({total for _, total in told}) == 1


def test_a_dry_run_says_how_much_and_changes_nothing(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    write_topic(tmp_path / "cluster", "orders", {0: [order(1)]})
    result = materialize(with_(settings, dry_run=True))
    assert result.bytes_read > 0
    assert result.schema.names == ["id", "name"]
    assert not Path(settings.table).exists()


def test_raw_values_are_kept_as_bytes(settings: MaterializeSettings, tmp_path: Path) -> None:
    values: list[Value] = [b"\xff\x00", None, b"{}"]
    write_topic(tmp_path / "cluster", "orders", {0: values})
    raw = with_(settings, value_format="raw")
    materialize(raw)
    assert [row["value"] for row in rows(settings.table)] == values
    write_topic(tmp_path / "cluster", "orders", {0: [b"more"]})
    materialize(settings)  # the table knows what it is
    assert len(rows(settings.table)) == 4
    with pytest.raises(SettingsError, match="a schema that differs"):
        materialize(with_(settings, schema="id INT"))


def test_a_topic_without_records(settings: MaterializeSettings, tmp_path: Path) -> None:
    write_topic(tmp_path / "cluster", "orders", {}, partitions=2)
    assert materialize(settings).records == 0
    assert not Path(settings.table).exists()
    materialize(with_(settings, schema="id INT"))
    assert rows(settings.table) == []


def test_the_schema_of_the_table_wins(settings: MaterializeSettings, tmp_path: Path) -> None:
    write_topic(tmp_path / "cluster", "orders", {0: [order(1)]})
    materialize(with_(settings, schema="id INT"))
    write_topic(tmp_path / "cluster", "orders", {0: [order(2)]})
    materialize(settings)
    assert sorted(row["id"] for row in rows(settings.table)) == [1, 2]
    assert DeltaTable(settings.table).schema().fields[0].type.type == "integer"
    with pytest.raises(SchemaConflict, match=r"id is INT, but values are STRING.*rebuild"):
        materialize(with_(settings, schema="id STRING"))


def test_a_wider_schema_rewrites_the_table_and_a_column_more_does_not(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    write_topic(tmp_path / "cluster", "orders", {0: [order(1)]})
    materialize(with_(settings, schema="id INT"))
    files = DeltaTable(settings.table).file_uris()
    with pytest.raises(SchemaConflict, match="id from INT to BIGINT wider"):
        materialize(with_(settings, schema="id BIGINT", evolution="pause"))
    materialize(with_(settings, schema="id INT, name STRING"))
    assert DeltaTable(settings.table).file_uris() == files
    write_topic(tmp_path / "cluster", "orders", {0: [order(1 << 40)]})
    materialize(with_(settings, schema="id BIGINT"))
    held = sorted((row["id"], row["name"]) for row in rows(settings.table))
    assert held == [(1, None), (1 << 40, f"order {1 << 40}")]
    assert DeltaTable(settings.table).schema().fields[0].type.type == "long"
    assert not set(files) & set(DeltaTable(settings.table).file_uris())
    materialize(with_(settings, schema="id INT"))  # what is wider holds it
    assert places(settings.table) == Counter([(0, 0), (0, 1)])


def test_what_cannot_work_is_said_in_one_line(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    write_topic(tmp_path / "cluster", "orders", {0: [order(1)]})
    write_topic(tmp_path / "cluster", "other", {0: [order(1)]})
    with pytest.raises(UnknownTopic):
        materialize(with_(settings, topic="missing"))
    with pytest.raises(SettingsError, match="metadata column"):
        materialize(with_(settings, schema="_offset INT"))
    with pytest.raises(SettingsError, match="in memory"):
        materialize(with_(settings, table="memory:"))
    materialize(settings)
    with pytest.raises(SettingsError, match="is the table of topic 'orders', not of 'other'"):
        materialize(with_(settings, topic="other"))
    write_deltalake(tmp_path / "foreign", pa.table({"a": [1]}))
    with pytest.raises(SettingsError, match="not one that was made from a topic"):
        materialize(with_(settings, table=str(tmp_path / "foreign")))


BAD = b'{"id": "not a number"}'


def test_pause_commits_what_lies_before_and_names_the_record(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    values = {n: [order(i) for i in range(500)] for n in range(3)}
    values[1][300] = BAD
    values[1][400] = b"{"
    write_topic(tmp_path / "cluster", "orders", values, partitions=3, batch_records=7)
    small = with_(settings, schema="id BIGINT, name STRING", split_bytes=5000)
    for _ in range(2):
        with pytest.raises(
            RecordUnreadable, match=re.escape("topic orders, partition 1, offset 300: ")
        ):
            materialize(small)
        held = Counter((p, o) for p in (0, 2) for o in range(500))
        assert places(settings.table) == held + Counter((1, o) for o in range(300))
    result = materialize(with_(small, on_error="drop"))
    assert (result.records, result.dropped) == (198, 2)
    assert places(settings.table)[(1, 300)] == places(settings.table)[(1, 400)] == 0
    assert materialize(small).records == 0


def test_dead_letters_are_kept_aside_with_everything_they_had(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    values: list[Value] = [
        order(0),
        TestRecord(offset=0, key=b"k", value=BAD, headers=(("h", b"1"),)),
        order(2),
    ]
    write_topic(tmp_path / "cluster", "orders", {0: values})
    aside = with_(settings, schema="id BIGINT, name STRING", on_error="dead_letter")
    result = materialize(aside)
    assert (result.records, result.dead_letters) == (2, 1)
    (letter,) = rows(aside.dead_letters)
    assert (letter["_partition"], letter["_offset"], letter["_key"]) == (0, 1, b"k")
    assert letter["value"] == BAD
    assert letter["_headers"] == [{"key": "h", "value": b"1"}]
    assert "id" in letter["error"]
    write_topic(tmp_path / "cluster", "orders", {0: [b"", b"{}"]})
    assert materialize(aside).dead_letters == 1
    assert places(aside.dead_letters) == Counter([(0, 1), (0, 3)])
    assert places(settings.table) == Counter([(0, 0), (0, 2), (0, 4)])


@pytest.mark.parametrize("rival", ["compact", "whole", "part"])
def test_what_another_writer_commits_between_plan_and_commit_is_respected(
    settings: MaterializeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rival: str,
) -> None:
    """Upkeep of the table goes through; moved progress makes the job look again."""
    for _ in range(3):
        write_topic(tmp_path / "cluster", "orders", {0: [order(i) for i in range(10)]})
    materialize(settings)
    for _ in range(5):
        write_topic(tmp_path / "cluster", "orders", {0: [order(i) for i in range(10)]})
    make = make_shared_files
    interruptions: list[str] = []
    commits_before = len(DeltaTable(settings.table).history())

    def interrupted(item: SharedItem) -> tuple[TableItemResult | None, ...]:
        result = make(item)
        if not interruptions:
            interruptions.append(rival)
            if rival == "compact":
                DeltaTable(settings.table).optimize.compact()
            elif rival == "whole":
                assert materialize(settings).records == 50
            else:  # it dies after its first commit
                with pytest.raises(KeyboardInterrupt):
                    materialize(
                        with_(settings, split_bytes=1, commit_bytes=1), on_progress=stop_after_one
                    )
        return result

    def stop_after_one(done: int, _total: int) -> None:
        if done and len(DeltaTable(settings.table).history()) > commits_before:
            raise KeyboardInterrupt

    monkeypatch.setattr(job, "make_shared_files", interrupted)
    records = materialize(settings).records
    assert interruptions
    assert records == {"compact": 50, "whole": 0, "part": 40}[rival]
    assert places(settings.table) == Counter((0, o) for o in range(80))


def test_a_table_that_others_write_to_keeps_its_progress(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    write_topic(tmp_path / "cluster", "orders", {0: [order(i) for i in range(10)]})
    materialize(settings)
    table = DeltaTable(settings.table)
    table.delete("id = 3")
    write_deltalake(
        table,
        table.to_pyarrow_table().slice(0, 0),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("another", 5)]),
    )
    table.create_checkpoint()
    assert materialize(settings).records == 0
    assert len(rows(settings.table)) == 9
