"""How records become the rows of a read: Kafka's columns as they are, or decoded values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.types import StructType

from lakehead.lake.decode.columns import chosen_columns
from lakehead.lake.source.columns import columns_in, spark_schema
from lakehead.lake.source.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

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


def rows_schema(options: ReadOptions) -> StructType:
    """Return the columns of a read. Raises SettingsError, RegistryUnavailable, and with `decode`
    what reading objects raises.
    """
    if options.decoding is not None:
        from lakehead.lake.source.decoded_rows import decoded_schema

        found = decoded_schema(options)
        if found is not None:
            return found
    return spark_schema(chosen_columns(options.columns, include_headers=options.includes_headers))


def rows_of(options: ReadOptions, schema: StructType) -> Rows:
    """Return how a read makes rows of `schema`, which may be narrower than ours, or a user's.

    Raises SettingsError.
    """
    if options.decoding is not None:
        from lakehead.lake.source.decoded_rows import decoded_rows

        found = decoded_rows(options, options.decoding, schema)
        if found is not None:
            return found
    return RecordRows(record_columns=columns_in(schema))
