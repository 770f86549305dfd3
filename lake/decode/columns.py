"""The columns of a topic read, with the names of Spark's Kafka source, as Arrow types.

`key`, `value` (binary, null if the record has none), `topic`, `partition`, `offset`, `timestamp`
(UTC, from the record's milliseconds), `timestampType` (0: set by the producer, 1: by the broker)
and, only on request, `headers` (null if the record has none).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

_ALL = (*COLUMNS, HEADERS)


def chosen_columns(
    columns: Sequence[str] | None, *, include_headers: bool = False
) -> tuple[str, ...]:
    """Return the columns of a read: those named, or all, with `headers` last if they are included.

    Raises SettingsError for an unknown, repeated or missing name.
    """
    if columns is None:
        return _ALL if include_headers else COLUMNS
    names = tuple(columns)
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        raise SettingsError(
            f"unknown column {', '.join(map(repr, unknown))}: a topic has {', '.join(_ALL)}"
        )
    if not names or len(set(names)) != len(names):
        raise SettingsError(f"columns must be named once each, got {', '.join(names) or 'none'}")
    return names


def arrow_schema(columns: Sequence[str], *, views: bool = False) -> "pa.Schema":
    """Return the Arrow schema of `columns`; with `views`, key and value are `binary_view`."""
    # Names are checked where nothing is read: there Arrow would be loaded for nothing.
    import pyarrow as pa

    bytes_ = pa.binary_view() if views else pa.binary()
    types = {
        "key": bytes_,
        "value": bytes_,
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    return pa.schema([(name, types[name]) for name in columns])
