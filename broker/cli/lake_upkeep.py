"""The lake's part of `lakehead maintain`: tables that topics declare, where its packages are
installed. Nothing of the lake is imported unless there is a table to work on.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from lakehead.broker.cli.cluster import load_state, run, store_uri
from lakehead.storage.errors import LakeheadError

if TYPE_CHECKING:
    from lakehead.lake.jobs.declared_tables import TableOutcome
    from lakehead.lake.jobs.table_maintenance import MaintenanceResult

_PAUSE_S = 10.0
_log = structlog.get_logger("broker.maintenance")


def has_tables(path: str) -> bool:
    """Return true if a topic of the cluster at `path` declares a table."""
    return any(topic.declares_table for topic in run(load_state(path)).topics.values())


@dataclass(slots=True)
class TableTurn:
    """The result of a turn over declared tables: of their rows and, if due, of their files."""

    tables: "list[TableOutcome]" = field(default_factory=list)
    files: "list[MaintenanceResult]" = field(default_factory=list)

    def errors(self) -> list[str]:
        """Failures by topic. A table that another process writes is left to that process."""
        if not (self.tables or self.files):
            return []
        from lakehead.lake.jobs.table_lease import TableTaken

        found = {}
        every: list[TableOutcome | MaintenanceResult] = [*self.tables, *self.files]
        for one in every:
            if isinstance(one.error, TableTaken):
                _log.info("table_skipped", topic=one.topic, reason=str(one.error))
            elif one.error is not None:
                found[one.topic] = f"{one.topic}: {one.error}"
        return list(found.values())


def keep_tables(path: str, *, dry_run: bool) -> TableTurn:
    """Bring up the declared tables that are due, then OPTIMIZE and VACUUM those that are due,
    without a JVM. With `dry_run`, look what is due.
    """
    turn = TableTurn()
    if not has_tables(path):
        return turn
    from lakehead.lake.jobs.declared_tables import DeclaredTables

    tables = DeclaredTables(store_uri(path))
    try:
        tables.catch_up(all_of_them=False, on_table=turn.tables.append, dry_run=dry_run)
        tables.maintain_files(turn.files.append, dry_run=dry_run)
    finally:
        tables.close()
    return turn


@contextmanager
def kept_tables(path: str) -> Iterator[None]:
    """Keep the declared tables fresh, in a thread, while the block runs."""
    stopped = threading.Event()
    thread = threading.Thread(target=_keep, args=(path, stopped), name="tables", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_PAUSE_S)  # a turn that takes longer may be ended anywhere


def _keep(path: str, stopped: threading.Event) -> None:
    while not stopped.is_set():
        try:
            if has_tables(path):
                _follow(path, stopped)
        except LakeheadError as error:
            _log.warning("tables_not_maintained", error=str(error))
        stopped.wait(_PAUSE_S)


def _follow(path: str, stopped: threading.Event) -> None:
    from lakehead.lake.jobs.declared_tables import DeclaredTables

    tables = DeclaredTables(store_uri(path))
    try:
        tables.follow(stopped, _report, on_files=_report_files)
    finally:
        tables.close()


def _report(outcome: "TableOutcome") -> None:
    if outcome.error is not None:
        _log.warning("table_not_maintained", topic=outcome.topic, error=str(outcome.error))
    elif outcome.result.commits:
        _log.info("table_maintained", topic=outcome.topic, records=outcome.result.records)


def _report_files(result: "MaintenanceResult") -> None:
    if result.error is not None:
        error = str(result.error)
        _log.warning("table_files_not_maintained", job=result.job, topic=result.topic, error=error)
    else:
        _log.info(
            "table_files_maintained",
            job=result.job,
            topic=result.topic,
            files=result.files,
            files_after=result.files_after,
            removed=result.removed,
        )
