"""Rows of a query as people and programs want them: a table, CSV or JSON lines."""

import csv
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

OutputFormat = Literal["table", "csv", "json"]

_WIDTH_MAX = 100_000
_GAP = 3  # between two columns
TABLE_ROWS_MAX = 1000
"""A table is laid out in memory; csv and json have every row."""


def write_rows(
    names: Sequence[str], rows: Iterable[Sequence[Any]], output: OutputFormat, out: TextIO
) -> None:
    """Write rows to `out`. Bytes are shown as text where they are UTF-8, else as hex digits."""
    if output == "table":
        _write_table(names, iter(rows), out)
    elif output == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(value, null="") for value in row] for row in rows)
    else:
        for row in rows:
            fields = {name: _plain(value) for name, value in zip(names, row, strict=True)}
            out.write(json.dumps(fields, ensure_ascii=False) + "\n")
    out.flush()


def _write_table(names: Sequence[str], rows: Iterator[Sequence[Any]], out: TextIO) -> None:
    shown = list(islice(rows, TABLE_ROWS_MAX))
    # Where nobody looks nothing has to fit; else Rich takes 80 columns.
    width = None if out.isatty() else _WIDTH_MAX
    console = Console(file=out, highlight=False, soft_wrap=not out.isatty(), width=width)
    if sum(len(name) + _GAP for name in names) - _GAP <= console.width:
        console.print(_table(names, shown))
    else:
        for number, row in enumerate(shown, start=1):
            console.print(Text(f"row {number}", style="bold"))
            console.print(_fields(names, row))
    more = next(rows, None) is not None
    count = f"first {len(shown)} rows" if more else f"{len(shown)} row{'s' * (len(shown) != 1)}"
    hint = " (--format csv or json has them all)" if more else ""
    console.print(Text(f"{count}{hint}", style="dim"))


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, name in enumerate(names):
        numeric = any(_is_number(row[number]) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(value, null="NULL")) for value in row))
    return table


def _fields(names: Sequence[str], row: Sequence[Any]) -> Table:
    """A row of more columns than a terminal has room for: a line for each."""
    fields = Table(box=None, show_header=False, pad_edge=False)
    fields.add_column(no_wrap=True)
    fields.add_column(overflow="fold")
    for name, value in zip(names, row, strict=True):
        fields.add_row(Text(name), Text(_text(value, null="NULL")))
    return fields


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any, *, null: str) -> str:
    if value is None:
        return null
    plain = _plain(value)
    if isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has no name for these.
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if hasattr(value, "asDict"):
        return {name: _plain(inner) for name, inner in value.asDict().items()}
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value)
