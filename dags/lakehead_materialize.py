"""Brings Delta tables up to their topics.

Every minute the tables that topics declare (`lakehead.table.enable`) are looked at by the
metadata alone. Each one that is due, which is from half of its `lakehead.table.freshness.ms` on,
gets a mapped task run of its own. A table is itself the record of how far it has come: a run that
is killed, tried again or made twice adds each record once.

A table that another process writes (`lakehead maintain`, another run) is left to it. A table with
a value that it cannot take fails alone, and says what to set.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import (
    CLUSTER,
    DRY_RUN,
    ON_RUNNER,
    RUNNER,
    job_form,
    lakehead_dag,
)
from lakehead.connectors.airflow.operators.mapped import lakehead_job

FORM = job_form("materialize")

with lakehead_dag(
    "lakehead_materialize",
    doc_md=__doc__,
    tags=("tables",),
    schedule="* * * * *",
    deadline=timedelta(minutes=30),
    params={
        **FORM.params,
        "dry_run": DRY_RUN,
        **RUNNER,
    },
):
    lakehead_job(
        "materialize",
        options=FORM.options,
        dry_run="{{ params.dry_run }}",
        max_tasks=1024,  # a table each
        **CLUSTER,
        **ON_RUNNER,
    )
