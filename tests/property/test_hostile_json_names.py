"""JSON records with names and types that no table can hold beside plain ones: each record is a row
with all of its fields or a fault with a reason, and decides over itself alone.
"""

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.declaration.table_declaration import ValueLayout
from lakehead.lake.tables.layout import new_layout
from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.lake.tables.values.json_inference import infer_schema
from lakehead.lake.tables.values.json_values import JsonValues
from tests.support.decoded_batches import batch_of

FIRST = {"a": 1, "b": "x", "c": {"x": 1}}
"""What the table was made from."""
PLAIN = st.fixed_dictionaries(
    {"a": st.integers(-5, 5)},
    optional={
        "b": st.text(max_size=3),
        "c": st.fixed_dictionaries({"x": st.integers(0, 3)}, optional={"y": st.text(max_size=2)}),
        "d": st.floats(-2, 2).map(lambda number: number + 0.5),
        "f": st.booleans(),
        "g": st.lists(st.integers(0, 9), min_size=1, max_size=2),
        "h": st.fixed_dictionaries({"deep": st.fixed_dictionaries({"z": st.integers(0, 3)})}),
    },
)
"""Fields of one type each: d to h and c.y are new to the table."""
HOSTILE = st.sampled_from(
    [
        {"A": 1},
        {"a": 7, "A": 1},
        {"": 1},
        {"p.q": 1, "r s": 2, "t,u": 3},
        {"x{": 1},
        {"new=": None},
        {"c": {"x": 1, "X": 2}},
        {"c": {"X": 2}},
        {"c": {"": 1}},
        {"a": "text"},
        {"b": {"x": 1}},
        {"c": [1]},
        {"l": [1, "s"]},
        {"m": [{"k": 1}, {"K": 2}]},
    ]
)
"""Each of them alone is more than the table can hold, whatever else there is."""
HARMLESS = st.sampled_from([{}, {"e": {}}, {"a": None}, {"a": 1, "e": {"o": {}}}])


def follow(values: list[bytes]) -> tuple[Any, Any]:
    """What becomes of values, and the schema of the table once it has followed them."""
    decoder = JsonValues(ValueSpec(value_format="json"))
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    schema = infer_schema([json.dumps(FIRST).encode()])
    for _ in range(20):
        decoded = decoder.decode(batch, schema)
        if decoded.found is None:
            return decoded, schema
        assert decoded.found != schema, "an evolution that changes nothing"
        schema = decoded.found
    raise AssertionError("the schema never ends to change")


def holds(value: Any, kept: Any) -> bool:
    """Return true if what a table has kept is the whole value; reference, written apart."""
    if isinstance(value, dict):
        fields = {name: inner for name, inner in value.items() if not is_nothing(inner)}
        kept = kept or {}
        return all(name in kept and holds(inner, kept[name]) for name, inner in fields.items())
    if isinstance(value, list):
        return len(value) == len(kept) and all(map(holds, value, kept))
    return bool(value == kept)


def is_nothing(value: Any) -> bool:
    """Return true if a value says nothing that a column could hold."""
    return value is None or (isinstance(value, dict) and all(map(is_nothing, value.values())))


@given(
    st.lists(
        st.one_of(
            PLAIN.map(lambda value: ("plain", value)),
            HOSTILE.map(lambda value: ("hostile", value)),
            HARMLESS.map(lambda value: ("harmless", value)),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_record_decides_over_itself_alone(world: list[tuple[str, dict[str, Any]]]) -> None:
    decoded, _ = follow([json.dumps(value).encode() for _, value in world])
    faults = {fault.row: fault for fault in decoded.faults}
    rows = decoded.rows.to_pylist()
    assert sorted([*rows, *faults]) == list(range(len(world)))
    kept = dict(zip(rows, decoded.columns.to_pylist(), strict=True))
    for number, (kind, value) in enumerate(world):
        assert (number in faults) == (kind == "hostile"), (number, value, faults.get(number))
        if kind == "hostile":
            assert faults[number].reason
        else:
            assert holds(value, kept[number]), (value, kept[number])


MADE = st.sampled_from([{"_offset": 1}, {"a": 1, "_KEY": None}, {"_date": "x", "new": 1}])
"""Fields with a name of a column that the table makes, or that another table would make."""


@given(
    st.lists(st.one_of(PLAIN, HOSTILE, HARMLESS, MADE, st.none()), min_size=1, max_size=12),
    st.sampled_from(["flat", "nested"]),
)
def test_what_is_set_aside_of_a_batch_is_what_is_set_aside_of_each_record_alone(
    world: list[dict[str, Any] | None], kind: ValueLayout
) -> None:
    """Under a table whose schema may not change: faults, rows and counts."""
    spec = ValueSpec(value_format="json")
    schema = infer_schema([json.dumps(FIRST).encode()])
    layout = new_layout(spec, schema, value_layout=kind)
    decoder = open_decoder(spec)
    batch = batch_of([None if value is None else json.dumps(value).encode() for value in world])
    whole = layout.table_rows(batch, decoder, new_schema_is_fault=True)
    alone = [
        layout.table_rows(batch.slice(row, 1), decoder, new_schema_is_fault=True)
        for row in range(len(world))
    ]
    assert whole.found is None
    assert whole.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]
    assert whole.left_out == sum(one.left_out for one in alone)
    faults = [replace(f, row=row) for row, one in enumerate(alone) for f in one.faults]
    assert list(whole.faults) == faults


def test_what_is_odd_is_found_behind_a_thousand_values_that_stay_richer() -> None:
    values = [b'{"e":{}}'] * 1500 + [b'{"n":1}', b'{"r s":1}']
    decoded, schema = follow(values)
    assert "n" in schema.names
    assert [fault.row for fault in decoded.faults] == [1501]
    assert "'r s'" in decoded.faults[0].reason
