"""By hand: shows that a topic's table is the topic, row for row, from the bucket alone.

Reads the topic's records and the table's rows, or a sample of both, and writes nothing. The task
`summary` has the report, in its log and as XCom; a difference fails the run, with offset, object
and data file.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import (
    CLUSTER,
    ON_RUNNER,
    RUNNER,
    job_form,
    lakehead_dag,
)
from lakehead.connectors.airflow.operators.mapped import lakehead_job

FORM = job_form("attest")

with lakehead_dag(
    "lakehead_attest",
    doc_md=__doc__,
    tags=("tables", "by-hand", "report"),
    deadline=timedelta(hours=24),
    params={**FORM.params, **RUNNER},
):
    lakehead_job(
        "attest",
        options=FORM.options,
        **CLUSTER,
        **ON_RUNNER,
    )
