"""The history of a table that others write meanwhile."""

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from lakehead.lake.tables.delta_table import open_table
from lakehead.lake.tables.table_history import Change, commits_since, history_since


def write(table: Path, number: int) -> None:
    commit_info = Change(
        kind="materialize", offsets={0: (number, number + 1)}, rows=1
    ).commit_info()
    properties = CommitProperties(custom_metadata=commit_info)
    rows = pa.table({"id": [number]})
    write_deltalake(table, rows, mode="append", commit_properties=properties)


def test_a_commit_while_the_history_is_read_moves_no_version(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "t", number)
    table = open_table(str(tmp_path / "t"))
    assert table is not None
    before = history_since(table, -1)
    write(tmp_path / "t", 3)
    assert history_since(table, -1) == before
    assert [one.change.offsets[0][0] for one in commits_since(table, 0)] == [1, 2]
