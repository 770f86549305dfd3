"""The files of a table by its log: from the newest whole checkpoint on, where the log is long."""

from pathlib import Path

import pyarrow as pa
import pytest

from lakehead.lake.tables import logical_files
from lakehead.lake.tables.data_file import write_data_file
from lakehead.lake.tables.delta_table import Table, applications, create_table, open_table

ROW = pa.schema([pa.field("a", pa.int32())])
COMMITS = 6


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table with a checkpoint of version 4, and two versions after it."""
    monkeypatch.setattr(logical_files, "_ENTRIES_MAX", 3)
    place = str(tmp_path / "t")
    create_table(place, ROW, name="t", description="")
    for number in range(COMMITS):
        file = write_data_file(place, pa.table({"a": [number]}, schema=ROW))
        txns = {"x": number} if number else {"x": number, "early": 1}
        opened(place).commit([file], txns, modified_ms=1, commit_info={})
        if number == 3:
            opened(place).handle.create_checkpoint()
    return place


def entry(uri: str, name: str) -> Path:
    return Path(uri, "_delta_log", name)


def test_a_long_log_is_read_from_its_checkpoint_on(uri: str) -> None:
    table = opened(uri)
    entry(uri, f"{0:020}.json").write_text("not an entry: it is not read")
    files = table.logical_files().files
    assert sorted(files) == sorted(Path(one).name for one in table.handle.file_uris())


def test_a_checkpoint_without_some_of_its_parts_is_passed_over(uri: str) -> None:
    table = opened(uri)
    part = entry(uri, f"{5:020}.checkpoint.{1:010}.{2:010}.parquet")
    part.write_bytes(entry(uri, f"{4:020}.checkpoint.parquet").read_bytes())
    assert len(table.logical_files().files) == COMMITS


def test_names_of_transactions_are_those_of_the_newest_whole_checkpoint(uri: str) -> None:
    for number in range(5):
        entry(uri, f"{number:020}.json").unlink()  # only the checkpoint has the name "early" then
    part = entry(uri, f"{5:020}.checkpoint.{1:010}.{2:010}.parquet")
    part.write_bytes(b"not read")
    assert "early" in applications(uri)
