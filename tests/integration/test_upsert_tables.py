"""Tables by upsert from topics: declared, brought up, killed at each step."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc
from deltalake import DeltaTable

from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_settings import MaterializeSettings
from tests.support import materialize_process
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.repetitions import IS_LONG
from tests.support.topic_writer import write_topic


def record(key: bytes | None, value: bytes | None, timestamp: int = 1) -> TestRecord:
    return TestRecord(offset=0, timestamp=timestamp, key=key, value=value, headers=())


def declare(root: Path, topic: str, **configs: str) -> None:
    named = {f"lakehead.table.{name.replace('_', '.')}": text for name, text in configs.items()}
    configure(
        root, topic, {"lakehead.table.enable": "true", "lakehead.table.mode": "upsert"} | named
    )


def catch_up(root: Path, topic: str) -> TableOutcome:
    told: list[TableOutcome] = []
    tables = DeclaredTables(str(root), topics=[topic], workers=1)
    try:
        tables.catch_up(all_of_them=True, on_table=told.append)
    finally:
        tables.close()
    (outcome,) = told
    return outcome


def test_a_compacted_topic_becomes_a_table_of_its_newest_values(tmp_path: Path) -> None:
    root = tmp_path / "store"
    model: dict[bytes, bytes] = {}
    declare_too = {"path": str(tmp_path / "table")}
    for start in range(0, 90, 30):
        values: dict[int, list[Any]] = {0: [], 1: []}
        for number in range(start, start + 30):
            key = b"k%d" % (number * 7 % 11)
            value = None if number % 5 == 0 else b"v%d" % number
            values[number * 7 % 11 % 2].append(record(key, value))
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        write_topic(root, "states", values, partitions=2, batch_records=7)
        declare(root, "states", **declare_too)
        outcome = catch_up(root, "states")
        assert outcome.error is None
        assert outcome.table == declare_too["path"]
        assert outcome.lag.records == 0
        held = DeltaTable(outcome.table).to_pyarrow_table(columns=["_key", "value"]).to_pydict()
        assert sorted(zip(held["_key"], held["value"], strict=True)) == sorted(model.items())
    again = catch_up(root, "states")
    assert again.result.commits == 0
    named = DeltaTable(tmp_path / "table").file_uris()
    written = list((tmp_path / "table").glob("*.parquet"))
    assert len(written) - len(named) == 2, "the files of the two versions before, no staged ones"


STEPS = (
    "materialize_table_created",
    "materialize_file_written",
    "materialize_files_written",
    "table_commit_prepared",
    "table_committed",
    "merge_done",
    "materialize_committed",
)


def test_a_run_that_is_killed_anywhere_is_taken_up_by_the_next(tmp_path: Path) -> None:
    root, table = tmp_path / "store", tmp_path / "table"
    settings = MaterializeSettings(
        path=str(root),
        topic="states",
        table=str(table),
        value_format="raw",
        mode="upsert",
        workers=1,
    )
    model: dict[bytes, bytes] = {}
    for turn, step in enumerate(STEPS if IS_LONG else STEPS[2::2]):
        puts = [(b"k%d" % (n % 6), b"v%d.%d" % (turn, n)) for n in range(turn, turn + 9)]
        gone = b"k%d" % (turn % 6)
        values = [record(key, value) for key, value in puts] + [record(gone, None)]
        write_topic(root, "states", {0: values})
        model |= dict(puts)
        del model[gone]
        process = materialize_process.start(settings, failpoint=step)
        materialize_process.finish(process)
        assert process.returncode not in (0, 1), step
        materialize(settings)
        held = DeltaTable(table).to_pyarrow_table(columns=["_key", "value"]).to_pydict()
        assert sorted(zip(held["_key"], held["value"], strict=True)) == sorted(model.items())


def event(op: str, before: Any, after: Any) -> TestRecord:
    value = {"before": before, "after": after, "op": op, "ts_ms": 5, "source": {"ts_ms": 4}}
    key = {"id": (after or before)["id"]}
    return record(json.dumps(key).encode(), json.dumps(value).encode())


def row(number: int, name: str) -> dict[str, Any]:
    return {"id": number, "name": name}


def test_debezium_events_become_the_rows_of_their_source(tmp_path: Path) -> None:
    root = tmp_path / "store"
    events = [
        event("r", None, row(1, "a")),
        event("c", None, row(2, "b")),
        event("c", None, row(3, "c")),
        event("u", row(2, "b"), row(2, "bb")),
        event("d", row(1, "a"), None),
        record(json.dumps({"id": 1}).encode(), None),
        event("u", row(3, "c"), row(30, "c")),  # its key changes
    ]
    write_topic(root, "people", {0: events})
    declare(root, "people", value_format="debezium", keys="id")
    outcome = catch_up(root, "people")
    assert outcome.error is None
    assert held(outcome.table) == [(2, "bb"), (30, "c")]
    write_topic(
        root, "people", {0: [event("d", row(2, "bb"), None), event("c", None, row(1, "x"))]}
    )
    assert held(catch_up(root, "people").table) == [(1, "x"), (30, "c")]


LEFT_OUT = "__debezium_unavailable_value"
WIDE = "id bigint, name string, body string, tags array<string>, sizes array<bigint>"


def wide(number: int, name: str, body: str, tags: list[str], sizes: list[int]) -> dict[str, Any]:
    return {"id": number, "name": name, "body": body, "tags": tags, "sizes": sizes}


def left_out(number: int, name: str) -> dict[str, Any]:
    """An update of the name alone, as PostgreSQL's connector has it."""
    return wide(number, name, LEFT_OUT, [LEFT_OUT], list(LEFT_OUT.encode()))


def test_values_that_debezium_leaves_out_stay_in_the_table(tmp_path: Path) -> None:
    root = tmp_path / "store"
    first = [event("c", None, wide(n, "a", f"long {n}", ["x"], [n])) for n in (1, 2)]
    for topic, scd in (("pages", "1"), ("versions", "2")):
        write_topic(root, topic, {0: first})
        declare(root, topic, value_format="debezium", keys="id", schema=WIDE, scd=scd)
        table = catch_up(root, topic).table
        later = [
            event("u", None, left_out(1, "b")),
            event("u", None, wide(1, "c", LEFT_OUT, ["y"], list(LEFT_OUT.encode()))),
            event("u", None, left_out(1, "d")),
            event("u", None, left_out(2, "b")),
        ]
        write_topic(root, topic, {0: later})
        outcome = catch_up(root, topic)
        assert outcome.error is None
        dataset = DeltaTable(table).to_pyarrow_dataset()
        names = ["id", "name", "body", "tags", "sizes"]
        found = sorted(tuple(one.values()) for one in dataset.to_table(names).to_pylist())
        newest = [(1, "d", "long 1", ["y"], [1]), (2, "b", "long 2", ["x"], [2])]
        if scd == "1":
            assert found == newest
            continue
        assert found == sorted(
            [
                (1, "a", "long 1", ["x"], [1]),
                (1, "b", "long 1", ["x"], [1]),
                (1, "c", "long 1", ["y"], [1]),
                (2, "a", "long 2", ["x"], [2]),
                *newest,
            ]
        )


def test_history_is_kept_where_it_is_declared(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_topic(root, "people", {0: [event("c", None, row(1, "a")), event("c", None, row(2, "b"))]})
    declare(root, "people", value_format="debezium", keys="id", scd="2")
    assert held(catch_up(root, "people").table) == [(1, "a"), (2, "b")]
    later = [event("u", row(1, "a"), row(1, "aa")), event("d", row(2, "b"), None)]
    write_topic(root, "people", {0: later})
    table = catch_up(root, "people").table
    assert held(table) == [(1, "a"), (1, "aa"), (2, "b")]
    assert held(table, pc.field("_is_current")) == [(1, "aa")]


def test_a_record_that_names_no_row_pauses_the_table(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_topic(root, "states", {0: [record(b"a", b"1"), record(None, b"2")]})
    declare(root, "states")
    outcome = catch_up(root, "states")
    assert "partition 0, offset 1: no key: it names no row" in str(outcome.error)
    assert DeltaTable(outcome.table).to_pyarrow_dataset().count_rows() == 1


def held(table: str, predicate: Any = None) -> list[tuple[int, str]]:
    """The table's rows in order, which are those that DuckDB finds in its files."""
    dataset = DeltaTable(table).to_pyarrow_dataset()
    found = dataset.to_table(columns=["id", "name"], filter=predicate).to_pydict()
    rows = sorted(zip(found["id"], found["name"], strict=True))
    if predicate is None:
        connection = duckdb.connect()
        connection.register("people", dataset)
        assert connection.sql("SELECT id, name FROM people ORDER BY ALL").fetchall() == rows
    return rows


def test_keys_that_are_new_are_added_beside_what_is_there(tmp_path: Path) -> None:
    root = tmp_path / "store"
    schema = "id bigint, name string"

    def values(*ids: int) -> list[TestRecord]:
        return [record(b"%d" % n, b'{"id": %d, "name": "n%d"}' % (n, n % 3)) for n in ids]

    write_topic(root, "people", {0: values(1, 2, 3)})
    declare(root, "people", value_format="json", schema=schema, keys="id", partition_by="name")
    table = catch_up(root, "people").table
    first = set(DeltaTable(table).file_uris())
    assert len(first) == 3
    # A delete of what was never there, and a key that comes and goes, leave nothing.
    write_topic(root, "people", {0: [*values(4, 4, 5, 6), record(b"5", None), record(b"9", None)]})
    outcome = catch_up(root, "people")
    assert outcome.error is None
    assert first < set(DeltaTable(table).file_uris())
    assert held(table) == [(1, "n1"), (2, "n2"), (3, "n0"), (4, "n1"), (6, "n0")]
    operations = [entry["operation"] for entry in DeltaTable(table).history()]
    assert "MERGE" not in operations
    write_topic(root, "people", {0: values(7, 1)})
    catch_up(root, "people")
    assert DeltaTable(table).history(1)[0]["operation"] == "MERGE"
    assert len(held(table)) == 6
