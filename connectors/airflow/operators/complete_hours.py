"""Events of a table's complete hours, as partitions of an asset (AIP-76)."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowOptionalProviderFeatureException,
    AirflowSkipException,
)
from airflow.sdk import BaseOperator, Context

from lakehead.connectors.airflow.assets import hours_asset
from lakehead.connectors.airflow.errors import airflow_errors
from lakehead.connectors.airflow.features import PARTITIONED_EVENTS
from lakehead.connectors.airflow.hooks import LakeheadHook

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from lakehead.lake.tables.complete_hours import HoursOfTable

_EVENTS_MAX = 10
"""Newest events that are read: one would do, but for those of another program."""


class CompleteHoursOperator(BaseOperator):
    """Makes an event for each hour that is complete in a topic's table and has none yet, in order.
    Each has the hour as its partition, so a DAG with `PartitionedAssetTimetable` runs once for it.

    Airflow stores the events together with the success of the task, and the newest of them is where
    the next task goes on. So each hour is in one event, however often tasks are killed. Two of
    these tasks at once could both make it: `max_active_tis_per_dag` is 1, and a topic has one DAG
    with this operator.

    :param topic: the topic. Not a template: its asset is known before the task runs.
    :param lateness: the longest time that a record comes after its own time.
    :param idle: time after which a partition without new records does not hold hours up; None: it
        does until a record comes. Longer than `upload.age.ms` and the longest outage of a node.
    :param begin: the first hour, such as ``2026-11-27T03``, if there is no event yet. Empty: the
        hour in which the task runs. (templated)
    :param lakehead_conn_id: the connection of the cluster.

    Airflow before 3.3 cannot have it: raises AirflowOptionalProviderFeatureException there, which
    Airflow shows as an import error of the DAG.
    """

    template_fields: Sequence[str] = ("begin",)
    ui_color = "#d7ecf5"

    def __init__(
        self,
        *,
        topic: str,
        lateness: timedelta = timedelta(minutes=10),
        idle: timedelta | None = timedelta(minutes=10),
        begin: str = "",
        lakehead_conn_id: str = LakeheadHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        if not PARTITIONED_EVENTS.is_there:
            raise AirflowOptionalProviderFeatureException(PARTITIONED_EVENTS.without)
        asset = hours_asset(topic, lakehead_conn_id)
        kwargs["outlets"] = [*(kwargs.get("outlets") or ()), asset]
        super().__init__(**{"max_active_tis_per_dag": 1} | kwargs)
        self.topic = topic
        self.lateness = lateness
        self.idle = idle
        self.begin = begin
        self.lakehead_conn_id = lakehead_conn_id

    def execute(self, context: Context) -> list[str]:
        """Return the hours that events were made of. Skips the task if there are none."""
        from lakehead.lake.tables.complete_hours import HOUR_MS, hour_key, hour_start
        from lakehead.storage.clock import SystemClock

        now_ms = SystemClock().now_ms()
        asset = hours_asset(self.topic, self.lakehead_conn_id)
        with LakeheadHook(self.lakehead_conn_id).environment(), airflow_errors():
            newest = _newest(asset)
            if newest:
                after_ms = hour_start(newest) + HOUR_MS
            elif self.begin:
                after_ms = hour_start(self.begin)
            else:
                after_ms = now_ms // HOUR_MS * HOUR_MS
            hours = self._look(now_ms).complete(after_ms)
        if not hours:  # a task that succeeds makes an event, if only one without a partition
            raise AirflowSkipException(
                f"no hour from {hour_key(after_ms)} on is complete in the table of {self.topic} yet"
            )
        event = context["outlet_events"][asset]
        event.add_partitions([hour.key for hour in hours])
        event.extra = {
            "topic": self.topic,
            "hours": {
                hour.key: {
                    "version": hour.version,
                    "offsets": {str(one): list(range_) for one, range_ in hour.offsets.items()},
                }
                for hour in hours
            },
        }
        self.log.info("complete: %s", ", ".join(hour.key for hour in hours))
        return [hour.key for hour in hours]

    def _look(self, now_ms: int) -> "HoursOfTable":
        from lakehead.lake.declaration.table_declaration import TableDeclaration
        from lakehead.lake.jobs.table_due import one_table, topic_of
        from lakehead.lake.store_reader import store_reader
        from lakehead.lake.tables.complete_hours import HoursOfTable, Lateness

        path = LakeheadHook(self.lakehead_conn_id).path
        reader = store_reader(path)
        catalog = reader.open_catalog()
        topic = catalog.topic(topic_of(self.topic))
        declared = one_table(catalog.state, self.topic) or TableDeclaration.of(topic)
        late = Lateness(
            lateness_ms=int(self.lateness.total_seconds() * 1000),
            idle_ms=None if self.idle is None else int(self.idle.total_seconds() * 1000),
        )
        return HoursOfTable(reader, topic.name, declared.uri(path), late, now_ms=now_ms)


def _newest(asset: "Asset") -> str:
    """Return the newest hour that an event has; empty for none."""
    from airflow.sdk.execution_time.context import InletEventsAccessors

    events = InletEventsAccessors([asset])[asset]
    found: list[str] = []
    for event in events.ascending(False).limit(_EVENTS_MAX):
        extra: Mapping[str, Any] = event.extra or {}
        hours = extra.get("hours")
        found += hours if isinstance(hours, Mapping) else ()
    return max(found, default="")
