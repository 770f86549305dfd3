"""`attest`: an unharmed table passes at every version, and each kind of difference is named."""

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs import table_attestation, table_item
from lakehead.lake.jobs.attest import JOB as ATTEST
from lakehead.lake.jobs.attest import AttestOptions
from lakehead.lake.jobs.attest_result import AttestResult, verdict
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.tables import range_digests
from lakehead.lake.tables.delta_table import applications, open_table
from lakehead.lake.tables.range_digests import RangeDigester, held_digests
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import DamageFound, run_job
from tests.support.command_line import CommandLine
from tests.support.declared_topics import configure, trim
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import Value, write_topic

RECORDS = 40


def order(number: int, **more: Any) -> TestRecord:
    value = {"id": number, "name": f"n{number % 7:02}", "price": number / 7} | more
    headers = (("source", b"s%d" % (number % 3)), ("none", None)) if number % 2 else ()
    return TestRecord(
        offset=0,
        timestamp=1_700_000_000_000 + number,
        key=b"k%d" % (number % 11) if number % 5 else None,
        value=json.dumps(value).encode(),
        headers=headers,
    )


def declare(root: Path, **configs: str) -> None:
    named = {"enable": "true", "value.format": "json"}
    named |= {name.replace("_", "."): text for name, text in configs.items()}
    configure(root, "orders", {f"{PREFIX}{name}": text for name, text in named.items()})


def write(root: Path, first: int, records: list[Value] | None = None, codec: str = "none") -> None:
    values = records or [order(n) for n in range(first, first + RECORDS)]
    write_topic(root, "orders", {0: values, 1: values}, partitions=2, batch_records=7, codec=codec)


def refresh(root: Path) -> None:
    tables = DeclaredTables(str(root))
    try:
        tables.catch_up(all_of_them=True, on_table=_check)
    finally:
        tables.close()


def _check(outcome: Any) -> None:
    assert outcome.error is None, outcome.error


def attested(root: Path, **options: Any) -> AttestResult:
    return run_job(ATTEST, str(root), AttestOptions(topic="orders", **options))


def words(result: AttestResult) -> list[str]:
    return [str(one) for one in result.found()]


def says(result: AttestResult) -> str:
    return verdict(result.as_fields())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    write(root, 0)
    declare(root)
    refresh(root)
    write(root, RECORDS, codec="zstd")
    refresh(root)
    return root


def table(root: Path) -> DeltaTable:
    return DeltaTable(root.parent / "tables/orders")


def test_a_table_passes_at_every_version_and_after_its_files_were_rewritten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(
        one["version"] for one in table(root).history() if "lakehead.digests" in one
    )
    result = attested(root)
    assert (result.records, result.rows, result.digests) == (160, 160, 4)
    assert words(result) == []
    assert says(result) == "the table is its topic, row for row"
    earlier = attested(root, version=first)
    assert (earlier.version, earlier.records, earlier.rows) == (first, 80, 80)
    assert words(earlier) == []
    table(root).optimize.z_order(["name"])
    assert attested(root).version > second
    assert (attested(root).rows, words(attested(root))) == (160, [])
    monkeypatch.setattr(table_attestation, "_ROW_GROUP_BYTES_MAX", 0)  # all are too large to hold
    assert (attested(root).rows, words(attested(root))) == (160, [])


def test_digests_outlast_a_rebuild_and_a_table_without_any_is_compared_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = DeclaredTables(str(root))
    tables.rebuild("orders")
    tables.close()
    assert attested(root).digests == 2  # of the whole topic, by partition
    monkeypatch.setattr(range_digests, "FORMS", {"another"})
    result = attested(root)
    assert (result.digests, result.rows, words(result)) == (0, 160, [])


def test_digests_of_an_earlier_release_are_still_compared(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = "sha256-columns-1"
    monkeypatch.setattr(table_item, "RangeDigester", partial(RangeDigester, form=earlier))
    write(root, 2 * RECORDS)
    refresh(root)
    monkeypatch.undo()
    opened = open_table(str(root.parent / "tables/orders"))
    assert opened is not None
    forms = [one.form for one in held_digests(opened)]
    assert sorted(forms) == [*["blake3-columns-1"] * 4, *[earlier] * 2]
    result = attested(root)
    assert (result.digests, words(result)) == (6, [])
    log = root.parent / f"tables/orders/_delta_log/{opened.version:020}.json"
    note = log.read_text().replace(f',\\"{earlier}\\"', "").replace("blake3-columns-1", earlier)
    assert note.count(earlier) == 1
    log.write_text(note)  # as the earlier release wrote it
    result = attested(root)
    assert (result.digests, words(result)) == (6, [])


def test_a_row_that_another_engine_changes_removes_or_adds_is_named(root: Path) -> None:
    delta = table(root)
    delta.update(predicate="_partition = 1 AND _offset = 45", updates={"name": "'other'"})
    (line,) = words(attested(root))
    assert line.startswith("partition 1, offset 45, object data/")
    assert ".parquet: the row differs from its record in name" in line
    delta.delete("_partition = 0 AND _offset IN (3, 4, 5, 50)")
    lines = words(attested(root))
    assert [line.partition(", object")[0] for line in lines] == [
        "partition 0, offset 3 to 5",
        "partition 0, offset 50",
        "partition 1, offset 45",
    ]
    assert "the table neither a row nor a dead letter" in lines[0]
    rows = delta.to_pyarrow_table(filters=[("_offset", "=", 7), ("_partition", "=", 0)])
    write_deltalake(delta, rows, mode="append")
    assert any("offset 7, " in line and "more than once" in line for line in words(attested(root)))
    at = rows.schema.get_field_index("_offset")
    far = rows.set_column(at, rows.schema.field(at), pa.array([999], pa.int64()))
    write_deltalake(delta, far, mode="append")
    lines = words(attested(root))
    assert any(one.endswith("a row of an offset that none of its commits brought") for one in lines)
    assert says(attested(root)) == "the table is NOT its topic: 7 differences"
    version = table(root).version()
    assert words(attested(root, version=version - 4)) == []


def test_a_changed_byte_of_a_data_file_is_named(root: Path) -> None:
    path = min((root.parent / "tables/orders").rglob("*.parquet"))
    rows = pq.read_table(path)
    offset, partition = rows["_offset"][9].as_py(), rows["_partition"][9].as_py()
    at = rows.schema.get_field_index("_key")
    keys = rows["_key"].to_pylist()
    keys[9] = b"zz"
    size = path.stat().st_size
    pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array(keys, pa.binary())), path)
    assert path.stat().st_size != size
    lines = words(attested(root))
    assert any(path.name in line for line in lines), lines
    assert any(f"partition {partition}, offset {offset}, " in line for line in lines) or any(
        "cannot be read" in line for line in lines
    )


@pytest.mark.parametrize("form", ["blake3-columns-1", "sha256-columns-1"])
def test_a_record_that_changed_under_a_right_checksum_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Objects of the same topic with another record take the place of its own."""
    monkeypatch.setattr(table_item, "RangeDigester", partial(RangeDigester, form=form))
    root, other = tmp_path / "store", tmp_path / "other"
    values: list[Value] = [order(n) for n in range(RECORDS)]
    write(root, 0, values)
    declare(root)
    refresh(root)
    write(other, 0, [*values[:13], order(13, name="n99"), *values[14:]])
    theirs = {
        path.relative_to(other): path for path in (other / "data").rglob("*") if path.is_file()
    }
    for place, path in theirs.items():
        assert (root / place).stat().st_size == path.stat().st_size
        shutil.copy(path, root / place)
    lines = words(attested(root))
    key = next(iter(theirs)).as_posix()
    for partition in (0, 1):
        mine = [line for line in lines if line.startswith(f"partition {partition},")]
        assert len(mine) == 2
        assert "offset 0 to 39" in mine[0]
        assert "the topic has other records than the commit was made from" in mine[0]
        assert "offset 13, object" in mine[1]
        assert mine[1].endswith("the row differs from its record in name")
    assert key in lines[0] or len(theirs) > 1


def test_records_that_retention_removed_are_not_attestable_any_more(root: Path) -> None:
    trim(root, "orders", 0, 45)
    result = attested(root)
    assert words(result) == []
    (gone,) = result.unattestable
    assert (gone.partition, gone.first, gone.end, gone.rows) == (0, 0, 45, 45)
    assert len(gone.digests) == 2
    assert says(result).endswith("; some of its offsets are not attestable")
    assert result.rows == 160 - 45
    table(root).delete("_partition = 0 AND _offset = 44")  # nothing shows it any more
    assert attested(root).unattestable[0].rows == 44
    table(root).delete("_partition = 0 AND _offset = 46")
    assert "offset 46," in words(attested(root))[0]


def test_dead_letters_and_dropped_records_count(tmp_path: Path) -> None:
    root = tmp_path / "store"
    bad: list[Value] = [order(0), TestRecord(offset=0, key=b"b", value=b"{"), order(2)]
    write(root, 0, bad)
    declare(root, on_error="dead_letter", schema="id bigint, name string, price double")
    refresh(root)
    result = attested(root)
    assert (result.rows, result.dead_letters, words(result)) == (4, 2, [])
    DeltaTable(root.parent / "tables/orders__dlq").delete("_partition = 1")
    (line,) = words(attested(root))
    assert line.startswith("partition 1, offset 1, object")
    declare(root, on_error="drop", schema="id bigint, name string, price double")
    write(root, 3, bad)
    refresh(root)
    result = attested(root)
    assert result.missing_records == 3 > result.may_miss == 2
    assert len(words(result)) == 3


def test_a_dead_letter_that_is_there_twice_is_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, 0, [order(0), TestRecord(offset=0, key=b"b", value=b"{"), order(2)])
    declare(root, on_error="dead_letter", schema="id bigint, name string, price double")
    refresh(root)
    letters = DeltaTable(root.parent / "tables/orders__dlq")
    rows = letters.to_pyarrow_table(filters=[("_partition", "=", 1)])
    write_deltalake(letters, rows, mode="append")
    (line,) = words(attested(root))
    assert line.startswith("partition 1, offset 1, object")
    assert line.endswith("its dead letter is there more than once")


def test_dropped_records_alone_are_no_difference(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, 0, [order(0), TestRecord(offset=0, value=b"["), order(2)])
    declare(root, on_error="drop", schema="id bigint, name string")
    refresh(root)
    result = attested(root)
    assert (result.missing_records, result.may_miss, words(result)) == (2, 2, [])
    table(root).delete("_partition = 0 AND _offset = 2")
    assert len(words(attested(root))) == 3


def test_columns_that_came_later_are_no_difference(tmp_path: Path) -> None:
    """With a declared schema, earlier rows lack what their records have: it was left out."""
    root = tmp_path / "store"
    write(root, 0)
    declare(root, schema="id bigint")
    refresh(root)
    declare(root, schema="id bigint, name string")
    write(root, RECORDS)
    refresh(root)
    result = attested(root)
    assert (result.rows_lacking_fields, words(result)) == (80, [])
    table(root).update(predicate="_offset = 50 AND _partition = 0", updates={"id": "51"})
    (line,) = words(attested(root))
    assert line.endswith("differs from its record in id")


def test_each_row_of_a_table_by_upsert_is_a_record(tmp_path: Path) -> None:
    root = tmp_path / "store"
    configs = {"mode": "upsert", "schema": "id bigint, name string, price double"}
    values: list[Value] = [order(n) for n in range(RECORDS) if n % 5]
    write(root, 0, values)
    declare(root, **configs)
    refresh(root)
    write(root, 0, [*values[:3], TestRecord(offset=0, key=b"k1", value=None)])
    refresh(root)
    result = attested(root)
    assert words(result) == []
    assert result.digests == 4
    assert result.rows + result.overtaken == result.records
    assert "each row is a record" in says(result)
    at = table(root).to_pyarrow_table().to_pydict()["_offset"][0]
    table(root).update(predicate=f"_offset = {at}", updates={"price": "-1"})
    assert words(attested(root))[0].endswith("the row differs from its record in price")


def test_rows_that_the_bounds_of_a_file_hide_are_found(root: Path) -> None:
    """A file with more rows than the log's bounds say takes the place of one. A reader of the whole
    table sees them, and one that looks for their offsets does not.
    """
    path = min((root.parent / "tables/orders").rglob("*.parquet"))
    rows = pq.read_table(path)
    twice = rows.slice(5, 1)
    others = {0: 1, 1: 0}
    partition = pa.array([others[twice["_partition"][0].as_py()]], pa.int32())
    for name, moved in (("_offset", pa.array([999], pa.int64())), ("_partition", partition)):
        at = rows.schema.get_field_index(name)
        _replace_file(path, [rows, twice.set_column(at, rows.schema.field(at), moved)])
        assert table(root).to_pyarrow_table().num_rows == 161
        assert "is NOT its topic" in says(attested(root)), name
        with pytest.raises(DamageFound):
            ATTEST.finish(attested(root).as_fields())


def test_a_file_without_bounds_of_offsets_in_the_log_is_read(root: Path) -> None:
    """Spark notes bounds of a table's first 32 columns alone (`dataSkippingNumIndexedCols`)."""
    path = max((root.parent / "tables/orders/_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for added in (action["add"] for action in actions if "add" in action):
        known = json.loads(added["stats"])
        del known["minValues"]["_offset"], known["maxValues"]["_offset"]
        added["stats"] = json.dumps(known)
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    result = attested(root)
    assert (result.rows, words(result)) == (160, [])


def _replace_file(path: Path, rows: list[Any], *, write_statistics: bool = False) -> None:
    """Write rows in place of a file, which keeps its size."""
    size = path.stat().st_size
    shorter = {"compression_level": 19, "store_schema": False, "write_statistics": write_statistics}
    pq.write_table(pa.concat_tables(rows), path, compression="zstd", **shorter)
    data = path.read_bytes()
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    assert len(data) <= size
    path.write_bytes(data[:-footer] + bytes(size - len(data)) + data[-footer:])


@pytest.mark.parametrize("app", ["lakehead:first:{}:0", "lakehead:{}:0"])
def test_offsets_that_the_table_does_not_claim_any_more_are_named(root: Path, app: str) -> None:
    """Another engine deletes rows and moves the table's progress, as if it had never had them."""
    delta = table(root)
    (topic_id,) = {
        one.split(":")[1]
        for one in applications(str(root.parent / "tables/orders"))
        if re.fullmatch(r"lakehead:[0-9a-f]{32}:0", one)
    }
    is_first = "first" in app
    delta.delete(
        f"_partition = 0 AND _offset {'<' if is_first else '>='} {RECORDS}",
        commit_properties=CommitProperties(
            app_transactions=[
                Transaction(app.format(topic_id), RECORDS if is_first else RECORDS - 1)
            ]
        ),
    )
    (line,) = words(attested(root))
    first = 0 if is_first else RECORDS
    assert line.startswith(f"partition 0, offset {first} to {first + RECORDS - 1}: ")
    assert line.endswith("the table does not claim to have them")


def test_a_zero_with_another_sign_inside_a_column_is_found(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, 0, [TestRecord(offset=0, value=b'{"at": {"x": 0.0, "y": [0.0]}}')])
    declare(root, schema="at struct<x: double, y: array<double>>")
    refresh(root)
    assert words(attested(root)) == []
    for name in ("x", "y"):
        path = min((root.parent / "tables/orders").rglob("*.parquet"))
        rows = pq.read_table(path)
        held = rows["at"].to_pylist()
        held[0] |= {"x": -0.0} if name == "x" else {"x": 0.0, "y": [-0.0]}
        at = rows.schema.get_field_index("at")
        changed = pa.array(held, rows.schema.field(at).type)
        _replace_file(path, [rows.set_column(at, rows.schema.field(at), changed)])
        lines = words(attested(root))
        assert lines
        assert all(line.endswith("the row differs from its record in at") for line in lines), lines


def test_a_time_that_python_does_not_have_is_a_difference_as_any_other(root: Path) -> None:
    path = min((root.parent / "tables/orders").rglob("*.parquet"))
    rows = pq.read_table(path)
    kind = rows.schema.field("_timestamp").type
    far = pa.array([400_000_000_000_000_000] * rows.num_rows, kind)
    at = rows.schema.get_field_index("_timestamp")
    _replace_file(path, [rows.set_column(at, rows.schema.field(at), far)], write_statistics=True)
    result = attested(root)
    assert result.different == rows.num_rows
    assert words(result)[0].endswith("the row differs from its record in _timestamp")


def test_a_sample_reads_less(root: Path) -> None:
    result = attested(root, sample_percent=1)
    assert result.ranges < 4
    assert "in a sample of 1 %" in says(result)
    opened = open_table(str(root.parent / "tables/orders"))
    assert opened is not None
    assert [one.records for one in held_digests(opened)] == [RECORDS] * 4


def test_records_of_a_backfill_have_digests_too(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, 0)
    declare(root, schema="id bigint, name string, price double")
    tables = DeclaredTables(str(root))
    for begin in ({0: 30, 1: 20}, {0: 10, 1: 20}):
        tables.begin("orders", at=begin)
        tables.catch_up(all_of_them=True, on_table=_check)
    tables.close()
    result = attested(root)
    assert (result.rows, result.digests, words(result)) == (50, 3, [])


def test_the_command_reports_and_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lakehead = CommandLine(monkeypatch, capsys)
    place = root.parent
    path = ("--path", str(place))
    done = lakehead("attest", "orders", *path, "--json")
    assert done.status == 0, done
    assert json.loads(done.out)["verdict"] == "the table is its topic, row for row"
    planned = json.loads(lakehead("attest", "orders", *path, "--dry-run", "--json").out)
    assert planned["offset_ranges"] == 4
    table(root).delete("_partition = 0 AND _offset = 3")
    done = lakehead("attest", "orders", *path, "--json")
    assert done.status == 1
    (row,) = json.loads(done.out)["differences_found"]
    assert (row["partition"], row["offsets"], row["range"]) == (0, "3", "0 to 39")
    assert "does not exist" in lakehead.fails("attest", "nope", *path)
    with pytest.raises(SettingsError, match="declares no table"):
        configure(root, "orders", {f"{PREFIX}enable": "false"})
        attested(root)
