"""What the fork server of the tasks imports once: Airflow, the DAGs, storage and lake. Starts no
thread and opens nothing, so that its children may be forked.
"""

import deltalake
import pyarrow.parquet

from lakehead.lake import record_reader
from lakehead.lake.decode import decoder
from lakehead.lake.jobs import declared_tables, table_item, table_maintenance
from lakehead.storage import garbage, verification
from lakehead.storage.compaction import log_compaction, object_compaction
from lakehead.storage.jobs import cluster
from lakehead.storage.maintenance import retention
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
    *(log_compaction, object_compaction, garbage, cluster, retention, verification),
)
dags()
