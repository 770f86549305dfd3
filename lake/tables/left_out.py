"""Counts of fields and records that a table left out, kept by the table itself.

Two counts since the table was made, as `txn` actions in the commits of the rows: records whose
values have fields that the table has no column for, and records that were dropped. So they are as
exact as the rows, and a run that is killed and done again counts once.
"""

from collections.abc import Mapping
from types import MappingProxyType

from lakehead.lake.tables.delta_table import Table

LEFT_OUT = "lakehead:left-out"
"""Rows whose values have fields that the table has no column for."""

DROPPED = "lakehead:dropped"
"""Records that `lakehead.table.on.error=drop` left out."""

COUNTS = (LEFT_OUT, DROPPED)
NO_COUNTS: Mapping[str, int] = MappingProxyType({})
"""The counts of a commit that adds to none."""


def counted(table: Table, app: str) -> int:
    """Return a count of the table."""
    return max(table.txn_version(app), 0)


def count_txns(table: Table, *, left_out: int = 0, dropped: int = 0) -> Mapping[str, int]:
    """Return what a commit sets to add to the table's counts."""
    more = {LEFT_OUT: left_out, DROPPED: dropped}
    return {app: counted(table, app) + number for app, number in more.items() if number}
