"""MERGE engines: delta-rs and delta-spark, which move a table's progress with the rows, or neither.

delta-rs merges in this process, without a JVM, and commits by compare-and-set. It takes any number
of `txn` actions in the commit of a MERGE, so that commit sets the progress of all partitions,
exactly as an append does. A round whose keys the table does not have, as when it is first filled,
is an append: a MERGE would read all of the table for each of them, where reading one column is
quick.

delta-spark takes one `txn` action. So a round has a number: a first commit (of no rows, by
compare-and-set) says which round is *planned* and which offsets it reaches; the MERGE carries the
number of the round that is *done*; a last commit sets the progress of the partitions (`settle`). A
round is open while it is planned and not done, and its rows are not in the table; if it is done,
they are, and any run may settle it. A run that finds an open round plans the next one over it and
txns the open one as done without rows, so a MERGE that comes late finds its number used up:
delta-spark skips it, or finds a conflict.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from lakehead.lake.spark import spark_place
from lakehead.lake.tables.data_file import delete_data_files, write_data_file
from lakehead.lake.tables.ddl import VARIANT
from lakehead.lake.tables.delta_spark import (
    STATEMENT_LOCK,
    configured,
    conflicts_as_errors,
    delta_session,
)
from lakehead.lake.tables.delta_table import (
    CommitConflict,
    Table,
    TableUnavailable,
    app_id,
    applications,
    one_line,
    open_table,
)
from lakehead.lake.tables.key_search import has_keys
from lakehead.lake.tables.left_out import COUNTS, NO_COUNTS, counted
from lakehead.lake.tables.owner import owner_txn
from lakehead.lake.tables.partition_zones import add_zones
from lakehead.lake.tables.table_history import CHANGE
from lakehead.lake.tables.upsert import Clause, Merge, new_rows, quoted
from lakehead.lake.tables.vector_merge import (
    can_merge_by_vectors,
    merge_by_vectors,
    written_rows,
)
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import failpoint

if TYPE_CHECKING:
    from deltalake.table import TableMerger


MergeEngineName = Literal["delta-rs", "spark"]

_PLANNED = re.compile(r"lakehead:([^:]+):merge-planned")

TableProgress = Mapping[tuple[str, int], int]
"""The last offset that a table holds after a commit, by topic id and partition."""


class MergeEngine(Protocol):
    """Runs a MERGE that takes a table from the look given to it to the progress given to it."""

    def merge(
        self,
        table: Table,
        merge: Merge,
        progress: TableProgress,
        commit_info: Mapping[str, str],
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """Apply the changes, move the progress and set counts (`left_out`), all or none.

        Raises CommitConflict if another run has committed since the table was looked at,
        TableUnavailable.
        """


def open_merge_engine(name: MergeEngineName) -> MergeEngine:
    """Return an engine by its name. Raises SettingsError for one that is not installed."""
    if name == "spark":
        return SparkMerge()
    return DeltaMerge()


def planned_app(topic_id: str) -> str:
    """Return the name under which a table records the newest round that was planned."""
    return f"lakehead:{topic_id}:merge-planned"


def done_app(topic_id: str) -> str:
    """Return the name under which a table records the newest round that is done, or given up."""
    return f"lakehead:{topic_id}:merge-done"


def _next_app(topic_id: str, partition: int) -> str:
    return f"{app_id(topic_id, partition)}:planned"


def progress_txns(progress: TableProgress) -> dict[str, int]:
    """Return what a commit sets for the table of a topic to have this progress."""
    txns = {app_id(*key): last for key, last in progress.items() if last >= 0}
    for topic_id in {topic_id for topic_id, _ in progress}:
        txns |= owner_txn(topic_id)
    return txns


def _claim(table: Table, topic_id: str) -> dict[str, int]:
    """Return what another engine's commit sets so that a round left open never is done."""
    planned = table.txn_version(planned_app(topic_id))
    # One further, so that it does not pass for done.
    is_open = planned > table.txn_version(done_app(topic_id))
    return {planned_app(topic_id): planned + 1, done_app(topic_id): planned} if is_open else {}


def _next_count(topic_id: str, app: str) -> str:
    return f"{app}:{topic_id}:planned"


def claim_all(table: Table) -> dict[str, int]:
    """As `_claim`, of every topic that the table ever was of. A run that another process left, or
    still does, for a topic that was deleted since has a number and a lease of its own.

    Raises what reading the table's log raises.
    """
    found = (_PLANNED.fullmatch(app) for app in applications(table.uri))
    txns: dict[str, int] = {}
    for topic_id in sorted(one[1] for one in found if one is not None):
        txns |= _claim(table, topic_id)
    return txns


def plan_merge(
    table: Table,
    progress: TableProgress,
    commit_info: Mapping[str, str],
    counts: Mapping[str, int] = NO_COUNTS,
) -> int:
    """Commit what the next round is to reach, and return its number. Raises CommitConflict."""
    (topic_id,) = {topic_id for topic_id, _ in progress}
    number = (
        max(table.txn_version(planned_app(topic_id)), table.txn_version(done_app(topic_id)), 0) + 1
    )
    txns = {planned_app(topic_id): number, done_app(topic_id): number - 1}
    txns |= owner_txn(topic_id)
    txns |= {_next_app(*key): last for key, last in progress.items() if last >= 0}
    # All of them, as a round that was given up may have left some.
    txns |= {_next_count(topic_id, app): counts.get(app, counted(table, app)) for app in COUNTS}
    table.commit([], txns, modified_ms=SystemClock().now_ms(), commit_info=commit_info)
    failpoint("merge_planned")
    return number


def settle(table: Table, partitions: Sequence[tuple[str, int]]) -> bool:
    """Set the progress that a MERGE of delta-spark has reached, if that was not done yet.

    True if it was set: look at the table again. Raises CommitConflict, TableUnavailable.
    """
    txns: dict[str, int] = {}
    for topic_id, partition in partitions:
        planned = table.txn_version(planned_app(topic_id))
        if planned < 0 or planned != table.txn_version(done_app(topic_id)):
            continue
        reached = table.txn_version(_next_app(topic_id, partition))
        if reached > table.last_offset(topic_id, partition):
            txns[app_id(topic_id, partition)] = reached
            planned_counts = {app: table.txn_version(_next_count(topic_id, app)) for app in COUNTS}
            txns |= {app: n for app, n in planned_counts.items() if n > counted(table, app)}
    if not txns:
        return False
    table.commit([], txns, modified_ms=SystemClock().now_ms(), commit_info={})
    failpoint("merge_settled")
    return True


_SPILL_BYTES = 1 << 30


class DeltaMerge:
    """See `MergeEngine`."""

    def merge(
        self,
        table: Table,
        merge: Merge,
        progress: TableProgress,
        commit_info: Mapping[str, str],
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """Apply the changes, move the progress and set counts in one commit."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        txns = {**progress_txns(progress), **counts}
        for topic_id in {topic_id for topic_id, _ in progress}:
            txns |= _claim(table, topic_id)
        if not merge.source.num_rows and not _is_for_missing(merge):
            table.commit([], txns, modified_ms=_now_ms(), commit_info=commit_info)
            return
        if table.merges_by_vectors and can_merge_by_vectors(merge):
            merge_by_vectors(table, merge, txns, modified_ms=_now_ms(), commit_info=commit_info)
            return
        table.require_writable()
        # Of a table with a rule for its rows, the MERGE of delta-rs checks each.
        if not table.row_rule and _is_of_new_keys(table, merge):
            rows = written_rows(table, new_rows(merge))
            table.commit(rows, txns, modified_ms=_now_ms(), commit_info=commit_info)
            return
        properties = CommitProperties(
            app_transactions=[Transaction(app, mark) for app, mark in txns.items()],
            custom_metadata=dict(commit_info),
        )
        failpoint("table_commit_prepared")
        try:
            merger = table.handle.merge(
                merge.source,
                predicate=merge.on,
                source_alias="s",
                target_alias="t",
                max_spill_size=_SPILL_BYTES,
                commit_properties=properties,
            )
            for clause in merge.clauses:
                merger = _with(merger, clause)
            merger.execute()
        except (DeltaError, OSError) as error:
            now = open_table(table.uri)
            if now is None or now.version != table.version:
                # Ours, or another's: the table says how far it is.
                raise CommitConflict(f"another run has committed to {table.uri}") from error
            raise TableUnavailable(f"cannot merge into {table.uri}: {one_line(error)}") from error
        failpoint("table_committed")
        if table.handle.version() == table.version:
            # A MERGE that changes no row is no commit to delta-rs, and progress is still made.
            table.commit([], txns, modified_ms=_now_ms(), commit_info=commit_info)
        else:
            add_zones(table)


def _now_ms() -> int:
    return SystemClock().now_ms()


def _is_of_new_keys(table: Table, merge: Merge) -> bool:
    return bool(merge.key) and not has_keys(table, merge.source.select([merge.key]))


def _is_for_missing(merge: Merge) -> bool:
    return any(clause.verb.endswith("_missing") for clause in merge.clauses)


def _with(merger: "TableMerger", clause: Clause) -> "TableMerger":
    values = {name.replace("`", "``"): text for name, text in clause.values}
    condition = clause.condition or None
    if clause.verb == "update":
        return merger.when_matched_update(values, condition)
    if clause.verb == "delete":
        return merger.when_matched_delete(condition)
    if clause.verb == "insert":
        return merger.when_not_matched_insert(values, condition)
    if clause.verb == "update_missing":
        return merger.when_not_matched_by_source_update(values, condition)
    return merger.when_not_matched_by_source_delete(condition)


_WRITE = "spark.databricks.delta.write"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class SparkMerge:
    """See `MergeEngine`: a commit that plans, the MERGE, a commit that settles."""

    def merge(
        self,
        table: Table,
        merge: Merge,
        progress: TableProgress,
        commit_info: Mapping[str, str],
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """Apply the changes and move the progress, atomically for readers of the progress."""
        if VARIANT in table.schema.types:
            raise SettingsError(
                f"{table.uri} has a VARIANT column, which --engine spark does not merge: leave it "
                "out"
            )
        session = delta_session(table.uri)
        (topic_id,) = {topic_id for topic_id, _ in progress}
        change = {name: text for name, text in commit_info.items() if name == CHANGE}
        plain = {name: text for name, text in commit_info.items() if name != CHANGE}
        number = plan_merge(table, progress, plain, counts)  # nothing is visible by it yet
        staged = write_data_file(table.uri, merge.source)
        failpoint("merge_staged")
        place = f"{spark_place(table.uri).rstrip('/')}/{staged.path}"
        settings = {
            f"{_WRITE}.txnAppId": done_app(topic_id),
            f"{_WRITE}.txnVersion": str(number),
            _USER_METADATA: json.dumps(dict(commit_info)),
        }
        with (
            STATEMENT_LOCK,
            configured(session, settings),
            conflicts_as_errors(table.uri, table.version + 1),
        ):
            session.read.parquet(place).createOrReplaceTempView("lakehead_changes")
            session.sql(merge_statement(table.uri, merge)).collect()
        failpoint("merge_committed")
        delete_data_files(table.uri, [staged.path])
        self._settle(table.uri, topic_id, number, list(progress), change)

    def _settle(
        self,
        uri: str,
        topic_id: str,
        number: int,
        partitions: Sequence[tuple[str, int]],
        change: Mapping[str, str],
    ) -> None:
        now = open_table(uri)
        if now is None or now.txn_version(planned_app(topic_id)) != number:
            raise CommitConflict(f"another run has committed to {uri}")
        if now.txn_version(done_app(topic_id)) < number:  # no row was to be changed
            now.commit([], {done_app(topic_id): number}, modified_ms=_now_ms(), commit_info=change)
            now = now.refreshed()
        settle(now, partitions)


def merge_statement(uri: str, merge: Merge) -> str:
    """Return the SQL of a MERGE whose source is the view `lakehead_changes`."""
    into = quoted(spark_place(uri))
    clauses = " ".join(_clause(clause) for clause in merge.clauses)
    return f"MERGE INTO delta.{into} t USING lakehead_changes s ON {merge.on} {clauses}"


def _clause(clause: Clause) -> str:
    condition = f" AND {clause.condition}" if clause.condition else ""
    if clause.verb == "insert":
        names = ", ".join(quoted(name) for name, _ in clause.values)
        values = ", ".join(text for _, text in clause.values)
        inserted = f"INSERT ({names}) VALUES ({values})"  # noqa: S608 - names are quoted
        return f"WHEN NOT MATCHED{condition} THEN {inserted}"
    which = "NOT MATCHED BY SOURCE" if clause.verb.endswith("_missing") else "MATCHED"
    if clause.verb.startswith("delete"):
        return f"WHEN {which}{condition} THEN DELETE"
    changes = ", ".join(f"t.{quoted(name)} = {text}" for name, text in clause.values)
    return f"WHEN {which}{condition} THEN UPDATE SET {changes}"
