"""The job `materialize`: a topic becomes a Delta table that holds each record once.

Plan: the table has the progress of each partition, the metadata log the end of its records in
objects; the range between is cut into work items of byte ranges. Work: each item is decoded and
written as Parquet files that no commit names yet (`table_item`). Result: one commit adds the files
and moves the progress of their partitions, by compare-and-set on the version that was planned from
(`table_run`).

So a run may be killed anywhere, and any number may run at once: uncommitted work is planned again
by the next run, and of two runs with the same work one commits and the other plans again. Files
that no commit names are removed by VACUUM.

A record whose value cannot be read is handled by `on_error`. `pause`: its partition ends before it,
the rest is committed, and the run fails naming it. `dead_letter`: it goes to the table
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
    """Add the records that lie in objects now to a topic's table, and return the result. Work items
    go to `runner` (such as `lakehead.lake.jobs.spark_runner`), or to threads of this process.

    Without a guard the table must not be declared by a topic: the process that holds the lease of
    such a table may MERGE with an engine that does not see concurrent commits.

    Raises SettingsError, UnknownTopic, RecordUnreadable, SchemaConflict, TableUnavailable, what the
    guard raises and what reading objects raises. After any error, run it again.
    """
    reader = store_reader(settings.path)
    catalog = reader.open_catalog()
    if guard is None:
        check_place(catalog, settings.table)
    run = TableRun(settings, reader, guard or Unguarded(), on_progress, runner=runner)
    run.catch_up(catalog)
    return run.result
