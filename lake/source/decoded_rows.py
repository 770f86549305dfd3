"""Rows whose columns are the fields of values, decoded in the task, a batch at a time.

The columns are those of the topic's table: the value's fields (or one column `value`, if nested is
declared), and where the record came from as `_topic`, `_partition`, `_offset`, `_timestamp` and
`_key`; with `includeHeaders` also `_headers`, with `undecodable=null` also `_error`. Their schema
is what the topic declares; where that is nothing, what its oldest and newest records have.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.lake.decode.columns import arrow_schema
from lakehead.lake.errors import UndecodableValue
from lakehead.lake.jobs.table_settings import value_spec
from lakehead.lake.source.arrow_schema import arrow_schema_of
from lakehead.lake.source.options import Decoding, ReadOptions, Undecodable
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.arrow_rows import one_array
from lakehead.lake.tables.ddl import parse_schema, to_ddl
from lakehead.lake.tables.layout import METADATA, VALUE
from lakehead.lake.tables.value_sample import sample_records
from lakehead.lake.tables.values.changes import CHANGE_FIELDS
from lakehead.lake.tables.values.decoder import Decoded, Fault, ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.lake.tables.values.json_inference import SAMPLE_RECORDS
from lakehead.storage.errors import SettingsError

ERROR = "_error"
"""The reason why the value of a row could not be decoded, NULL for all others."""

_HEADERS = "_headers"
_CONFIGS = {
    "with --schema": "as lakehead.table.schema",
    "with --value-format raw": "with lakehead.table.value.format=raw",
}
_OWN = (*METADATA, ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """The form of a topic's values."""

    spec: ValueSpec
    is_nested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """Rows of `schema`, with the value's fields `values` among the columns or in one of them."""

    spec: ValueSpec
    schema: Any  # pa.Schema, as Spark has it
    values: Any  # pa.Schema
    is_nested: bool
    undecodable: Undecodable

    @property
    def record_columns(self) -> tuple[str, ...]:
        """Columns for decoders and for error messages, and the requested ones."""
        requested = [METADATA[name] for name in self.schema.names if name in METADATA]
        return tuple(dict.fromkeys(("key", "value", "topic", "partition", "offset", *requested)))

    def maker(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Open the decoder. Raises SettingsError."""
        return _Maker(self).rows


def decoded_schema(options: ReadOptions) -> StructType | None:
    """Return the columns of a decoded read; None for a topic that declares nothing.

    Raises SettingsError, UnknownTopic, RegistryUnavailable, and what reading objects raises.
    """
    decoding = options.decoding
    assert decoding is not None, "requested"
    declared = _declared(options, decoding)
    if declared is None:
        return None
    values = _value_schema(options, decoding, declared.spec)
    fields = list(values)
    if declared.is_nested:
        fields = [pa.field(VALUE, pa.struct(fields))]
    taken = [field.name for field in fields if field.name.lower() in _OWN]
    others = [field for field in fields if field.name not in taken]
    if taken and others and not declared.spec.schema:
        # A record or two with such a field never take the view from all others.
        fields = others
    elif taken:
        raise SettingsError(
            f"topic {decoding.topic}: field {taken[0]!r} has the name of a metadata column: "
            "set lakehead.table.layout=nested, or declare a schema without it"
        )
    fields += [field for field in _metadata() if field.name != _HEADERS or options.includes_headers]
    if decoding.undecodable == "null":
        fields.append(pa.field(ERROR, pa.string()))
    whole = pa.schema(fields)
    return from_arrow_schema(_chosen(whole, options.columns))


def decoded_rows(
    options: ReadOptions, decoding: Decoding, schema: StructType
) -> DecodedRows | None:
    """Return how rows of `schema` are made, which is ours or a user's; None for a topic that
    declares nothing. Raises SettingsError, UnknownTopic.
    """
    declared = _declared(options, decoding)
    if declared is None:
        return None
    requested = arrow_schema_of(schema)
    own = _metadata()
    plain = parse_schema(to_ddl(requested))
    for field in plain:
        expected = pa.string() if field.name == ERROR else None
        if field.name in METADATA:
            expected = own.field(field.name).type
        if expected is not None and field.type != expected:
            raise SettingsError(f"column {field.name!r} is {to_ddl([field.with_type(expected)])}")
    if ERROR in plain.names and decoding.undecodable == "fail":
        raise SettingsError(f"column {ERROR!r} needs option 'undecodable' to be null")
    values = [field for field in plain if field.name not in _OWN]
    if declared.is_nested:
        if [field.name for field in values if pa.types.is_struct(field.type)] != [VALUE]:
            raise SettingsError(f"the fields of {decoding.topic} are in one column, {VALUE!r}")
        values = list(values[0].type)
    return DecodedRows(
        spec=declared.spec,
        schema=requested,
        values=pa.schema(values),
        is_nested=declared.is_nested,
        undecodable=decoding.undecodable,
    )


def _metadata() -> Any:
    """The schema of where a record came from."""
    fields = zip(METADATA, arrow_schema(list(METADATA.values())), strict=True)
    return pa.schema([field.with_name(name) for name, field in fields])


def _declared(options: ReadOptions, decoding: Decoding) -> _Declared | None:
    topic = store_reader(options.path).open_catalog().topic(decoding.topic)
    if decoding.by == "json":
        return _Declared(spec=ValueSpec(value_format="json"), is_nested=False)
    declared = TableDeclaration.of(topic)
    if declared.value_format == "raw":
        return None
    spec = replace(value_spec(declared), variants_as_text=True)
    return _Declared(spec=spec, is_nested=declared.layout == "nested")


def _value_schema(options: ReadOptions, decoding: Decoding, spec: ValueSpec) -> Any:
    """Return the schema of a topic's values, in the types that tables have."""
    # One value of another type is an error of its row, not of the whole query.
    decoder = open_decoder(replace(spec, by_most=True))
    sample = _NO_RECORDS
    if not spec.schema:
        reader = store_reader(options.path)
        logs = reader.open_catalog().partitions(decoding.topic)
        sample = sample_records(reader, logs, SAMPLE_RECORDS // 2, both_ends=True)
        if sample is None:
            raise SettingsError(
                f"topic {decoding.topic} has no records in objects yet to infer columns from: "
                "declare them as lakehead.table.schema, or read it with decode=none"
            )
    try:
        found = decoder.schema_of(sample)
    except SettingsError as error:
        reason = str(error)
        for option, config in _CONFIGS.items():
            reason = reason.replace(option, config)
        raise SettingsError(f"topic {decoding.topic}: {reason}") from None
    if spec.value_format == "debezium":
        found = pa.schema([*found, *CHANGE_FIELDS])
    return parse_schema(to_ddl(found))


_NO_RECORDS = pa.RecordBatch.from_pydict(
    {"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())}
)


def _chosen(schema: Any, columns: tuple[str, ...] | None) -> Any:
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown or not columns or len(set(columns)) != len(columns):
        what = f"unknown column {unknown[0]!r}" if unknown else "columns must be named once each"
        raise SettingsError(f"{what}: there are {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])


class _Maker:
    """Makes rows in one task."""

    def __init__(self, form: DecodedRows) -> None:
        self._form = form
        self._values = open_decoder(form.spec)
        self._fails = form.undecodable == "fail"

    def rows(self, batch: Any) -> Any:
        """Return the rows of a batch. Raises UndecodableValue, RegistryUnavailable."""
        form = self._form
        limit = 1 if self._fails else None
        decoded = self._values.decode(batch, form.values, fault_count_max=limit)
        if decoded.faults and self._fails:
            raise _undecodable(batch, decoded.faults[0])
        errors = pa.nulls(len(decoded.rows), pa.string())
        if decoded.faults:
            decoded, errors = _with_faults(decoded)
        every = np.arange(batch.num_rows)
        kept = batch
        if not np.array_equal(decoded.rows.to_numpy(), every):
            kept = batch.take(decoded.rows)
        columns = dict(zip(decoded.columns.column_names, decoded.columns.columns, strict=True))
        if form.is_nested:
            columns = {VALUE: _struct(columns, form.values)}
        columns |= {
            name: kept.column(METADATA[name]) for name in METADATA if name in form.schema.names
        }
        columns[ERROR] = errors
        arrays = [_as_requested(columns[field.name], field.type) for field in form.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=form.schema)


def _with_faults(decoded: Decoded) -> tuple[Decoded, Any]:
    """Rows of nulls at the places of what could not be decoded, and why."""
    good = decoded.rows.to_numpy()
    places = np.concatenate([good, [fault.row for fault in decoded.faults]]).astype(np.int64)
    order = np.argsort(places, kind="stable")
    is_good = pa.array(order < len(good))
    source = pa.array(np.where(order < len(good), order, 0), mask=order >= len(good))
    reason = pa.array([fault.reason for fault in decoded.faults], pa.string())
    why = pa.array(np.maximum(order - len(good), 0), mask=np.asarray(is_good))
    whole = Decoded(columns=decoded.columns.take(source), rows=pa.array(places[order]))
    return whole, reason.take(why)


def _undecodable(batch: Any, fault: Fault) -> UndecodableValue:
    place = {name: batch.column(name)[fault.row].as_py() for name in ("partition", "offset")}
    topic = batch.column("topic")[fault.row].as_py()
    return UndecodableValue(
        f"topic {topic}, partition {place['partition']}, offset {place['offset']}: {fault.reason} "
        "(option undecodable=null, --undecodable null of lakehead sql, gives NULL instead and says "
        f"why in {ERROR})"
    )


def _struct(columns: dict[str, Any], schema: Any) -> Any:
    arrays = [one_array(columns[field.name]) for field in schema]
    return pa.StructArray.from_arrays(arrays, fields=list(schema))


def _as_requested(column: Any, kind: Any) -> Any:
    array = one_array(column)
    return array if array.type == kind else array.cast(kind)
