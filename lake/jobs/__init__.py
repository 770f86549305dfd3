"""Jobs over topics and tables: each is a plan, work items and a result, and may run again."""

from typing import Final

LAKE_JOBS: Final = {
    **{
        name: f"{__name__}.table_jobs:{name.upper()}"
        for name in ("materialize", "optimize", "vacuum", "replay", "backfill", "rebuild_table")
    },
    "attest": f"{__name__}.attest:JOB",
    "forget": f"{__name__}.forget:JOB",
}
"""The place of each job's declaration."""
