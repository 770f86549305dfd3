"""Rows of a read: Kafka's columns as they are, or decoded values.

The schema is that of Spark's Kafka source, unless values are decoded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakehead.lake.decode.columns import chosen_columns
from lakehead.lake.source.options import ReadOptions
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa


_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def _spark_schema(columns: Sequence[str] | None) -> StructType:
    """Return the schema of `columns`, or of every column there is."""
    return StructType([StructField(name, _TYPES[name]) for name in columns or _TYPES])


def _columns_in(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a user's schema names. Raises SettingsError for one that we do not
    have.
    """
    whole = {field.name: field for field in _spark_schema(None)}
    for field in schema:
        known = whole.get(field.name)
        if known is None:
            raise SettingsError(f"unknown column {field.name!r}: a topic has {', '.join(whole)}")
        if known.dataType != field.dataType or not field.nullable:
            raise SettingsError(
                f"column {field.name!r} is a nullable {known.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            )
    if not len(schema):
        raise SettingsError("the schema names no column")
    return tuple(schema.fieldNames())


Maker = Callable[["pa.RecordBatch"], "pa.RecordBatch"]


class Rows(Protocol):
    """The rows of a read; small and picklable, for the tasks that make them."""

    @property
    def record_columns(self) -> tuple[str, ...]:
        """The columns of records that rows are made from."""

    def maker(self) -> Maker:
        """Return what makes rows of records. Raises SettingsError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRows:
    """Each record is a row as it is."""

    record_columns: tuple[str, ...]

    def maker(self) -> Maker:
        """Return the identity."""
        return lambda batch: batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWithNulls:
    """Rows of `schema` with nulls in all columns but the `needed` ones."""

    rows: Rows
    schema: "pa.Schema"
    needed: frozenset[str]

    @property
    def record_columns(self) -> tuple[str, ...]:
        """See `Rows`."""
        return self.rows.record_columns

    def maker(self) -> Maker:
        """See `Rows`."""
        import pyarrow as pa

        make = self.rows.maker()

        def with_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
            made = make(batch)
            columns = [
                made.column(field.name)
                if field.name in self.needed
                else pa.nulls(made.num_rows, field.type)
                for field in self.schema
            ]
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)

        return with_nulls


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfPartitions(RowsWithNulls):
    """Rows of which only topic and partition are needed, if anything: of records nothing but their
    number.
    """

    def batches(self, topic: str, partition: int, rows: int) -> Iterator["pa.RecordBatch"]:
        """Yield a number of rows of a partition."""
        import pyarrow as pa

        values = {"topic": topic, "partition": partition}
        left = rows
        while left:
            count = min(left, _ROWS_MAX)
            columns = [
                pa.repeat(pa.scalar(values[field.name], field.type), count)
                if field.name in self.needed
                else pa.nulls(count, field.type)
                for field in self.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
            left -= count


_ROWS_MAX = 65_536
"""Of a batch."""
_OF_PARTITIONS = frozenset({"topic", "partition"})


def rows_schema(options: ReadOptions) -> StructType:
    """Return the columns of a read. Raises SettingsError, RegistryUnavailable, and with `decode`
    what reading objects raises.
    """
    if options.decoding is not None:
        from lakehead.lake.source.decoded_rows import decoded_schema

        found = decoded_schema(options)
        if found is not None:
            return found
    return _spark_schema(chosen_columns(options.columns, include_headers=options.includes_headers))


def rows_of(options: ReadOptions, schema: StructType) -> Rows:
    """Return how a read makes rows of `schema`, which may be narrower than ours, or a user's.

    Raises SettingsError.
    """
    needed = options.needs.columns
    if options.decoding is not None:
        from lakehead.lake.source.decoded_rows import decoded_rows

        found = decoded_rows(options, options.decoding, schema)
        if found is not None:
            # Each value is decoded whole: one that cannot be fails whatever columns are needed.
            return found if needed is None else _with_nulls(found, schema, needed)
    columns = _columns_in(schema)
    if needed is None:
        return RecordRows(record_columns=columns)
    if needed <= _OF_PARTITIONS and options.mode == "FAILFAST":
        from lakehead.lake.source.arrow_schema import arrow_schema_of

        records = RecordRows(record_columns=tuple(sorted(needed)) or ("partition",))
        return RowsOfPartitions(rows=records, schema=arrow_schema_of(schema), needed=needed)
    # A time that no column holds fails a read whatever columns are needed.
    read = [name for name in columns if name in needed or name == "timestamp"]
    return _with_nulls(RecordRows(record_columns=tuple(read or columns[:1])), schema, needed)


def _with_nulls(rows: Rows, schema: StructType, needed: frozenset[str]) -> Rows:
    from lakehead.lake.source.arrow_schema import arrow_schema_of

    return RowsWithNulls(rows=rows, schema=arrow_schema_of(schema), needed=needed)
