"""The callback for a run of one of Lakehead's DAGs that misses its deadline."""

import logging
from typing import Any

_log = logging.getLogger(__name__)


async def log_missed_deadline(**kwargs: Any) -> None:
    """Log the missed deadline as an error of the triggerer. The Variable `lakehead_dags` can name
    another function (`deadline_callback`), such as one that alerts people.
    """
    context = kwargs.get("context") or {}
    run = context.get("dag_run") or {}
    _log.error(
        "deadline missed: %s, run %s, is not done by %s: look at its tasks, and at what keeps the "
        "pool or the store busy; the Variable lakehead_dags sets deadline_minutes",
        run.get("dag_id", "a DAG"),
        run.get("dag_run_id", "unknown"),
        (context.get("deadline") or {}).get("deadline_time", "its deadline"),
    )
