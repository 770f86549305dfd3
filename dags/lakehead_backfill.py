"""By hand: has a topic's table begin earlier, and adds the records before its beginning.

1. `plan` is a dry run: its log and its XCom show the planned work.
2. `approve` shows that under *Required Actions* and waits for a day: *Approve*
   continues, *Reject* (or no decision) changes nothing.
3. `backfill` adds records from the newest to the oldest, in commits of the table. A killed
   run resumes when it is tried again. New records are added at the same time.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import CLUSTER, approval, job_form, lakehead_dag
from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

FORM = job_form("backfill", is_approved=True)

with lakehead_dag(
    "lakehead_backfill",
    doc_md=__doc__,
    tags=("tables", "by-hand"),
    deadline=timedelta(hours=24),
    params=FORM.params,
):
    arguments = {
        "job": "backfill",
        "options": FORM.options,
        **CLUSTER,
    }
    (
        LakeheadJobOperator(task_id="plan", dry_run=True, **arguments)
        >> approval("Backfill the table of {{ params.topic }} from {{ params.begin }}?", FORM)
        >> LakeheadJobOperator(task_id="backfill", wait_s=300, if_taken="retry", **arguments)
    )
