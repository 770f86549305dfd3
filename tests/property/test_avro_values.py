"""Avro values against fastavro: the same rows, and no byte that is wrong unnoticed."""

import json
import math
import warnings
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from tests.support.avro_values import read, records, written
from tests.support.repetitions import examples


def decoded(schema: Any, datums: list[bytes | None]) -> tuple[dict[int, Any], dict[int, str]]:
    """Rows and faults by the place of their value."""
    decoder = open_decoder(ValueSpec(value_format="avro", schema=json.dumps(schema)))
    columns = [pa.nulls(len(datums), pa.binary()), pa.array(datums, pa.binary())]
    batch = pa.RecordBatch.from_arrays(columns, names=["key", "value"])
    found = decoder.decode(batch, decoder.schema_of(batch))
    for column in found.columns.columns:
        column.validate(full=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a key that comes twice: the last one counts
        rows = found.columns.to_pylist(maps_as_pydicts="lossy")
    return dict(zip(found.rows.to_pylist(), rows, strict=True)), {
        fault.row: fault.reason for fault in found.faults
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@st.composite
def topics(draw: st.DrawFn) -> tuple[Any, list[bytes | None]]:
    schema, values = draw(records([0]))
    drawn = draw(st.lists(st.none() | values, max_size=8))
    return schema, [None if value is None else written(schema, value) for value in drawn]


@settings(max_examples=examples(60), deadline=None)
@given(topics())
def test_every_value_is_the_row_that_fastavro_reads(topic: tuple[Any, list[bytes | None]]) -> None:
    schema, datums = topic
    rows, faults = decoded(schema, datums)
    assert not faults
    for i, datum in enumerate(datums):
        if datum is None:
            assert set(rows[i].values()) == {None}
        else:
            assert same(rows[i], read(schema, datum)), (rows[i], read(schema, datum))


@settings(max_examples=examples(60), deadline=None)
@given(topics(), st.data())
def test_a_byte_that_is_wrong_is_a_fault_or_what_fastavro_reads(
    topic: tuple[Any, list[bytes | None]], data: st.DataObject
) -> None:
    schema, datums = topic
    damaged = [_damaged(datum, data) for datum in datums]
    rows, faults = decoded(schema, damaged)
    assert sorted([*rows, *faults]) == list(range(len(damaged)))
    for i, row in rows.items():
        datum = damaged[i]
        if datum is not None:
            assert same(row, read(schema, datum))


def _damaged(datum: bytes | None, data: st.DataObject) -> bytes | None:
    if not datum or data.draw(st.booleans()):
        return datum
    at = data.draw(st.integers(0, len(datum) - 1))
    match data.draw(st.integers(0, 2)):
        case 0:
            return datum[:at]
        case 1:
            return datum[:at] + data.draw(st.binary(min_size=1, max_size=3)) + datum[at + 1 :]
    return datum[:at] + bytes([datum[at] ^ 1 << data.draw(st.integers(0, 7))]) + datum[at + 1 :]
