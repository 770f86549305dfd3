"""Rows of Arrow's batches as Python's values, and those that Python has no values for.

A date of the year 10000, or before the year 1, is one in Parquet and none in Python; text may be no
UTF-8. Such a value costs its row, not the batch.
"""

from collections.abc import Iterator
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
        """Why it is no row, in words; empty if it is."""
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
                f"{columns[name]!r} is no value here ({' '.join(str(error).split())})"
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
