"""Values by the schema that each was written with, in any format that has schemas.

With a registry each value names its writer's schema by id (Confluent's wire format); without one a
declared schema is the writer's of every value, and no value is framed. A format adds how a schema
is read, and where in a value its datum begins.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values.decoder import NO_SCHEMA, Decoded, MisfitSchema, UnusableSchema
from lakehead.lake.tables.values.evolution import merged, name_conflict
from lakehead.lake.tables.values.framing import FRAME_BYTES, Values, places, schema_ids
from lakehead.lake.tables.values.groups import DecodedRows, Program, by_value, decode_rows
from lakehead.storage.errors import SettingsError

Place = tuple[int, ...]
"""The rest of a frame beside the id: Protobuf's message in its file; nothing in other formats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A schema that values are written with.

    `columns` is the Arrow schema of all that it has. `compiled` makes the program that fills the
    Arrow schema it is given; it raises MisfitSchema.
    """

    columns: Any
    compiled: Callable[[Any], Program]


Reader = Callable[[RegisteredSchema, Place], Writer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Framed values of one schema and place, None if their frames name none."""

    place: Place | None
    rows: Any  # int64
    starts: Any  # int64: where each datum begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The part of the work that differs by format.

    `readers`, by the registry's word for what a schema is, return the writer of a registered schema
    at a place; they raise UnusableSchema. `parts` divides framed rows of one schema.
    """

    readers: Mapping[str, Reader]
    parts: Callable[[Values, Any], Iterable[Part]]


def one_part(values: Values, rows: Any) -> Iterable[Part]:
    """The parts of a format whose frame is the id alone."""
    return (Part(place=(), rows=rows, starts=values.starts[rows] + FRAME_BYTES),)


def _first_of(batch: pa.RecordBatch) -> str:
    """Words on the first value that names a schema, or on none that does."""
    ids = schema_ids(places(batch.column("value")))
    framed = np.flatnonzero(ids >= 0)
    if not len(framed):
        return ", nor is any in Confluent's wire format"
    row = int(framed[0])
    where = ", ".join(
        f"{name} {batch.column(name)[row].as_py()}"
        for name in ("partition", "offset")
        if name in batch.schema.names
    )
    return f" (the one at {where} names {ids[row]})" if where else f" (one names {ids[row]})"


class ValuesBySchema:
    """A decoder (`decoder.ValueDecoder`) of one format.

    `declared` is what the topic declares: then the columns are its own, else those that values
    bring.
    """

    def __init__(
        self, values_format: Format, registry: SchemaRegistry | None, declared: Writer | None
    ) -> None:
        self._format = values_format
        self._registry = registry
        self._declared = declared
        self._writers: dict[Place, Writer | UnusableSchema] = {}
        self._programs: dict[Place, Program | MisfitSchema] = {}
        self._columns: Any = None  # what the programs are compiled to

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return the columns of the declared schema, or of those that the sample names."""
        if self._declared is not None:
            return self._declared.columns
        found: Any = None
        unusable: UnusableSchema | None = None
        for _, writer in self.writers(batch):
            if isinstance(writer, Writer):
                found = writer.columns if found is None else merged(found, writer.columns)
            else:
                unusable = writer
        if found is not None:
            return found
        if unusable is not None:
            raise SettingsError(f"values cannot be columns: {unusable}")
        raise SettingsError(
            "none of the sampled values names a schema that the registry has and that is "
            f"{' or '.join(self._format.readers)}{_first_of(batch)}: register it, or declare "
            "the schema (lakehead.table.schema)"
        )

    def writers(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, Writer | UnusableSchema]]:
        """Yield rows of a batch and the schema that they were written with, where they name one
        that the registry has. Raises RegistryUnavailable.
        """
        values = places(batch.column("value"))
        ids = schema_ids(values)
        for schema_id, rows in by_value(ids, np.flatnonzero(ids >= 0)):
            for part in self._format.parts(values, rows):
                writer = None if part.place is None else self._writer(schema_id, part.place)
                if writer is not None:
                    yield part.rows, writer

    def decode(
        self,
        batch: pa.RecordBatch,
        schema: Any,
        *,
        fault_count_max: int | None = None,  # noqa: ARG002 - a fault costs nothing
    ) -> Decoded:
        """Decode each value by its writer's schema."""
        if self._columns != schema:
            self._programs, self._columns = {}, schema
        values = places(batch.column("value"))
        result = DecodedRows(schema)
        present = np.flatnonzero(values.starts >= 0)
        if len(present) < len(values):
            result.nulls(values.nulls)
        if self._registry is None:
            assert self._declared is not None, "checked when it was made"
            self._decode(values, present, (NO_SCHEMA,), self._declared, result)
            return result.decoded()
        for schema_id, rows in by_value(schema_ids(values), present):
            if schema_id == NO_SCHEMA:
                result.fault_all(rows, "the value has no schema id in front", "unframed")
                continue
            for part in self._format.parts(values, rows):
                self._part(values, part, schema_id, result)
        return result.decoded()

    def _part(self, values: Values, part: Part, schema_id: int, result: DecodedRows) -> None:
        """Rows of one schema and place."""
        if part.place is None:
            reason = "the value does not name its message"
            result.fault_all(part.rows, reason, "unframed", schema_id)
            return
        writer = self._writer(schema_id, part.place)
        if writer is None:
            reason = f"the registry has no schema {schema_id}"
            result.fault_all(part.rows, reason, "unknown_schema", schema_id)
        elif isinstance(writer, UnusableSchema):
            result.fault_all(part.rows, str(writer), "unusable_schema", schema_id)
        else:
            starts = values.starts.copy()
            starts[part.rows] = part.starts
            unframed = Values(data=values.data, starts=starts, ends=values.ends)
            self._decode(unframed, part.rows, (schema_id, *part.place), writer, result)

    def _decode(
        self, values: Values, rows: Any, key: Place, writer: Writer, result: DecodedRows
    ) -> None:
        if self._declared is None:
            result.found.add(rows, writer.columns)
        program = self._programs.get(key)
        if program is None:
            try:
                program = self._compiled(writer)
            except MisfitSchema as misfit:
                program = misfit
            self._programs[key] = program
        if isinstance(program, MisfitSchema):
            result.fault_all(rows, str(program), "misfit", key[0])
            return
        group, faults = decode_rows(program, values, rows, self._columns)
        result.add(group)
        for row, reason, error in faults:
            result.fault(row, reason, error, key[0])

    def _compiled(self, writer: Writer) -> Program:
        """Raises MisfitSchema, also where a field would be left out that no column can be for."""
        odd = None if self._declared else name_conflict(self._columns, writer.columns)
        if odd is not None:
            raise MisfitSchema(str(odd))
        return writer.compiled(self._columns)

    def _writer(self, schema_id: int, place: Place) -> Writer | UnusableSchema | None:
        """The schema of an id; None if there is none. Raises RegistryUnavailable."""
        key = (schema_id, *place)
        if key in self._writers:
            return self._writers[key]
        assert self._registry is not None, "ids come with a registry"
        registered = self._registry.schema(schema_id)
        if registered is None:
            return None
        writer: Writer | UnusableSchema
        try:
            if registered.problem:
                raise UnusableSchema(registered.problem)
            read = self._format.readers.get(registered.kind)
            if read is None:
                wanted = " or ".join(self._format.readers)
                raise UnusableSchema(f"it is {registered.kind}, not {wanted}")
            writer = read(registered, place)
        except UnusableSchema as error:
            writer = UnusableSchema(f"schema {schema_id}: {error}")
        self._writers[key] = writer
        return writer


def declared_writer(read: Callable[[], Writer]) -> Writer:
    """Read a declared schema. Raises SettingsError for one that cannot be columns."""
    try:
        return read()
    except UnusableSchema as error:
        raise SettingsError(f"the declared schema: {error}") from None
