"""The JSON check and Arrow's reader against Python's own parser."""

import json
import math
import struct
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.values.json_inference import infer_schema
from lakehead.lake.tables.values.json_values import json_columns
from tests.support.repetitions import examples

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
SCHEMA = parse_schema("key_that_is_not_there INT")


def is_object(value: bytes) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        text = value.decode("utf-8")
        decoded = json.loads(text, parse_constant=refuse)
        json.dumps(decoded, ensure_ascii=False).encode("utf-8")  # lone surrogates
    except ValueError:
        return False
    return isinstance(decoded, dict) and not text.startswith("\ufeff")


@st.composite
def values(draw: st.DrawFn) -> bytes:
    text = json.dumps(
        {"x": draw(ANYTHING)} if draw(st.booleans()) else draw(ANYTHING),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
        allow_nan=True,
    )
    encoded = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(encoded)))
        encoded[at : at + draw(st.integers(0, 2))] = draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b"{", b"}", b"\\", b",", b"0", b"\n"])
        )
    return bytes(encoded)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.none() | values(), max_size=12))
def test_a_value_is_good_exactly_if_python_reads_an_object(block: list[bytes | None]) -> None:
    found = json_columns(pa.array(block, pa.binary()), SCHEMA)
    faults = {row for row, _ in found.faults}
    # Arrow also refuses numbers beyond a double; Python makes them infinite.
    expected = {
        row for row, value in enumerate(block) if value is not None and not is_object(value)
    }
    texts = {row: block[row] or b"" for row in faults - expected}
    beyond = {row for row, text in texts.items() if b"e" in text.lower() or len(text) > 300}
    assert faults - beyond == expected
    assert found.rows.to_pylist() == [row for row in range(len(block)) if row not in faults]
    assert found.columns.num_rows == len(found.rows)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "s": st.none() | st.text(),
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.integers(0, 9)),
        "o": st.none() | st.fixed_dictionaries({}, optional={"x": st.text(), "y": st.booleans()}),
    },
)
DECLARED = parse_schema(
    "i BIGINT, s STRING, b BOOLEAN, l ARRAY<BIGINT>, o STRUCT<x: STRING, y: BOOLEAN>"
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(FIELDS, max_size=20), st.booleans())
def test_rows_are_what_python_reads(rows: list[dict[str, Any]], ascii_only: bool) -> None:
    encoded = [json.dumps(row, ensure_ascii=ascii_only).encode() for row in rows]
    found = json_columns(pa.array(encoded, pa.binary()), DECLARED)
    assert found.faults == ()
    for row, read in zip(rows, found.columns.to_pylist(), strict=True):
        for name, value in read.items():
            expected = row.get(name)
            if name == "o" and expected is not None:
                expected = {"x": expected.get("x"), "y": expected.get("y")}
            assert value == expected


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(FIELDS.filter(bool), min_size=1, max_size=10))
def test_every_sampled_value_fits_the_inferred_schema(rows: list[dict[str, Any]]) -> None:
    encoded = [json.dumps(row).encode() for row in rows]
    if not any(value not in ({}, []) for row in rows for value in row.values()):
        return
    schema = infer_schema(encoded)
    assert json_columns(pa.array(encoded, pa.binary()), schema).faults == ()


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=12).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    # Halfway between two doubles, and just beside it.
    st.tuples(st.integers(1 << 52, (1 << 53) - 1), st.integers(0, 60), st.integers(-1, 1)).map(
        lambda drawn: str((2 * drawn[0] + 1 << drawn[1]) + drawn[2])
    ),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(NUMBERS.filter(str.isascii), min_size=1, max_size=20))
def test_numbers_are_the_doubles_that_python_reads(numbers: list[str]) -> None:
    found = json_columns(
        pa.array([b'{"x":%s}' % number.encode() for number in numbers], pa.binary()),
        parse_schema("x DOUBLE"),
    )
    expected = {row: float(number) for row, number in enumerate(numbers)}
    beyond = {row for row, value in expected.items() if math.isinf(value)}
    assert {row for row, _ in found.faults} == beyond
    read = zip(found.rows.to_pylist(), found.columns.column("x").to_pylist(), strict=True)
    for row, value in read:
        assert struct.pack("d", value) == struct.pack("d", expected[row]), numbers[row]
