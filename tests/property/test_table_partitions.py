"""Rows into partitions: each row in one of them, whose text says what the row had."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.declaration.table_declaration import PartitionPart
from lakehead.lake.tables.partitions import (
    check_parts,
    generated_columns,
    generated_fields,
    partition_folder,
    split_rows,
)
from lakehead.storage.errors import SettingsError
from tests.support.repetitions import examples

STAMP = pa.timestamp("us", tz="UTC")
COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.sampled_from(["", "a", "a b", "ü/=", "__"])),
    "number": (pa.int32(), st.integers(-2, 2)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 2))),
    "at": (
        STAMP,
        st.integers(-7200 * 1000, 7200 * 1000).map(
            lambda at: (
                dt.datetime.fromtimestamp(at // 1000, dt.UTC) + dt.timedelta(milliseconds=at % 1000)
            )
        ),
    ),
}
row_values = st.fixed_dictionaries(
    {name: st.none() | values for name, (_, values) in COLUMNS.items()}
)
SCHEMA = pa.schema([("place", pa.int64()), *((name, kind) for name, (kind, _) in COLUMNS.items())])


def expected_text(value: Any) -> str | None:
    """Delta's partition value serialization."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, dt.date) else str(value)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(row_values, max_size=12),
    st.lists(st.sampled_from(list(COLUMNS)), max_size=3, unique=True),
)
def test_each_row_is_in_one_partition_whose_text_says_what_it_had(
    rows: list[dict[str, Any]], columns: list[str]
) -> None:
    table = pa.Table.from_pylist([{"place": n, **row} for n, row in enumerate(rows)], SCHEMA)
    seen: list[int] = []
    for part in split_rows(table, columns):
        assert [name for name, _ in part.values] == columns
        assert not set(columns) & set(part.rows.column_names)
        for place in part.rows.column("place").to_pylist():
            seen.append(place)
            for name, text in part.values:
                assert text == expected_text(rows[place][name])
    assert sorted(seen) == list(range(len(rows)))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["", "x", None])), max_size=300),
    st.integers(1, 50),
)
def test_rows_of_many_partitions_are_those_that_a_look_at_each_finds(
    keys: list[tuple[int, str | None]], chunk: int
) -> None:
    """In their order, with fields of every shape, whatever pieces they come in."""
    fields = [("n", pa.int32()), ("text", pa.string()), ("place", pa.int64())]
    fields += [("lines", pa.list_(pa.struct([("a", pa.string())]))), ("raw", pa.binary())]
    rows: list[dict[str, Any]] = [
        {"n": n, "text": text, "place": i, "lines": [{"a": str(i)}] * (i % 3), "raw": b"%d" % i}
        for i, (n, text) in enumerate(keys)
    ]
    whole = pa.Table.from_pylist(rows, pa.schema(fields))
    pieces = [whole.slice(at, chunk) for at in range(0, len(rows), chunk)]
    found = list(split_rows(pa.concat_tables([whole.slice(0, 0), *pieces]), ["n", "text"]))
    assert len(found) == len(set(keys))
    for part in found:
        first = part.rows.column("place")[0].as_py()
        here = [row for row in rows if keys[row["place"]] == keys[first]]
        assert part.values == (("n", str(keys[first][0])), ("text", keys[first][1] or None))
        held = [{k: v for k, v in row.items() if k not in ("n", "text")} for row in here]
        assert part.rows.to_pylist() == held


class Watched:
    """A table that counts the looks at all of its rows."""

    def __init__(self, table: pa.Table, looks: list[int]) -> None:
        self._table, self._looks = table, looks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def drop_columns(self, names: list[str]) -> "Watched":
        return Watched(self._table.drop_columns(names), self._looks)

    def filter(self, mask: Any) -> pa.Table:
        self._looks.append(self._table.num_rows)
        return self._table.filter(mask)


def test_to_split_rows_costs_by_the_rows_and_not_by_rows_for_each_partition() -> None:
    looks: list[int] = []
    count = 2000
    whole = pa.table({"n": pa.array(range(count)), "place": pa.array(range(count))})
    found = list(split_rows(Watched(whole, looks), ["n"]))
    assert [part.rows.num_rows for part in found] == [1] * count
    assert len(looks) <= 17


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.none() | COLUMNS["at"][1], min_size=1, max_size=8))
def test_days_and_hours_are_utc_also_before_1970(stamps: list[dt.datetime | None]) -> None:
    part = PartitionPart(column="at", unit="hour")
    made = generated_columns({"at": pa.array(stamps, STAMP)}, [part])
    assert made["_date"].to_pylist() == [at and at.date() for at in stamps]
    assert made["_hour"].to_pylist() == [None if at is None else at.hour for at in stamps]
    assert [field.name for field in generated_fields([part])] == list(made)


def test_a_folder_is_named_only_where_no_reader_could_read_the_name_otherwise() -> None:
    assert partition_folder([("_date", "2026-01-31"), ("n", "-2")]) == "_date=2026-01-31/n=-2/"
    for odd in ("a b", "ü", "a/b", "a=b", "a%20", None):
        assert partition_folder([("n", odd)]) == ""


HOSTILE = st.text() | st.text("./\\%=:~\0 a", max_size=8) | st.sampled_from(["..", "../..", "/etc"])


@given(st.lists(st.tuples(HOSTILE, st.none() | HOSTILE), min_size=1, max_size=3))
def test_no_value_leads_out_of_the_folder_of_its_table(
    values: list[tuple[str, str | None]],
) -> None:
    folder = partition_folder(values)
    if not folder:
        return
    *steps, end = folder.split("/")
    assert (len(steps), end) == (len(values), "")
    for step, (name, text) in zip(steps, values, strict=True):
        assert step == f"{name}={text}"
        assert step not in {"", ".", ".."}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (PartitionPart(column="nothing"), "no column 'nothing'"),
        (PartitionPart(column="text", unit="day"), "needs a timestamp, and text is STRING"),
        (PartitionPart(column="day", unit="hour"), "needs a timestamp, and day is DATE"),
        (PartitionPart(column="list"), "cannot be partitioned by list"),
        (PartitionPart(column="real"), "cannot be partitioned by real"),  # NaN equals no value
        (PartitionPart(column="half"), "cannot be partitioned by half"),
    ],
)
def test_what_cannot_be_a_partition_column_is_said(part: PartitionPart, words: str) -> None:
    others = [("list", pa.list_(pa.int32())), ("real", pa.float64()), ("half", pa.float32())]
    schema = pa.schema([*SCHEMA, *others])
    with pytest.raises(SettingsError, match=words):
        check_parts(schema, [part])
    check_parts(schema, [PartitionPart(column="day", unit="day"), PartitionPart(column="flag")])
