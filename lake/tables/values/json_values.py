"""JSON values: objects whose fields are columns.

Columns come from the declaration (DDL), or from the values. With a registry values are framed by
Confluent's JSON serializer; then, unless a schema was declared, columns come from the JSON Schema
behind each id. Values that do not fit are set aside one by one: the kernels (`json_kernel`) report
faults by row.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.lake.declaration.column_types import check_column_names, is_whole_variant
from lakehead.lake.tables.ddl import VARIANT, parse_schema, type_name
from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values.by_schema import Format, Place, ValuesBySchema, Writer, one_part
from lakehead.lake.tables.values.calendar_range import without
from lakehead.lake.tables.values.decoder import (
    NO_SCHEMA,
    Decoded,
    Fault,
    MisfitSchema,
    ValueDecoder,
    ValueSpec,
)
from lakehead.lake.tables.values.evolution import extended
from lakehead.lake.tables.values.framing import FRAME_BYTES, Values, places, schema_ids
from lakehead.lake.tables.values.groups import DecodedRows, Program, decode_rows, int64_array
from lakehead.lake.tables.values.json_inference import NoFields, infer_schema, outline
from lakehead.lake.tables.values.json_program import (
    JsonProgram,
    NotingProgram,
    WholeValues,
    Written,
    compile_json,
    fitting_forms,
)
from lakehead.lake.tables.values.json_schema import read_json_schema
from lakehead.storage.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonColumns:
    """Values as columns.

    `columns` has one row per good value, in order; `rows` says which values they were; a null value
    is a row of nulls. `faults` are (value index, why) of the bad ones, in order; `misfits` are
    those of them that are well-formed. `richer` are good values that have fields which the schema
    does not.
    """

    columns: Any  # pa.Table
    rows: Any  # pa.Array of int64
    faults: tuple[tuple[int, str], ...]
    misfits: frozenset[int] = frozenset()
    richer: Any = None  # int64


def json_columns(values: Any, schema: Any) -> JsonColumns:
    """Parse `values` (Arrow binary) as objects with the fields of `schema`.

    Fields that the schema does not have are left out, missing ones are null; types are not
    converted (a number is not a string, 1.5 is not an integer), but text becomes a DATE, TIMESTAMP
    or DECIMAL.

    Raises SettingsError for a type that JSON does not have.
    """
    return _placed_columns(places(values), schema, NotingProgram(_program(schema, ())))


def _placed_columns(found: Values, schema: Any, program: Program) -> JsonColumns:
    """As `json_columns`, for values that lie in one buffer."""
    result = DecodedRows(schema)
    present = np.flatnonzero(found.starts >= 0)
    if len(present) < len(found):
        result.nulls(found.nulls)
    group, faults = decode_rows(program, found, present, schema)
    if len(schema):
        result.add(group)
    for row, reason, error in faults:
        result.fault(row, reason, error)
    decoded = result.decoded()
    return JsonColumns(
        columns=decoded.columns,
        rows=decoded.rows,
        faults=tuple((fault.row, fault.reason) for fault in decoded.faults),
        misfits=frozenset(fault.row for fault in decoded.faults if fault.error == "misfit"),
        richer=group.left_out,
    )


@lru_cache(maxsize=64)
def _program(schema: Any, texts: tuple[str, ...]) -> JsonProgram:
    """The program of the columns of a schema; those of `texts` have the JSON of any value."""
    return compile_json(schema, {(name,): Written(type=VARIANT) for name in texts})


_LOOKED_AT = 1000
"""Values, of those with fields which the schema lacks, that are looked at together."""


def json_values(spec: ValueSpec, registry: SchemaRegistry | None) -> ValueDecoder:
    """Return the decoder of one JSON object for each value. Raises SettingsError."""
    if registry is None or spec.schema:
        return JsonValues(spec)

    return ValuesBySchema(Format(readers={"JSON": json_writer}, parts=one_part), registry, None)


def json_writer(registered: RegisteredSchema, _place: Place = ()) -> Writer:
    """Return the writer of a registered JSON Schema. Raises UnusableSchema."""
    others = {reference.name: reference.text for reference in registered.references}
    schema = read_json_schema(registered.text, others)

    def compiled(columns: Any) -> NotingProgram:
        try:
            return NotingProgram(compile_json(columns, fitting_forms(schema.forms, columns)))
        except SettingsError as error:
            raise MisfitSchema(str(error)) from None

    return Writer(columns=schema.columns, compiled=compiled)


class JsonValues:
    """One JSON object for each value, with columns that are declared or inferred."""

    def __init__(self, spec: ValueSpec) -> None:
        self._is_framed = bool(spec.registry)
        self._by_most = spec.by_most
        self._declared = parse_schema(spec.schema) if spec.schema else None
        for field in self._declared or ():
            if not _is_json(field.type):
                raise SettingsError(
                    f"column {field.name} cannot be {type_name(field.type)}: JSON has no BINARY, "
                    "and an object is a STRUCT"
                )
        self._is_whole = is_whole_variant(spec.schema)
        self._texts: tuple[str, ...] = ()
        if self._declared is not None and spec.variants_as_text:
            self._texts = tuple(one.name for one in self._declared if one.type == VARIANT)
            self._declared = pa.schema(
                [
                    one.with_type(pa.string()) if one.name in self._texts else one
                    for one in self._declared
                ]
            )

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return the declared schema, or one that every value of the sample fits but for those
        which no table could hold. Raises SettingsError.
        """
        if self._declared is not None:
            return self._declared
        values = batch.column("value").to_pylist()
        try:
            return infer_schema(values, by_most=self._by_most)
        except SettingsError:
            alone = _Alone(pa.schema([]))
            held = [v for v in values if not isinstance(alone.extended(v), SettingsError)]
            if len(held) == len(values):
                raise
            return infer_schema(held, by_most=self._by_most)

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
        program: Program = NotingProgram(_program(schema, self._texts))
        if self._is_whole:
            program = WholeValues(schema)
        parsed = _placed_columns(found, schema, program)
        for i, reason in parsed.faults:
            error = "misfit" if i in parsed.misfits else "malformed"
            row = int(rows[i])
            faults.append(
                Fault(row=row, reason=reason, error=error, schema_id=int(ids[row]))  # type: ignore[arg-type]
            )
        decoded = Decoded(
            columns=parsed.columns,
            rows=int64_array(rows[np.asarray(parsed.rows, np.int64)]),
            faults=tuple(sorted(faults, key=lambda fault: fault.row)),
            left_out=rows[parsed.richer],
        )
        if self._declared is not None or not len(parsed.richer):
            return decoded
        more, reasons = _more_fields(values, parsed.richer, schema)
        odd = [
            Fault(row=int(rows[i]), reason=reason, error="misfit") for i, reason in reasons.items()
        ]
        found_by_row = partial(_found_by_row, values, parsed.richer, schema)
        return replace(without(decoded, odd), found=more, found_by_row=found_by_row)


def _found_by_row(values: Any, richer: Any, schema: Any) -> Mapping[int, Any]:
    """Return the schema with fields that each of the values at `richer` alone has beside it, by row
    (see `FoundByRow`). A value that no table could hold has none: it is a fault.
    """
    found: dict[int, Any] = {}
    alone = _Alone(schema)
    for start in range(0, len(richer), _LOOKED_AT):
        places = richer[start : start + _LOOKED_AT]
        seen = values.take(int64_array(places)).to_pylist()
        for place, value in zip(places.tolist(), seen, strict=True):
            more = alone.extended(value)
            if more is not None and not isinstance(more, SettingsError):
                found[place] = more
    return found


class _Alone:
    """Fields that values have beyond a schema, each value by itself; checked once for all of one
    outline.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._known: dict[Hashable, Any] = {}

    def extended(self, value: bytes | None) -> Any:
        """Return the schema with the fields that the value has beside it, None if it has none; or
        the SettingsError that says why no table of this schema could hold it. All values of one
        outline get the same object.
        """
        kind = outline(value)
        if kind not in self._known:
            self._known[kind] = self._look(value)
        return self._known[kind]

    def _look(self, value: bytes | None) -> Any:
        try:
            more = _extended(self._schema, [value])
        except SettingsError as error:
            return error
        return None if more == self._schema else more


def _more_fields(values: Any, richer: Any, schema: Any) -> tuple[Any, dict[int, str]]:
    """Return the schema with fields that the values at `richer` have beside it, None if there are
    none; and the values that no table could hold with them, each with the reason.

    A value decides over itself alone: of two that do not fit each other the first one counts here,
    and the other does not fit the schema when it is decoded by that.
    """
    reasons: dict[int, str] = {}
    alone = _Alone(schema)
    for start in range(0, len(richer), _LOOKED_AT):
        places = richer[start : start + _LOOKED_AT]
        seen = values.take(int64_array(places)).to_pylist()
        try:
            more = _extended(schema, seen)
        except SettingsError:
            held = []
            for place, value in zip(places, seen, strict=True):
                found = alone.extended(value)
                if isinstance(found, SettingsError):
                    reasons[int(place)] = str(found)
                else:
                    held.append(value)
            more = _extended(schema, held[: _fitting(schema, held)])
        if more != schema:
            return more, reasons
    return None, reasons


def _extended(schema: Any, values: list[Any]) -> Any:
    """Return the schema with what the values have beside it. Raises SettingsError for fields of two
    types, and for names that a table cannot have, or has in another case.
    """
    try:
        seen = infer_schema(values)
    except NoFields:
        return schema
    _check_cases(list(schema), list(seen))
    return extended(schema, seen)


def _check_cases(held: list[Any], seen: list[Any]) -> None:
    types = {field.name: field.type for field in held}
    check_column_names([*types, *(field.name for field in seen if field.name not in types)])
    for field in seen:
        _check_cases_inside(types.get(field.name), field.type)


def _check_cases_inside(held: Any, seen: Any) -> None:
    if held is None:
        return
    if pa.types.is_struct(held) and pa.types.is_struct(seen):
        _check_cases(list(held), list(seen))
    elif pa.types.is_list(held) and pa.types.is_list(seen):
        _check_cases_inside(held.value_type, seen.value_type)


def _fitting(schema: Any, values: list[Any]) -> int:
    """Return how many of the values, from the first on, fit each other; each one fits alone."""
    low, high = min(1, len(values)), len(values)
    while low < high:
        middle = (low + high + 1) // 2
        try:
            _extended(schema, values[:middle])
            low = middle
        except SettingsError:
            high = middle - 1
    return low


def _is_json(kind: Any) -> bool:
    if kind == VARIANT:
        return True
    if pa.types.is_list(kind):
        return _is_json(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    return not (pa.types.is_map(kind) or pa.types.is_binary(kind))
