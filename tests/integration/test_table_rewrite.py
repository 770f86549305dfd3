"""A table that is written anew for a wider column: memory for a row group, whatever its files
are, and the same rows in the same partitions.
"""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PartitionPart
from lakehead.lake.jobs.table_schema import rewrite
from lakehead.lake.tables.data_file import DataFileWriter
from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.delta_table import Table, create_table, open_table
from lakehead.lake.tables.layout import TableLayout, new_layout
from lakehead.lake.tables.values.decoder import ValueSpec
from tests.support.template_process import ROOT

GROUPS = 24
ROWS = 16_000
TEXT = "x" * 1000
"""A row group is 16 MB in memory, and a few kilobytes in its file."""
PARTS = (PartitionPart(column="day"),)
SPEC = ValueSpec(value_format="json")


def layout(id_type: str, parts: tuple[PartitionPart, ...]) -> TableLayout:
    return new_layout(SPEC, parse_schema(f"id {id_type}, day string, text string"), parts=parts)


def table_of_alike_rows(root: Path, parts: tuple[PartitionPart, ...], *, rows: int) -> Table:
    """One file of `GROUPS` row groups, of one partition."""
    schema = layout("int", parts).schema
    table = create_table(
        str(root), schema, name="orders", description="", partition_by=["day"] if parts else []
    )
    held = schema if not parts else schema.remove(schema.get_field_index("day"))
    writer = DataFileWriter(str(root), held, (("day", "monday"),) if parts else ())
    for group in range(GROUPS):
        columns = {
            "id": pa.array(range(group * rows, (group + 1) * rows), pa.int32()),
            "text": pa.repeat(pa.scalar(TEXT), rows),
        }
        arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in held]
        writer.add(pa.Table.from_arrays(arrays, schema=held))
    table.commit([writer.finish()], {}, modified_ms=0, commit_info={})
    opened = open_table(str(root))
    assert opened is not None
    return opened


SCRIPT = """
import json, sys
import pyarrow as pa
from lakehead.lake.jobs.table_schema import rewrite
from lakehead.lake.tables.delta_table import open_table
from tests.integration.test_table_rewrite import PARTS, layout
rewrite(open_table(sys.argv[1]), layout("bigint", PARTS if sys.argv[2] else ()), {})
print(json.dumps(pa.default_memory_pool().max_memory()))
"""


@pytest.mark.parametrize("parts", [(), PARTS])
def test_a_rewrite_holds_a_row_group_of_a_file_and_not_the_file(
    tmp_path: Path, parts: tuple[PartitionPart, ...]
) -> None:
    table_of_alike_rows(tmp_path / "table", parts, rows=ROWS)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "table"), "parts" if parts else ""],
        capture_output=True,
        cwd=ROOT,
        timeout=120,
        check=True,
    )
    group = ROWS * len(TEXT)
    # The row group that is read and the one before it, what is gathered, and what encoding takes.
    assert json.loads(ended.stdout) < 6 * group
    held = DeltaTable(tmp_path / "table").to_pyarrow_dataset()
    assert held.schema.field("id").type == pa.int64()
    assert held.count_rows() == GROUPS * ROWS


def test_each_file_is_written_anew_into_files_of_its_partition(tmp_path: Path) -> None:
    table = table_of_alike_rows(tmp_path / "table", PARTS, rows=100)
    before = DeltaTable(tmp_path / "table").to_pyarrow_table()
    rewrite(table, layout("bigint", PARTS), {}, file_bytes=3000)
    after = DeltaTable(tmp_path / "table")
    assert len(after.file_uris()) > 1
    assert all("day=monday" in uri for uri in after.file_uris())
    rows = after.to_pyarrow_table().sort_by("id")
    assert rows.column("id").to_pylist() == list(range(GROUPS * 100))
    names = [name for name in before.column_names if name != "id"]
    assert rows.select(names) == before.sort_by("id").select(names)
