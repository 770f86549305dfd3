"""Deletes objects that nothing needs any more, after a grace period.

These are objects that were compacted, trimmed or dropped, and those that a node left half done when
it crashed. An object goes before the entry that forgets it, so a run that is killed leaves nothing
behind.

| Param | Meaning |
| --- | --- |
| `grace_s` | Seconds that an object stays after it was dropped, for readers of an older view |
| `dry_run` | Tell what is due |
"""

from datetime import timedelta

from airflow.sdk import Param

from connectors.airflow.dag_settings import CLUSTER, DRY_RUN, lakehead_dag
from connectors.airflow.operators.mapped import lakehead_job

with lakehead_dag(
    "lakehead_sweep",
    doc_md=__doc__,
    tags=("storage",),
    schedule="40 2 * * *",
    deadline=timedelta(hours=6),
    params={
        "grace_s": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            title="Grace period, s",
            description="None: the cluster's own.",
        ),
        "dry_run": DRY_RUN,
    },
):
    lakehead_job(
        "sweep",
        options={"grace_s": "{{ '' if params.grace_s is none else params.grace_s }}"},
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
    )
