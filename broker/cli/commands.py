"""The commands by name. A command's module is imported when the command is run, or shown.

A node is started again after each failure and update: what it does not need costs time each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from lakehead.storage.jobs import STORAGE_JOBS

_JOB = "job:"

# The module of lakehead.broker.cli and the function in it, or the Typer with commands of its own;
# or the module that declares a job.
_PLACES = {
    "start": "start.start",
    "demo": "demo.demo",
    "airflow": "local_airflow.local_airflow",
    "nodes": "nodes.list_nodes",
    "drain": "nodes.drain",
    "features": "features.app",
    "rolling-update": "rolling_update.rolling_update",
    "slot": "slot.app",
    "settings": "host_settings.app",
    "topics": "topics.app",
    "sql": "sql.sql",
    "tables": "tables.list_tables",
    "materialize": "materialize.materialize",
    "replay-dead-letters": "replay.replay",
    "optimize": "table_upkeep.optimize",
    "vacuum": "table_upkeep.vacuum",
    "rebuild-table": "rebuild_table.rebuild_table",
    "registry": "registry.registry",
    "inspect": "inspection.app",
    "connect": "connect.app",
    "maintain": "maintain.maintain",
    **{command: _JOB + module for module, command in STORAGE_JOBS.values()},
    "leak-check": "leak_check.leak_check",
}


class LazyGroup(TyperGroup):
    """The `lakehead` command: a group whose commands are built one by one, when they are wanted."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as Typer calls it
        """Return the names, in the order in which they are shown."""
        return list(self.commands)


class _Commands(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return _built(name, _PLACES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


@cache
def _built(name: str, place: str) -> Any:
    found = _job_command(place) if place.startswith(_JOB) else _function(place)
    parent = typer.Typer(add_completion=False, rich_markup_mode="rich")
    parent.callback()(_group)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name, **getattr(found, "command_options", {}))(found)
    group: Any = typer.main.get_command(parent)
    return group.commands[name]


def _function(place: str) -> Any:
    module, _, attribute = place.partition(".")
    return getattr(import_module(f"lakehead.broker.cli.{module}"), attribute)


def _job_command(place: str) -> Any:
    from lakehead.broker.cli.jobs import job_command

    return job_command(place.removeprefix(_JOB))


def _group() -> None:
    """Make a group of an application with one command."""
