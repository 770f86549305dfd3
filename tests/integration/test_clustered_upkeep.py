"""OPTIMIZE of tables with clustering columns: it writes what is new, queries skip files, and rows
stay whatever comes between.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakehead.lake.jobs import table_clustering
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.table_clustering import cubes_to_make, make_cube
from lakehead.lake.jobs.table_lease import TableLeases
from lakehead.lake.jobs.table_maintenance import Hold, TableTarget, look, optimize, targets
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.cubes import cube_of
from lakehead.lake.tables.data_file import write_data_file
from lakehead.lake.tables.delta_table import CommitConflict, Table, create_table, open_table
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.template_process import lakehead_command
from tests.support.topic_writer import write_topic

TOPIC = "visits"
SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("body", pa.binary())]
)
COLUMNS = ("id", "name")
ROWS = 4000


def some_rows(number: int, count: int = ROWS) -> Any:
    rng = np.random.default_rng(number)
    return pa.table(
        {
            "id": rng.integers(0, 1 << 40, count),
            "name": [f"name-{n:09}" for n in rng.integers(0, 10**9, count)],
            "body": [rng.bytes(100) for _ in range(count)],
        },
        schema=SCHEMA,
    )


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


class Growing:
    """A table of random rows by commits, without a topic."""

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder / "t")
        create_table(self.uri, SCHEMA, name="t", description="")
        self.rows = SCHEMA.empty_table()

    def append(self, number: int, count: int = ROWS) -> int:
        """Append rows and return the bytes of their file."""
        rows = some_rows(number, count)
        self.rows = pa.concat_tables([self.rows, rows])
        written = write_data_file(self.uri, rows)
        opened(self.uri).commit([written], {}, modified_ms=number, commit_info={})
        return written.size_bytes

    def cluster(self, columns: tuple[str, ...] = COLUMNS, cube_bytes: int = 4 << 20) -> None:
        while cubes := cubes_to_make(table := opened(self.uri), columns, cube_bytes):
            make_cube(table, cubes[0], columns, file_bytes=1 << 17)

    def check(self) -> None:
        """The rows are those that were appended, as delta-rs reads them."""
        query = QueryBuilder().register("t", DeltaTable(self.uri))
        found = pa.table(query.execute("SELECT id, name, body FROM t")).cast(SCHEMA)
        assert found.sort_by("body").equals(self.rows.sort_by("body"))

    def optimized(self) -> list[tuple[int, int]]:
        """The bytes that each commit of OPTIMIZE removed and added, by the log."""
        found = []
        for entry in sorted(Path(self.uri, "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in entry.read_text().splitlines()]
            if actions[0].get("commitInfo", {}).get("operation") == "OPTIMIZE":
                sizes = [
                    sum(one[kind]["size"] for one in actions if kind in one)
                    for kind in ("remove", "add")
                ]
                found.append((sizes[0], sizes[1]))
        return found

    def files_of(self, name: str, value: Any) -> int:
        """How many files a query of one value reads, by their statistics."""
        added = pa.table(DeltaTable(self.uri).get_add_actions(flatten=True))
        low, high = added.column(f"min.{name}").to_pylist(), added.column(f"max.{name}").to_pylist()
        return sum(low[n] <= value <= high[n] for n in range(len(low)))

    def cubes(self) -> dict[str | None, int]:
        """How many files each cube has."""
        counts: dict[str | None, int] = {}
        for file in opened(self.uri).logical_files().files.values():
            cube = cube_of(file, COLUMNS)
            counts[cube] = counts.get(cube, 0) + 1
        return counts


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path)


def test_bytes_written_follow_what_is_new_and_queries_skip_files(growing: Growing) -> None:
    new = 0
    for number in range(24):
        new += growing.append(number)
        growing.cluster()
    growing.check()
    optimized = growing.optimized()
    written = sum(added for _, added in optimized)
    assert len(optimized) == 24
    assert written < 3.5 * new, "each time the whole table would be 12.5 times"
    # Files of full cubes are never touched again: no commit rewrites more than a cube.
    assert max(removed for removed, _ in optimized) <= 4 << 20
    cubes = growing.cubes()
    assert None not in cubes
    files = sum(cubes.values())
    assert files >= 30
    # Of small cubes, a query by one of two columns reads about half, and not all.
    for name in COLUMNS:
        values = growing.rows.column(name).to_pylist()[::1000]
        assert np.mean([growing.files_of(name, value) for value in values]) < files * 0.6
    # By one column, a query reads a file or two of each cube.
    growing.cluster(("id",), 64 << 20)
    growing.check()
    files = len(DeltaTable(growing.uri).file_uris())
    assert files >= 30
    ids = growing.rows.column("id").to_pylist()[::1000]
    assert max(growing.files_of("id", value) for value in ids) <= 2


def test_cubes_survive_checkpoints_and_nothing_new_writes_nothing(growing: Growing) -> None:
    for number in range(3):
        growing.append(number)
    growing.cluster()
    cubes, version = growing.cubes(), opened(growing.uri).version
    growing.cluster()
    assert opened(growing.uri).version == version
    DeltaTable(growing.uri).create_checkpoint()
    *older, _ = sorted(Path(growing.uri, "_delta_log").glob("*.json"))
    for entry in older:
        entry.unlink()
    assert growing.cubes() == cubes
    growing.append(3)
    assert growing.cubes() == {**cubes, None: 1}
    growing.cluster()
    growing.check()


def test_a_commit_beside_it_is_no_conflict_unless_it_changes_the_files(growing: Growing) -> None:
    for number in range(3):
        growing.append(number)
    table = opened(growing.uri)
    (cube,) = cubes_to_make(table, COLUMNS, 1 << 30)
    growing.append(3)
    growing.append(4)
    make_cube(table, cube, COLUMNS, file_bytes=1 << 17)
    growing.check()
    assert growing.cubes()[None] == 2
    # Two runs at once: one of them has nothing left to do.
    table = opened(growing.uri)
    (cube,) = cubes_to_make(table, COLUMNS, 1 << 30)
    growing.cluster(cube_bytes=1 << 30)
    version = opened(growing.uri).version
    with pytest.raises(CommitConflict):
        make_cube(table, cube, COLUMNS, file_bytes=1 << 17)
    assert opened(growing.uri).version == version
    # Rows that are deleted while it is rewritten stay deleted.
    table = opened(growing.uri)
    (cube,) = cubes_to_make(table, ("name",), 1 << 30)
    doomed = growing.rows.column("id")[17].as_py()
    DeltaTable(growing.uri).delete(f"id = {doomed}")
    with pytest.raises(CommitConflict):
        make_cube(table, cube, ("name",), file_bytes=1 << 17)
    # So does a table that gets another column.
    table = opened(growing.uri)
    plan = cubes_to_make(table, ("name",), 1 << 30)[0]
    table.add_columns([pa.field("more", pa.int32())])
    with pytest.raises(CommitConflict):
        make_cube(opened_at(growing.uri, 1), plan, ("name",), file_bytes=1 << 17)
    growing.rows = growing.rows.filter(pa.compute.not_equal(growing.rows["id"], doomed))
    growing.cluster()
    growing.check()


def opened_at(uri: str, back: int) -> Table:
    table = open_table(uri, opened(uri).version - back)
    assert table is not None
    return table


def test_more_than_memory_takes_is_the_same(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges are spilled, pieces of one range are put in order one by one."""
    for name, value in (
        ("_HELD_BYTES", 1 << 19),
        ("_RANGE_BYTES", 1 << 17),
        ("_SORTED_BYTES", 1 << 18),
        ("_ROWS_AT_ONCE", 1000),
        ("_SAMPLED_ROWS", 500),
    ):
        monkeypatch.setattr(table_clustering, name, value)
    for number in range(6):
        growing.append(number)
    growing.cluster(cube_bytes=1 << 30)
    growing.check()
    files = len(DeltaTable(growing.uri).file_uris())
    assert files >= 8
    for value in growing.rows.column("id").to_pylist()[::1000]:
        assert growing.files_of("id", value) <= files * 0.75


# ------------------------------------------------------------------------------ declared tables

UPSERT = {
    "lakehead.table.enable": "true",
    "lakehead.table.mode": "upsert",
    "lakehead.table.value.format": "json",
    "lakehead.table.schema": "id bigint, name string",
    "lakehead.table.keys": "id",
    "lakehead.table.cluster.by": "id",
}


class Declared:
    """A topic with a clustered table by upsert, and the rows that it is to have."""

    def __init__(self, folder: Path) -> None:
        self.root, self.uri = folder / "store", str(folder / "table")
        self.model: dict[int, str] = {}

    def round(self, number: int, ids: range, **configs: str) -> None:
        records = [
            TestRecord(
                offset=0,
                timestamp=1,
                key=b"%d" % one,
                value=json.dumps({"id": one, "name": f"{number}.{one}"}).encode(),
                headers=(),
            )
            for one in ids
        ]
        write_topic(self.root, TOPIC, {0: records})
        self.model |= {one: f"{number}.{one}" for one in ids}
        named = {f"lakehead.table.{name.replace('_', '.')}": text for name, text in configs.items()}
        configure(self.root, TOPIC, UPSERT | {"lakehead.table.path": self.uri} | named)
        tables = DeclaredTables(str(self.root), topics=[TOPIC], workers=1)
        outcomes: list[Any] = []
        tables.catch_up(all_of_them=True, on_table=outcomes.append)
        tables.close()
        assert [one.error for one in outcomes] == [None]

    def target(self) -> TableTarget:
        (target,) = targets(store_reader(str(self.root)).open_catalog(), [TOPIC])
        return target

    def check(self) -> None:
        held = opened(self.uri).rows(["id", "name"], None).to_pydict()
        assert dict(zip(held["id"], held["name"], strict=True)) == self.model
        assert len(held["id"]) == len(self.model)

    def clustered(self) -> dict[str, str | None]:
        files = opened(self.uri).logical_files().files
        return {path: cube_of(file, ("id",)) for path, file in files.items()}


@pytest.fixture
def declared(tmp_path: Path) -> Declared:
    return Declared(tmp_path)


@pytest.fixture
def hold(declared: Declared) -> Hold:
    """Holds the lease of the table, which is there when this is used."""

    @contextmanager
    def held() -> Iterator[None]:
        leases = TableLeases.open(str(declared.root))
        try:
            with leases.held(declared.target().topic_id):
                yield
        finally:
            leases.close()

    return held


@pytest.mark.parametrize("vectors", ["false", "true"])
def test_upserts_between_are_new_and_others_stay(
    declared: Declared, hold: Hold, vectors: str
) -> None:
    for number in range(16):
        declared.round(number, range(number * 10, number * 10 + 10), deletion_vectors=vectors)
    assert look(declared.target()).new_files == 16
    assert look(declared.target()).is_due
    found = optimize(declared.target(), hold)
    assert (found.error, found.files, found.files_after) == (None, 16, 1)
    declared.check()
    assert not look(declared.target()).is_due
    [(first, cube)] = declared.clustered().items()
    assert cube is not None
    declared.round(16, range(3, 5), deletion_vectors=vectors)
    clustered = declared.clustered()
    if vectors == "true":  # the file has two rows less, and is as clustered as before
        assert clustered.pop(first) == cube
    assert list(clustered.values()) == [None]
    assert optimize(declared.target(), hold).error is None
    declared.check()
    assert None not in declared.clustered().values()
    assert not look(declared.target()).new_files


def test_a_purge_keeps_a_file_in_its_cube(declared: Declared, hold: Hold) -> None:
    declared.round(0, range(1000), deletion_vectors="true")
    assert optimize(declared.target(), hold).error is None
    (cube,) = declared.clustered().values()
    declared.round(1, range(500), deletion_vectors="true")
    target = declared.target()
    table = opened(declared.uri)
    (file,) = table_clustering_purge(table, target)
    assert declared.clustered().get(file) is None
    assert sorted(map(str, declared.clustered().values())) == sorted([str(cube), "None"])
    declared.check()


def table_clustering_purge(table: Table, target: TableTarget) -> list[str]:
    """Purge, and return the paths that were rewritten."""
    from lakehead.lake.jobs.vector_purge import files_to_purge, purge

    files = files_to_purge(table, target.deleted_percent)
    purge(table, files, file_bytes=target.file_bytes)
    return [file.path for file in files]


@pytest.mark.parametrize(
    "step", ["optimize_opened", "optimize_cube_written", "table_commit_prepared", "table_committed"]
)
def test_a_killed_run_loses_nothing_and_the_next_goes_on(
    declared: Declared, hold: Hold, tmp_path: Path, step: str
) -> None:
    for number in range(3):
        declared.round(number, range(number * 10, number * 10 + 15))
    killed = lakehead_command("optimize", TOPIC, "--path", str(tmp_path), failpoint=step)
    assert killed.returncode not in (0, 1), killed.stderr
    declared.check()
    declared.round(3, range(20, 40))
    declared.check()
    assert optimize(declared.target(), hold).error is None
    declared.check()
    assert None not in declared.clustered().values()
