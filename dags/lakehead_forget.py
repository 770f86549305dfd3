"""By hand: removes every record of some keys from a topic, its tables and dead letters.

1. `plan` is a dry run: its log and its XCom say how many records, rows and objects have the keys,
   and how much is to be rewritten.
2. `approve` shows that under *Required Actions* and waits for a day: *Approve*
   continues, *Reject* (or no decision) changes nothing.
3. `forget` does it, and leaves a certificate. Killed and tried again, it goes on.

Old objects and files are deleted later: `lakehead forget TOPIC --check N` looks if all are gone.
The keys are in the configuration of the run, which Airflow keeps: name a file on the workers
(`@/path`) to keep them out of its database. Each of the two tasks reads the file. The plan has a
digest of the keys, and `forget` changes nothing if the file has other keys by then.
"""

from datetime import timedelta

from lakehead.connectors.airflow.dag_settings import CLUSTER, approval, job_form, lakehead_dag
from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

FORM = job_form("forget", is_approved=True)
APPROVED = {
    **FORM.options,
    "approved_keys": "{{ ti.xcom_pull(task_ids='plan').keys_digest }}",
}

with lakehead_dag(
    "lakehead_forget",
    doc_md=__doc__,
    tags=("tables", "by-hand"),
    deadline=timedelta(hours=24),
    params=FORM.params,
):
    arguments = {"job": "forget", "options": FORM.options, **CLUSTER}
    (
        LakeheadJobOperator(task_id="plan", dry_run=True, **arguments)
        >> approval(
            "Forget these keys of topic {{ params.topic }}? There is no way back.",
            FORM,
            counts=("records", "rows", "keys_digest"),
        )
        >> LakeheadJobOperator(
            task_id="forget", wait_s=300, if_taken="retry", **arguments | {"options": APPROVED}
        )
    )
