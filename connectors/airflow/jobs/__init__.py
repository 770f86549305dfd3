"""The jobs of storage and lake by name, imported where they are needed. Nothing here needs Airflow:
the driver of a Spark application may not have it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehead.lake.jobs import LAKE_JOBS
from lakehead.storage.jobs import STORAGE_JOBS

if TYPE_CHECKING:
    from lakehead.storage.jobs.job import Job

_PLACES = {
    **{name: f"{module}:JOB" for name, (module, _) in STORAGE_JOBS.items()},
    **LAKE_JOBS,
}

JOB_NAMES = tuple(sorted(_PLACES))
"""What `job` of an operator may be."""


def checked_job(name: str) -> str:
    """Return it if it is one. Raises ValueError, which Airflow shows as an import error."""
    if name not in _PLACES:
        raise ValueError(f"job is {name!r}: use one of {', '.join(JOB_NAMES)}")
    return name


def job_named(name: str) -> "Job[Any, Any]":
    """Import a job."""
    module, _, attribute = _PLACES[name].partition(":")
    found: Job[Any, Any] = getattr(import_module(module), attribute)
    return found
