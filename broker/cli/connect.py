"""`lakehead connect`: sources into topics, and topics elsewhere, by a TOML file."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lakehead.broker.cli.help_page import CommandLine
from lakehead.broker.cli.listing import JsonOption, show_fields, show_rows
from lakehead.broker.process_end import StopSignals
from lakehead.storage.clock import SystemClock

if TYPE_CHECKING:
    from lakehead.connectors.connector import Connector
    from lakehead.connectors.pipelines import Plan
    from lakehead.connectors.runtime.interfaces import Position
    from lakehead.connectors.runtime.interfaces import Progress as RunProgress

_FORCED = (
    "ended at once by a second signal; the next run finds out what was committed, and reads the "
    "rest again\n"
)
_SHOWN_WORKS = 20
_NAME_LENGTH = 48

app = CommandLine(
    help="Copy files, Delta tables and topics into topics.\n\nEach record once, whatever is killed."
)

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The connector's TOML file; see docs/connect.md.")
]


@app.command("run")
def run(
    file: FileArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on: wait for more, until SIGTERM or Ctrl-C.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be read, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a connector: read what there is, from where it was last, and end.

    Safe to kill and to run again at any moment. A second run of the same connector ends the first.
    """
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[records]} records", markup=False),
        TimeElapsedColumn(),
        console=console,
        disable=dry_run or not console.is_terminal,
        transient=True,
    ) as shown:
        task = shown.add_task(file.stem, total=None, records=0)

        def show(progress: "RunProgress") -> None:
            shown.update(
                task,
                description=progress.doing[-_NAME_LENGTH:],
                completed=progress.done_bytes,
                total=progress.total_bytes or None,
                records=progress.result.records,
            )

        connector = _connector(file, show)
        _stop_by_signals(connector, shown)
        with ThreadPoolExecutor(1) as worker:  # a signal does not wait for a call to a cluster
            plan = worker.submit(connector.plan).result() if dry_run else None
            ran = None if dry_run else worker.submit(connector.run, follow=follow)
            figures = None if ran is None else ran.result()
    if plan is not None:
        _show(plan, as_json)
    if figures is not None:
        show_fields(figures.as_fields(), as_json)


def _stop_by_signals(connector: "Connector", shown: Progress) -> None:
    """The first signal requests the end of the run, a later one ends the process at once; a second
    one within StopSignals.REPEAT_S is taken for the first, as a node does.
    """
    clock = SystemClock()
    first_s: list[float] = []

    def receive(number: int, _frame: object) -> None:
        if not first_s:
            first_s.append(clock.monotonic())
            connector.stop()
            os.write(2, f"{connector.stopping}; a second signal ends it at once\n".encode())
        elif clock.monotonic() - first_s[0] >= StopSignals.REPEAT_S:
            shown.stop()
            os.write(2, _FORCED.encode())
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, receive)


@app.command("positions")
def positions(file: FileArgument, as_json: JsonOption = False) -> None:
    """Show how far a connector has read."""
    found = _connector(file, lambda _: None).positions()
    rows = [
        {"partition": name, "position": position if as_json else _pairs(position)}
        for name, position in found.items()
    ]
    show_rows(rows, {"partition": "partition", "position": "position"}, as_json)


def _connector(file: Path, show: Callable[["RunProgress"], None]) -> "Connector":
    from lakehead.connectors.connector import Connector
    from lakehead.connectors.runtime.settings import load_settings
    from lakehead.connectors.settings import ConnectorSettings

    settings = load_settings(file, ConnectorSettings)
    return Connector(settings, SystemClock(), name=str(file), on_progress=show)


def _pairs(position: "Position") -> str:
    return " ".join(f"{name}={value}" for name, value in position.items() if value is not None)


def _show(plan: "Plan", as_json: bool) -> None:
    fields = {
        "partitions to read": len(plan.works),
        f"{plan.unit} to read": sum(work.size_bytes for work in plan.works),
        "first key": plan.first_key,
        "first value": plan.first_value,
        "first trouble": plan.first_trouble,
    }
    names = [work.name for work in plan.works]
    if as_json:
        show_fields({**fields, "names": names}, as_json=True)
        return
    show_fields(fields, as_json=False)
    for name in names[:_SHOWN_WORKS]:
        typer.echo(f"  {name}")
    if len(names) > _SHOWN_WORKS:
        typer.echo(f"  and {len(names) - _SHOWN_WORKS} more")
