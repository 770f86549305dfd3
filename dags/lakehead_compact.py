"""Makes large objects of small ones.

A node uploads every few seconds; readers of old records would ask for thousands of objects. Each
mapped task reads some of them and puts one large object in their place, by one entry of the
metadata log. Offsets, timestamps and payloads stay what they are. Due: 32 small objects in a row,
or half a target's bytes.

Nodes may serve, and `lakehead maintain` may run, at the same time: what one of them has done, the
others find done.

| Param | Meaning |
| --- | --- |
| `target_mib` | Size that objects are to have, in MiB; about what a task takes in memory |
| `count_min` | Small objects in a row from which on they are due |
| `dry_run` | Tell what is due |
| `runner`, `spark_master`, `spark_remote` | Where the work is done |
"""

from datetime import timedelta

from airflow.sdk import Param

from connectors.airflow.dag_settings import CLUSTER, DRY_RUN, ON_RUNNER, RUNNER, lakehead_dag
from connectors.airflow.operators.mapped import lakehead_job

with lakehead_dag(
    "lakehead_compact",
    doc_md=__doc__,
    tags=("storage",),
    schedule="*/10 * * * *",
    deadline=timedelta(hours=2),
    params={
        "target_mib": Param(
            128,
            type="integer",
            minimum=1,
            maximum=1024,
            title="Target, MiB",
            description="Size that objects are to have.",
        ),
        "count_min": Param(
            32,
            type="integer",
            minimum=2,
            title="Small objects",
            description="So many in a row are merged.",
        ),
        "dry_run": DRY_RUN,
        **RUNNER,
    },
):
    lakehead_job(
        "compact",
        options={
            "target_mib": "{{ params.target_mib }}",
            "count_min": "{{ params.count_min }}",
        },
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
        **ON_RUNNER,
    )
