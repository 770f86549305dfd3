"""JSON values: objects whose fields are columns of a declared or inferred schema."""

from typing import Any

import pyarrow as pa

from lake.tables.ddl import parse_schema, type_name
from lake.tables.json_columns import json_columns
from lake.tables.json_inference import infer_schema
from lake.tables.values.decoder import Decoded, Fault, ValueSpec
from storage.errors import SettingsError


class JsonValues:
    """One JSON object for each value."""

    def __init__(self, spec: ValueSpec) -> None:
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
        self, batch: pa.RecordBatch, schema: Any, *, fault_count_max: int | None = None
    ) -> Decoded:
        """Parse the values; fields that `schema` does not have are left out."""
        parsed = json_columns(batch.column("value"), schema, fault_count_max=fault_count_max)
        faults = tuple(
            Fault(row=row, reason=reason, error="misfit" if row in parsed.misfits else "malformed")
            for row, reason in parsed.faults
        )
        return Decoded(columns=parsed.columns, rows=parsed.rows, faults=faults)


def _is_json(kind: Any) -> bool:
    if pa.types.is_list(kind):
        return _is_json(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    return not (pa.types.is_map(kind) or pa.types.is_binary(kind))
