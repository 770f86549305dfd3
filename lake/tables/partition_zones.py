"""Partition values that are times, with their zone in the log.

Delta-rs writes the time of a partition without a zone, and Spark takes that for a time in its
session's zone. So after a commit of delta-rs that wrote data files (MERGE, DELETE), the files whose
times lack their zone are added to the log once more, with it and else as they were. In between, and
after a run that was killed there until the next such commit, the table is as delta-rs left it.

Source: Delta transaction log protocol, "Partition Value Serialization" (a time in ISO 8601 with Z
is in UTC) and "Action Reconciliation" (the newest action of a path counts).
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakehead.lake.tables.delta_table import CommitConflict, Table
from lakehead.lake.tables.logical_files import LogicalFile
from lakehead.lake.tables.partitions import partition_text
from lakehead.storage.clock import SystemClock

_ATTEMPTS = 5


def add_zones(before: Table) -> None:
    """Have each time of a partition in the log of a table, as of its newest version, with its zone;
    `before` is any look at it. Conflicts leave that to the next call. Raises TableUnavailable.
    """
    names = _times(before)
    if not names:
        return
    before.logical_files()  # further looks go on from there, and read new entries alone
    for _ in range(_ATTEMPTS):
        table = before.refreshed()
        files = table.logical_files().files.values()
        actions = [action for file in files if (action := _with_zones(file, names)) is not None]
        if not actions:
            return
        try:
            table.commit_actions(
                actions,
                {},
                operation="ADD ZONES",
                modified_ms=SystemClock().now_ms(),
                commit_info={},
            )
        except CommitConflict:
            continue
        return


def _times(table: Table) -> tuple[str, ...]:
    schema = table.schema
    return tuple(
        name for name in table.partition_columns if pa.types.is_timestamp(schema.field(name).type)
    )


def _with_zones(file: LogicalFile, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the action that adds a file with zones; None if it has them."""
    values: Mapping[str, str | None] = file.action.get("partitionValues") or {}
    lacking = {name: text for name in names if (text := values.get(name)) and _lacks_zone(text)}
    if not lacking:
        return None
    return file.with_partition(
        {**values, **{name: _with_zone(text) for name, text in lacking.items()}}
    )


def _lacks_zone(text: str) -> bool:
    try:
        return dt.datetime.fromisoformat(text).tzinfo is None
    except ValueError:  # beyond the years of Python's times: it stays as it is
        return False


def _with_zone(text: str) -> str | None:
    return partition_text(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC))
