"""What a task did to tables, told to Airflow: events of their assets, and lineage."""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import AssetAlias

from connectors.airflow.assets.lakehead import events_extra, table_asset
from connectors.airflow.jobs.frame import TableChange

TABLES = AssetAlias(name="lakehead_tables", group="lakehead")
"""Tasks that write tables have it as an outlet: it stands for the assets of those that grew."""


def add_events(context: Mapping[str, Any], lakehead_conn_id: str, change: TableChange) -> None:
    """Have the table's asset get an event if offsets or rows came into it."""
    ranges = {str(partition): range_ for partition, range_ in change.ranges.items()}
    if not ranges and not change.rows:
        return
    extra = events_extra(change.topic, ranges) | {"kind": change.kind, "rows": change.rows}
    events = context["outlet_events"][TABLES]
    events.add(table_asset(change.topic, lakehead_conn_id), extra=extra)


def lineage_of(changes: Sequence[TableChange], *, path: str, bootstrap_servers: str) -> Any:
    """Return OpenLineage's `OperatorLineage`; None without that provider, or changes."""
    from connectors.airflow.lineage import materialize_lineage

    if not changes:
        return None
    return materialize_lineage(
        path=path,
        bootstrap_servers=bootstrap_servers,
        tables={change.topic: change.uri for change in changes},
        rows={change.topic: change.rows for change in changes},
        bytes_written={change.topic: change.bytes_written for change in changes},
    )
