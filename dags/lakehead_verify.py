"""Reads everything, and compares it with its checksums and with the metadata.

Every stream's offsets without a gap, every object there and as the metadata say, every block and
record batch as its checksum says. Writes nothing. The task `summary` has the report, in its log
and as XCom; damage fails the run, with topic, partition, offsets, object and what to do.

By hand, for one topic or for a part of all objects, whenever you want to know.

| Param | Meaning |
| --- | --- |
| `topic` | This topic alone |
| `sample_percent` | So many of a hundred objects, chosen by `seed` |
| `runner`, `spark_master`, `spark_remote` | Where objects are read |
"""

from datetime import timedelta

from airflow.sdk import Param

from connectors.airflow.dag_settings import CLUSTER, ON_RUNNER, RUNNER, lakehead_dag
from connectors.airflow.operators.mapped import lakehead_job

with lakehead_dag(
    "lakehead_verify",
    doc_md=__doc__,
    tags=("storage", "report"),
    schedule="0 3 * * 0",
    deadline=timedelta(hours=24),
    params={
        "topic": Param(
            "",
            type="string",
            title="Topic",
            description="This topic alone. None: all of them.",
        ),
        "sample_percent": Param(
            100,
            type="integer",
            minimum=1,
            maximum=100,
            title="Sample, %",
            description="So many of a hundred objects.",
        ),
        "seed": Param(
            0,
            type="integer",
            title="Seed",
            description="Another one chooses other objects.",
        ),
        **RUNNER,
    },
):
    lakehead_job(
        "verify",
        options={
            "topic": "{{ params.topic }}",
            "sample_percent": "{{ params.sample_percent }}",
            "seed": "{{ params.seed }}",
        },
        **CLUSTER,
        **ON_RUNNER,
    )
