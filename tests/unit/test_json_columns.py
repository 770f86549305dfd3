import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import parse_schema, to_ddl
from lakehead.lake.tables.values.json_inference import infer_schema
from lakehead.lake.tables.values.json_values import JsonColumns, json_columns
from lakehead.storage.errors import SettingsError

SCHEMA = parse_schema("a BIGINT, b STRING")


def columns(values: Sequence[bytes | None], schema: Any = SCHEMA, **options: int) -> JsonColumns:
    return json_columns(pa.array(values, pa.binary()), schema, **options)


def test_values_become_rows_in_order() -> None:
    found = columns([b'{"a":1,"b":"x"}', b"{}", b'{"b":null,"c":[1]}'])
    assert found.columns.to_pylist() == [
        {"a": 1, "b": "x"},
        {"a": None, "b": None},
        {"a": None, "b": None},
    ]
    assert found.rows.to_pylist() == [0, 1, 2]
    assert found.faults == ()


def test_a_null_value_is_a_row_of_nulls() -> None:
    found = columns([None, b'{"a":1}', None])
    assert [row["a"] for row in found.columns.to_pylist()] == [None, 1, None]
    assert found.rows.to_pylist() == [0, 1, 2]


def test_nothing_and_only_nulls() -> None:
    assert columns([]).columns.num_rows == 0
    assert columns([None, None]).columns.to_pylist() == [{"a": None, "b": None}] * 2


def test_line_breaks_inside_a_value_are_harmless() -> None:
    pretty = json.dumps({"a": 1, "b": "x\ny"}, indent=2).replace("\n", "\r\n").encode()
    found = columns([pretty, b'{"a":\n2}', b"\n{\r}\n"])
    assert [row["a"] for row in found.columns.to_pylist()] == [1, 2, None]
    assert found.columns.to_pylist()[0]["b"] == "x\ny"


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b" ",
        b"null",
        b"[1]",
        b'{"a":1}{"a":2}',
        b'{"a":1}\n{"a":2}',
        b'{"a":',
        b'1},"b":{',
        b'{"a":1.5}',
        b'{"a":"1"}',
        b'{"a":99999999999999999999}',
        b'{"b":{"a":1}}',
        b'{"b":"\xff"}',
        b'{"b":"\xed\xa0\x80"}',
        b'{"b":"\\ud800"}',
        b'{"b":"\\ud800\\u0041"}',
        b'{"b":"a\nb"}',
        b'{"a":NaN}',
        b'{"a":1,"a":2}',
        b'{"a":1e999}',
        b'{"a":1}\x00',
        b"\xef\xbb\xbf{}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_bad_value_is_set_aside_alone(bad: bytes) -> None:
    good = [b'{"a":%d}' % n for n in range(50)]
    found = columns([*good[:20], bad, *good[20:], None])
    assert [row for row, _ in found.faults] == [20]
    assert "\n" not in found.faults[0][1]
    assert [row["a"] for row in found.columns.to_pylist()] == [*range(50), None]
    assert found.rows.to_pylist() == [*range(20), *range(21, 52)]


def test_values_that_make_a_pair_only_together_are_both_bad() -> None:
    found = columns([b'{"a":', b"1}", b"{}{}", b" "])
    assert [row for row, _ in found.faults] == [0, 1, 2, 3]
    assert found.columns.num_rows == 0


def test_a_slice_of_an_array_is_read_from_its_own_beginning() -> None:
    values = pa.array([b"bad", None, b'{"a":1}', b'{"a":\n2}', b"bad"], pa.binary())
    found = json_columns(values.slice(2, 2), SCHEMA)
    assert [row["a"] for row in found.columns.to_pylist()] == [1, 2]
    assert json_columns(values.slice(1, 1), SCHEMA).columns.to_pylist() == [{"a": None, "b": None}]


def test_views_and_strings_are_accepted() -> None:
    values = pa.array([b'{"a":1}'], pa.binary_view())
    assert json_columns(values, SCHEMA).columns.to_pylist() == [{"a": 1, "b": None}]


def test_every_type_is_converted() -> None:
    schema = parse_schema(
        "t TIMESTAMP, d DATE, n DECIMAL(10, 2), l ARRAY<DATE>, s STRUCT<d: DATE, i: TINYINT>, "
        "f FLOAT, b BOOLEAN"
    )
    value = {
        "t": "2013-01-01T10:00:00+01:00",
        "d": "2013-01-01",
        "n": 1.25,
        "l": ["2013-01-02", None],
        "s": {"d": "2013-01-03", "i": 7},
        "f": 0.5,
        "b": True,
    }
    (row,) = columns([json.dumps(value).encode()], schema).columns.to_pylist()
    assert row["t"] == dt.datetime(2013, 1, 1, 9, tzinfo=dt.UTC)
    assert row["d"] == dt.date(2013, 1, 1)
    assert str(row["n"]) == "1.25"
    assert row["l"] == [dt.date(2013, 1, 2), None]
    assert row["s"] == {"d": dt.date(2013, 1, 3), "i": 7}
    bad = columns([b'{"d":"yesterday"}', b'{"s":{"i":300}}', b"{}"], schema)
    assert [row for row, _ in bad.faults] == [0, 1]


def test_a_number_beyond_float_is_none_of_a_float_column() -> None:
    found = columns([b'{"f":3.4e38}', b'{"f":-1e39}', b'{"f":1e39}'], parse_schema("f FLOAT"))
    assert found.faults == ((1, reason := "field f: a number beyond FLOAT"), (2, reason))
    assert found.columns.num_rows == 1


def test_a_value_of_several_megabytes_between_small_ones() -> None:
    big = json.dumps({"a": 1, "b": "x" * 5_000_000}).encode()
    found = columns([b'{"a":0}', big, b'{"a":2}'])
    assert [row["a"] for row in found.columns.to_pylist()] == [0, 1, 2]


def test_a_value_that_does_not_fit_names_its_field() -> None:
    schema = parse_schema("a BIGINT, b STRUCT<c: ARRAY<STRUCT<d: BOOLEAN>>>, t TIMESTAMP")
    found = columns(
        [b'{"a":"x"}', b'{"b":{"c":[{"d":true},{"d":1}]}}', b'{"a":1,"a":1}', b'{"t":"no"}'], schema
    )
    assert found.faults == (
        (0, "field a: text that is not BIGINT"),
        (1, "field b.c[].d: a number that is not BOOLEAN"),
        (2, "field a is repeated"),
        (3, "field t: text that is not TIMESTAMP"),
    )
    assert found.misfits == {0, 1, 2, 3}


def test_values_with_fields_beyond_the_schema_are_known() -> None:
    schema = parse_schema("a STRUCT<b: BIGINT>")
    found = columns([b'{"a":{"b":1}}', b'{"a":{"c":1}}', b'{"d":null}', b"{"], schema)
    assert found.richer.tolist() == [1, 2]


def test_a_schema_is_inferred() -> None:
    schema = infer_schema(
        [
            b'{"a":1,"b":null,"c":"x","d":{"e":1,"f":[]}}',
            None,
            b"bad",
            b'{"a":1.5,"b":null,"d":{"e":2,"f":[{"g":true}]},"h":99999999999999999999,"i":{}}',
        ]
    )
    assert to_ddl(schema) == (
        "a DOUBLE, b STRING, c STRING, d STRUCT<e: BIGINT, f: ARRAY<STRUCT<g: BOOLEAN>>>, h DOUBLE"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([b'{"a":{"b":1}}', b'{"a":{"b":"x"}}'], "field a.b .* both BIGINT and STRING"),
        ([b'{"a":[1]}', b'{"a":{}}'], "field a .* both an array and an object"),
        ([b"1", None], "no JSON object.* --schema, or .*--value-format raw"),
        ([b'{"a":1,"A":2}'], "'a' and 'A'"),
        ([b'{"a b":1}'], "'a b'"),
    ],
)
def test_what_cannot_be_inferred_is_said(values: list[bytes | None], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        infer_schema(values)


def test_fields_without_a_column_are_passed_over_whatever_they_are() -> None:
    values = [
        b'{"x":1e+5,"a":1}',
        b'{"x":[{"y":"]}\\""},{}],"a":2 , "z":-0.5E-7}',
        b'{"x":{"a":9},"a":3,"y":null}',
        b'{ "x" : true , "\\u0061" : 4 , "y" : [ ] }',
    ]
    found = columns(values)
    assert [row["a"] for row in found.columns.to_pylist()] == [1, 2, 3, 4]
    assert found.faults == ()


def test_instants_with_and_without_a_zone() -> None:
    texts = ["2024-01-01T02:00:00+02:00", "2024-01-01", "2024-01-01 00:00:00Z", "2024-01-01T00:00"]
    found = columns([b'{"t":"%s"}' % text.encode() for text in texts], parse_schema("t TIMESTAMP"))
    assert found.columns.column("t").to_pylist() == [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 4


FINER = ["2024-01-01T02:00:00.{}+02:00", "2024-01-01T00:00:00.{}Z", "2024-01-01 00:00:00.{}"]


@pytest.mark.parametrize("digits", ["1234567", "123456789", "123456999", "1234569999999999999999"])
@pytest.mark.parametrize("form", FINER)
def test_fractions_finer_than_microseconds_are_cut_off_as_spark_does(
    form: str, digits: str
) -> None:
    """Go's RFC3339Nano; also beside times that have fewer digits, another zone, or are none."""
    texts = [form.format(digits), "2024-01-01", form.format("5"), "no." + digits]
    found = columns([b'{"t":"%s"}' % text.encode() for text in texts], parse_schema("t TIMESTAMP"))
    day = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    assert found.columns.column("t").to_pylist() == [
        day.replace(microsecond=123456),
        day,
        day.replace(microsecond=500_000),
    ]
    assert found.faults == ((3, "field t: text that is not TIMESTAMP"),)


def test_a_finer_fraction_before_1970_is_cut_off_towards_the_past() -> None:
    schema = parse_schema("l ARRAY<TIMESTAMP>")
    found = columns([b'{"l":[null,"1960-01-01T00:00:00.999999999Z"]}'], schema)
    time = dt.datetime(1960, 1, 1, 0, 0, 0, 999_999, tzinfo=dt.UTC)
    assert found.columns.column("l").to_pylist() == [[None, time]]


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        (['{"a":1}', '{"a":"x"}', '{"a":2.5}'], "a DOUBLE"),
        (['{"a":"x"}', '{"a":1}'], "a STRING"),
        (['{"a":"x"}', '{"a":1}', '{"a":2}'], "a BIGINT"),
        (['{"a":true}', '{"a":1}', '{"a":false}'], "a BOOLEAN"),
        (['{"a":{"b":1}}', '{"a":{"b":"x"}}', '{"a":{"b":2}}'], "a STRUCT<b: BIGINT>"),
        (['{"a":[1,"x",2]}', '{"a":{}}'], "a ARRAY<BIGINT>"),
        (['{"a":[1,"x"]}'], "a ARRAY<BIGINT>"),
        (['{"a":5}', '{"a":{"b":1}}', '{"a":{"c":[{"d":1}]}}'], "a STRUCT<b: BIGINT, c: ARRAY<"),
        (['{"a":null}', '{"a":"x"}', '{"a":null}', '{"b":1}'], "a STRING, b BIGINT"),
    ],
)
def test_a_field_of_several_types_has_that_of_most_of_its_values(
    values: list[str], schema: str
) -> None:
    encoded = [value.encode() for value in values]
    assert to_ddl(infer_schema(encoded, by_most=True)).startswith(schema)
