"""Declared tables of a cluster, brought up to their topics as a job does, or followed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakehead.lake.jobs.declared_tables import DeclaredTables, OnMaintained, TableOutcome


def materialize_all(cluster: Path) -> None:
    """Bring each declared table up to what lies in objects; none may fail."""
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(cluster))
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    assert [outcome.error for outcome in outcomes] == [None]


@contextmanager
def followed(cluster: Path, on_files: OnMaintained | None = None) -> Iterator[list[TableOutcome]]:
    """Follow the declared tables in a thread while the block runs; gives their outcomes so far. The
    thread may not fail.
    """
    outcomes: list[TableOutcome] = []
    stopped, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        tables = DeclaredTables(str(cluster))
        try:
            tables.follow(stopped, outcomes.append, on_files=on_files)
        except BaseException as error:
            failures.append(error)
        finally:
            tables.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outcomes
    finally:
        stopped.set()
        thread.join()
    assert not failures
