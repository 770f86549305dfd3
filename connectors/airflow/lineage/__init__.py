"""Lineage for OpenLineage: a table comes from a topic, a connector's topic from its source."""

from lakehead.connectors.airflow.lineage.datasets import (
    DatasetName,
    asset_to_openlineage,
    connector_lineage,
    has_openlineage,
    table_dataset,
    table_lineage,
    topic_dataset,
)

__all__ = [
    "DatasetName",
    "asset_to_openlineage",
    "connector_lineage",
    "has_openlineage",
    "table_dataset",
    "table_lineage",
    "topic_dataset",
]
