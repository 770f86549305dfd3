"""What the fork server of the tasks imports once: Airflow, the DAGs, storage and lake. Starts no
thread and opens nothing, so that its children may be forked.
"""

import deltalake
import pyarrow.parquet

import connectors.airflow.jobs.table_jobs
import lake.decode.decoder
import lake.jobs.table_item
import lake.record_reader
import storage.compaction.job
import storage.compaction.merge
import storage.garbage.leak_check
import storage.jobs.cluster
import storage.upkeep.partition_compaction
import storage.upkeep.retention
import storage.verification.objects
from tests.upkeep_day.dag_tasks import dags

IMPORTED = (
    *(connectors.airflow.jobs.table_jobs, deltalake, lake.decode.decoder, lake.jobs.table_item),
    *(lake.record_reader, pyarrow.parquet, storage.compaction.job),
    *(storage.compaction.merge, storage.garbage.leak_check, storage.jobs.cluster),
    *(storage.upkeep.partition_compaction, storage.upkeep.retention),
    storage.verification.objects,
)
dags()
