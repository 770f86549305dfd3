"""Maintains the files of Delta tables: OPTIMIZE and VACUUM of the tables where they are due.

OPTIMIZE merges small files into large ones where `lakehead.table.optimize.*` of the topic requests
it, VACUUM deletes files that no version of the last `lakehead.table.vacuum.*` needs. Each table is
a mapped task run, under the lease of the table: while another process writes it, it is waited for,
five minutes at most, and then left for the next time.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import CLUSTER, DRY_RUN, job_form, lakehead_dag
from lakehead.connectors.airflow.operators.mapped import lakehead_job

FORMS = {job: job_form(job) for job in ("optimize", "vacuum")}

with lakehead_dag(
    "lakehead_table_upkeep",
    doc_md=__doc__,
    tags=("tables",),
    schedule="20 * * * *",
    deadline=timedelta(hours=3),
    params={
        **FORMS["optimize"].params,
        **FORMS["vacuum"].params,
        "dry_run": DRY_RUN,
    },
):
    for job, form in FORMS.items():
        lakehead_job(
            job,
            options=form.options,
            dry_run="{{ params.dry_run }}",
            wait_s=300,
            **CLUSTER,
        )
