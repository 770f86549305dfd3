"""Tables to which another engine gave features of Delta that delta-rs does not write, such as
liquid clustering: they are read, and who would write them is told what to do.
"""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.tables import delta_table
from lakehead.lake.tables.delta_table import TableUnavailable, open_table
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic


def record(value: bytes) -> TestRecord:
    return TestRecord(offset=0, key=value, value=value)


def catch_up(root: Path) -> TableOutcome:
    told: list[TableOutcome] = []
    tables = DeclaredTables(str(root))
    tables.catch_up(all_of_them=True, on_table=told.append)
    tables.close()
    return told[0]


def add_feature(table: Path, *features: str) -> None:
    """Commit what another engine does to give a table features of writers."""
    delta = DeltaTable(table)
    protocol = delta.protocol()
    action = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": 7,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": [*(protocol.writer_features or ()), *features],
    }
    entry = table / "_delta_log" / f"{delta.version() + 1:020}.json"
    entry.write_text(json.dumps({"protocol": action}) + "\n")


@pytest.mark.parametrize(
    "features", [("rowTracking", "domainMetadata"), ("inCommitTimestamp",), ("icebergCompatV1",)]
)
def test_a_change_by_deletion_vectors_goes_round_no_feature_of_writers(
    tmp_path: Path, features: tuple[str, ...]
) -> None:
    """Such a feature requests more of each commit, such as numbers of rows."""
    root = tmp_path / "store"
    write_topic(root, "people", {0: [record(b"a"), record(b"b")]})
    configs = {"enable": "true", "mode": "upsert", "deletion.vectors": "true"}
    configure(root, "people", {f"{PREFIX}{name}": text for name, text in configs.items()})
    assert catch_up(root).error is None
    write_topic(root, "people", {0: [record(b"a")]})
    outcome = catch_up(root)
    assert outcome.error is None
    table = Path(outcome.table)
    add_feature(table, *features)
    version = DeltaTable(table).version()
    write_topic(root, "people", {0: [record(b"b"), record(b"c")]})
    assert "features required" in str(catch_up(root).error)
    assert DeltaTable(table).version() == version


def map_columns(table: Path, mode: str, names: Mapping[str, str]) -> None:
    """Commit what another engine does to give columns other names in files."""
    delta = DeltaTable(table)
    schema, numbers = json.loads(delta.schema().to_json()), count(1)

    def mapped(kind: Any) -> None:
        if not isinstance(kind, dict):
            return
        for field in kind.get("fields", ()):
            physical = names.get(field["name"], field["name"])
            field["metadata"] = {
                "delta.columnMapping.id": next(numbers),
                "delta.columnMapping.physicalName": physical,
            }
            mapped(field["type"])
        mapped(kind.get("elementType"))

    mapped(schema)
    metadata = delta.metadata()
    actions = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {
            "metaData": {
                "id": str(metadata.id),
                "name": metadata.name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "createdTime": metadata.created_time,
                "configuration": {
                    "delta.columnMapping.mode": mode,
                    "delta.columnMapping.maxColumnId": "99",
                },
            }
        },
    ]
    entry = table / "_delta_log" / f"{delta.version() + 1:020}.json"
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize(("mode", "names"), [("name", {"value": "col-1"}), ("id", {})])
def test_nothing_is_written_where_files_have_other_names_for_columns(
    tmp_path: Path, mode: str, names: Mapping[str, str]
) -> None:
    """As after a column was renamed: every reader would find null in its place."""
    root = tmp_path / "store"
    write_topic(root, "people", {0: [record(b"a")]})
    configure(root, "people", {f"{PREFIX}enable": "true"})
    table = Path(catch_up(root).table)
    map_columns(table, mode, names)
    version = DeltaTable(table).version()
    write_topic(root, "people", {0: [record(b"b")]})
    error = str(catch_up(root).error)
    assert "DROP FEATURE columnMapping" in error
    assert DeltaTable(table).version() == version


def test_columns_that_are_mapped_to_their_own_names_are_written(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_topic(root, "people", {0: [record(b"a")]})
    configure(root, "people", {f"{PREFIX}enable": "true"})
    table = Path(catch_up(root).table)
    map_columns(table, "name", {})
    write_topic(root, "people", {0: [record(b"b")]})
    assert catch_up(root).error is None
    query = QueryBuilder().register("t", DeltaTable(table))
    held = pa.table(query.execute("SELECT value FROM t ORDER BY value"))
    assert held.column("value").to_pylist() == [b"a", b"b"]


def test_columns_with_ids_get_no_column_beside_them(tmp_path: Path) -> None:
    """delta-rs writes a schema without the ids, which delta-spark does not read any more."""
    table = Path(numbers(tmp_path, 1, schema="n int").table)
    map_columns(table, "name", {})
    version = DeltaTable(table).version()
    write_topic(tmp_path, "people", {0: [record(b'{"n": 2, "m": 3}')]})
    for schema in ("n int, m bigint", "n bigint"):
        declared = NUMBERS | {"schema": schema}
        configure(tmp_path, "people", {f"{PREFIX}{name}": one for name, one in declared.items()})
        assert "DROP FEATURE columnMapping" in str(catch_up(tmp_path).error)
    tables = DeclaredTables(str(tmp_path))
    with pytest.raises(TableUnavailable, match="DROP FEATURE columnMapping"):
        tables.rebuild("people")
    tables.close()
    assert DeltaTable(table).version() == version
    assert numbers(tmp_path, 4, schema="n int").error is None


def set_metadata(
    table: Path, configuration: Mapping[str, str], column: Mapping[str, str] | None = None
) -> None:
    """Commit what another engine does to give a table properties, and its first column metadata."""
    delta = DeltaTable(table)
    schema, metadata = json.loads(delta.schema().to_json()), delta.metadata()
    schema["fields"][0]["metadata"] = column or {}
    action = {
        "id": str(metadata.id),
        "name": metadata.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "createdTime": metadata.created_time,
        "configuration": {**metadata.configuration, **configuration},
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 4}
    actions = [{"protocol": protocol}, {"metaData": action}]
    if delta.protocol().min_writer_version == 7:
        actions = actions[1:]
    entry = table / "_delta_log" / f"{delta.version() + 1:020}.json"
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


NUMBERS = {"enable": "true", "value.format": "json", "schema": "n bigint"}


def numbers(root: Path, *values: int, **configs: str) -> TableOutcome:
    """Write records, and bring up the table."""
    write_topic(root, "people", {0: [record(b'{"n": %d}' % value) for value in values]})
    named = {name.replace("_", "."): text for name, text in configs.items()}
    declared = {f"{PREFIX}{name}": text for name, text in (NUMBERS | named).items()}
    configure(root, "people", declared)
    return catch_up(root)


@pytest.mark.parametrize(
    ("configuration", "column", "words"),
    [
        ({"delta.constraints.small": "n < 9"}, {}, "constraint small"),
        ({}, {"delta.generationExpression": "1 + 1"}, "column n (delta.generationExpression)"),
        (
            {},
            {"delta.invariants": '{"expression": {"expression": "n < 9"}}'},
            "delta.invariants",
        ),
    ],
)
def test_files_with_rows_that_break_a_rule_are_not_added(
    tmp_path: Path, configuration: dict[str, str], column: dict[str, str], words: str
) -> None:
    """delta-rs adds files that were written elsewhere as they are."""
    table = Path(numbers(tmp_path, 1).table)
    set_metadata(table, configuration, column)
    version = DeltaTable(table).version()
    assert words in str(numbers(tmp_path, 10).error)
    assert DeltaTable(table).version() == version
    tables = DeclaredTables(str(tmp_path))
    with pytest.raises(TableUnavailable, match="rule for its rows"):
        tables.rebuild("people")
    tables.close()


def test_a_merge_obeys_a_constraint(tmp_path: Path) -> None:
    upsert = {"mode": "upsert", "keys": "n"}
    table = Path(numbers(tmp_path, 1, **upsert).table)
    set_metadata(table, {"delta.constraints.small": "n < 9"})
    assert numbers(tmp_path, 2, **upsert).error is None
    assert "cannot merge" in str(numbers(tmp_path, 10, **upsert).error)
    held = DeltaTable(table).to_pyarrow_table(columns=["n"]).column("n").to_pylist()
    assert sorted(held) == [1, 2]


def test_changes_by_deletion_vectors_obey_an_invariant(tmp_path: Path) -> None:
    upsert = {"mode": "upsert", "keys": "n", "deletion_vectors": "true"}
    table = Path(numbers(tmp_path, 1, **upsert).table)
    invariant = json.dumps({"expression": {"expression": "n < 9"}})
    set_metadata(table, {}, {"delta.invariants": invariant})
    assert numbers(tmp_path, 1, 2, **upsert).error is None
    assert "cannot merge" in str(numbers(tmp_path, 10, **upsert).error)
    query = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT n FROM t ORDER BY n")
    assert pa.table(query).column("n").to_pylist() == [1, 2]


def test_deletion_vectors_keep_what_an_older_protocol_implies(tmp_path: Path) -> None:
    """delta-spark refuses a table whose properties need features that its protocol does not list.
    The features request nothing here: changes are by deletion vectors all the same.
    """
    upsert = {"mode": "upsert", "keys": "n"}
    table = Path(numbers(tmp_path, 1, 2, **upsert).table)
    set_metadata(table, {"delta.enableChangeDataFeed": "true"})
    map_columns(table, "name", {})
    for _ in range(2):
        assert numbers(tmp_path, 2, 3, **upsert, deletion_vectors="true").error is None
    protocol = DeltaTable(table).protocol()
    assert protocol.reader_features == ["columnMapping", "deletionVectors"]
    assert set(protocol.writer_features or ()) == {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        *("columnMapping", "deletionVectors"),
    }
    delta = open_table(str(table))
    assert delta is not None
    assert any(file.vector for file in delta.logical_files().files.values())
    assert sorted(delta.rows(["n"], None).column("n").to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize(
    "configs", [{}, {"mode": "upsert"}, {"mode": "upsert", "deletion_vectors": "true"}]
)
def test_a_table_whose_progress_does_not_last_gets_no_more(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    """Readers drop old txn versions, and all records would be added once more."""
    table = Path(numbers(tmp_path, 1, 2, **configs).table)
    set_metadata(table, {"delta.setTransactionRetentionDuration": "interval 1 days"})
    version = DeltaTable(table).version()
    assert "UNSET TBLPROPERTIES" in str(numbers(tmp_path, 1, **configs).error)
    assert DeltaTable(table).version() == version


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_a_rebuilt_table_needs_no_more_of_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut_short: bool
) -> None:
    """delta-rs makes a table with deletion vectors one that VARIANT has to be known for."""
    if is_cut_short:  # killed between the commits
        monkeypatch.setattr(delta_table, "_take_vectors_again", lambda *_: None)
    upsert = {"mode": "upsert", "keys": "n", "deletion_vectors": "true"}
    table = Path(numbers(tmp_path, 1, 2, **upsert).table)
    assert numbers(tmp_path, 2, **upsert).error is None
    set_metadata(table, {"delta.logRetentionDuration": "interval 60 days"})
    tables = DeclaredTables(str(tmp_path))
    tables.rebuild("people")
    tables.close()
    delta = open_table(str(table))
    assert delta is not None
    assert delta.takes_vectors != is_cut_short
    assert delta.configuration["delta.logRetentionDuration"] == "interval 60 days"
    assert numbers(tmp_path, 1, **upsert).error is None
    delta = delta.refreshed()
    assert delta.handle.protocol().reader_features == ["deletionVectors"]
    assert sorted(delta.rows(["n"], None).column("n").to_pylist()) == [1, 2]
    assert any(file.vector for file in delta.logical_files().files.values())


@pytest.mark.parametrize("feature", ["typeWidening", "v2Checkpoint"])
def test_a_rebuild_of_a_table_with_features_that_are_not_read_is_refused_in_one_line(
    tmp_path: Path, feature: str
) -> None:
    table = Path(numbers(tmp_path, 1).table)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [feature],
        "writerFeatures": ["appendOnly", "invariants", feature],
    }
    entry = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020}.json"
    entry.write_text(json.dumps({"protocol": protocol}) + "\n")
    tables = DeclaredTables(str(tmp_path))
    with pytest.raises(TableUnavailable, match=feature) as met:
        tables.rebuild("people")
    tables.close()
    assert "\n" not in str(met.value)


def make_clustered(table: Path) -> None:
    """Commit what delta-spark does for `ALTER TABLE ... CLUSTER BY (_offset)`."""
    version = DeltaTable(table).version() + 1
    clustering = {"clusteringColumns": [["_offset"]], "domainName": "delta.clustering"}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "CLUSTER BY", "operationParameters": {}}},
        {
            "protocol": {
                "minReaderVersion": 1,
                "minWriterVersion": 7,
                "writerFeatures": ["appendOnly", "clustering", "domainMetadata", "invariants"],
            }
        },
        {
            "domainMetadata": {
                "domain": "delta.clustering",
                "configuration": json.dumps(clustering),
                "removed": False,
            }
        },
    ]
    entry = table / "_delta_log" / f"{version:020}.json"
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_that_was_clustered_by_another_engine(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "store"
    write_topic(root, "people", {0: [record(b"a"), record(b"b")]})
    configure(root, "people", {f"{PREFIX}enable": "true", f"{PREFIX}mode": mode})
    table = Path(catch_up(root).table)
    make_clustered(table)
    write_topic(root, "people", {0: [record(b"c")]})
    error = str(catch_up(root).error)
    assert "ClusteredTable" in error
    assert "DROP FEATURE" in error
    assert "\n" not in error
    held = DeltaTable(table).to_pyarrow_table(columns=["value"])["value"].to_pylist()
    assert sorted(held) == [b"a", b"b"]
