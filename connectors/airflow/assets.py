"""Topics and tables as assets, which DAGs are scheduled on. Their URIs are their names too:
`lakehead://CONNECTION/topics/TOPIC` and `lakehead://CONNECTION/tables/TOPIC`. A watched one is an
asset of its own, `.../tables/TOPIC/watched/RECORDS`, since an asset's events have one origin: the
tasks that write, or one watcher. So one commit does not start a DAG twice. The complete hours of a
table are an asset with partitions, `.../tables/TOPIC/hours`.

An event has the same extra (`events_extra`) if a task made the data, whose operator adds it to
`outlet_events`, or if a watcher saw it: `topic`, `offsets` as [first, end) by partition, and
`records`, their number; a table's also `rows`, the number of new rows, `kind`, the job, and
`versions` of the table as [first, end). `new_data` returns this of the events that started a run:
Airflow has a watcher's in `extra["payload"]`, and a task's in two places. `complete_hour` returns
what an event of hours says of one.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult

from lakehead.connectors.airflow.asset_events import nested_extra

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from lakehead.connectors.airflow.triggers import GrowthTrigger, TableGrowthTrigger


TriggeringEvents = Mapping[Any, Sequence[Any]]
"""Airflow's events that started a run, by assets and by aliases."""

CONN_ID = "lakehead_default"
Of = Literal["topic", "table"]


def topic_asset(topic: str, lakehead_conn_id: str = CONN_ID) -> "Asset":
    """Return the asset of a topic. Its events come from tasks that name it as an outlet."""
    return _asset(asset_uri("topic", topic, lakehead_conn_id))


def table_asset(topic: str, lakehead_conn_id: str = CONN_ID) -> "Asset":
    """Return the asset of the table that a topic declares. Materialising it makes its events."""
    return _asset(asset_uri("table", topic, lakehead_conn_id))


def hours_asset(topic: str, lakehead_conn_id: str = CONN_ID) -> "Asset":
    """Return the asset of a table's complete hours: its partitions (AIP-76) are hours in UTC, such
    as `2026-11-27T03`. `CompleteHoursOperator` makes its events.
    """
    return _asset(f"{asset_uri('table', topic, lakehead_conn_id)}/hours")


def complete_hour(
    partition_key: str, triggering_asset_events: "TriggeringEvents"
) -> dict[str, Any] | None:
    """Return what the events that started a run say of an hour: `topic`, `hour`, `version` of the
    table, and `offsets` as [first, end) by partition, which have its records. None if no event has
    the hour, as in a run by hand.
    """
    found = None
    for extra in new_data(triggering_asset_events):
        if hour := extra.get("hours", {}).get(partition_key):
            found = {"topic": extra["topic"], "hour": partition_key, **hour}
    return found


def watched_topic(
    topic: str,
    lakehead_conn_id: str = CONN_ID,
    *,
    records: int = 1,
    poll_interval: float = 10.0,
) -> "Asset":
    """Return the asset of a topic, with an event whenever at least `records` new ones lie in
    objects. The triggerer makes it, whatever process wrote them. `poll_interval` in seconds.
    """
    from lakehead.connectors.airflow.triggers import GrowthTrigger

    trigger = GrowthTrigger(lakehead_conn_id, topic, records, poll_interval)
    return _watched("topic", trigger)


def watched_table(
    topic: str,
    lakehead_conn_id: str = CONN_ID,
    *,
    records: int = 1,
    poll_interval: float = 10.0,
) -> "Asset":
    """Return the asset of a topic's table, with an event whenever at least `records` new ones came
    into it. The triggerer makes it, whatever process wrote them. `poll_interval` in seconds.
    """
    from lakehead.connectors.airflow.triggers import TableGrowthTrigger

    trigger = TableGrowthTrigger(lakehead_conn_id, topic, records, poll_interval)
    return _watched("table", trigger)


def new_data(triggering_asset_events: "TriggeringEvents") -> list[dict[str, Any]]:
    """Return what the events of topics and tables say that started a run of a DAG, each event once
    (`triggering_asset_events` of the task's context). Airflow lists an event of a table that a task
    wrote under the asset, and again under the alias by which the task named it.
    """
    from airflow.sdk import Asset

    found = []
    for asset, events in triggering_asset_events.items():
        if isinstance(asset, Asset) and asset.uri.startswith("lakehead://"):
            found += [nested_extra(event.extra.get("payload", event.extra)) for event in events]
    return found


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return a URI of the scheme as Airflow is to keep it. Raises ValueError, which Airflow shows
    as an import error of the DAG.
    """
    parts = uri.path.strip("/").split("/")
    if not uri.netloc or parts[0] not in {"topics", "tables"} or not _is_named(parts[1:]):
        raise ValueError(
            f"{uri.geturl()!r} is not an asset of Lakehead: write "
            "lakehead://CONNECTION/topics/TOPIC, or tables/TOPIC"
        )
    return uri._replace(path="/" + "/".join(parts), query="", fragment="")


def _is_named(parts: Sequence[str]) -> bool:
    """Return true for a topic, its hours, and a topic that is watched by a number of records."""
    if len(parts) == 2:
        return bool(parts[0]) and parts[1] == "hours"
    if len(parts) == 3:
        return bool(parts[0]) and parts[1] == "watched" and parts[2].isdecimal()
    return len(parts) == 1 and bool(parts[0])


def asset_uri(of: Of, topic: str, lakehead_conn_id: str) -> str:
    """Return the URI of a topic, or of its table."""
    return f"lakehead://{lakehead_conn_id}/{of}s/{topic}"


def _asset(uri: str, **more: Any) -> "Asset":
    from airflow.sdk import Asset

    return Asset(name=uri, uri=uri, group="lakehead", **more)


def _watched(of: Of, trigger: "GrowthTrigger | TableGrowthTrigger") -> "Asset":
    from airflow.sdk import AssetWatcher

    uri = f"{asset_uri(of, trigger.topic, trigger.lakehead_conn_id)}/watched/{trigger.records}"
    name = f"{of}_{trigger.topic}_by_{trigger.records}"
    return _asset(uri, watchers=[AssetWatcher(name=name, trigger=trigger)])
