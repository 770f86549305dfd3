"""Instants in text are read as Arrow reads them, and texts become the columns that they were."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from lakehead.lake.tables.ddl import TIMESTAMP
from lakehead.lake.tables.values.cells import NOTHING, SIDE, SIZE_BITS
from lakehead.lake.tables.values.json_values import json_columns
from lakehead.lake.tables.values.text_kernels import gather_texts, read_instants

NUMBERS = st.integers(0, 99)
INSTANTS = st.builds(
    "{:04}-{:02}-{:02}{}{:02}:{:02}:{:02}{}{}".format,
    st.integers(0, 9999),
    st.integers(0, 13),
    st.integers(0, 32),
    st.sampled_from("T t"),
    st.integers(0, 25),
    st.integers(0, 61),
    st.integers(0, 61),
    st.sampled_from(["", ".", ".5", ".123456", ".000001", ".1234567", ",5", ".x"]),
    st.sampled_from(["Z", "", "z", "+01:00", "Z ", "ZZ"]),
)
REAL = st.datetimes().map(lambda at: f"{at.isoformat()}Z")


def cells_of(texts: list[bytes | None]) -> tuple[Any, Any, Any]:
    """The bytes of texts, their places, and which of them are there."""
    data, cells = bytearray(), []
    for one in texts:
        cells.append(len(data) << SIZE_BITS | len(one or b""))
        data += one or b""
    valid = np.array([one is not None for one in texts], np.uint8)
    return np.frombuffer(bytes(data) + bytes(1), np.uint8), np.array(cells, np.int64), valid


@given(INSTANTS | REAL)
@example("2024-02-29T23:59:59.999999Z")
@example("2023-02-29T00:00:00Z")
@example("1900-02-29 00:00:00")
@example("0001-01-01T00:00:00Z")
@example("9999-12-31 23:59:59.999999")
def test_an_instant_is_read_as_arrow_does_or_left_to_it(text: str) -> None:
    data, cells, valid = cells_of([text.encode()])
    found = read_instants(data, NOTHING, cells, valid)
    if found is None:
        return
    plain = text.removesuffix("Z")
    expected = pa.array([plain]).cast(pa.timestamp("us")).cast(pa.int64())
    assert found.tolist() == expected.to_pylist()


@given(st.lists(st.none() | REAL, min_size=1))
def test_instants_of_the_calendar_are_not_left_to_arrow(texts: list[str | None]) -> None:
    held = [one if one is None else one.encode() for one in texts]
    for side in (False, True):
        data, cells, valid = cells_of(held)
        values, beside = (NOTHING, data) if side else (data, NOTHING)
        found = read_instants(values, beside, cells + SIDE * side, valid)
        assert found is not None
        expected = pa.array([one and one[:-1] for one in texts], pa.string())
        micros = expected.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        assert [n if v else None for n, v in zip(found.tolist(), valid, strict=True)] == micros


@given(st.lists(INSTANTS | REAL, min_size=1, max_size=5))
def test_a_column_of_instants_is_that_of_each_value_alone(texts: list[str]) -> None:
    schema = pa.schema([("at", TIMESTAMP)])
    values = [json.dumps({"at": one}).encode() for one in texts]
    together = json_columns(pa.array(values, pa.binary()), schema)
    alone = [json_columns(pa.array([one], pa.binary()), schema) for one in values]
    assert together.columns.to_pylist() == [row for one in alone for row in one.columns.to_pylist()]
    assert [n for n, one in enumerate(alone) if one.faults] == [n for n, _ in together.faults]


@given(st.lists(st.none() | st.tuples(st.binary(max_size=9), st.booleans())))
def test_texts_of_both_buffers_become_the_column_that_they_were(
    texts: list[tuple[bytes, bool] | None],
) -> None:
    held = [one and one[0] for one in texts]
    data, cells, valid = cells_of(held)
    beside = np.array([one is not None and one[1] for one in texts], np.bool_)
    side = np.frombuffer(data.tobytes(), np.uint8)
    validity, offsets, found = gather_texts(data, side, cells + beside * SIDE, valid)
    buffers = [validity if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets)]
    array = pa.Array.from_buffers(pa.binary(), len(texts), [*buffers, pa.py_buffer(found)])
    array.validate(full=True)
    assert array.to_pylist() == held
