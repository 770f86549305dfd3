"""By hand: adds the dead letters of a topic's table that can be rows now to the table.

For use after a correction (a schema, a registry that was away). A record that still cannot be a row
stays a dead letter.

1. `plan` is a dry run: its log and its XCom say how many letters would become rows, and why the
   first of the others would not.
2. `approve` shows that under *Required Actions* and waits for a day: *Approve*
   continues, *Reject* (or no decision) changes nothing.
3. `replay` does it. A letter becomes a row once, however often that is killed and tried again.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import CLUSTER, approval, job_form, lakehead_dag
from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

FORM = job_form("replay", is_approved=True)

with lakehead_dag(
    "lakehead_replay_dead_letters",
    doc_md=__doc__,
    tags=("tables", "by-hand"),
    deadline=timedelta(hours=24),
    params=FORM.params,
):
    arguments = {"job": "replay", "options": FORM.options, **CLUSTER}
    (
        LakeheadJobOperator(task_id="plan", dry_run=True, **arguments)
        >> approval("Replay the dead letters of {{ params.topic }}?", FORM, counts=("letters",))
        >> LakeheadJobOperator(task_id="replay", wait_s=300, if_taken="retry", **arguments)
    )
