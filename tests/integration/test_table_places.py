"""No job of a table deletes what is not the table's, whatever its topic declares."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable, write_deltalake

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_lease import TableLeases
from lakehead.lake.jobs.table_maintenance import (
    MaintenanceResult,
    TableTarget,
    optimize,
    targets,
    vacuum,
)
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import create_table, delete_table
from lakehead.lake.tables.table_root import OWN_ROOT, is_data_file
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.run_record import PREFIX as RUNS
from lakehead.storage.object_store import FileStore
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic

LONG_AGO = (1_000_000_000, 1_000_000_000)


@pytest.fixture
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def declare(root: Path, topic: str, **configs: str | None) -> None:
    named = {f"{PREFIX}{name.replace('_', '.')}": value for name, value in configs.items()}
    configure(root, topic, {f"{PREFIX}enable": "true", **named})


def materialized(root: Path, *topics: str) -> list[TableOutcome]:
    told: list[TableOutcome] = []
    tables = DeclaredTables(str(root), topics=topics, workers=1)
    try:
        tables.catch_up(all_of_them=True, on_table=told.append)
    finally:
        tables.close()
    return told


def kept(root: Path, job: Any, target: TableTarget, **options: Any) -> MaintenanceResult:
    leases = TableLeases.open(str(root))
    try:
        result: MaintenanceResult = job(target, partial(leases.held, target.topic_id), **options)
        return result
    finally:
        leases.close()


def target_of(root: Path, topic: str) -> TableTarget:
    return targets(store_reader(str(root)).open_catalog(), [topic])[0]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def age(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, LONG_AGO)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cluster with topics a and b, and the table of a, all of long ago."""
    root = tmp_path / "data" / "store"
    for topic in ("a", "b"):
        write_topic(root, topic, {0: [b"1", b"2"]})
    declare(root, "a")
    assert materialized(root, "a")[0].error is None
    age(tmp_path)
    return root


@pytest.mark.parametrize(
    "path",
    ["", "/data", "/meta/..", "/../tables", "/../tables/a", "/../tables/a__dlq", "/../tables/a/x"],
)
def test_a_declaration_of_anothers_folder_changes_nothing(
    path: str, root: Path, command_line: CommandLine
) -> None:
    """The store, its parts, all tables, another's table: set without a broker's leave."""
    before = files(root.parent)
    place = os.path.normpath(f"{root}{path}") if path.startswith("/..") else f"{root}{path}"
    declare(root, "b", path=place)
    declared = files(root)  # the entry that declares it
    for command in ("materialize", "vacuum", "optimize", "rebuild-table"):
        for dry_run in ((), ("--dry-run",)):
            said = command_line(command, "b", "--path", str(root), *dry_run)
            assert said.status == 1, (command, said)
            assert "topic b" in said.err
            assert len(said.err.strip().splitlines()) == 1
    left = {name: data for name, data in files(root).items() if not name.startswith(RUNS)}
    assert left == declared
    assert before.items() <= files(root.parent).items()
    assert kept(root, vacuum, target_of(root, "a")).error is None or "tables" in place


def test_a_place_that_is_taken_since_it_was_planned_is_not_cleaned(root: Path) -> None:
    declare(root, "b", path=str(root.parent / "lake" / "b"))
    assert materialized(root, "b")[0].error is None
    age(root.parent)
    planned = target_of(root, "b")
    declare(root, "b", path=str(root.parent / "lake" / "other"))
    moved = kept(root, vacuum, planned)
    assert "declares another table now" in str(moved.error)
    declare(root, "b", path=str(root.parent / "lake" / "b"))
    declare(root, "a", path=str(root.parent / "lake"))
    before = files(root.parent / "lake")
    for job in (vacuum, optimize):
        assert "overlaps" in str(kept(root, job, planned, only_if_due=False).error)
    assert files(root.parent / "lake") == before
    configure(root, "b", {f"{PREFIX}enable": "false"})
    assert "declares no table any more" in str(kept(root, vacuum, planned).error)


def test_vacuum_deletes_what_writers_of_the_table_name_and_nothing_else(
    root: Path, command_line: CommandLine
) -> None:
    """In the table's own root, long after it was made: others may put files there."""
    place = root.parent / "tables" / "a"
    table = files(place)
    stale = [
        "part-00000-0c0ffee0-0000-4000-8000-000000000000-c000.snappy.parquet",
        f"part-{'0' * 32}.zstd.parquet",
        "date=2026-01-01/country=DE/part-1.parquet",
        "x=sp ace%41/part-2.parquet",
    ]
    others = [
        *("notes.txt", "rows.parquet", "data/ab/1-0-1", "meta/log/00000000000000000000"),
        *("inner/part-3.parquet", "inner/_delta_log/00000000000000000000.json"),
        *("wal/part-4.parquet", "part-5.parquet.bak"),
    ]
    for name in (*stale, *others):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"x")
    age(root.parent)
    told = command_line("vacuum", "a", "--path", str(root), "--dry-run")
    assert all(name in told.out for name in (*stale, *others)), told.out
    row = json.loads(command_line("vacuum", "a", "-p", str(root), "--dry-run", "--json").out)
    assert (set(row["names"]), set(row["other_names"])) == (set(stale), set(others))
    assert (row["removed"], row["others"]) == (len(stale), len(others))
    done = kept(root, vacuum, target_of(root, "a"))
    assert (done.error, set(done.names)) == (None, set(stale))
    left = files(place)
    assert {name: left[name] for name in table} == table
    assert set(others) <= set(left)
    assert not set(stale) & set(left)
    assert kept(root, vacuum, target_of(root, "a")).removed == 0


def test_a_terminal_shows_some_names_and_all_when_asked(
    root: Path, command_line: CommandLine
) -> None:
    place = root.parent / "tables" / "a"
    names = [f"part-{number:03}.parquet" for number in range(50)]
    for name in (*names, "part-\u202e.parquet"):
        (place / name).write_bytes(b"x")
    age(place)
    some = command_line("vacuum", "a", "--path", str(root), "--dry-run").out
    assert "and 31 more: --every-name" in some
    assert names[30] not in some
    every = command_line("vacuum", "a", "--path", str(root), "--dry-run", "--every-name").out
    assert all(name in every for name in names)
    assert "\u202e" not in every
    assert files(place)  # a dry run deletes nothing
    assert (place / names[0]).exists()


def test_a_root_that_was_not_empty_loses_only_what_the_log_names(root: Path) -> None:
    """A table of before such roots were refused, or one that another engine has made."""
    place = root.parent / "tables" / "a"
    table = DeltaTable(place)
    assert table.transaction_version(OWN_ROOT) == 1
    # The same table without the record of its root.
    copy = root.parent / "lake" / "b"
    write_deltalake(copy, table.to_pyarrow_table(), name="b")
    write_deltalake(copy, table.to_pyarrow_table(), mode="overwrite")
    stale = copy / f"part-{'0' * 32}.zstd.parquet"
    stale.write_bytes(b"x")
    assert DeltaTable(copy).transaction_version(OWN_ROOT) is None
    declare(root, "b", path=str(copy))
    age(root.parent)
    found = kept(root, vacuum, target_of(root, "b"), dry_run=True)
    assert (found.error, found.others) == (None, (stale.name,))
    assert kept(root, vacuum, target_of(root, "b")).error is None
    assert stale.exists()


def test_a_table_is_made_in_a_folder_of_its_own(root: Path, command_line: CommandLine) -> None:
    lake = root.parent / "lake"
    (lake / "b").mkdir(parents=True)
    (lake / "b" / "notes.txt").write_text("mine")
    declare(root, "b", path=str(lake / "b"))
    before = files(lake)
    assert "holds notes.txt: a table is made in a folder of its own" in str(
        materialized(root, "b")[0].error
    )
    said = command_line("materialize", "b", "--path", str(root))
    assert said.status == 1
    assert files(lake) == before
    # What a killed run of ours left is no obstacle; an empty folder neither.
    (lake / "b" / "notes.txt").rename(lake / "b" / f"part-{'a' * 32}.zstd.parquet")
    assert materialized(root, "b")[0].error is None
    assert DeltaTable(lake / "b").transaction_version(OWN_ROOT) == 1


def test_an_undeclared_table_keeps_clear_too(root: Path, command_line: CommandLine) -> None:
    before = files(root.parent)
    for place in (str(root), str(root.parent), str(root.parent / "tables"), str(root / "data/x")):
        said = command_line.fails(
            *("materialize", "b", "--path", str(root), "--value-format", "raw", "--table", place)
        )
        assert "a table needs a folder of its own" in said
    said = command_line.fails(
        *("materialize", "b", "--path", str(root), "--value-format", "raw"),
        *("--table", str(root.parent / "tables" / "a__rebuild")),
    )
    assert "of topic a: name that topic and no table" in said
    after, runs = files(root.parent), f"{root.name}/{RUNS}"
    assert {name: data for name, data in after.items() if not name.startswith(runs)} == before


def test_a_job_host_keeps_to_its_own_list(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(root, "b", path=str(root.parent / "lake" / "b"))
    monkeypatch.setenv("LAKEHEAD_TABLE_ROOTS", "")
    assert "table.roots" in str(materialized(root, "b")[0].error)
    assert materialized(root, "a")[0].error is None  # its own folder of tables
    monkeypatch.setenv("LAKEHEAD_TABLE_ROOTS", str(root.parent / "lake"))
    assert materialized(root, "b")[0].error is None


def test_a_rebuild_deletes_only_what_a_rebuild_has_made(root: Path) -> None:
    tables = root.parent / "tables"
    # Of a topic of that name, and before it declares a table: what lies in the place is another's.
    write_deltalake(tables / "a__rebuild", pa.table({"x": [1]}), name="somebody's")
    before = files(tables)
    keeper = DeclaredTables(str(root), topics=["a"], workers=1)
    try:
        with pytest.raises(SettingsError, match="a__rebuild"):
            keeper.rebuild("a")
    finally:
        keeper.close()
    assert files(tables) == before
    for extra in ("notes.txt", "inner/part-1.parquet"):
        place = tables / f"of-{len(extra)}"
        create_table(str(place), pa.schema([("x", pa.int64())]), name="a", description="")
        (place / extra).parent.mkdir(exist_ok=True)
        (place / extra).write_bytes(b"x")
        held = files(place)
        with pytest.raises(SettingsError, match=f"holds {extra}"):
            delete_table(str(place), name="a")
        assert files(place) == held
        (place / extra).unlink()
        delete_table(str(place), name="a")
        assert files(place) == {}


def test_names_of_data_files_are_those_of_writers() -> None:
    for name in ("part-1.parquet", "a=b/c=d/part-x.snappy.parquet", "deletion_vector_1.bin"):
        assert is_data_file(name)
    for name in ("a/part-1.parquet", "part-1.parquet/x", "_delta_log/part-1.parquet", "part-.txt"):
        assert not is_data_file(name)


# ------------------------------------------------------------------------------------ at a broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("places")
    broker = BrokerProcess(folder, ("--wal.size", "64m", "--table.roots", f"{folder}/lake"))
    broker.start()
    yield broker
    broker.kill()


def create(admin: AdminClient, name: str, configs: Mapping[str, str], **options: Any) -> None:
    new = NewTopic(name, 1, 1, config=dict(configs))
    admin.create_topics([new], **options)[name].result(30)


def alter(admin: AdminClient, name: str, configs: Mapping[str, str]) -> None:
    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(30)


def replace_configs(admin: AdminClient, name: str, configs: Mapping[str, str]) -> None:
    resource = ConfigResource(ResourceType.TOPIC, name, set_config=dict(configs))
    admin.alter_configs([resource])[resource].result(30)


@pytest.mark.filterwarnings("ignore:alter_configs")
def test_a_broker_refuses_a_place_that_is_not_the_tables_own(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    data = next(path for path in broker.folder.rglob("store") if (path / "meta").is_dir())
    enable = {f"{PREFIX}enable": "true"}
    create(admin, "a", enable)
    create(admin, "b", {f"{PREFIX}path": f"{broker.folder}/lake/b", **enable})
    create(admin, "plain", {})
    wrong = {
        str(data): "is the cluster's store",
        f"file:{data}/": "is the cluster's store",
        f"{data}/data": "lies in the cluster's store",
        str(data.parent): "holds",
        f"{data.parent}/tables": "holds the tables",
        f"{data.parent}/tables/a": "the table of topic a",
        f"{data.parent}/tables/a__dlq/x": "the dead letters of topic a",
        f"{data.parent}/wal": "a write-ahead log",
        f"{broker.folder}/lake": "the table of topic b",
        f"{broker.folder}/lake/b/inner": "the table of topic b",
        "relative": "begin with /",
        f"{broker.folder}/lake/../x": "..",
        "/somewhere": "table.roots",
        "s3://bucket/t": "table.roots",
        "s3a://bucket/t": "neither a folder",
    }
    for path, words in wrong.items():
        configs = {f"{PREFIX}path": path, **enable}
        for ask in (
            partial(create, admin, "new", configs),
            partial(create, admin, "new", configs, validate_only=True),
            partial(alter, admin, "plain", configs),
            partial(replace_configs, admin, "plain", configs),
        ):
            with pytest.raises(KafkaException) as refused:
                ask()
            error = refused.value.args[0]
            assert error.name() == "INVALID_CONFIG", (path, error)
            assert words in error.str(), (path, error.str())
            assert "\n" not in error.str()
    with pytest.raises(KafkaException, match="dead letters of topic a"):
        create(admin, "a__dlq", enable)
    with pytest.raises(KafkaException, match=r"table\.registries"):
        alter(admin, "plain", {f"{PREFIX}schema.registry.url": "http://169.254.169.254"})
    alter(admin, "plain", {f"{PREFIX}path": f"{broker.folder}/lake/plain", **enable})
    alter(admin, "plain", {f"{PREFIX}freshness.ms": "5000"})
    alter(admin, "b", {f"{PREFIX}path": f"{broker.folder}/lake/b2"})
    create(admin, "b3", {f"{PREFIX}path": f"{broker.folder}/lake/b", **enable})


def test_of_two_topics_that_ask_for_one_folder_at_once_one_gets_it(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    configs = {f"{PREFIX}path": f"{broker.folder}/lake/wanted", f"{PREFIX}enable": "true"}
    topics = [NewTopic(f"at-once-{number}", 1, 1, config=configs) for number in range(8)]
    futures = [admin.create_topics([topic])[topic.topic] for topic in topics]
    errors = [future.exception(30) for future in futures]
    assert errors.count(None) == 1
    assert all("overlaps" in str(error) for error in errors if error is not None)


# --------------------------------------------------------------------------- a store's own leavings


def test_a_folder_store_removes_its_own_leavings_alone(tmp_path: Path) -> None:
    """`.tmp` below a table's root may be anybody's: only names that the store gives go."""
    (tmp_path / ".tmp").mkdir()
    own = tmp_path / ".tmp" / ("0" * 24)
    mine = [tmp_path / ".tmp" / name for name in ("notes", "0" * 23, f"{'0' * 24}.txt")]
    for path in (own, *mine):
        path.write_bytes(b"x")
        os.utime(path, LONG_AGO)
    (tmp_path / ".tmp" / ("1" * 24)).mkdir()  # a folder is none of them

    async def work() -> None:
        store = FileStore(tmp_path)
        await store.create("key", [b"x"])
        await store.abort_uploads(before_ms=2_000_000_000_000)
        await store.close()

    asyncio.run(work())
    assert not own.exists()
    assert all(path.exists() for path in mine)
