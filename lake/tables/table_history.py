"""The history of a table: the offsets and rows that each commit added, from the commit's own info.

A commit that makes records visible has the note `lakehead.change`, JSON: the job (`kind`), the
offsets [first, end) by partition, the rows, and the run that wrote it (`by`), which the caller
names. So the history has the offsets and rows of each version, also for a run that was killed after
its commit. Commits that add no records (OPTIMIZE, wider columns, txns) have no such note.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from lakehead.lake.tables import delta_table
from lakehead.lake.tables.delta_table import Table, TableUnavailable, one_line

ChangeKind = Literal["backfill", "materialize", "rebuild_table", "replay"]
"""The job that wrote a table."""

CHANGE = "lakehead.change"
_SPARK_NOTES = "userMetadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Records that one commit made visible. A replay has rows alone, whose offsets the table went
    over before; a rebuild all that the new table holds. `written_by` names the run, empty if its
    caller gave no name.
    """

    kind: ChangeKind
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    rows: int = 0
    written_by: str = ""

    def commit_info(self) -> dict[str, str]:
        """Return the note of the commit; none if nothing became visible."""
        offsets = {str(p): [first, end] for p, (first, end) in self.offsets.items() if first < end}
        if not offsets and not self.rows:
            return {}
        change = {"kind": self.kind, "offsets": offsets, "rows": self.rows, "by": self.written_by}
        return {CHANGE: json.dumps(change, sort_keys=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """A commit that brought records: the version that it made, when (milliseconds), and what."""

    version: int
    at_ms: int
    change: Change


class History(NamedTuple):
    """A part of a table's history: the commits that added records, the oldest first, and the commit
    time of every version (milliseconds).
    """

    commits: list[TableCommit]
    at_ms: dict[int, int]


def history_since(table: Table, version: int) -> History:
    """Return the history above `version`. Raises TableUnavailable."""
    entries = entries_since(table, version)
    at_ms = {one["version"]: int(one.get("timestamp", 0)) for one in entries}
    return History(sorted(_read(entries, version), key=lambda one: one.version), at_ms)


def entries_since(table: Table, version: int) -> list[dict[str, Any]]:
    """Return the infos of the commits above `version`, with their versions. The log may not have
    all of them any more: Delta removes entries that are older than the table's
    `delta.logRetentionDuration` (30 days). Raises TableUnavailable.
    """
    from deltalake.exceptions import DeltaError

    end, entries, now = table.version, [], None
    # delta-rs reads the newest commits that there are, and numbers them as if the newest were the
    # one that the table was opened at.
    while end > version and (now is None or now.version != table.version):
        table = now or table
        try:
            entries = table.handle.history(table.version - version)
        except (DeltaError, OSError) as error:
            message = f"cannot read the history of {table.uri}: {one_line(error)}"
            raise TableUnavailable(message) from error
        now = delta_table.open_table(table.uri) or table
    return [one for one in entries if version < one["version"] <= end]


def commits_since(table: Table, version: int) -> list[TableCommit]:
    """Return the commits of `history_since`. Raises TableUnavailable."""
    return history_since(table, version).commits


def _read(entries: list[dict[str, Any]], version: int) -> Iterator[TableCommit]:
    for entry in entries:
        if entry["version"] > version and (change := change_of(entry)) is not None:
            at_ms = int(entry.get("timestamp", 0))
            yield TableCommit(version=entry["version"], at_ms=at_ms, change=change)


def noted(entry: Mapping[str, Any], name: str) -> Any:
    """Return a note of a commit's info, also where Spark keeps it; None without it."""
    if name in entry or not isinstance(entry.get(_SPARK_NOTES), str):
        return entry.get(name)
    try:
        commit_info = json.loads(entry[_SPARK_NOTES])
    except ValueError:
        return None
    return commit_info.get(name) if isinstance(commit_info, dict) else None


def change_of(entry: Mapping[str, Any]) -> Change | None:
    """Return the change of an entry; None for one of another program, or without the note."""
    note = noted(entry, CHANGE)
    try:
        if note is None:
            return None
        change = json.loads(note)
        offsets = {int(p): (int(first), int(end)) for p, (first, end) in change["offsets"].items()}
        return Change(
            kind=change["kind"], offsets=offsets, rows=int(change["rows"]), written_by=change["by"]
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
