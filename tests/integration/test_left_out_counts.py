"""Nothing is left out of a table uncounted: fields without a column, dropped records."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakehead.lake.cluster_tables import status_row
from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.table_status import TableStatus, table_statuses
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.values.avro import compile_avro, read_schema
from lakehead.storage.clock import SystemClock
from lakehead.storage.failpoints import KILLED
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.template_process import killed_job
from tests.support.topic_writer import write_topic

DECLARED = {"enable": "true", "value.format": "json", "schema": "id bigint, at struct<x: int>"}


def integer(name: str) -> dict[str, str]:
    return {"name": name, "type": "int"}


def write(cluster: Path, *values: Any) -> None:
    records = [
        TestRecord(offset=0, key=str(number).encode(), value=json.dumps(value).encode())
        for number, value in enumerate(values)
    ]
    write_topic(cluster, "orders", {0: records})


def declare(cluster: Path, configs: dict[str, str]) -> None:
    configure(cluster, "orders", {f"{PREFIX}{name}": value for name, value in configs.items()})


def catch_up(cluster: Path) -> None:
    tables = DeclaredTables(str(cluster))
    tables.catch_up(all_of_them=True, on_table=lambda _outcome: None)
    tables.close()


def status(cluster: Path) -> TableStatus:
    catalog = store_reader(str(cluster)).open_catalog()
    (found,) = table_statuses(catalog, SystemClock().now_ms())
    assert found.error is None
    row = status_row(found)
    assert (row["left_out"], row["dropped"]) == (found.left_out, found.dropped)
    return found


EXACT = {"id": 1, "at": {"x": 2}}
"""A value with the table's fields alone."""


@pytest.mark.parametrize(
    ("values", "left_out"),
    [
        ([EXACT, {"id": 2}, {}, {"at": None}], 0),
        ([EXACT, {**EXACT, "more": 1}, {**EXACT, "more": None}], 2),
        ([{"at": {"x": 1, "y": {"z": 1}}}, EXACT, {"e": {}}, {"e": []}], 3),
        ([{"id": "x", "more": 1}, {"id": 2, "more": 1}], 1),  # a dropped one is not a row
    ],
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_fields_without_a_column_are_counted_by_the_records_that_have_them(
    tmp_path: Path, values: list[Any], left_out: int, mode: str
) -> None:
    write(tmp_path, *values)
    declare(tmp_path, {**DECLARED, "on.error": "drop", "mode": mode})
    catch_up(tmp_path)
    assert status(tmp_path).left_out == left_out
    write(tmp_path, EXACT, *values)
    catch_up(tmp_path)
    assert status(tmp_path).left_out == 2 * left_out


def test_dropped_records_are_counted_until_the_table_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path, EXACT, {"id": "x"}, {"id": 1, "more": 1}, [1])
    declare(tmp_path, {**DECLARED, "on.error": "drop"})
    catch_up(tmp_path)
    assert (status(tmp_path).dropped, status(tmp_path).left_out) == (2, 1)
    catch_up(tmp_path)
    assert (status(tmp_path).dropped, status(tmp_path).left_out) == (2, 1)
    declare(tmp_path, {"schema": "id string, more int", "on.error": "dead_letter"})
    tables = DeclaredTables(str(tmp_path))
    tables.rebuild("orders")
    tables.close()
    assert (status(tmp_path).dropped, status(tmp_path).left_out) == (0, 0)
    assert status(tmp_path).dead_letters == 3


def test_replayed_letters_are_counted(tmp_path: Path) -> None:
    write(tmp_path, EXACT, {"id": "x", "more": 1}, {"id": 1 << 40, "more": 1})
    declared = {**DECLARED, "schema": "id int", "on.error": "dead_letter"}
    declare(tmp_path, declared)
    catch_up(tmp_path)
    assert (status(tmp_path).left_out, status(tmp_path).dead_letters) == (1, 2)
    declare(tmp_path, {"schema": "id bigint"})
    tables = DeclaredTables(str(tmp_path))
    assert tables.replay("orders").replayed == 1
    tables.close()
    assert (status(tmp_path).left_out, status(tmp_path).dead_letters) == (2, 1)


def test_rows_of_debezium_without_a_schema_are_counted(tmp_path: Path) -> None:
    def event(**row: Any) -> dict[str, Any]:
        return {"op": "c", "after": row, "ts_ms": 1, "source": {"ts_ms": 1, "db": "shop"}, "x": 1}

    write(tmp_path, event(id=1), event(id=2))
    declare(tmp_path, {"enable": "true", "value.format": "debezium"})
    catch_up(tmp_path)
    assert status(tmp_path).left_out == 0
    write(tmp_path, event(id=3, name="new"), event(id=4))
    catch_up(tmp_path)
    assert status(tmp_path).left_out == 1


@pytest.mark.parametrize(
    ("columns", "forgets"),
    [
        ("name STRING, at STRUCT<x: INT, y: INT>", False),
        ("at STRUCT<x: INT, y: INT>, name STRING, other INT", False),
        ("name STRING, at STRUCT<x: INT>", True),
        ("name STRING", True),
        ("at STRUCT<x: INT, y: INT>", True),
    ],
)
def test_a_schema_with_fields_that_no_column_is_for_leaves_them_out(
    columns: str, forgets: bool
) -> None:
    at = {"type": "record", "name": "At", "fields": [integer("x"), integer("y")]}
    fields: list[dict[str, object]] = [
        {"name": "called", "type": "string"},
        {"name": "at", "type": ["null", at]},
    ]
    writer = {"type": "record", "name": "Order", "fields": fields}
    aliased = {**fields[0], "name": "name", "aliases": ["called"]}
    reader = {**writer, "fields": [aliased, fields[1]]}
    texts = map(json.dumps, (writer, reader))
    wrote, reads = map(read_schema, texts)
    assert compile_avro(wrote, parse_schema(columns), reads).forgets == forgets


@pytest.mark.parametrize("name", ["materialize_files_written", "materialize_committed"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_killed_while_it_counts(tmp_path: Path, name: str, mode: str) -> None:
    write(tmp_path, EXACT, {"id": "x"}, {"id": 2, "more": 1})
    declare(tmp_path, {**DECLARED, "on.error": "drop", "mode": mode})
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_left_out_counts import catch_up; catch_up(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(tmp_path), failpoint=name) == KILLED
    catch_up(tmp_path)
    assert (status(tmp_path).dropped, status(tmp_path).left_out) == (1, 1)
    assert len(DeltaTable(tmp_path / "tables" / "orders").to_pyarrow_table()) == 2
