"""Deletes objects that nothing needs any more, after a grace period.

These are objects that were compacted, trimmed or dropped, and those that a node left half done when
it crashed. An object goes before the entry that forgets it, so a run that is killed leaves nothing
behind.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import CLUSTER, DRY_RUN, job_form, lakehead_dag
from lakehead.connectors.airflow.operators.mapped import lakehead_job

FORM = job_form("sweep")

with lakehead_dag(
    "lakehead_sweep",
    doc_md=__doc__,
    tags=("storage",),
    schedule="40 2 * * *",
    deadline=timedelta(hours=6),
    params={**FORM.params, "dry_run": DRY_RUN},
):
    lakehead_job(
        "sweep",
        options=FORM.options,
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
    )
