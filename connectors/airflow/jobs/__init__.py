"""The jobs of storage and lake as Airflow's operators see them: each a plan of units, and work on
some of them. Found by name, imported where a task runs. Nothing here needs Airflow: the driver of
a Spark application may not have it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connectors.airflow.jobs.frame import Job

_PLACES = {
    "backfill": "connectors.airflow.jobs.one_table_jobs:BACKFILL",
    "compact": "connectors.airflow.jobs.storage_jobs:COMPACT",
    "compact_topics": "connectors.airflow.jobs.storage_jobs:COMPACT_TOPICS",
    "materialize": "connectors.airflow.jobs.table_jobs:MATERIALIZE",
    "optimize": "connectors.airflow.jobs.table_jobs:OPTIMIZE",
    "rebuild_catalog": "connectors.airflow.jobs.check_jobs:REBUILD_CATALOG",
    "rebuild_table": "connectors.airflow.jobs.one_table_jobs:REBUILD_TABLE",
    "replay": "connectors.airflow.jobs.one_table_jobs:REPLAY",
    "retain": "connectors.airflow.jobs.storage_jobs:RETAIN",
    "sweep": "connectors.airflow.jobs.storage_jobs:SWEEP",
    "vacuum": "connectors.airflow.jobs.table_jobs:VACUUM",
    "verify": "connectors.airflow.jobs.check_jobs:VERIFY",
}

JOB_NAMES = tuple(_PLACES)
"""What `job` of an operator may be."""


def checked_job(name: str) -> str:
    """Return it if it is one. Raises ValueError, for whoever reads the DAG."""
    if name not in _PLACES:
        raise ValueError(f"job is {name!r}: use one of {', '.join(JOB_NAMES)}")
    return name


def job_named(name: str) -> "Job":
    """Import a job."""
    module, _, attribute = _PLACES[name].partition(":")
    found: Job = getattr(import_module(module), attribute)
    return found
