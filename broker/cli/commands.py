"""The commands by name and subject. A command's module is imported when the command is run.

A node is started again after each failure and update: the modules that it does not need cost time
each time. So the page of all commands has its lines from here, and imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import typer

from lakehead.broker.cli.help_page import CommandLine, HelpCommand, HelpGroup
from lakehead.broker.cli.imports import uncollected
from lakehead.storage.jobs import FORMER_JOBS

_JOB = "job:"


class Command(NamedTuple):
    """`place`: the module of lakehead.broker.cli and the function in it, or the CommandLine with
    commands of its own; or a job's module and its declaration there. `summary`: the first paragraph
    of the command's help.
    """

    place: str
    summary: str


def _command_name(job: str) -> str:
    """Return the name of a job as commands are called."""
    return job.replace("_", "-")


def _job(name: str, summary: str) -> Command:
    return Command(f"{_JOB}lakehead.storage.jobs.{name}:JOB", summary)


def _table_job(name: str, summary: str) -> Command:
    return Command(f"{_JOB}lakehead.lake.jobs.table_jobs:{name}", summary)


COMMANDS: Mapping[str, Mapping[str, Command]] = {
    "Run": {
        "start": Command("start.start", "Start a broker, until Ctrl-C or SIGTERM."),
        "settings": Command(
            "host_settings.app",
            "List and search settings; check and roll a host's.",
        ),
        "demo": Command(
            "demo.demo",
            "Stream real data through a broker into a Delta table.",
        ),
        "airflow": Command(
            "local_airflow.local_airflow",
            "Run Airflow with Lakehead's DAGs on this machine.",
        ),
        "nodes": Command(
            "nodes.list_nodes",
            "List the nodes of a cluster, their state and traffic.",
        ),
        "drain": Command(
            "nodes.drain",
            "Move all that nodes lead to the other nodes.",
        ),
        "features": Command("features.app", "Show the feature level of a cluster, or raise it."),
        "certs": Command(
            "certs.certs",
            "Make certificates of nodes and clients for development.",
        ),
        "encryption-key": Command(
            "encryption_key.encryption_key",
            "Add a key to a file of keys for encryption at rest.",
        ),
        "registry": Command(
            "registry.registry",
            "Serve a schema registry, until Ctrl-C or SIGTERM.",
        ),
    },
    "Topics": {
        "topics": Command("topics.app", "List, describe, create, alter and delete topics."),
        "connect": Command(
            "connect.app",
            "Copy files, Delta tables and topics into topics.",
        ),
        "import": Command(
            "kafka_import.import_topics",
            "Import topics of an Apache Kafka cluster.",
        ),
    },
    "Tables": {
        "sql": Command("sql.sql", "Open a Spark SQL shell in which every topic is a view."),
        "tables": Command(
            "tables.list_tables",
            "Show how far each table is behind, and its problem.",
        ),
        "table-version": Command(
            "table_version.show_version",
            "Show the version of a table as of a time or position.",
        ),
        "materialize": Command(
            "materialize.materialize", "Turn topics into Delta tables, each record once."
        ),
        "replay-dead-letters": _table_job("REPLAY", "Read a table's dead letters again."),
        "optimize": _table_job(
            "OPTIMIZE",
            "Merge small files of tables, or cluster their rows.",
        ),
        "vacuum": _table_job(
            "VACUUM",
            "Delete files that no retained version of a table needs.",
        ),
        "rebuild-table": _table_job(
            "REBUILD_TABLE",
            "Rebuild a topic's table from its records.",
        ),
        "attest": Command(
            f"{_JOB}lakehead.lake.jobs.attest:JOB",
            "Show that a table is its topic, row for row.",
        ),
        "forget": Command(
            "forget.forget",
            "Remove every record of a key, and leave a certificate.",
        ),
    },
    "Maintenance": {
        "maintain": Command(
            "maintain.maintain",
            "Do all maintenance that is due.",
        ),
        "compact-objects": _job("compact_objects", "Merge small objects into large ones."),
        "compact-topics": _job(
            "compact_topics",
            "Run log compaction where it is due.",
        ),
        "apply-retention": _job(
            "apply_retention", "Delete records past retention.ms or retention.bytes."
        ),
        "sweep": _job(
            "sweep",
            "Delete objects that no stream refers to.",
        ),
        "runs": Command(
            "runs.list_runs",
            "List the last runs of jobs: progress, holder, end.",
        ),
    },
    "Backup": {
        "backup": Command(
            "backup.backup",
            "Copy a cluster to another store, as of one moment.",
        ),
        "restore": Command(
            "restore.restore",
            "Make a cluster of a backup.",
        ),
    },
    "Diagnosis": {
        "doctor": Command(
            "doctor.doctor",
            "Check all that a node needs, and say what to change.",
        ),
        "top": Command("top.top", "Show the nodes and the busiest partitions, live."),
        "why": Command(
            "why.why",
            "Show all that a partition waits for.",
        ),
        "support": Command(
            "support.support",
            "Write a file for a report of a problem.",
        ),
    },
    "Repair": {
        "inspect": Command(
            "inspection.app",
            "Show metadata, an object or a write-ahead log.",
        ),
        "verify": _job(
            "verify",
            "Check all data and metadata. Status 1 on damage.",
        ),
        "leak-check": Command(
            "leak_check.leak_check",
            "Compare the bucket with the metadata.",
        ),
        "rebuild-catalog": Command(
            "rebuild_catalog.rebuild_catalog",
            "Rebuild a cluster's metadata from its objects.",
        ),
    },
    "AWS": {
        "rolling-update": Command(
            "rolling_update.rolling_update",
            "Apply a Terraform change to one host after the other.",
        ),
        "slot": Command("slot.app", "Claim a slot for an EC2 Auto Scaling machine."),
    },
}
"""The commands by subject, in the order of the help."""

FORMER_NAMES = {
    **{_command_name(former): _command_name(name) for former, name in FORMER_JOBS.items()},
    "compact-topic": "compact-topics",
}
"""Names that work for one more release, by today's name."""

_PLACES = {name: one.place for group in COMMANDS.values() for name, one in group.items()}
_SUMMARIES = {name: one.summary for group in COMMANDS.values() for name, one in group.items()}


class LazyGroup(HelpGroup):
    """The `lakehead` command: a group whose commands are built one by one, when they are wanted."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands()
        self._is_completing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as Typer calls it
        """Return the names, in the order in which they are shown."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, or by the name that it had a release ago."""
        if self._is_completing:
            return HelpCommand(cmd_name, help=_SUMMARIES[cmd_name])
        if name := FORMER_NAMES.get(cmd_name):
            typer.echo(f"lakehead: {cmd_name} is called {name} now", err=True)
        return super().get_command(ctx, name or cmd_name)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the commands that begin so, with their first lines, and import none of them."""
        self._is_completing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._is_completing = False

    def summaries(self, ctx: Any) -> Mapping[str, Mapping[str, str]]:  # noqa: ARG002 - as inherited
        """Return a line of help for each command, by subject."""
        return {
            title: {name: one.summary for name, one in group.items()}
            for title, group in COMMANDS.items()
        }


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
    parent = CommandLine()
    parent.callback()(_group)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name, **getattr(found, "command_options", {}))(found)
    group: Any = typer.main.get_command(parent)
    return group.commands[name]


def _function(place: str) -> Any:
    module, _, attribute = place.partition(".")
    with uncollected():
        return getattr(import_module(f"lakehead.broker.cli.{module}"), attribute)


def _job_command(place: str) -> Any:
    from lakehead.broker.cli.jobs import job_command

    module, _, name = place.removeprefix(_JOB).partition(":")
    return job_command(getattr(import_module(module), name))


def _group() -> None:
    """Make a group of an application with one command."""
