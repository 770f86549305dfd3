"""The columns of a topic read, with the names of Spark's Kafka source, as Arrow types.

`key`, `value` (binary, null if the record has none), `topic`, `partition`, `offset`, `timestamp`
(UTC, from the record's milliseconds), `timestampType` (0: set by the producer, 1: by the broker)
and, only on request, `headers` (null if the record has none).
"""

from collections.abc import Sequence

import pyarrow as pa

from lakehead.storage.errors import SettingsError

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def chosen_columns(
    columns: Sequence[str] | None, *, include_headers: bool = False
) -> tuple[str, ...]:
    """Return the columns of a read: those named, or all, with `headers` last if they are included.

    Raises SettingsError for an unknown, repeated or missing name.
    """
    if columns is None:
        return (*COLUMNS, HEADERS) if include_headers else COLUMNS
    names = tuple(columns)
    unknown = [name for name in names if name not in _TYPES]
    if unknown:
        raise SettingsError(
            f"unknown column {', '.join(map(repr, unknown))}: a topic has {', '.join(_TYPES)}"
        )
    if not names or len(set(names)) != len(names):
        raise SettingsError(f"columns must be named once each, got {', '.join(names) or 'none'}")
    return names


def arrow_schema(columns: Sequence[str], *, views: bool = False) -> pa.Schema:
    """Return the Arrow schema of `columns`; with `views`, key and value are `binary_view`."""
    return pa.schema(
        [
            (name, pa.binary_view() if views and name in ("key", "value") else _TYPES[name])
            for name in columns
        ]
    )
