"""The job `materialize`: a topic becomes a Delta table that holds each record once.

Plan: the table itself says how far each partition got, the metadata log how far its records lie in
objects; what is between is cut into work items of byte ranges. Work: each item is decoded and
written as Parquet files that nobody sees yet (`table_item`). Result: one commit adds the files and
moves the progress of their partitions, by compare-and-set on the version that was planned from
(`table_run`).

So a run may be killed anywhere, and any number may run at once: what was not committed is planned
again by the next run, and of two that did the same work one commits and the other looks again.
Files that no commit names are removed by VACUUM.

A record whose value cannot be read is handled as `on_error` says. `pause`: its partition ends
before it, the rest is committed, and the run fails naming it. `dead_letter`: it goes to the table
`<table>__dlq` (`dead_letters`). `drop`: it is counted.
"""

from lakehead.lake.jobs.table_run import TableRun
from lakehead.lake.jobs.table_settings import (
    Guard,
    MaterializeResult,
    MaterializeSettings,
    Progress,
    Unguarded,
)
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.table_root import check_place
from lakehead.storage.jobs.job import Runner


def materialize(
    settings: MaterializeSettings,
    *,
    on_progress: Progress = lambda _done, _total: None,
    guard: Guard | None = None,
    runner: Runner | None = None,
) -> MaterializeResult:
    """Bring a topic's table up to what lies in objects now, and return figures. Work items go to
    `runner` (such as `lakehead.lake.jobs.spark_runner`), or to threads of this process.

    Without a guard the table must be none that a topic declares: who is at work on such a one may
    MERGE with an engine that does not see what is committed beside it.

    Raises SettingsError, UnknownTopic, RecordUnreadable, SchemaConflict, TableUnavailable, what
    the guard raises and what reading objects raises. Whatever it raises, run it again.
    """
    reader = store_reader(settings.path)
    catalog = reader.open_catalog()
    if guard is None:
        check_place(catalog, settings.table)
    run = TableRun(settings, reader, guard or Unguarded(), on_progress, runner=runner)
    run.catch_up(catalog)
    return run.result
