"""The interface of value formats: the input and the output of a decoder.

A decoder never fails because of a record: a value that it cannot read is a fault of its row. Its
exceptions are about the whole topic (`SettingsError`: the declaration cannot work) or pass by
themselves (`RegistryUnavailable`: pause and try again, no record is at fault).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from lakehead.storage.errors import LakeheadError

ValueFormat = Literal["raw", "json", "avro", "protobuf", "debezium"]
"""The format of a topic's values, as declared."""

ErrorClass = Literal[
    "malformed", "misfit", "unframed", "unknown_schema", "unusable_schema", "unrouted", "batch"
]
"""Reason why a value is not a row. `malformed`: its bytes are not a value of the format. `misfit`:
well-formed, but a field does not fit its column. `unframed`: Confluent's five bytes are missing
where the schema must come from them. `unknown_schema`: the registry knows no schema of its id.
`unusable_schema`: the schema of its id cannot be columns (recursive, or not of this format).
`unrouted`: it is of none of the topic's tables (`lakehead.table.route.field`).
`batch`: the dead letter is not a value but a record batch whose records cannot be read.
"""

FoundByRow = Callable[[], Mapping[int, Any]]
"""Returns, by row of a batch, the schema (`Decoded.found`) that each value alone has, of the values
that have more than the requested schema. Called only where single records are set aside.
"""

NO_SCHEMA = -1
"""Schema id of a value that names none."""


class UnusableSchema(LakeheadError):
    """A schema cannot be read, or cannot be columns. The message says why."""


class MisfitSchema(LakeheadError):
    """A schema can be columns, but not those of the table. The message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpec:
    """The declared form of a topic's values; small and picklable, so that workers open their own
    decoder.

    `schema` is DDL for JSON (empty: inferred from a sample), an Avro schema or .proto text (empty:
    each value names its schema by id in Confluent's wire format). `message` chooses among the
    messages of a .proto text. `registry` is the URL of a schema registry; credentials and
    certificates come from the environment (see `registry`). `keys` are the columns that identify
    Debezium's rows (empty: the fields of the record's key). With `by_most` a column that is
    inferred from JSON has the type of most of its values, where a field has several: without it
    there is no schema then. With `variants_as_text` a VARIANT is the JSON of its value, as it is
    written, for readers without that type.
    """

    value_format: ValueFormat = "raw"
    schema: str = ""
    message: str = ""
    registry: str = ""
    keys: tuple[str, ...] = ()
    by_most: bool = False
    variants_as_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A record that cannot be a row. `row` is its place in the batch."""

    row: int
    reason: str
    error: ErrorClass = "malformed"
    schema_id: int = NO_SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A batch's values as columns.

    `columns` has the requested schema and one row for each entry of `rows`, which says
    the row of the batch that it came from; `rows` never decreases. A null value is a row of nulls.
    Formats of one row for each value name no row twice; Debezium's may (a key that changed is a
    delete and a create). `faults` are in order of rows. `found`, if not None, is a schema that
    these values have and the requested one does not hold: columns to add or to widen (see
    `evolution`); what did not fit it is left out or is a fault. It need not be of all values, as a
    batch is decoded again by what was found; `found_by_row` is. `left_out` are those of `rows`
    whose values have fields that `columns` lacks, None: of no row.
    """

    columns: Any  # pa.Table
    rows: Any  # pa.Array of int64
    faults: tuple[Fault, ...] = ()
    found: Any = None  # pa.Schema | None
    left_out: Any = None  # numpy array of int64 | None
    found_by_row: FoundByRow = dict


class ValueDecoder(Protocol):
    """Turns the values of one topic into columns. Not for threads at once; cheap to keep."""

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return the Arrow schema of what this sample of records has, for a table to be made.

        Raises SettingsError if the sample says too little or what it has cannot be columns,
        RegistryUnavailable.
        """

    def decode(
        self, batch: pa.RecordBatch, schema: Any, *, fault_count_max: int | None = None
    ) -> Decoded:
        """Return the values of `batch`, which has at least the columns `key` and `value`.

        `schema` is that of the table's value columns. Stops looking for faults after
        `fault_count_max`: then there are at least that many and the columns are of no use.

        Raises SettingsError, RegistryUnavailable.
        """
