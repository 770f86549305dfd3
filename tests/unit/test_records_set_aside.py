"""Records that cannot be rows beside a table are found in two passes over a batch, however many
they are: a topic of a million of them is read at the pace of other topics.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from lakehead.lake.declaration.table_declaration import ValueLayout
from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.layout import TableLayout, new_layout
from lakehead.lake.tables.values.changes import CHANGE_FIELDS
from lakehead.lake.tables.values.decoder import Decoded, ValueDecoder, ValueFormat, ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from tests.support.decoded_batches import batch_of

COUNT = 3000
PASSES = 2


class Counted:
    """A decoder that counts its passes."""

    def __init__(self, decoder: ValueDecoder) -> None:
        self.passes = 0
        self._decoder = decoder

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        return self._decoder.schema_of(batch)

    def decode(
        self, batch: pa.RecordBatch, schema: Any, *, fault_count_max: int | None = None
    ) -> Decoded:
        self.passes += 1
        return self._decoder.decode(batch, schema, fault_count_max=fault_count_max)


def table(
    layout: ValueLayout = "flat", value_format: ValueFormat = "json"
) -> tuple[TableLayout, Counted]:
    spec = ValueSpec(value_format=value_format)
    columns = parse_schema("id int")
    if value_format == "debezium":
        columns = pa.schema([*columns, *CHANGE_FIELDS])
    return new_layout(spec, columns, value_layout=layout), Counted(open_decoder(spec))


def values_of(kinds: list[dict[str, Any]]) -> list[bytes | None]:
    return [json.dumps({"id": n} | kinds[n % len(kinds)]).encode() for n in range(COUNT)]


@pytest.mark.parametrize("layout", ["flat", "nested"])
@pytest.mark.parametrize("kinds", [[{"more": 1}], [{}, {"more": 1}, {"other": "x", "more": 2}]])
def test_all_records_with_fields_that_the_table_lacks_are_found_in_two_passes(
    kinds: list[dict[str, Any]], layout: ValueLayout
) -> None:
    made, decoder = table(layout)
    found = made.table_rows(batch_of(values_of(kinds)), decoder, new_schema_is_fault=True)
    assert decoder.passes <= PASSES
    assert found.found is None
    faulty = [n for n in range(COUNT) if kinds[n % len(kinds)]]
    assert [fault.row for fault in found.faults] == faulty
    for fault in found.faults:
        fields = fault.reason.removeprefix("fields that the table does not have: ").split(", ")
        assert sorted(fields) == sorted(kinds[fault.row % len(kinds)])
    rows = [n for n in range(COUNT) if n not in set(faulty)]
    assert found.rows.column("_offset").to_pylist() == rows
    assert found.left_out == 0


@pytest.mark.parametrize("value", [1, None])
def test_all_records_with_a_metadata_columns_name_are_found_in_two_passes(value: Any) -> None:
    made, decoder = table()
    kinds = [{"_offset": value}, {}, {"_Key": "k"}]
    found = made.table_rows(batch_of(values_of(kinds)), decoder)
    assert decoder.passes <= PASSES
    assert found.found is None
    reasons = [(fault.row, fault.reason.split(":")[0]) for fault in found.faults]
    names = {0: "field _offset", 2: "field _Key"}
    assert reasons == [(n, names[n % 3]) for n in range(COUNT) if n % 3 in names]
    assert found.rows.column("_offset").to_pylist() == list(range(1, COUNT, 3))


def test_a_new_field_behind_many_records_that_are_set_aside_is_found() -> None:
    """A look at the first of the records with more fields sees none that becomes a column."""
    made, decoder = table()
    values: Sequence[bytes | None] = [b'{"id": 1, "_offset": 2}'] * COUNT + [b'{"id": 3, "new": 4}']
    found = made.table_rows(batch_of(values), decoder)
    assert found.found is not None
    assert found.found.names == ["id", "new"]
    after = made.with_value_schema(found.found).table_rows(batch_of(values), decoder)
    assert after.rows.column("new").to_pylist() == [4]
    assert len(after.faults) == COUNT


def test_an_odd_record_behind_many_that_are_set_aside_is_a_fault_too() -> None:
    made, decoder = table()
    values: Sequence[bytes | None] = [b'{"id": 1, "_offset": 2}'] * COUNT + [b'{"id": 3, "ID": 4}']
    for is_strict in (False, True):
        found = made.table_rows(batch_of(values), decoder, new_schema_is_fault=is_strict)
        assert len(found.faults) == COUNT + 1
        assert "ID" in found.faults[-1].reason
        assert (found.rows.num_rows, found.left_out) == (0, 0)


def test_a_record_that_no_table_could_hold_keeps_its_own_reason() -> None:
    made, decoder = table()
    values: Sequence[bytes | None] = [
        b'{"id": 1, "more": 2}',
        b'{"id": 3, "ID": 4}',
        b'{"id": "text"}',
        b"{",
        b'{"id": 1, "_offset": 2, "more": 3}',
        b'{"id": 5}',
        None,
    ]
    found = made.table_rows(batch_of(values), decoder, new_schema_is_fault=True)
    assert [fault.row for fault in found.faults] == [0, 1, 2, 3, 4]
    reasons = [fault.reason for fault in found.faults]
    assert reasons[0] == "fields that the table does not have: more"
    assert "ID" in reasons[1]
    assert reasons[2].startswith("field id: ")
    assert "malformed" in reasons[3]
    assert reasons[4] == "field _offset: the name of a metadata column"
    assert found.rows.column("_offset").to_pylist() == [5, 6]


def test_the_reason_names_the_path_of_a_field_inside_another() -> None:
    spec = ValueSpec(value_format="json")
    made = new_layout(spec, parse_schema("id int, at struct<x:int>"))
    batch = batch_of([b'{"id": 1, "at": {"x": 1, "y": 2}}'])
    found = made.table_rows(batch, open_decoder(spec), new_schema_is_fault=True)
    assert [fault.reason for fault in found.faults] == ["fields that the table does not have: at.y"]


def event(op: str, row: dict[str, Any], types: dict[str, str]) -> bytes:
    fields = [{"type": kind, "optional": True, "field": name} for name, kind in types.items()]
    image = {"type": "struct", "fields": fields, "optional": True}
    envelope = [{**image, "field": "before"}, {**image, "field": "after"}]
    images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return json.dumps(
        {
            "schema": {"type": "struct", "fields": envelope},
            "payload": {"op": op, "ts_ms": 5, **images},
        }
    ).encode()


def test_all_change_events_with_a_schema_that_the_table_lacks_are_found_in_two_passes() -> None:
    """Beside tombstones, which are no rows, and events whose schema the table has."""
    made, decoder = table(value_format="debezium")
    values: list[bytes | None] = []
    for n in range(0, COUNT, 6):
        values += [
            event("c", {"id": n}, {"id": "int32"}),
            event("u", {"id": n, "more": 1}, {"id": "int32", "more": "int32"}),
            None,
            event("c", {"id": n}, {"id": "int64"}),
            event("d", {"id": n, "_offset": 1}, {"id": "int32", "_offset": "int32"}),
            event("d", {"id": n}, {"id": "int32"}),
        ]
    found = made.table_rows(batch_of(values), decoder, new_schema_is_fault=True)
    assert decoder.passes <= PASSES
    assert found.found is None
    reasons = {
        1: "fields that the table does not have: more",
        3: "columns that would be wider: id from INT to BIGINT",
        4: "field _offset: the name of a metadata column",
    }
    told = [(fault.row, fault.reason) for fault in found.faults]
    assert told == [(n, reasons[n % 6]) for n in range(COUNT) if n % 6 in reasons]
    assert found.rows.column("_offset").to_pylist() == [n for n in range(COUNT) if n % 6 in (0, 5)]
    assert found.rows.column("_op").to_pylist() == ["c", "d"] * (COUNT // 6)
    loose = made.table_rows(batch_of(values), decoder)
    assert loose.found is not None
    assert loose.found.names == ["id", "more"]
