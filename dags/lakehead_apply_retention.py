"""Removes what `retention.ms` and `retention.bytes` are over for.

Whole objects go, and never what the table of a topic with `lakehead.table.enable` does not hold
yet. The records are gone for readers at once; `lakehead_sweep`, or a node, deletes the objects
after their grace period.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import CLUSTER, DRY_RUN, job_form, lakehead_dag
from lakehead.connectors.airflow.operators.mapped import lakehead_job

FORM = job_form("apply_retention")

with lakehead_dag(
    "lakehead_apply_retention",
    doc_md=__doc__,
    tags=("storage",),
    schedule="*/10 * * * *",
    deadline=timedelta(hours=1),
    params={**FORM.params, "dry_run": DRY_RUN},
):
    lakehead_job(
        "apply_retention",
        options=FORM.options,
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
    )
