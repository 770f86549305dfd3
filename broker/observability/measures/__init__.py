"""Every metric of a node, by subject, in the order of the documentation."""

from lakehead.broker.observability.measures import (
    caches,
    clients,
    cluster,
    maintenance,
    metadata,
    store,
    transactions,
    uploads,
    wal,
)
from lakehead.broker.observability.measures.measure import Measure, Values

SUBJECTS: dict[str, tuple[Measure, ...]] = {
    "Clients": clients.MEASURES,
    "Cluster": cluster.MEASURES,
    "Transactions": transactions.MEASURES,
    "Write-ahead log": wal.MEASURES,
    "Uploads": uploads.MEASURES,
    "Object store": store.MEASURES,
    "Caches and reads": caches.MEASURES,
    "Metadata and garbage": metadata.MEASURES,
    "Maintenance": maintenance.MEASURES,
}
MEASURES: tuple[Measure, ...] = tuple(one for group in SUBJECTS.values() for one in group)

__all__ = ["MEASURES", "SUBJECTS", "Measure", "Values"]
