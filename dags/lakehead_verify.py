"""Reads everything, and compares it with its checksums and with the metadata.

Every stream's offsets without a gap, every object there and as the metadata say, every block and
record batch as its checksum says. Writes nothing. The task `summary` has the report, in its log
and as XCom; damage fails the run, with topic, partition, offsets, object and what to do.

By hand, for one topic or for a part of all objects, whenever you want to know.
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

FORM = job_form("verify")

with lakehead_dag(
    "lakehead_verify",
    doc_md=__doc__,
    tags=("storage", "report"),
    schedule="0 3 * * 0",
    deadline=timedelta(hours=24),
    params={**FORM.params, **RUNNER},
):
    lakehead_job(
        "verify",
        options=FORM.options,
        **CLUSTER,
        **ON_RUNNER,
    )
