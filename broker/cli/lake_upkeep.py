"""The lake's part of `lakehead maintain`: tables that topics declare, where its packages are
installed. Nothing of the lake is imported unless there is a table to work on.
"""

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from broker.cli.cluster import load_state, run, store_uri
from storage.errors import LakeheadError
from storage.metadata.table_declaration import is_declared

if TYPE_CHECKING:
    from lake.jobs.declared_tables import TableOutcome

_PAUSE_S = 10.0
_log = structlog.get_logger("broker.maintenance")


def is_lake_installed() -> bool:
    """Whether what tables need can be imported."""
    return all(importlib.util.find_spec(name) for name in ("deltalake", "pyarrow", "numba"))


def has_tables(path: str) -> bool:
    """Whether a topic of the cluster at `path` declares a table."""
    return any(is_declared(topic) for topic in run(load_state(path)).topics.values())


def bring_up_tables(path: str, *, dry_run: bool) -> "list[TableOutcome]":
    """Bring up the declared tables that are due, then keep their files; what fails in one is in its
    outcome, or logged.
    """
    if not has_tables(path):
        return []
    from lake.jobs.declared_tables import DeclaredTables

    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(store_uri(path))
    try:
        tables.bring_up(all_of_them=False, tell=outcomes.append, dry_run=dry_run)
    finally:
        tables.close()
    if not dry_run:
        _keep_files(path)
    return outcomes


def _keep_files(path: str) -> None:
    """OPTIMIZE and VACUUM what is due of either, without a JVM."""
    from lake.jobs.table_upkeep import optimize, targets, vacuum

    where = store_uri(path)
    for target in targets(where):
        for name, job in (("optimize", optimize), ("vacuum", vacuum)):
            result = job(where, target, dry_run=True)
            if result.error is None and result.is_due:
                result = job(where, target)
                _log.info("table_files_kept", job=name, topic=target.topic)
            if result.error is not None:
                error = str(result.error)
                _log.warning("table_files_not_kept", job=name, topic=target.topic, error=error)


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
            _log.warning("tables_not_kept", error=str(error))
        stopped.wait(_PAUSE_S)


def _follow(path: str, stopped: threading.Event) -> None:
    from lake.jobs.declared_tables import DeclaredTables

    tables = DeclaredTables(store_uri(path))
    try:
        tables.follow(stopped, _tell)
    finally:
        tables.close()


def _tell(outcome: "TableOutcome") -> None:
    if outcome.error is not None:
        _log.warning("table_not_kept", topic=outcome.topic, error=str(outcome.error))
    elif outcome.result.commits:
        _log.info("table_kept", topic=outcome.topic, records=outcome.result.records)
