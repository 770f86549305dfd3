"""What Airflow keeps of tasks and of an asset's events, for operators that run in this process.

As Airflow does, it stores the events of a task together with its success, and drops those of a task
that fails. The operators ask it through Airflow's own messages to a task's supervisor.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

_STORED_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True)
class Task:
    """A task instance, in any of its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    try_number: int = 0
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, *, key: str, value: Any) -> None:
        """Keep a value, as JSON."""
        self.pushed[key] = json.loads(json.dumps(value))


class _Outlets:
    """The events that a try would have stored with its success."""

    def __init__(self) -> None:
        self.added: list[tuple[str, dict[str, Any]]] = []

    def __getitem__(self, alias: Any) -> "_Outlets":
        assert alias.name == "lakehead_tables"
        return self

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        """Add an event."""
        self.added.append((asset.uri, json.loads(json.dumps(extra))))


class AirflowModel:
    """States of tasks and stored events; `answers` makes it the supervisor of this process. What
    other processes do meanwhile, `between` does before each response.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.between: Callable[[], None] = lambda: None
        self._states: dict[tuple[str, str, str, int], str | None] = {}

    def answers(self, monkeypatch: pytest.MonkeyPatch) -> "AirflowModel":
        """Have operators of this process ask this model."""
        from airflow.sdk.execution_time import task_runner

        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", self, raising=False)
        return self

    def begin(self, task: Task) -> dict[str, Any]:
        """Begin a try of a task, and return its context."""
        task.try_number += 1
        self._set(task, "running")
        return {"ti": task, "outlet_events": _Outlets()}

    def end(self, context: Mapping[str, Any], state: str = "success") -> list[dict[str, Any]]:
        """End a try; return the extras of the events that are stored with it."""
        self._set(context["ti"], state)
        if state != "success":
            return []
        added = context["outlet_events"].added
        self.events += added
        return [extra for _, extra in added]

    def extras(self, uri: str) -> list[dict[str, Any]]:
        """Return the extras of an asset's events, the oldest first."""
        return [extra for of, extra in self.events if of == uri]

    def _set(self, task: Task, state: str) -> None:
        self._states[task.dag_id, task.run_id, task.task_id, task.map_index] = state

    def send(self, message: Any) -> Any:
        """Respond as a task's supervisor."""
        from airflow.sdk.execution_time import comms

        self.between()
        if isinstance(message, comms.GetTaskStates):
            [run_id] = message.run_ids or []
            [task_id] = message.task_ids or []
            key = (message.dag_id, run_id, task_id, message.map_index)
            found = {task_id: self._states[key]} if key in self._states else {}
            return comms.TaskStatesResult(task_states={run_id: found} if found else {})
        assert isinstance(message, comms.GetAssetEventByAsset)
        assert message.after is None or message.after <= _STORED_AT
        found_events = self.extras(str(message.uri))
        found_events = (found_events if message.ascending else found_events[::-1])[: message.limit]
        return comms.AssetEventsResult(
            asset_events=[_event(message, number, one) for number, one in enumerate(found_events)]
        )


def _event(message: Any, number: int, extra: dict[str, Any]) -> Any:
    asset = {"name": message.name, "uri": message.uri, "group": "lakehead", "extra": {}}
    return {
        "id": number,
        "timestamp": _STORED_AT,
        "extra": extra,
        "asset": asset,
        "created_dagruns": [],
        "source_task_id": None,
        "source_dag_id": None,
        "source_run_id": None,
        "source_map_index": -1,
        "partition_key": None,
    }
