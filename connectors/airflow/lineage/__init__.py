"""Lineage: which topic which table comes from, for OpenLineage."""

from connectors.airflow.lineage.datasets import (
    DatasetName,
    asset_to_openlineage,
    backfill_lineage,
    materialize_lineage,
    table_dataset,
    table_lineage,
    topic_dataset,
)

__all__ = [
    "DatasetName",
    "asset_to_openlineage",
    "backfill_lineage",
    "materialize_lineage",
    "table_dataset",
    "table_lineage",
    "topic_dataset",
]
