"""Declared tables of a cluster, brought up to their topics as a job does."""

from pathlib import Path

from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome


def materialize_all(cluster: Path) -> None:
    """Bring each declared table up to what lies in objects; none may fail."""
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(cluster))
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    assert [outcome.error for outcome in outcomes] == [None]
