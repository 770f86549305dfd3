"""Assets: topics and their tables, as what DAGs are scheduled on."""

from lakehead.connectors.airflow.assets.lakehead import (
    new_data,
    sanitize_uri,
    table_asset,
    topic_asset,
    watched_table,
    watched_topic,
)

__all__ = [
    "new_data",
    "sanitize_uri",
    "table_asset",
    "topic_asset",
    "watched_table",
    "watched_topic",
]
