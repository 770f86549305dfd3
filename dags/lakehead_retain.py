"""Removes what `retention.ms` and `retention.bytes` are over for.

Whole objects go, and never what the table of a topic with `lakehead.table.enable` does not hold
yet. The records are gone for readers at once; `lakehead_sweep`, or a node, deletes the objects
after their grace period.

| Param | Meaning |
| --- | --- |
| `topics` | These topics alone |
| `dry_run` | Tell what is due |
"""

from datetime import timedelta

from connectors.airflow.dag_settings import CLUSTER, DRY_RUN, TOPICS, lakehead_dag
from connectors.airflow.operators.mapped import lakehead_job

with lakehead_dag(
    "lakehead_retain",
    doc_md=__doc__,
    tags=("storage",),
    schedule="*/10 * * * *",
    deadline=timedelta(hours=1),
    params={"topics": TOPICS, "dry_run": DRY_RUN},
):
    lakehead_job(
        "retain",
        options={"topics": "{{ params.topics | join(' ') }}"},
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
    )
