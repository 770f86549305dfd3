"""JSON values: objects whose fields are columns of a declared or inferred schema.

With a registry values are framed as Confluent's JSON serializer does; the id goes into faults, and
the JSON Schema behind it is not asked for: columns come from the declaration or the values.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from lake.tables.ddl import check_names, parse_schema, type_name
from lake.tables.json_columns import JsonColumns, json_columns
from lake.tables.json_inference import infer_schema
from lake.tables.values.decoder import Decoded, Fault, ValueSpec
from lake.tables.values.evolution import extended
from lake.tables.values.framing import places, schema_ids, unframed
from lake.tables.values.groups import int64_array
from storage.errors import SettingsError

_LOOKED_AT = 1000
"""Values of a batch, of those with fields which the schema lacks, that say what these are."""


class JsonValues:
    """One JSON object for each value."""

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
        values = batch.column("value")
        if self._is_framed:
            found = places(values)
            values = unframed(found, np.flatnonzero(schema_ids(found) >= 0))
        return infer_schema(values.to_pylist())

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
        if self._is_framed:
            return self._decode_framed(batch, schema)
        values = batch.column("value")
        parsed = json_columns(values, schema)
        faults = tuple(
            Fault(row=row, reason=reason, error="misfit" if row in parsed.misfits else "malformed")
            for row, reason in parsed.faults
        )
        found = _more_fields(values, parsed, schema) if self._declared is None else None
        return Decoded(columns=parsed.columns, rows=parsed.rows, faults=faults, found=found)

    def _decode_framed(self, batch: pa.RecordBatch, schema: Any) -> Decoded:
        values = batch.column("value")
        found = places(values)
        ids = schema_ids(found)
        rows = np.flatnonzero((ids >= 0) | np.asarray(values.is_null()))
        bare = Fault(row=0, reason="the value has no schema id in front", error="unframed")
        faults = [
            Fault(row=row, reason=bare.reason, error=bare.error)
            for row in np.setdiff1d(np.arange(len(values)), rows).tolist()
        ]
        chosen = unframed(found, rows)
        parsed = json_columns(chosen, schema)
        for i, reason in parsed.faults:
            row = int(rows[i])
            error = "misfit" if i in parsed.misfits else "malformed"
            faults.append(
                Fault(row=row, reason=reason, error=error, schema_id=int(ids[row]))  # type: ignore[arg-type]
            )
        return Decoded(
            columns=parsed.columns,
            rows=int64_array(rows[np.asarray(parsed.rows, np.int64)]),
            faults=tuple(sorted(faults, key=lambda fault: fault.row)),
            found=_more_fields(chosen, parsed, schema) if self._declared is None else None,
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
