"""Keeps the newest record of each key, in topics with `cleanup.policy=compact`.

Each partition that is dirty enough (`min.cleanable.dirty.ratio`), or whose records have waited
long enough (`max.compaction.lag.ms`), gets to a mapped task. Safe beside nodes and beside
`lakehead maintain`: of two that compact a partition, one counts.
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

FORM = job_form("compact_topics")

with lakehead_dag(
    "lakehead_compact_topics",
    doc_md=__doc__,
    tags=("storage",),
    schedule="*/15 * * * *",
    deadline=timedelta(hours=2),
    params={**FORM.params, "dry_run": DRY_RUN, **RUNNER},
):
    lakehead_job(
        "compact_topics",
        options=FORM.options,
        dry_run="{{ params.dry_run }}",
        **CLUSTER,
        **ON_RUNNER,
    )
