"""What the fork server of the tasks imports once: Airflow, the DAGs, storage and lake. Starts no
thread and opens nothing, so that its children may be forked.
"""

import deltalake
import pyarrow.parquet

from lakehead.lake import record_reader
from lakehead.lake.decode import decoder
from lakehead.lake.jobs import declared_tables, table_item, table_maintenance
from lakehead.storage.compaction import job, merge
from lakehead.storage.garbage import leak_check
from lakehead.storage.jobs import cluster
from lakehead.storage.upkeep import partition_compaction, retention
from lakehead.storage.verification import objects
from tests.upkeep_day.dag_tasks import dags

IMPORTED = (
    *(
        deltalake,
        decoder,
        declared_tables,
        table_item,
        table_maintenance,
        record_reader,
        pyarrow.parquet,
    ),
    *(job, merge, leak_check, cluster, partition_compaction, retention, objects),
)
dags()
