"""What the fork server of the tasks imports once: Airflow, the DAGs, storage and lake. Starts no
thread and opens nothing, so that its children may be forked.
"""

import deltalake
import pyarrow.parquet

import connectors.airflow.jobs.check_jobs
import connectors.airflow.jobs.storage_jobs
import connectors.airflow.jobs.table_jobs
import lake.decode.decoder
import lake.jobs.table_item
import lake.record_reader
import storage.compaction.job
import storage.upkeep.partition_compaction
from tests.upkeep_day.dag_tasks import dags

IMPORTED = (
    *(connectors.airflow.jobs.check_jobs, connectors.airflow.jobs.storage_jobs),
    *(connectors.airflow.jobs.table_jobs, deltalake, lake.decode.decoder, lake.jobs.table_item),
    *(lake.record_reader, pyarrow.parquet, storage.compaction.job),
    storage.upkeep.partition_compaction,
)
dags()
