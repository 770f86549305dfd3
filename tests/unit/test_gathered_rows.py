"""Looks for very many keys cost by the keys: they are made among many rows at once, however small
the files, batches and row groups are that these lie in.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakehead.lake.jobs.table_run import planned_merge
from lakehead.lake.tables import key_search
from lakehead.lake.tables.arrow_rows import gathered
from lakehead.lake.tables.delta_table import Table, open_table
from lakehead.lake.tables.merge_engine import DeltaMerge
from lakehead.lake.tables.upsert import change_schema

SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in ("id", "_offset")),
        pa.field("_partition", pa.int32()),
        pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("_key", pa.binary()),
    ]
)
FILES = 12


def rows_of(first: int, count: int, *, between: int = 0) -> pa.Table:
    """Rows with every other id, or those `between`."""
    numbers = range(first, first + count)
    rows = [
        {"id": 2 * n + between, "_offset": n, "_partition": 0, "_timestamp": n, "_key": b"%d" % n}
        for n in numbers
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    for number in range(FILES):
        write_deltalake(tmp_path / "table", rows_of(number * 10, 10), mode="append")
    opened = open_table(str(tmp_path / "table"))
    assert opened is not None
    assert len(opened.handle.file_uris()) == FILES
    return opened


def changes_of(rows: pa.Table, *, op: str, has_id: bool) -> pa.Table:
    schema = change_schema(SCHEMA)
    made = [
        {**row, "_op": op, "_seq": 0, "_at": row["_timestamp"]} | ({} if has_id else {"id": None})
        for row in rows.to_pylist()
    ]
    return pa.Table.from_pylist(made, schema)


class Looks:
    """`pyarrow.compute` with the looks for keys counted."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> object:
        import pyarrow.compute as pc

        if name != "is_in":
            return getattr(pc, name)

        def counted(values: pa.Array, *given: object, **more: object) -> object:
            self.sizes.append(len(values))
            return pc.is_in(values, *given, **more)

        return counted


def test_the_keys_that_a_table_has_are_compared_with_new_ones_at_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks()
    monkeypatch.setattr(key_search, "pc", looks)
    merge = planned_merge(
        table,
        changes_of(rows_of(0, FILES * 10 - 1, between=1), op="u", has_id=True),
        SCHEMA,
        ["id"],
        is_history=False,
    )
    DeltaMerge().merge(table, merge, {("t", 0): 1000}, {})
    assert looks.sizes == [FILES * 10]
    after = open_table(table.uri)
    assert after is not None
    assert after.count() == FILES * 20 - 1


def test_the_rows_of_deleted_record_keys_are_looked_for_at_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks()
    monkeypatch.setattr(key_search, "pc", looks)
    deletes = changes_of(rows_of(0, FILES * 10), op="d", has_id=False)
    merge = planned_merge(table, deletes, SCHEMA, ["id"], is_history=False)
    assert looks.sizes == [FILES * 10]
    assert sorted(merge.source.column("id").to_pylist()) == list(range(0, FILES * 20, 2))


@pytest.mark.parametrize("size_bytes", [1, 100, 1 << 30])
def test_gathered_pieces_are_the_same_rows(size_bytes: int) -> None:
    pieces = [rows_of(n * 3, 3 if n % 4 else 0) for n in range(20)]
    found = list(gathered(iter(pieces), size_bytes))
    assert pa.concat_tables(found) == pa.concat_tables(pieces)
    assert all(some.nbytes >= size_bytes for some in found[:-1])
    assert all(some.num_rows for some in found)
