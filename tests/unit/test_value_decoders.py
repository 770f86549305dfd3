"""The decoders of raw and JSON values behind the one seam."""

import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import parse_schema, to_ddl
from lakehead.lake.tables.values.decoder import NO_SCHEMA, ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.errors import SettingsError


def batch(*values: bytes | None) -> pa.RecordBatch:
    columns = [pa.array([None] * len(values), pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def test_raw_values_are_left_as_they_are() -> None:
    decoder = open_decoder(ValueSpec())
    sample = batch(b"\x00", None, b"")
    decoded = decoder.decode(sample, decoder.schema_of(sample))
    assert decoded.columns.to_pydict() == {"value": [b"\x00", None, b""]}
    assert decoded.rows.to_pylist() == [0, 1, 2]
    assert decoded.faults == ()


def test_json_values_tell_what_is_malformed_from_what_does_not_fit() -> None:
    decoder = open_decoder(ValueSpec(value_format="json"))
    sample = batch(b'{"a":1}', b"{", None, b'{"a":"x"}', b'{"a":2}')
    decoded = decoder.decode(sample, parse_schema("a BIGINT"))
    assert decoded.columns.to_pydict() == {"a": [1, None, 2]}
    assert decoded.rows.to_pylist() == [0, 2, 4]
    assert [(fault.row, fault.error) for fault in decoded.faults] == [
        (1, "malformed"),
        (3, "misfit"),
    ]
    assert all(fault.schema_id == NO_SCHEMA for fault in decoded.faults)


def test_the_schema_of_json_values_is_declared_or_inferred() -> None:
    sample = batch(b'{"a":1,"b":[true]}')
    declared = open_decoder(ValueSpec(value_format="json", schema="a DOUBLE"))
    assert declared.schema_of(sample) == parse_schema("a DOUBLE")
    inferred = open_decoder(ValueSpec(value_format="json"))
    assert inferred.schema_of(sample) == parse_schema("a BIGINT, b ARRAY<BOOLEAN>")


@pytest.mark.parametrize("schema", ["a BINARY", "a ARRAY<STRUCT<b: MAP<STRING, INT>>>"])
def test_json_has_no_bytes_and_no_maps(schema: str) -> None:
    assert to_ddl(parse_schema(schema)) == schema
    with pytest.raises(SettingsError, match="column a cannot be"):
        open_decoder(ValueSpec(value_format="json", schema=schema))


def test_a_declaration_that_cannot_work_is_refused() -> None:
    with pytest.raises(SettingsError, match="cannot read the schema"):
        open_decoder(ValueSpec(value_format="json", schema="a BIGINT,"))


def test_json_values_have_fields_that_the_table_lacks() -> None:
    sample = batch(b'{"a":1}', b'{"a":2,"b":{"c":true},"d":null}')
    inferred = open_decoder(ValueSpec(value_format="json")).decode(sample, parse_schema("a DOUBLE"))
    assert inferred.columns.to_pydict() == {"a": [1.0, 2.0]}
    assert inferred.found == parse_schema("a DOUBLE, b STRUCT<c: BOOLEAN>, d STRING")
    declared = ValueSpec(value_format="json", schema="a DOUBLE")
    assert open_decoder(declared).decode(sample, parse_schema("a DOUBLE")).found is None


def test_json_values_framed_by_confluents_serializer() -> None:
    # No registry answers there: columns that are declared need none.
    spec = ValueSpec(value_format="json", registry="http://127.0.0.1:1", schema="a BIGINT")
    decoder = open_decoder(spec)
    frame = b"\x00\x00\x00\x00\x07"
    sample = batch(frame + b'{"a":1}', None, b'{"a":2}', frame + b"{", frame + b'{"a":"x"}')
    schema = parse_schema("a BIGINT")
    assert decoder.schema_of(batch(frame + b'{"a":1}')) == schema
    found = decoder.decode(sample, schema)
    assert found.columns.to_pydict() == {"a": [1, None]}
    assert found.rows.to_pylist() == [0, 1]
    assert [(fault.row, fault.error, fault.schema_id) for fault in found.faults] == [
        (2, "unframed", -1),
        (3, "malformed", 7),
        (4, "misfit", 7),
    ]
