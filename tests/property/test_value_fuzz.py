"""Damaged values in every format: never a crash, never a row that moved, always a fault or a row.

Each value is decoded among others that lie right behind it in memory, the rest of itself among
them, and then alone: if a decoder looked beyond a value's end, or left something of one value in
the next, the two would differ. `make bounds` runs this with kernels that check every index.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.values.decoder import Decoded, ValueDecoder
from lakehead.lake.tables.values.formats import open_decoder
from tests.support.repetitions import examples
from tests.support.schema_registry import serve_schemas
from tests.support.value_samples import Sample, samples

FORMATS = (
    *("raw", "json", "json variants", "json variant", "json texts", "json by id"),
    *("avro", "avro by id", "protobuf", "protobuf by id"),
    *("debezium", "debezium with schema", "debezium by id", "debezium json by id"),
)
KEY = json.dumps({"id": 1}).encode()
EXAMPLES = 15


class Opened:
    """A decoder, its table's columns, and what it makes of its sample."""

    def __init__(self, sample: Sample) -> None:
        self.values = sample.values
        self.decoder: ValueDecoder = open_decoder(sample.spec)
        self.is_debezium = sample.spec.value_format == "debezium"
        self.keys = None if sample.spec.registry else KEY
        self.columns = self.decoder.schema_of(self.batch(self.values))

    def batch(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        keys = pa.array([self.keys] * len(values), pa.binary())
        arrays = [keys, pa.array(values, pa.binary())]
        return pa.RecordBatch.from_arrays(arrays, names=["key", "value"])

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        found = self.decoder.decode(self.batch(values), self.columns)
        for column in found.columns.columns:
            column.validate(full=True)
        return found


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[str, Opened]]:
    with serve_schemas() as (url, schemas):
        yield {name: Opened(sample) for name, sample in samples(url, schemas).items()}


def told(found: Decoded) -> dict[int, list[Any]]:
    """What became of each value: its rows, or why it is none."""
    result: dict[int, list[Any]] = {}
    columns = found.columns.combine_chunks().columns
    for i, row in enumerate(found.rows.to_pylist()):
        text = [c.slice(i, 1).to_string(window=999, container_window=999) for c in columns]
        result.setdefault(row, []).append(text)
    for fault in found.faults:
        assert fault.row not in result, "a value is a row or a fault"
        result[fault.row] = [(fault.reason, fault.error, fault.schema_id)]
    return result


def same(case: Opened, left: Any, right: Any) -> bool:
    """Return true if the same became of a value. Where the schema lies beside the payload, a
    position in a reason is that in the payload or in the value.
    """
    if case.is_debezium and left and right and isinstance(left[0], tuple):
        return isinstance(right[0], tuple)
    return bool(left == right)


BYTES = st.binary(max_size=4) | st.sampled_from([b"\xff" * 11, b"\x80", b"\x00", b'"', b"}", b"\\"])


@st.composite
def damaged(draw: st.DrawFn, values: Sequence[bytes]) -> list[bytes | None]:
    """Values with something wrong, each with what was cut off right behind it."""
    block: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 4))):
        value = draw(st.sampled_from(values))
        at = draw(st.integers(0, len(value)))
        match draw(st.integers(0, 6)):
            case 0:
                block += [value[:at], value[at:]]
            case 1:
                block.append(value[:at] + draw(BYTES) + value[at:])
            case 2:
                block.append(value[:at] + draw(BYTES) + value[at + 1 :])
            case 3:
                other = draw(st.sampled_from(values))
                block.append(value[:at] + other[draw(st.integers(0, len(other))) :])
            case 4:
                block += [draw(st.binary(max_size=40)), None, value]
            case 5:
                flipped = bytearray(value)
                flipped[min(at, len(value) - 1)] ^= 1 << draw(st.integers(0, 7))
                block.append(bytes(flipped))
            case _:
                block += [value, value[:at]]
    return block


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(data=st.data())
def test_a_damaged_value_is_a_fault_or_a_row_of_its_own(
    opened: dict[str, Opened], name: str, data: st.DataObject
) -> None:
    case = opened[name]
    block = data.draw(damaged(case.values))
    found = case.decode(block)
    among = told(found)
    assert found.rows.to_pylist() == sorted(found.rows.to_pylist())
    if not case.is_debezium:
        assert sorted(among) == list(range(len(block)))
        assert len(found.rows) + len(found.faults) == len(block)
    for row, value in enumerate(block):
        alone = told(case.decode([value]))
        assert same(case, among.get(row), alone.get(0)), (value, among.get(row), alone.get(0))
        if case.is_debezium and value is not None:
            assert row in among or b'"m"' in value or b"\x02m" in value


@pytest.mark.parametrize("name", FORMATS)
def test_a_value_that_is_cut_anywhere_does_not_read_the_rest_of_itself(
    opened: dict[str, Opened], name: str
) -> None:
    case = opened[name]
    value = max(case.values[:4], key=len)
    cuts = range(1, len(value), max(1, len(value) // 60))
    block = [part for at in cuts for part in (value[:at], value[at:])]
    among = told(case.decode(block))
    for row in range(0, len(block), 2):
        assert same(case, among.get(row), told(case.decode([block[row]])).get(0)), block[row]


@pytest.mark.parametrize("name", FORMATS)
def test_no_value_of_a_sample_is_a_fault(opened: dict[str, Opened], name: str) -> None:
    case = opened[name]
    found = case.decode(case.values)
    assert found.faults == ()
    assert set(found.rows.to_pylist()) == set(range(len(case.values)))
