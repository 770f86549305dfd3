"""Keys, timestamps and values of records, out of columns."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

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
            f"column {name}: {str(value)[:100]!r} is no time (ISO 8601, or a number in {unit})"
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
    """Whether a text is a date as 20260131, which as a number would be in January 1970."""
    return len(text) == 8 and text.isdecimal()


def _column(columns: Mapping[str, Any] | None, name: str) -> Any:
    if columns is None:
        raise NoSuchValue(f"there is no column {name}: the value is no object")
    try:
        return columns[name]
    except KeyError:
        raise NoSuchValue(f"there is no column {name}") from None


def _other(value: Any) -> Any:
    """Return what JSON has for types that msgspec does not know: times of nanoseconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
