"""JSON values: objects whose fields are columns.

Columns come from the declaration (DDL), or from the values. With a registry values are framed as
Confluent's JSON serializer does; then, unless a schema was declared, columns come from the JSON
Schema behind each id.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from lake.tables.ddl import check_names, parse_schema, type_name
from lake.tables.json_columns import JsonColumns, placed_columns
from lake.tables.json_inference import infer_schema
from lake.tables.registry import RegisteredSchema, SchemaRegistry
from lake.tables.values.by_schema import Format, Place, ValuesBySchema, Writer, one_part
from lake.tables.values.decoder import (
    NO_SCHEMA,
    Decoded,
    Fault,
    MisfitSchema,
    ValueDecoder,
    ValueSpec,
)
from lake.tables.values.evolution import extended
from lake.tables.values.framing import FRAME_BYTES, Values, places, schema_ids
from lake.tables.values.groups import int64_array
from lake.tables.values.json_program import JsonProgram, compile_json, fitting_forms
from lake.tables.values.json_schema import read_json_schema
from storage.errors import SettingsError

_LOOKED_AT = 1000
"""Values of a batch, of those with fields which the schema lacks, that say what these are."""


def json_values(spec: ValueSpec, registry: SchemaRegistry | None) -> ValueDecoder:
    """Return the decoder of one JSON object for each value. Raises SettingsError."""
    if registry is None or spec.schema:
        return JsonValues(spec)

    return ValuesBySchema(Format(readers={"JSON": json_writer}, parts=one_part), registry, None)


def json_writer(registered: RegisteredSchema, _place: Place = ()) -> Writer:
    """Return the writer of a registered JSON Schema. Raises UnusableSchema."""
    others = {reference.name: reference.text for reference in registered.references}
    schema = read_json_schema(registered.text, others)

    def compiled(columns: Any) -> JsonProgram:
        try:
            return compile_json(columns, fitting_forms(schema.forms, columns))
        except SettingsError as error:
            raise MisfitSchema(str(error)) from None

    return Writer(columns=schema.columns, compiled=compiled)


class JsonValues:
    """One JSON object for each value, with columns that are declared or inferred."""

    def __init__(self, spec: ValueSpec) -> None:
        self._is_framed = bool(spec.registry)
        self._declared = parse_schema(spec.schema) if spec.schema else None
        for field in self._declared or ():
            if not _is_json(field.type):
                raise SettingsError(
                    f"column {field.name} cannot be {type_name(field.type)}: JSON has no BINARY, "
                    "and an object is a STRUCT"
                )

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return the declared schema, or one that every value of the sample fits."""
        if self._declared is not None:
            return self._declared
        return infer_schema(batch.column("value").to_pylist())

    def decode(
        self,
        batch: pa.RecordBatch,
        schema: Any,
        *,
        fault_count_max: int | None = None,  # noqa: ARG002 - a fault costs nothing
    ) -> Decoded:
        """Parse the values; fields that `schema` does not have are left out, and if no schema was
        declared they are `found`.
        """
        values = batch.column("value")
        found = places(values)
        ids = np.full(len(found), NO_SCHEMA, np.int64)
        faults: list[Fault] = []
        if self._is_framed:
            ids = schema_ids(found)
            reason = "the value has no schema id in front"
            bare = np.flatnonzero((ids < 0) & (found.starts >= 0)).tolist()
            faults += [Fault(row=row, reason=reason, error="unframed") for row in bare]
            rows = np.flatnonzero((ids >= 0) | (found.starts < 0))
            starts = np.where(found.starts < 0, -1, found.starts + FRAME_BYTES)
            found = Values(data=found.data, starts=starts[rows], ends=found.ends[rows])
        else:
            rows = np.arange(len(found))
        parsed = placed_columns(found, schema)
        for i, reason in parsed.faults:
            error = "misfit" if i in parsed.misfits else "malformed"
            row = int(rows[i])
            faults.append(
                Fault(row=row, reason=reason, error=error, schema_id=int(ids[row]))  # type: ignore[arg-type]
            )
        return Decoded(
            columns=parsed.columns,
            rows=int64_array(rows[np.asarray(parsed.rows, np.int64)]),
            faults=tuple(sorted(faults, key=lambda fault: fault.row)),
            found=_more_fields(values, parsed, schema) if self._declared is None else None,
        )


def _more_fields(values: Any, parsed: JsonColumns, schema: Any) -> Any:
    """The schema with the fields that values have beside it; None if there are none."""
    if not len(parsed.richer):
        return None
    try:
        seen = infer_schema(values.take(int64_array(parsed.richer[:_LOOKED_AT])).to_pylist())
        more = extended(schema, seen)
        check_names(more)
    except SettingsError:  # of two types, or odd names: nothing that a table could follow
        return None
    return None if more == schema else more


def _is_json(kind: Any) -> bool:
    if pa.types.is_list(kind):
        return _is_json(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    return not (pa.types.is_map(kind) or pa.types.is_binary(kind))
