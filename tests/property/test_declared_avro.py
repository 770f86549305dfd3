"""Avro schemas of declarations: the lake reads values of each one that a node takes."""

import copy
import json
from typing import Any

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from lakehead.lake.declaration.avro_types import AvroSchema, is_null, is_record
from lakehead.lake.declaration.table_declaration import check_declaration
from lakehead.lake.tables.values.avro import avro_columns, compile_avro, read_schema
from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.errors import SettingsError
from tests.support.avro_values import records
from tests.support.repetitions import examples

ODD: tuple[Any, ...] = (
    *("strin", "int", "R1", "R1.x", "", "null", None, 0, -1, 2.5, 1 << 40, True, [], {}),
    *({"type": "array"}, {"type": "fixed", "name": "F1", "size": 0}, ["int", "int"], "decimal"),
    *({"type": "enum", "name": "E9"}, {"type": {"type": "int"}}, [["int"]], "f1", "F1", "\\udc00"),
    *(["null", "string", "R1"], {"type": "long", "logicalType": []}, ["double", "float"], "date"),
    *({"type": "fixed", "name": "F8", "size": 4, "logicalType": "uuid"}, ["int", "null"]),
)
"""In place of any part of a schema: a type, a name, a size, a default."""
ATTRIBUTES = ("default", "precision", "scale", "size", "name", "items", "aliases", "logicalType")


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every list and object in a schema with an index of each of its parts."""
    found: list[tuple[Any, Any]] = []
    parts = node.items() if isinstance(node, dict) else enumerate(node)
    for key, part in list(parts):
        found.append((node, key))
        if isinstance(part, dict | list):
            found += places(part)
    return found


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    schema, _ = draw(records([0]))
    schema = json.loads(json.dumps(schema))
    for _ in range(draw(st.integers(0, 3))):
        odd = copy.deepcopy(draw(st.sampled_from(ODD)))
        node, key = draw(st.sampled_from(places([schema])[1:] or [(schema, "name")]))
        match draw(st.integers(0, 3)):
            case 0:
                del node[key]
            case 1:
                node[key] = odd
            case 2 if isinstance(node, dict):
                node[draw(st.sampled_from(ATTRIBUTES))] = odd
            case _ if isinstance(node, list):
                node.append(copy.deepcopy(node[key]))
    return json.loads(json.dumps(schema))


def datum(schema: AvroSchema, node: Any) -> bytes:
    """A value of a type in Avro's binary form: zeros, one item each, the last branch of a union.

    Raises LookupError for a type that has no value.
    """
    if isinstance(node, list):
        last = datum(schema, node[-1])
        return bytes((2 * len(node) - 2,)) + last
    node = schema.resolve(node)
    if is_record(node):
        return b"".join(datum(schema, field["type"]) for field in node["fields"])
    match node["type"]:
        case "array":
            return b"\x02" + datum(schema, node["items"]) + b"\0"
        case "map":
            return b"\x02\x02k" + datum(schema, node["values"]) + b"\0"
        case "fixed":
            return bytes(node["size"])
        case "bytes":
            return b"\x02\0"
        case "enum":
            first = node["symbols"].index(node["symbols"][0])
            return bytes((first,))
        case "float" | "double":
            return bytes(4 if node["type"] == "float" else 8)
    return b"" if is_null(node) else b"\0"


def values(schema: AvroSchema) -> list[bytes | None]:
    """Null, and a value if there is one: an enum may have no symbols, a union no branches."""
    try:
        return [None, datum(schema, schema.root)]
    except LookupError:
        return [None]


@settings(max_examples=examples(400), deadline=None)
@given(schemas())
def test_the_lake_reads_each_schema_that_a_declaration_may_have(schema: Any) -> None:
    text = json.dumps(schema)
    configs = {"lakehead.table.value.format": "avro", "lakehead.table.schema": text}
    try:
        check_declaration(configs)
    except SettingsError:
        event("refused")
        return
    event("taken")
    parsed = read_schema(text)
    datums = values(parsed)
    decoder = open_decoder(ValueSpec(value_format="avro", schema=text))
    arrays = [pa.nulls(len(datums), pa.binary()), pa.array(datums, pa.binary())]
    batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
    found = decoder.decode(batch, decoder.schema_of(batch))
    assert found.faults == ()
    assert len(found.rows) == len(datums)
    # As the reader's schema, where the writer's has none of its fields: defaults are columns.
    nothing = read_schema(json.dumps({"type": "record", "name": "Nothing", "fields": []}))
    compile_avro(nothing, avro_columns(parsed), parsed)
