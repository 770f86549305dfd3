"""Who runs a MERGE, and how it moves a table's progress with the rows, both or neither.

delta-rs takes any number of `txn` actions in the commit of a MERGE: progress of all partitions is
set by it, exactly as by an append.

delta-spark takes one. So a round has a number: a first commit (of no rows, by compare-and-set)
says what round is *planned* and which offsets it reaches; the MERGE carries the number of the round
that is *done*; a last commit sets the progress of the partitions (`settle`). A round is open while
it is planned and not done, and its rows are not in the table; if it is done, they are, whoever
settles it. Whoever finds an open round plans the next one over it and marks it as done by nobody,
so a MERGE that comes late finds its number used up: delta-spark skips it, or finds a conflict.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from lakehead.lake.tables.delta_table import applications
from lakehead.lake.tables.delta_table import Table, app_id
from lakehead.lake.tables.left_out import COUNTS, NO_COUNTS, counted
from lakehead.lake.tables.owner import owner_marks
from lakehead.lake.tables.upsert import Merge
from lakehead.storage.clock import SystemClock
from lakehead.storage.failpoints import failpoint

MergeEngineName = Literal["delta-rs", "spark"]

_PLANNED = re.compile(r"lakehead:([^:]+):merge-planned")

Progress = Mapping[tuple[str, int], int]
"""The last offset that a table holds after a commit, by topic id and partition."""


class MergeEngine(Protocol):
    """Runs a MERGE that takes a table from the look given to it to the progress given to it."""

    def merge(
        self,
        table: Table,
        merge: Merge,
        progress: Progress,
        notes: Mapping[str, str],
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """Apply the changes, move the progress and set counts (`left_out`), all or none.

        Raises TableMoved if another run has committed since the table was looked at,
        TableUnavailable.
        """


def open_merge_engine(name: MergeEngineName) -> MergeEngine:
    """Return an engine by its name. Raises SettingsError for one that is not installed."""
    if name == "spark":
        from lakehead.lake.tables.delta_spark import SparkMerge

        return SparkMerge()
    from lakehead.lake.tables.delta_merge import DeltaMerge

    return DeltaMerge()


def planned_app(topic_id: str) -> str:
    """Return the name under which a table records the newest round that was planned."""
    return f"lakehead:{topic_id}:merge-planned"


def done_app(topic_id: str) -> str:
    """Return the name under which a table records the newest round that is done, or given up."""
    return f"lakehead:{topic_id}:merge-done"


def _next_app(topic_id: str, partition: int) -> str:
    return f"{app_id(topic_id, partition)}:planned"


def progress_marks(progress: Progress) -> dict[str, int]:
    """Return what a commit sets for the table of a topic to have this progress."""
    marks = {app_id(*key): last for key, last in progress.items() if last >= 0}
    for topic_id in {topic_id for topic_id, _ in progress}:
        marks |= owner_marks(topic_id)
    return marks


def claim(table: Table, topic_id: str) -> dict[str, int]:
    """Return what another engine's commit sets so that a round left open never is done."""
    planned = table.marked(planned_app(topic_id))
    # One further, so that it does not pass for done.
    is_open = planned > table.marked(done_app(topic_id))
    return {planned_app(topic_id): planned + 1, done_app(topic_id): planned} if is_open else {}


def _next_count(topic_id: str, app: str) -> str:
    return f"{app}:{topic_id}:planned"


def claim_all(table: Table) -> dict[str, int]:
    """As `claim`, of every topic that the table ever was of. A run that another process left, or
    still does, for a topic that was deleted since has a number and a lease of its own.

    Raises what reading the table's log raises.
    """
    found = (_PLANNED.fullmatch(app) for app in applications(table.uri))
    marks: dict[str, int] = {}
    for topic_id in sorted(one[1] for one in found if one is not None):
        marks |= claim(table, topic_id)
    return marks


def plan_merge(
    table: Table,
    progress: Progress,
    notes: Mapping[str, str],
    counts: Mapping[str, int] = NO_COUNTS,
) -> int:
    """Commit what the next round is to reach, and return its number. Raises TableMoved."""
    (topic_id,) = {topic_id for topic_id, _ in progress}
    number = max(table.marked(planned_app(topic_id)), table.marked(done_app(topic_id)), 0) + 1
    marks = {planned_app(topic_id): number, done_app(topic_id): number - 1}
    marks |= owner_marks(topic_id)
    marks |= {_next_app(*key): last for key, last in progress.items() if last >= 0}
    # All of them, as a round that was given up may have left some.
    marks |= {_next_count(topic_id, app): counts.get(app, counted(table, app)) for app in COUNTS}
    table.commit([], marks, modified_ms=SystemClock().now_ms(), notes=notes)
    failpoint("merge_planned")
    return number


def settle(table: Table, partitions: Sequence[tuple[str, int]]) -> bool:
    """Set the progress that a MERGE of delta-spark has reached, if that was not done yet.

    True if it was set: look at the table again. Raises TableMoved, TableUnavailable.
    """
    marks: dict[str, int] = {}
    for topic_id, partition in partitions:
        planned = table.marked(planned_app(topic_id))
        if planned < 0 or planned != table.marked(done_app(topic_id)):
            continue
        reached = table.marked(_next_app(topic_id, partition))
        if reached > table.last_offset(topic_id, partition):
            marks[app_id(topic_id, partition)] = reached
            planned_counts = {app: table.marked(_next_count(topic_id, app)) for app in COUNTS}
            marks |= {app: n for app, n in planned_counts.items() if n > counted(table, app)}
    if not marks:
        return False
    table.commit([], marks, modified_ms=SystemClock().now_ms(), notes={})
    failpoint("merge_settled")
    return True
