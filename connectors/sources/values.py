"""Keys, timestamps and values of records, from columns, and Arrow's rows as Python values.

A date of the year 10000, or before the year 1, is a date in Parquet and none in Python; text may be
invalid UTF-8. Such a value costs its row, not the batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

_SHOWN = 200


class PythonRow(msgspec.Struct, frozen=True, gc=False):
    """A row."""

    columns: dict[str, Any]
    """By name. Of values that Python has not: text, as far as Arrow has one."""
    unreadable: dict[str, str] = {}
    """Columns that Python has no value for, and why."""

    @property
    def reason(self) -> str:
        """The reason why it is not a row, in words; empty if it is."""
        return ", ".join(f"column {name}: {why}" for name, why in self.unreadable.items())


def python_rows(batch: Any) -> Iterator[PythonRow]:
    """Yield the rows of a record batch."""
    import pyarrow as pa

    errors = (pa.ArrowException, ValueError, OverflowError)
    try:
        found = batch.to_pylist()
    except errors:
        yield from (_row(batch, number, errors) for number in range(batch.num_rows))
    else:
        yield from map(PythonRow, found)


def _row(batch: Any, number: int, errors: tuple[type[Exception], ...]) -> PythonRow:
    columns: dict[str, Any] = {}
    unreadable = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        value = column[number]
        try:
            columns[name] = value.as_py()
        except errors as error:
            columns[name] = _shown(value, errors)
            unreadable[name] = (
                f"{columns[name]!r} is not a valid value ({' '.join(str(error).split())})"
            )
    return PythonRow(columns, unreadable)


def _shown(value: Any, errors: tuple[type[Exception], ...]) -> str:
    """Return a value as Arrow writes it, or its type."""
    import pyarrow as pa

    try:
        return str(value.cast(pa.string()).as_py())[:_SHOWN]
    except errors:
        pass
    try:
        raw = value.as_buffer().to_pybytes() if hasattr(value, "as_buffer") else b""
    except errors:
        raw = b""
    return raw[:_SHOWN].decode(errors="backslashreplace") or f"a {value.type}"


_UNITS = {"s": 1000.0, "ms": 1.0, "us": 0.001}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class NoSuchValue(ValueError):
    """A column that a key or a timestamp is to come from is absent, or does not fit."""


def encoded(value: Any) -> bytes:
    """Return a value as JSON: bytes as base64, times as ISO 8601, decimals as text."""
    return msgspec.json.encode(value, enc_hook=_other)


def key_of(columns: Mapping[str, Any] | None, names: Sequence[str]) -> bytes | None:
    """Return the record key: a column's text or bytes as they are, another value as JSON; several
    columns as a JSON object. None if no column is named. Raises NoSuchValue.
    """
    if not names:
        return None
    found = {name: _column(columns, name) for name in names}
    if len(names) > 1:
        return encoded(found)
    value = found[names[0]]
    if value is None:
        raise NoSuchValue(f"column {names[0]}, the key, is null")
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else encoded(value)


def timestamp_of(columns: Mapping[str, Any] | None, name: str | None, unit: str) -> int | None:
    """Return the record timestamp in ms since the epoch; None if no column is named.

    Raises NoSuchValue.
    """
    if name is None:
        return None
    value = _column(columns, name)
    try:
        return _milliseconds(value, unit)
    except (ValueError, TypeError, OverflowError):
        raise NoSuchValue(
            f"column {name}: {str(value)[:100]!r} is not a time (ISO 8601, or a number in {unit})"
        ) from None


def _milliseconds(value: Any, unit: str) -> int:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value) if _is_date(value) else float(value)
        except ValueError:
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        milliseconds = (moment - _EPOCH) // _MS
    elif isinstance(value, date):
        milliseconds = (datetime(value.year, value.month, value.day, tzinfo=UTC) - _EPOCH) // _MS
    elif isinstance(value, int | float) and not isinstance(value, bool):
        milliseconds = int(value * _UNITS[unit])
    else:
        raise TypeError(value)
    if not 0 <= milliseconds < 1 << 62:
        raise ValueError(value)
    return milliseconds


def _is_date(text: str) -> bool:
    """Return whether a text is a date as 20260131, which as a number would be in January 1970."""
    return len(text) == 8 and text.isdecimal()


def _column(columns: Mapping[str, Any] | None, name: str) -> Any:
    if columns is None:
        raise NoSuchValue(f"there is no column {name}: the value is not an object")
    try:
        return columns[name]
    except KeyError:
        raise NoSuchValue(f"there is no column {name}") from None


def _other(value: Any) -> Any:
    """Return what JSON has for types that msgspec does not know: times of nanoseconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
