"""Values that are written as encoders mostly do are read in one pass: the same cells and faults
come of it as in the general way, whatever a byte of them is changed to.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.tables.values.cells import Cells
from lakehead.lake.tables.values.json_program import compile_json

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int8()),
        pa.field("price", pa.float64()),
        pa.field("exact", pa.decimal128(9, 2)),
        pa.field("is_paid", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("größe", pa.string()),
    ]
)
PROGRAM = compile_json(SCHEMA)
VALUES: dict[str, Any] = {
    "id": st.integers(-(1 << 63), (1 << 63) - 1),
    "small": st.integers(-130, 130),
    "price": st.floats(allow_nan=False, allow_infinity=False),
    "exact": st.sampled_from(["1.25", 7, 0.5, "x"]),
    "is_paid": st.booleans(),
    "name": st.text(max_size=12),
    "größe": st.text('aé"\\\n€😀', max_size=12),
}
ODD = b'{}[]",:\\ \n\x00\x1f09-+.eEtfnul\x80\xc3\xff'


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """A value, in one of some ways to write it, perhaps with a byte changed, added or removed."""
    names = draw(st.permutations(list(VALUES))) if draw(st.integers(0, 5)) == 0 else list(VALUES)
    taken = [name for name in names if draw(st.integers(0, 4))]
    value = {name: draw(st.none() | VALUES[name]) for name in taken}
    if draw(st.integers(0, 9)) == 0:
        value["other"] = draw(st.sampled_from([1, {"a": []}, "x"]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : "), (",  ", ":\t")]))
    text = json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans())).encode()
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(text) - 1))
        odd = bytes([draw(st.sampled_from(ODD))])
        cut = draw(st.integers(0, 1))
        text = text[:at] + (odd if draw(st.booleans()) else b"") + text[at + cut :]
    return text


@given(st.lists(written(), max_size=60))
def test_one_pass_and_the_general_way_read_the_same(texts: list[bytes]) -> None:
    data = np.frombuffer(b"".join(texts) + bytes(8), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = ends - np.array([len(text) for text in texts], np.int64)
    found = []
    for program in (PROGRAM, replace(PROGRAM, is_flat=False)):
        cells = Cells(program.domains, program.domain_count, len(texts))
        codes, more = program.read(data, starts, ends, cells)
        slots = [cells.slot(slot) for slot in range(len(program.domains))]
        # Where a cell holds nothing, its number means nothing.
        numbers = [np.where(valid != 0, values, 0).tolist() for values, valid in slots]
        found.append((codes.tolist(), more.tolist(), numbers))
    assert PROGRAM.is_flat
    assert found[0] == found[1]


def test_rows_of_encoders_are_plain_and_others_are_met_between_them() -> None:
    plain = [json.dumps({"id": n, "name": f"n{n}", "price": n / 3}).encode() for n in range(100)]
    texts = [text if n % 7 else b'{"id": 1, "name": "a\\nb"}' for n, text in enumerate(plain)]
    texts[50] = b'{"id": }'
    data = np.frombuffer(b"".join(texts) + bytes(8), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = ends - np.array([len(text) for text in texts], np.int64)
    cells = Cells(PROGRAM.domains, PROGRAM.domain_count, len(texts))
    codes, _ = PROGRAM.read(data, starts, ends, cells)
    assert np.flatnonzero(codes).tolist() == [50]
    values, valid = cells.slot(0)
    assert values.tolist() == [n if n % 7 else 1 for n in range(100) if n != 50]
    assert valid.all()
