"""The output of commands: tables for people, JSON for programs.

docs/json-output.md has the fields of the JSON. A field keeps its name and meaning; new ones come.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

_UNBOUNDED = 10_000
_FEW = 6
"""Columns up to which a table stays legible when its words are broken."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], as_json: bool) -> None:
    """Print rows as a table, or as one line of JSON each with every field.

    `columns` gives the field and the heading of each column. A terminal that is too narrow for the
    words of a table with many columns gets a line for each field, as psql's expanded display.
    """
    if as_json:
        for row in rows:
            typer.echo(json.dumps(json_names(row)))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for field, heading in columns.items():
        is_number = bool(rows) and isinstance(rows[0].get(field), int)
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(field)) for field in columns))
    console = output_console()
    if len(columns) > _FEW and not _fits(console, table):
        for number, row in enumerate(rows):
            if number:
                typer.echo()
            named = {
                heading.strip() or field.upper(): row.get(field)
                for field, heading in columns.items()
            }
            show_fields(named, as_json)
        return
    with console.capture() as captured:
        console.print(table)
    # The last column is padded, which an editor or a narrower window shows as empty lines.
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _fits(console: Console, table: Table) -> bool:
    """Return true if the words of all columns fit beside each other."""
    unbounded = console.options.update(width=_UNBOUNDED)
    return console.measure(table, options=unbounded).minimum <= console.width


def show_fields(fields: Mapping[str, Any], as_json: bool) -> None:
    """Print one thing: a name and a value a line, or JSON."""
    if as_json:
        typer.echo(json.dumps(json_names(fields)))
        return
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        typer.echo(f"{name.ljust(width)}  {_cell(value)}")


def json_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields by names for programs: `bytes_read` of the label `bytes read`."""
    return {re.sub(r"\W+", "_", name).strip("_"): value for name, value in fields.items()}


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ") if abs(value) >= 100_000 else str(value)
    return str(value)


def output_console() -> Console:
    """Return the console of standard output."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED  # a pipe has no edge to wrap at
    return console
