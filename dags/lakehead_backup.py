"""Copies the cluster to another store, as it is at one moment, and keeps the newest copies.

It has a schedule as soon as the Variable `lakehead_dags` names a `target` for it. Objects that the
target has are not copied again. A run that is killed leaves the backup before it as it is, and
another try copies the rest. Of older backups the first of each hour stays for a day. Nothing is
deleted but backups of this cluster, and objects of this cluster that none of the kept ones names.

One process makes the backups of a target: use either this DAG or `lakehead backup --follow`.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import CLUSTER, DRY_RUN, job_form, lakehead_dag
from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

FORM = job_form("backup")

with lakehead_dag(
    "lakehead_backup",
    doc_md=__doc__,
    tags=("storage",),
    schedule="20 * * * *",
    needs="target",
    deadline=timedelta(hours=2),
    params={**FORM.params, "dry_run": DRY_RUN},
):
    LakeheadJobOperator(
        task_id="backup",
        job="backup",
        options=FORM.options,
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
    )
