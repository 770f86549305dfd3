"""Tables that follow their values: columns come, and what cannot be is for policy."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_schema import SchemaConflict, follow_values
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.delta_table import open_table
from lakehead.lake.tables.layout import TableLayout
from lakehead.storage.failpoints import KILLED
from tests.support.declared_topics import configure
from tests.support.template_process import killed_job
from tests.support.topic_writer import write_topic


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    cluster = tmp_path / "cluster"
    write(cluster, *({"id": n} for n in range(5)))
    declare(cluster, {"enable": "true", "value.format": "json"})
    assert materialize(cluster).error is None
    return cluster


def write(cluster: Path, *values: dict[str, Any]) -> None:
    write_topic(cluster, "orders", {0: [json.dumps(value).encode() for value in values]})


def declare(cluster: Path, configs: dict[str, str]) -> None:
    configure(cluster, "orders", {f"{PREFIX}{name}": value for name, value in configs.items()})


def materialize(cluster: Path) -> TableOutcome:
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(cluster))
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    return outcomes[0]


def rows(cluster: Path, name: str = "orders") -> list[dict[str, Any]]:
    place = cluster / "tables" / name
    held = DeltaTable(place).to_pyarrow_table().to_pylist() if place.exists() else []
    return sorted(held, key=lambda row: row["_offset"])


def column(cluster: Path, name: str) -> list[Any]:
    return [row[name] for row in rows(cluster)]


MORE = ({"id": 5, "name": "x", "at": {"place": 1}}, {"id": 6, "at": {"place": 2, "time": 3}})


def test_new_fields_become_columns_and_old_rows_have_none(cluster: Path) -> None:
    write(cluster, *MORE)
    outcome = materialize(cluster)
    assert (outcome.error, outcome.result.records) == (None, 2)
    assert column(cluster, "id") == list(range(7))
    assert column(cluster, "name") == [*[None] * 5, "x", None]
    assert column(cluster, "at")[5:] == [{"place": 1, "time": None}, {"place": 2, "time": 3}]
    write(cluster, {"id": 7})
    assert materialize(cluster).error is None
    assert column(cluster, "id") == list(range(8))


def test_a_table_that_may_not_change_pauses_and_goes_on_when_it_may(cluster: Path) -> None:
    declare(cluster, {"evolution": "pause"})
    write(cluster, *MORE)
    error = materialize(cluster).error
    assert isinstance(error, SchemaConflict)
    assert "name is new" in str(error)
    assert len(rows(cluster)) == 5
    declare(cluster, {"evolution": "evolve"})
    assert materialize(cluster).error is None
    assert len(rows(cluster)) == 7


def test_values_with_more_are_kept_aside_and_can_be_brought_in_later(cluster: Path) -> None:
    declare(cluster, {"evolution": "dead_letter", "on.error": "dead_letter"})
    write(cluster, {"id": 5}, *MORE, {"id": 7})
    outcome = materialize(cluster)
    assert (outcome.error, outcome.result.records, outcome.result.dead_letters) == (None, 2, 2)
    assert column(cluster, "id") == [0, 1, 2, 3, 4, 5, 7]
    letters = rows(cluster, "orders__dlq")
    assert [letter["_offset"] for letter in letters] == [6, 7]
    assert "fields that the table does not have" in letters[0]["error"]
    tables = DeclaredTables(str(cluster))
    assert tables.replay("orders").left == 2
    declare(cluster, {"evolution": "evolve"})
    assert tables.replay("orders").replayed == 2
    tables.close()
    assert [row["_offset"] for row in rows(cluster)] == list(range(9))
    assert rows(cluster)[6]["name"] == "x"


def test_what_conflicts_is_said_or_handled_record_by_record(cluster: Path) -> None:
    write(cluster, {"id": 5}, {"id": "six"}, {"id": 7})
    error = materialize(cluster).error
    assert error is not None
    assert "offset 6" in str(error) or "id is BIGINT, but values are STRING" in str(error)
    declare(cluster, {"on.error": "drop"})
    outcome = materialize(cluster)
    assert (outcome.error, outcome.result.dropped) == (None, 1)
    assert column(cluster, "id") == [0, 1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize("odd", [{"_offset": 5}, {"_timestamp": 5}, {"_Key": "x"}])
def test_a_field_named_as_a_metadata_column_is_its_records_fault_alone(
    cluster: Path, odd: dict[str, Any]
) -> None:
    declare(cluster, {"on.error": "dead_letter"})
    write(cluster, {"id": 5, "name": "before"}, {"id": 6, **odd}, {"id": 7, "name": "after"})
    version = DeltaTable(cluster / "tables" / "orders").version()
    outcome = materialize(cluster)
    assert (outcome.error, outcome.result.records, outcome.result.dead_letters) == (None, 2, 1)
    assert column(cluster, "name")[5:] == ["before", "after"]
    letter = rows(cluster, "orders__dlq")[0]
    assert letter["_offset"] == 6
    assert f"field {next(iter(odd))}: " in letter["error"]
    assert DeltaTable(cluster / "tables" / "orders").version() <= version + 3


@pytest.mark.parametrize(
    "odd", [{"id": 7, "ID": 1}, {"at": {"x": 1, "X": 2}}, {"": 1}, {"p.q": 1, "r s": 2, "t,u": 3}]
)
def test_a_name_that_no_table_can_have_costs_its_record_alone(
    cluster: Path, odd: dict[str, Any]
) -> None:
    declare(cluster, {"on.error": "dead_letter"})
    write(cluster, {"id": 5, "name": "before"}, {"id": 6, **odd}, {"id": 7, "name": "after"})
    outcome = materialize(cluster)
    assert (outcome.error, outcome.result.records, outcome.result.dead_letters) == (None, 2, 1)
    assert column(cluster, "name")[5:] == ["before", "after"]
    (letter,) = rows(cluster, "orders__dlq")
    assert letter["_offset"] == 6
    assert "column" in letter["error"]
    version = DeltaTable(cluster / "tables" / "orders").version()
    write(cluster, {"id": 8, "name": "later"})
    assert materialize(cluster).error is None
    assert DeltaTable(cluster / "tables" / "orders").version() <= version + 2
    declare(cluster, {"on.error": "pause"})
    write(cluster, {"id": 9, **odd})
    assert "partition 0, offset 9" in str(materialize(cluster).error)


@pytest.mark.parametrize("on_error", ["dead_letter", "drop", "pause"])
@pytest.mark.parametrize(
    ("odd", "configs"),
    [
        ({"_offset": 5, "x": 1}, {}),
        ({"_Timestamp": "now"}, {}),
        ({"_key": None}, {}),
        ({"_headers": [], "_topic": "t"}, {"layout": "flat"}),
        ({"_date": 1}, {"partition.by": "day(_timestamp)"}),
        ({"_is_current": 1}, {"mode": "upsert", "scd": "2", "keys": "id"}),
    ],
)
def test_a_metadata_name_among_the_first_records_is_its_records_fault_alone(
    tmp_path: Path, odd: dict[str, Any], configs: dict[str, str], on_error: str
) -> None:
    write(tmp_path, {"id": 0, "name": "a"}, {"id": 1, **odd}, {"id": 2}, {"id": 3, **odd})
    configs = {"enable": "true", "value.format": "json", "on.error": on_error, **configs}
    declare(tmp_path, configs)
    outcome = materialize(tmp_path)
    held = column(tmp_path, "_offset")
    names = DeltaTable(tmp_path / "tables" / "orders").schema().to_arrow().names
    assert (names[:2], "x" in names) == (["id", "name"], False)
    if on_error == "pause":
        assert held == [0]
        assert "partition 0, offset 1: field _" in str(outcome.error)
        return
    assert (outcome.error, held) == (None, [0, 2])
    assert outcome.result.dead_letters + outcome.result.dropped == 2
    assert DeltaTable(tmp_path / "tables" / "orders").version() <= 1
    for letter in rows(tmp_path, "orders__dlq"):
        assert f"field {next(iter(odd))}: the name of a metadata column" in letter["error"]


def test_records_that_all_have_a_metadata_name_make_no_table(tmp_path: Path) -> None:
    write(tmp_path, *({"id": n, "_offset": n} for n in range(3)))
    declare(tmp_path, {"enable": "true", "value.format": "json", "on.error": "dead_letter"})
    error = str(materialize(tmp_path).error)
    assert "field '_offset' has the name of a metadata column: give a schema without it" in error
    assert not (tmp_path / "tables" / "orders").exists()


def test_a_drifting_value_among_the_first_records_is_set_aside(tmp_path: Path) -> None:
    write(tmp_path, {"id": "zero"}, {"id": 1, "name": "x"}, {"id": 2})
    declare(tmp_path, {"enable": "true", "value.format": "json"})
    assert "field id of the sampled values is both" in str(materialize(tmp_path).error)
    declare(tmp_path, {"on.error": "dead_letter"})
    outcome = materialize(tmp_path)
    assert (outcome.error, outcome.result.dead_letters) == (None, 1)
    assert column(tmp_path, "id") == [1, 2]
    assert "field id: " in rows(tmp_path, "orders__dlq")[0]["error"]


@pytest.mark.parametrize("more", ["_offset BIGINT", "_topic STRING, _timestamp TIMESTAMP"])
def test_an_evolution_that_changes_nothing_is_not_a_commit(cluster: Path, more: str) -> None:
    place = str(cluster / "tables" / "orders")
    table = open_table(place)
    assert table is not None
    settings = MaterializeSettings(path=str(cluster), topic="orders", table=place)
    layout = TableLayout(spec=settings.spec, schema=table.schema)
    for found in (layout.value_schema(), pa.schema([*layout.value_schema(), *parse_schema(more)])):
        is_held = found == layout.value_schema()
        assert follow_values(settings, table, layout, found, {}) == is_held
        assert not layout.can_follow(found)
        assert DeltaTable(place).version() == table.version


@pytest.mark.parametrize("name", ["table_columns_added", "materialize_files_written"])
def test_killed_while_the_table_changes(cluster: Path, name: str) -> None:
    write(cluster, *MORE)
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_table_evolution import materialize; "
        "materialize(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(cluster), failpoint=name) == KILLED
    assert materialize(cluster).error is None
    assert column(cluster, "id") == list(range(7))
    assert column(cluster, "name")[5] == "x"
