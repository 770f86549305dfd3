"""Merges small objects into large ones.

A node uploads every few seconds; readers of old records would request thousands of objects. Each
mapped task reads some of them and puts one large object in their place, by one entry of the
metadata log. Offsets, timestamps and payloads stay the same. Due: 32 small objects in a row, or
half a target's bytes.

Nodes may serve, and `lakehead maintain` may run, at the same time: what one of them has done, the
others find done.
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

FORM = job_form("compact_objects")

with lakehead_dag(
    "lakehead_compact_objects",
    doc_md=__doc__,
    tags=("storage",),
    schedule="*/10 * * * *",
    deadline=timedelta(hours=2),
    params={**FORM.params, "dry_run": DRY_RUN, **RUNNER},
):
    lakehead_job(
        "compact_objects",
        options=FORM.options,
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
        **ON_RUNNER,
    )
