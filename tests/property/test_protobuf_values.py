"""Protobuf values against Google's runtime: the same rows, and no byte that is wrong unnoticed."""

import struct
import warnings
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.lake.tables.values.protobuf_schema import compile_proto, message_named
from tests.support.protobuf_values import filled, is_odd, message_class, proto, shown
from tests.support.repetitions import examples

TEXTS = st.integers(0, 9).map(proto)
EXAMPLES = 20
MESSAGES = 3


def decoded(text: str, values: list[bytes]) -> tuple[dict[int, Any], dict[int, str]]:
    """Rows and faults by the place of their value."""
    decoder = open_decoder(ValueSpec(value_format="protobuf", schema=text, message="Value"))
    columns = [pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary())]
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
        return struct.pack("d", left) == struct.pack("d", right) or left != left != right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def drawn(text: str, data: st.DataObject) -> tuple[Any, list[bytes]]:
    made = message_class(message_named(compile_proto(text), "Value"))
    return made, [filled(made(), data).SerializeToString() for _ in range(MESSAGES)]


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(TEXTS, st.data())
def test_every_message_is_the_row_that_google_reads(text: str, data: st.DataObject) -> None:
    made, values = drawn(text, data)
    rows, faults = decoded(text, values)
    assert not faults
    for i, value in enumerate(values):
        assert same(rows[i], shown(made.FromString(value)))


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(TEXTS, st.data())
def test_messages_one_after_the_other_merge(text: str, data: st.DataObject) -> None:
    made, values = drawn(text, data)
    joined = [value + other for value, other in pairwise(values)]
    rows, faults = decoded(text, joined)
    assert all("a oneof that is set twice, over a list" in reason for reason in faults.values())
    for i, row in rows.items():
        assert same(row, shown(made.FromString(joined[i])))


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(TEXTS, st.data())
def test_a_byte_that_is_wrong_is_a_fault_or_what_google_reads(
    text: str, data: st.DataObject
) -> None:
    made, values = drawn(text, data)
    damaged = [_damaged(value, data) for value in values]
    rows, faults = decoded(text, damaged)
    assert sorted([*rows, *faults]) == list(range(len(damaged)))
    for i, row in rows.items():
        expected = made.FromString(damaged[i])
        assert same(row, shown(expected)) or is_odd(expected)


def _damaged(value: bytes, data: st.DataObject) -> bytes:
    if not value:
        return data.draw(st.binary(max_size=8))
    at = data.draw(st.integers(0, len(value) - 1))
    match data.draw(st.integers(0, 2)):
        case 0:
            return value[:at]
        case 1:
            return value[:at] + data.draw(st.binary(min_size=1, max_size=4)) + value[at + 1 :]
    return value[:at] + bytes([value[at] ^ 1 << data.draw(st.integers(0, 7))]) + value[at + 1 :]
