"""Changes of a task to tables, reported to Airflow: events of their assets, and lineage."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias

from lakehead.connectors.airflow.asset_events import (
    EventVersions,
    Maker,
    StoredEvents,
    TaskKey,
    event_extras,
    first_version,
    flat_extra,
    share_of,
)
from lakehead.connectors.airflow.assets import table_asset
from lakehead.connectors.airflow.features import LIMITED_EVENTS, NESTED_EXTRAS
from lakehead.storage.jobs.job import TableChange

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from airflow.sdk.execution_time.comms import AssetEventResult

TABLES = AssetAlias(name="lakehead_tables", group="lakehead")
"""Tasks that write tables have it as an outlet: it stands for the assets of those that grew."""

_EVENTS_MAX = 200
"""Events of an asset that are read at once, the newest."""
_CLOCKS = timedelta(hours=1)
"""Largest difference between the clocks of Airflow and of the table's writers."""
_ENDED = frozenset({"failed", "removed", "skipped", "upstream_failed"})


def task_key(context: Mapping[str, Any]) -> TaskKey:
    """Return the task of a context."""
    ti = context["ti"]
    map_index = -1 if ti.map_index is None else ti.map_index
    return TaskKey(ti.dag_id, ti.run_id, ti.task_id, map_index)


def add_events(context: Mapping[str, Any], lakehead_conn_id: str, change: TableChange) -> None:
    """Have the table's asset get an event of all that became visible and is in none yet. Raises
    TableUnavailable, and what Airflow raises.
    """
    from lakehead.lake.tables.delta_table import open_table
    from lakehead.lake.tables.table_history import commits_since, history_since

    table = open_table(change.uri)
    if table is None:
        return
    asset, own = table_asset(change.topic, lakehead_conn_id), task_key(context)
    events = [one for one in map(_versions, _newest(asset)) if one is not None]
    commits = commits_since(table, first_version(events, table.version) - 1)
    at_ms = {commit.version: commit.at_ms for commit in commits}
    if not StoredEvents(events, at_ms).has_begun:
        commits = commits_since(table, -1)
        at_ms = {commit.version: commit.at_ms for commit in commits}
    before = StoredEvents(events, at_ms)
    open_ = [one for one in commits if not before.has(one.version)]
    names = {one.change.written_by for one in open_}
    if own.text() not in names:
        return
    # States first: the events of a task that has succeeded by then are read after that.
    makers = {name: _maker(own, TaskKey.of_text(name)) for name in names}
    events = _events(asset, min(one.at_ms for one in open_))
    newest = max(at_ms)
    if any(one.last > newest for one in events):  # of a commit made since, or of an earlier table
        now = open_table(change.uri)
        at_ms |= history_since(now, newest).at_ms if now is not None else {}
    share = share_of(commits, StoredEvents(events, at_ms), makers.__getitem__)
    outlet = context["outlet_events"][TABLES]
    for extra in event_extras(change.topic, share.commits, told_below=share.told_below):
        outlet.add(asset, extra=extra if NESTED_EXTRAS.is_there else flat_extra(extra))


def _newest(asset: "Asset") -> "list[AssetEventResult]":
    """The newest events of an asset, by Airflow's database; all, where Airflow has no limit."""
    from airflow.sdk.execution_time.context import InletEventsAccessors

    events = InletEventsAccessors([asset])[asset]
    return list(events.ascending(False).limit(_EVENTS_MAX) if LIMITED_EVENTS.is_there else events)


def _events(asset: "Asset", since_ms: int) -> list[EventVersions]:
    """The versions in the events of an asset: all that may name a commit made at `since_ms`
    (milliseconds) or later.
    """
    from airflow.sdk.execution_time.context import InletEventsAccessors

    since = datetime.fromtimestamp(since_ms / 1000, UTC) - _CLOCKS
    found = _newest(asset)
    if LIMITED_EVENTS.is_there and len(found) == _EVENTS_MAX and found[-1].timestamp > since:
        found = list(InletEventsAccessors([asset])[asset].after(since.isoformat()))
    return [one for one in map(_versions, found) if one is not None]


def _versions(event: "AssetEventResult") -> EventVersions | None:
    return EventVersions.of_extra(event.extra or {})


def _maker(own: TaskKey, task: TaskKey | None) -> Maker:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if task is None:
        return "unknown"
    if task == own:
        return "own"
    states = RuntimeTaskInstance.get_task_states(
        dag_id=task.dag_id,
        task_ids=[task.task_id],
        run_ids=[task.run_id],
        map_index=task.map_index,
    )
    found = list(states.get(task.run_id, {}).values())
    if not found:  # it was removed, or is another Airflow's
        return "unknown"
    if found[0] in _ENDED:
        return "ended"
    return "succeeded" if found[0] == "success" else "at_work"


def lineage_of(changes: Sequence[TableChange], *, path: str, bootstrap_servers: str) -> Any:
    """Return OpenLineage's `OperatorLineage`; None without that provider."""
    from lakehead.connectors.airflow.lineage import table_lineage

    return table_lineage(
        path=path,
        bootstrap_servers=bootstrap_servers,
        tables={change.topic: change.uri for change in changes},
        rows={change.topic: change.rows for change in changes},
        bytes_written={change.topic: change.bytes_written for change in changes},
    )
