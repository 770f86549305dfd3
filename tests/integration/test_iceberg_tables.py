"""Iceberg tables over the files of Delta tables: the same rows at each version, each file once."""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from lakehead.lake.declaration.table_declaration import PREFIX, TableDeclaration
from lakehead.lake.jobs.catalog_publisher import (
    CatalogPublisher,
    IcebergTables,
    open_iceberg_catalog,
)
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.forget import JOB as FORGET
from lakehead.lake.jobs.forget_options import ForgetOptions
from lakehead.lake.jobs.forget_result import ForgetResult
from lakehead.lake.jobs.forget_tables import CatalogUnavailable
from lakehead.lake.tables import iceberg
from lakehead.lake.tables.iceberg import VERSION, IcebergUnavailable, Published, publish
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import run_job
from tests.support.declared_tables import materialize_all
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

NAME = "lake.orders"
BEGUN = 1_700_000_000_000
DAY_MS = 86_400_000


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(
        "lake",
        type="sql",
        uri=f"sqlite:///{tmp_path / 'catalog.db'}",
        warehouse=(tmp_path / "warehouse").as_uri(),
    )


class Orders:
    """A topic with a table."""

    def __init__(self, folder: Path, **configs: str) -> None:
        self.cluster = folder / "cluster"
        self.place = self.cluster / "tables" / "orders"
        self._written = 0
        self.write()
        declared = {"enable": "true", "value.format": "json"} | configs
        configure(
            self.cluster,
            "orders",
            {f"{PREFIX}{name.replace('_', '.')}": value for name, value in declared.items()},
        )

    def write(self, count: int = 20, **fields: Any) -> None:
        values = [
            TestRecord(
                offset=0,
                timestamp=BEGUN + n * DAY_MS // 10,
                key=b"%d" % (n % 7),
                value=json.dumps({"id": n % 7, "n": n} | fields).encode(),
            )
            for n in range(self._written, self._written + count)
        ]
        self._written += count
        write_topic(self.cluster, "orders", {0: values}, partitions=1, batch_records=10)

    def materialize(self) -> None:
        materialize_all(self.cluster)

    def publish(self, catalog: Catalog) -> Published:
        return publish(str(self.place), catalog, NAME)


def counted(rows: list[Mapping[str, Any]]) -> Counter[str]:
    """Return how often each row is there. PyIceberg reads a list that is null as an empty one."""
    return Counter(
        json.dumps(
            {name: None if value == [] else value for name, value in row.items()},
            sort_keys=True,
            default=str,
        )
        for row in rows
    )


def delta_rows(place: Path, version: int | None = None) -> Counter[str]:
    table = DeltaTable(place, version=version)
    return counted(table.to_pyarrow_table().to_pylist())


def iceberg_rows(table: Table, snapshot: int | None = None) -> Counter[str]:
    return counted(table.scan(snapshot_id=snapshot).to_arrow().to_pylist())


def assert_each_version_is_there(orders: Orders, table: Table) -> None:
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        version = int(snapshot.summary[VERSION] or 0)
        shown = iceberg_rows(table, snapshot.snapshot_id)
        delta = delta_rows(orders.place, version)
        # A snapshot has the schema of its time in Delta, and the present one in Iceberg's scan.
        assert sum(shown.values()) == sum(delta.values()), version
    assert iceberg_rows(table) == delta_rows(orders.place)
    files = [entry["file_path"] for entry in table.inspect.files().to_pylist()]
    assert len(files) == len(set(files)) == len(DeltaTable(orders.place).file_uris())


def test_each_delta_version_is_a_snapshot(tmp_path: Path, catalog: Catalog) -> None:
    orders = Orders(tmp_path)
    orders.materialize()
    assert orders.publish(catalog).snapshots == 1
    for _ in range(3):
        orders.write()
        orders.materialize()
    done = orders.publish(catalog)
    assert done.snapshots == 3
    table = catalog.load_table(NAME)
    assert table.properties[VERSION] == str(DeltaTable(orders.place).version())
    assert_each_version_is_there(orders, table)
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert json.loads(summary["lakehead.change"] or "")["offsets"] == {"0": [60, 80]}
    assert orders.publish(catalog) == Published(version=done.version, snapshots=0)


def test_new_fields_are_new_columns(tmp_path: Path, catalog: Catalog) -> None:
    orders = Orders(tmp_path)
    orders.materialize()
    orders.publish(catalog)
    orders.write(color="red", place={"x": 1})
    orders.materialize()
    orders.publish(catalog)
    table = catalog.load_table(NAME)
    assert {"color", "place"} <= set(table.schema().column_names)
    assert_each_version_is_there(orders, table)


def test_partitions_are_those_of_delta(tmp_path: Path, catalog: Catalog) -> None:
    """Their columns are in no file: the values are Iceberg's partitions."""
    orders = Orders(tmp_path, partition_by="day(_timestamp)")
    orders.materialize()
    orders.write()
    orders.materialize()
    orders.publish(catalog)
    table = catalog.load_table(NAME)
    assert [field.name for field in table.spec().fields] == ["_date"]
    assert_each_version_is_there(orders, table)
    [day] = {file["partition"]["_date"] for file in table.inspect.files().to_pylist()[:1]}
    one = table.scan(row_filter=f"_date = '{day}'").to_arrow()
    assert 0 < one.num_rows <= 10


def test_upserts_replace_files(tmp_path: Path, catalog: Catalog) -> None:
    orders = Orders(tmp_path, mode="upsert")
    orders.materialize()
    orders.publish(catalog)
    for _ in range(2):
        orders.write()
        orders.materialize()
    orders.publish(catalog)
    table = catalog.load_table(NAME)
    assert sum(iceberg_rows(table).values()) == 7
    assert_each_version_is_there(orders, table)


@pytest.mark.parametrize("configs", [{}, {"partition_by": "day(_timestamp)"}])
def test_optimized_files_replace_the_small_ones(
    tmp_path: Path, catalog: Catalog, configs: dict[str, str]
) -> None:
    orders = Orders(tmp_path, **configs)
    for _ in range(3):
        orders.write()
        orders.materialize()
    orders.publish(catalog)
    before = len(DeltaTable(orders.place).file_uris())
    DeltaTable(orders.place).optimize.compact()
    assert orders.publish(catalog).snapshots == 1
    table = catalog.load_table(NAME)
    assert len(table.inspect.files()) < before
    assert_each_version_is_there(orders, table)


def test_duckdb_reads_the_same_rows(tmp_path: Path, catalog: Catalog) -> None:
    orders = Orders(tmp_path)
    orders.materialize()
    orders.publish(catalog)
    scanned = catalog.load_table(NAME).scan().to_duckdb(table_name="orders")
    assert isinstance(scanned, duckdb.DuckDBPyConnection)
    assert scanned.execute("SELECT count(*), sum(n) FROM orders").fetchone() == (20, 190)


@pytest.mark.parametrize("configs", [{}, {"partition_by": "day(_timestamp)"}])
def test_a_log_that_lost_its_old_entries_is_shown_as_one_snapshot(
    tmp_path: Path, catalog: Catalog, configs: dict[str, str]
) -> None:
    orders = Orders(tmp_path, **configs)
    orders.materialize()
    orders.publish(catalog)
    for _ in range(3):
        orders.write()
        orders.materialize()
    DeltaTable(orders.place).create_checkpoint()
    newest = DeltaTable(orders.place).version()
    (orders.place / "_delta_log" / f"{newest - 1:020}.json").unlink()
    assert orders.publish(catalog).version == newest
    assert iceberg_rows(catalog.load_table(NAME)) == delta_rows(orders.place)


def test_many_versions_have_one_snapshot_together(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a table that is published for the first time, or after a long outage of its catalog."""
    orders = Orders(tmp_path)
    orders.materialize()
    orders.publish(catalog)
    monkeypatch.setattr(iceberg, "VERSIONS_MAX", 3)
    for commits, snapshots in ((3, 3), (4, 1)):
        for _ in range(commits):
            orders.write()
            orders.materialize()
        assert orders.publish(catalog).snapshots == snapshots
        assert_each_version_is_there(orders, catalog.load_table(NAME))


def test_the_oldest_snapshots_go_but_those_with_a_tag(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit to a catalog costs by the number of snapshots."""
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MAX", 2)
    monkeypatch.setattr(iceberg, "_EXPIRED_AT_ONCE", 1)
    orders = Orders(tmp_path)
    counts, first = [], 0
    for number in range(6):
        orders.write()
        orders.materialize()
        orders.publish(catalog)
        table = catalog.load_table(NAME)
        counts.append(len(table.snapshots()))
        if not number:
            first = table.snapshots()[0].snapshot_id
            table.manage_snapshots().create_tag(first, "audited").commit()
    assert counts == [1, 2, 3, 3, 3, 3]
    table = catalog.load_table(NAME)
    assert first in {one.snapshot_id for one in table.snapshots()}
    assert_each_version_is_there(orders, table)


def test_manifests_go_with_the_last_snapshot_that_has_them(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have bounds of columns, and `forget` finds those of snapshots alone."""
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MAX", 2)
    monkeypatch.setattr(iceberg, "_EXPIRED_AT_ONCE", 2)
    orders = Orders(tmp_path, mode="upsert")
    for number in range(7):
        orders.write()
        orders.materialize()
        orders.publish(catalog)
        if number == 2:
            table = catalog.load_table(NAME)
            tagged = table.snapshots()[1].snapshot_id
            table.manage_snapshots().create_tag(tagged, "audited").commit()
    table = catalog.load_table(NAME)
    named = {
        place
        for one in table.snapshots()
        for place in (one.manifest_list, *(m.manifest_path for m in one.manifests(table.io)))
    }
    held = {path.as_uri() for path in (tmp_path / "warehouse").rglob("*.avro")}
    assert 3 <= len(table.snapshots()) <= 4
    assert held == named
    assert_each_version_is_there(orders, table)


@pytest.mark.parametrize("commits", [1, 4])
def test_a_delta_table_that_was_made_again_in_the_same_place_is_shown_as_it_is_now(
    tmp_path: Path, catalog: Catalog, commits: int
) -> None:
    """With a version below the one that was shown, or beyond it by other commits."""
    orders = Orders(tmp_path)
    for _ in range(3):
        orders.write()
        orders.materialize()
        orders.publish(catalog)
    shutil.rmtree(orders.place)
    for _ in range(commits):
        orders.materialize()
        orders.write()
    version = DeltaTable(orders.place).version()
    assert orders.publish(catalog).version == version
    table = catalog.load_table(NAME)
    assert iceberg_rows(table) == delta_rows(orders.place)
    orders.materialize()
    assert orders.publish(catalog).version == version + 1
    assert iceberg_rows(catalog.load_table(NAME)) == delta_rows(orders.place)


@pytest.mark.parametrize(("before", "after"), [("", "id"), ("id", "n"), ("id", "")])
def test_a_rebuild_with_other_partitions_is_found_by_filters(
    tmp_path: Path, catalog: Catalog, before: str, after: str
) -> None:
    orders = Orders(tmp_path, partition_by=before)
    orders.materialize()
    orders.publish(catalog)
    configure(orders.cluster, "orders", {f"{PREFIX}partition.by": after})
    tables = DeclaredTables(str(orders.cluster))
    tables.rebuild("orders")
    tables.close()
    orders.publish(catalog)
    orders.write()
    orders.materialize()
    orders.publish(catalog)
    table = catalog.load_table(NAME)
    assert iceberg_rows(table) == delta_rows(orders.place)
    held = DeltaTable(orders.place).to_pyarrow_table().to_pylist()
    for column in ("id", "n"):
        for value in {row[column] for row in held}:
            found = table.scan(row_filter=f"{column} = {value}").to_arrow().to_pylist()
            assert counted(found) == counted([row for row in held if row[column] == value])


@pytest.mark.parametrize("is_new", [True, False])
def test_versions_whose_files_vacuum_has_deleted_are_passed_over(
    tmp_path: Path, catalog: Catalog, is_new: bool
) -> None:
    """The log has its entries for 30 days, and VACUUM deletes their files after seven."""
    orders = Orders(tmp_path)
    orders.materialize()
    if not is_new:
        orders.publish(catalog)
    for _ in range(3):
        orders.write()
        orders.materialize()
    delta = DeltaTable(orders.place)
    delta.optimize.compact()
    delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert orders.publish(catalog).version == delta.version()
    table = catalog.load_table(NAME)
    assert iceberg_rows(table) == delta_rows(orders.place)
    orders.write()
    orders.materialize()
    assert orders.publish(catalog).snapshots == 1
    assert iceberg_rows(catalog.load_table(NAME)) == delta_rows(orders.place)


def test_a_file_that_is_added_once_more_is_there_once(tmp_path: Path, catalog: Catalog) -> None:
    """As by an engine that writes other statistics of it into the log."""
    orders = Orders(tmp_path)
    orders.materialize()
    orders.publish(catalog)
    version = DeltaTable(orders.place).version()
    log = orders.place / "_delta_log"
    actions = map(json.loads, (log / f"{version:020}.json").read_text().splitlines())
    added = next(one for one in actions if "add" in one)
    added["add"]["dataChange"] = False
    (log / f"{version + 1:020}.json").write_text(json.dumps(added))
    orders.publish(catalog)
    assert_each_version_is_there(orders, catalog.load_table(NAME))


def test_a_rebuild_with_a_type_that_iceberg_cannot_follow_says_what_to_do(
    tmp_path: Path, catalog: Catalog
) -> None:
    orders = Orders(tmp_path, schema="id bigint, n bigint")
    orders.materialize()
    orders.publish(catalog)
    configure(orders.cluster, "orders", {f"{PREFIX}schema": "id bigint, n double"})
    tables = DeclaredTables(str(orders.cluster))
    tables.rebuild("orders")
    tables.close()
    with pytest.raises(SettingsError, match=r"lake\.orders cannot get .* drop it from its catalog"):
        orders.publish(catalog)
    catalog.drop_table(NAME)
    orders.publish(catalog)
    assert iceberg_rows(catalog.load_table(NAME)) == delta_rows(orders.place)


def test_a_commit_of_another_run_is_not_repeated(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run publishes between the look and the commit of this one."""
    orders = Orders(tmp_path)
    orders.materialize()
    opened = iceberg._opened

    def overtaken(*arguments: Any) -> Table:
        monkeypatch.setattr(iceberg, "_opened", opened)
        found = opened(*arguments)
        orders.publish(catalog)
        return found

    monkeypatch.setattr(iceberg, "_opened", overtaken)
    assert orders.publish(catalog).snapshots == 0
    table = catalog.load_table(NAME)
    assert len(table.snapshots()) == 1
    assert_each_version_is_there(orders, table)


def test_a_catalog_that_refuses_every_commit_is_an_error_that_says_so(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(tmp_path)
    orders.materialize()
    orders.publish(catalog)
    orders.write()
    orders.materialize()

    def refuse(*_: Any) -> None:
        raise CommitFailedException("busy")

    monkeypatch.setattr(type(catalog), "commit_table", refuse)
    with pytest.raises(IcebergUnavailable, match="run it again"):
        orders.publish(catalog)


def test_the_table_of_another_owner_is_left_alone(tmp_path: Path, catalog: Catalog) -> None:
    orders = Orders(tmp_path)
    orders.materialize()
    catalog.create_namespace("lake")
    catalog.create_table(NAME, DeltaTable(orders.place).to_pyarrow_table().schema)
    with pytest.raises(SettingsError, match="choose another name"):
        orders.publish(catalog)


def test_a_topic_without_a_table_is_an_error(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(SettingsError, match="no Delta table"):
        publish(str(tmp_path), catalog, NAME)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PyIceberg's settings of the catalog `lake`, as a user's environment has them."""
    prefix = "PYICEBERG_CATALOG__LAKE__"
    monkeypatch.setenv(f"{prefix}TYPE", "sql")
    monkeypatch.setenv(f"{prefix}URI", f"sqlite:///{tmp_path / 'catalog.db'}")
    monkeypatch.setenv(f"{prefix}WAREHOUSE", (tmp_path / "warehouse").as_uri())
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it reads them once
    return tmp_path


DECLARED = {"formats": "delta,iceberg", "iceberg_catalog": "lake", "iceberg_name": NAME}


def test_a_declared_table_is_published_as_it_is_written(settings: Path, catalog: Catalog) -> None:
    orders = Orders(settings, **DECLARED)
    orders.materialize()
    assert iceberg_rows(catalog.load_table(NAME)) == delta_rows(orders.place)
    orders.write()
    orders.materialize()
    assert_each_version_is_there(orders, catalog.load_table(NAME))


def test_a_catalog_that_is_down_delays_its_table_alone(
    settings: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(settings, **DECLARED)
    with monkeypatch.context() as down:
        down.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:////nowhere/catalog.db")
        down.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        orders.materialize()
        orders.write()
        orders.materialize()
    assert sum(delta_rows(orders.place).values()) == 40
    orders.materialize()
    assert len(catalog.load_table(NAME).snapshots()) == 2
    assert_each_version_is_there(orders, catalog.load_table(NAME))


def test_a_followed_table_is_published_once_the_catalog_is_back(
    settings: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(settings, **DECLARED | {"freshness_ms": "1000"})
    failed = threading.Event()

    def failing(name: str) -> Catalog:
        if not failed.is_set():
            failed.set()
            raise OSError("the catalog is down")
        return open_iceberg_catalog(name)

    publisher = CatalogPublisher(str(orders.cluster), (IcebergTables(failing),))
    tables = DeclaredTables(str(orders.cluster))
    monkeypatch.setattr(tables, "_publisher", publisher)
    stopped = threading.Event()
    following = threading.Thread(target=tables.follow, args=(stopped, lambda _outcome: None))
    following.start()
    try:
        assert wait_until(
            lambda: (
                catalog.table_exists(NAME)
                and catalog.load_table(NAME).current_snapshot() is not None
            ),
            30.0,
        )
    finally:
        stopped.set()
        following.join()
        tables.close()
    assert failed.is_set()
    assert iceberg_rows(catalog.load_table(NAME)) == delta_rows(orders.place)


def test_a_catalog_is_opened_once_for_many_commits(settings: Path, catalog: Catalog) -> None:
    orders = Orders(settings)
    configs = {f"{PREFIX}{name.replace('_', '.')}": value for name, value in DECLARED.items()}
    declared = TableDeclaration.parse("orders", "id", configs)
    opened: list[str] = []

    def counting(name: str) -> Catalog:
        opened.append(name)
        return open_iceberg_catalog(name)

    def is_shown() -> bool:
        newest = str(DeltaTable(orders.place).version())
        return catalog.table_exists(NAME) and (
            catalog.load_table(NAME).properties[VERSION] == newest
        )

    publisher = CatalogPublisher(str(orders.cluster), (IcebergTables(counting),))
    for _ in range(3):
        orders.write()
        orders.materialize()
        publisher.take(declared)
        assert wait_until(is_shown, 30.0)
    publisher.close()
    assert opened == ["lake"]


@pytest.mark.parametrize("name", ["orders", "a..b", "a b.c", "lake.orders."])
def test_a_name_that_no_catalog_has_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="namespace and a name"):
        TableDeclaration.parse("orders", "", {f"{PREFIX}iceberg.name": name})


def test_a_catalog_without_settings_is_an_error_that_says_so() -> None:
    with pytest.raises(SettingsError, match="'nowhere'"):
        open_iceberg_catalog("nowhere")


def forget_one(orders: Orders) -> ForgetResult:
    return run_job(FORGET, str(orders.cluster), ForgetOptions(topic="orders", keys=("3",)))


def test_a_forgotten_key_leaves_snapshots_and_manifests(settings: Path, catalog: Catalog) -> None:
    orders = Orders(settings, **DECLARED)
    orders.materialize()
    orders.write()
    orders.materialize()
    metadata = set((settings / "warehouse").rglob("*.avro"))
    assert len(catalog.load_table(NAME).snapshots()) == 2
    assert forget_one(orders).rows > 0
    table = catalog.load_table(NAME)
    assert len(table.snapshots()) == 1
    assert iceberg_rows(table) == delta_rows(orders.place)
    assert b"3" not in set(table.scan().to_arrow().column("_key").to_pylist())
    assert not metadata & set((settings / "warehouse").rglob("*.avro"))


def test_a_catalog_that_is_down_delays_the_certificate_and_not_the_table(
    settings: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(settings, **DECLARED)
    orders.materialize()
    orders.write()
    orders.materialize()
    check = ForgetOptions(topic="orders", check=1)
    with monkeypatch.context() as down:
        down.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:////nowhere/catalog.db")
        down.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        with pytest.raises(CatalogUnavailable, match="run it again when the catalog responds"):
            forget_one(orders)
        assert b"3" not in set(DeltaTable(orders.place).to_pyarrow_table()["_key"].to_pylist())
        pending = run_job(FORGET, str(orders.cluster), check).pending
        assert any("request 1 is not finished" in one for one in pending)
        assert any("cannot be looked at" in one for one in pending)
    assert any(
        "shows an older version" in one for one in run_job(FORGET, str(orders.cluster), check).held
    )
    assert forget_one(orders).certificate == "1"
    assert len(catalog.load_table(NAME).snapshots()) == 1
    assert not run_job(FORGET, str(orders.cluster), check).held


@pytest.mark.parametrize("is_other", [False, True])
def test_files_in_folders_with_escapes_are_named(
    catalog: Catalog, tmp_path: Path, is_other: bool
) -> None:
    """OPTIMIZE of delta-rs makes such folders for texts that are no plain names, and the log has
    their names with escapes once more. `is_other`: by a difference, as after the log was shortened.
    """
    orders = Orders(tmp_path, partition_by="place")
    for _ in range(3):
        orders.write(place="a b/c=d%é")
        orders.materialize()
    if not is_other:
        orders.publish(catalog)
    DeltaTable(orders.place).optimize.compact()
    orders.publish(catalog)
    table = catalog.load_table(NAME)
    assert iceberg_rows(table) == delta_rows(orders.place)
    if is_other:
        shutil.rmtree(orders.place)
        orders.materialize()
        DeltaTable(orders.place).optimize.compact()
        orders.publish(catalog)
        assert iceberg_rows(catalog.load_table(NAME)) == delta_rows(orders.place)
