"""Keeps the newest record of each key, in topics with `cleanup.policy=compact`.

Each partition that is dirty enough (`min.cleanable.dirty.ratio`), or whose records have waited
long enough (`max.compaction.lag.ms`), gets to a mapped task. Safe beside nodes and beside
`lakehead maintain`: of two that compact a partition, one counts.

| Param | Meaning |
| --- | --- |
| `topics` | These topics alone |
| `dry_run` | Tell what is due |
| `runner`, `spark_master`, `spark_remote` | Where the work is done |
"""

from datetime import timedelta

from connectors.airflow.dag_settings import (
    CLUSTER,
    DRY_RUN,
    ON_RUNNER,
    RUNNER,
    TOPICS,
    lakehead_dag,
)
from connectors.airflow.operators.mapped import lakehead_job

with lakehead_dag(
    "lakehead_compact_topics",
    doc_md=__doc__,
    tags=("storage",),
    schedule="*/15 * * * *",
    deadline=timedelta(hours=2),
    params={"topics": TOPICS, "dry_run": DRY_RUN, **RUNNER},
):
    lakehead_job(
        "compact_topics",
        options={"topics": "{{ params.topics | join(' ') }}"},
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
        **ON_RUNNER,
    )
