"""A Delta table beside the rows that it must have."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from deltalake import DeltaTable

from tests.changes.tables import Table

_SHOWN = 5


def differences(table: Table, uri: str, wanted: Iterable[tuple[Any, ...]]) -> list[str]:
    """What is not as in the database, a line each: rows that one side has more often."""
    columns = DeltaTable(uri).to_pyarrow_table(columns=list(table.columns)).to_pydict()
    held = Counter(zip(*columns.values(), strict=True))
    there = Counter(wanted)
    found = []
    for what, rows in (("too much", held - there), ("missing", there - held)):
        if rows:
            shown = [str(row)[:300] for row in rows.elements()][:_SHOWN]
            found.append(f"{table.name}: {rows.total()} rows {what}, as {shown}")
    return found
