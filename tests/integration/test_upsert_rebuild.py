"""Tables by upsert made anew, or begun at a time: the newest value of each key, and no other."""

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from lakehead.broker.cli.app import app
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.table_rebuild import HistoryOnlyInTable
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import current_files, open_table
from lakehead.lake.tables.merge_engine import done_app, planned_app
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from tests.integration.test_upsert_tables import catch_up, declare, record
from tests.support.declared_topics import trim
from tests.support.topic_writer import Value, write_topic

KEYS = 12
CITIES = ("Oslo", "São Paulo", "it's/far", "50%", "")
Model = dict[int, tuple[str, int]]


def write(root: Path, model: Model, start: int, count: int) -> None:
    """Puts and deletes of a few keys, key k in partition k % 2; record n is of second n."""
    chance = random.Random(start)
    values: dict[int, list[Value]] = {0: [], 1: []}
    for number in range(start, start + count):
        key = chance.randrange(KEYS)
        if chance.random() < 0.3:
            value = None
            model.pop(key, None)
        else:
            model[key] = chance.choice(CITIES), number
            city, _ = model[key]
            value = b'{"id": %d, "city": "%s", "n": %d}' % (key, city.encode(), number)
        values[key % 2].append(record(b"%d" % key, value, number * 1000))
    write_topic(root, "people", values, partitions=2, batch_records=7)


def held(table: str) -> Model:
    found = DeltaTable(table).to_pyarrow_table(columns=["id", "city", "n"]).to_pydict()
    rows = zip(found["id"], found["city"], found["n"], strict=True)
    model = {key: (city or "", n) for key, city, n in rows}
    assert len(model) == len(found["id"]), "a row for each key"
    return model


def declared(root: Path, **more: str) -> None:
    schema = "id bigint, city string, n bigint"
    declare(root, "people", value_format="json", schema=schema, keys="id", **more)


def test_a_table_made_anew_has_the_newest_value_of_each_key(tmp_path: Path) -> None:
    root, model = tmp_path / "store", Model()
    write(root, model, 0, 60)
    declared(root, scd="1")
    table = catch_up(root, "people").table
    write(root, model, 60, 40)
    declared(root, partition_by="city")
    assert "rebuild it" in str(catch_up(root, "people").error)
    tables = DeclaredTables(str(root))
    result = tables.rebuild("people")
    tables.close()
    assert (result.records, result.rows_left_out) == (len(model), 0)
    assert held(table) == model
    assert DeltaTable(table).metadata().partition_columns == ["city"]
    assert catch_up(root, "people").result.commits == 0, "it has all there is"
    write(root, model, 100, 40)
    assert catch_up(root, "people").error is None
    assert held(table) == model


def test_history_made_anew_is_what_it_was(tmp_path: Path) -> None:
    root, columns = tmp_path / "store", ["id", "n", "_valid_from", "_valid_to", "_is_current"]
    for start in range(0, 120, 40):
        write(root, Model(), start, 40)
        declared(root, scd="2")
        catch_up(root, "people")
    table = catch_up(root, "people").table
    before = DeltaTable(table).to_pyarrow_table().select(columns).to_pylist()
    tables = DeclaredTables(str(root))
    assert tables.rebuild("people").records == len(before)
    tables.close()
    after = DeltaTable(table).to_pyarrow_table().select(columns).to_pylist()
    assert sorted(map(str, after)) == sorted(map(str, before))


def test_rows_whose_records_are_gone_are_kept_unless_told_otherwise(tmp_path: Path) -> None:
    root, model = tmp_path / "store", Model()
    write(root, model, 0, 60)
    declared(root)
    table = catch_up(root, "people").table
    before = held(table)
    trim(root, "people", 0, 25)
    tables = DeclaredTables(str(root))
    with pytest.raises(HistoryOnlyInTable):
        tables.rebuild("people")
    assert held(table) == before
    lost = tables.rebuild("people", without_history=True).rows_left_out
    tables.close()
    assert lost > 0
    assert len(held(table)) == len(before) - lost


def test_a_round_of_spark_that_was_left_open_ends_with_the_rebuild(tmp_path: Path) -> None:
    root, model = tmp_path / "store", Model()
    write(root, model, 0, 60)
    declared(root)
    uri = catch_up(root, "people").table
    topic = store_reader(str(root)).open_catalog().topic("people").topic_id
    table = open_table(uri)
    assert table is not None
    txns = {planned_app(topic): 5, done_app(topic): 4}
    table.commit([], txns, modified_ms=SystemClock().now_ms(), commit_info={})
    tables = DeclaredTables(str(root))
    tables.rebuild("people")
    tables.close()
    now = open_table(uri)
    assert now is not None
    assert (now.txn_version(planned_app(topic)), now.txn_version(done_app(topic))) == (6, 5)
    assert held(uri) == model


def test_a_table_begins_at_a_time_and_takes_nothing_older(tmp_path: Path) -> None:
    root, model = tmp_path / "store", Model()
    write(root, Model(), 0, 60)
    write(root, model, 60, 40)
    declared(root)
    tables = DeclaredTables(str(root))
    assert tables.begin("people", at=60_000).commits == 0
    table = catch_up(root, "people").table
    assert held(table) == model
    assert tables.begin("people", at=60_000).commits == 0
    assert tables.begin("people", at=70_000).commits == 0
    with pytest.raises(SettingsError, match="takes no older records"):
        tables.begin("people", at=50_000)
    assert held(table) == model
    everything = Model()
    write(tmp_path / "other", everything, 0, 60)
    write(tmp_path / "other", everything, 60, 40)
    tables.rebuild("people")
    assert held(table) == everything
    assert tables.begin("people", at=None).commits == 0, "nothing is older any more"
    tables.close()
    declared(root, path=str(tmp_path / "other-table"))
    done = CliRunner().invoke(
        app, ["materialize", "people", "--path", str(tmp_path), "--from", "0:20,1:9999"]
    )
    assert done.exit_code == 0, done.output
    places = DeltaTable(tmp_path / "other-table").to_pyarrow_table()
    assert {0} == set(places["_partition"].to_pylist())
    assert min(places["_offset"].to_pylist()) >= 20
    assert all("%" not in file.path for file in current_files(table))
