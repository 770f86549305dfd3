"""`lakehead backup`: the job `backup` as a command, once or followed."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.broker.cli.jobs import JobCall, job_command
from lakehead.broker.cli.listing import json_names
from lakehead.broker.cli.recorded_run import recorded_run
from lakehead.broker.cli.stop_signals import stopped_by_signal
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError, StoreUnavailable
from lakehead.storage.jobs.backup import JOB, BackupResult, with_backups
from lakehead.storage.jobs.run_recorder import RunRecorder

if TYPE_CHECKING:
    from lakehead.storage.backup.run import Backups


def _backup(
    call: JobCall,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Make one backup after the other until Ctrl-C or SIGTERM."
        ),
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.1,
            metavar="SECONDS",
            help="With --follow: from the beginning of one backup to that of the next.",
        ),
    ] = 10.0,
) -> None:
    if not follow:
        call.run()
        return
    if call.dry_run:
        raise SettingsError("--follow has no --dry-run")

    with recorded_run(JOB.name, call.store) as recorder:

        async def make(backups: "Backups") -> BackupResult:
            return await _follow(backups, interval, call.as_json, recorder)

        result = with_backups(call.store, call.options, make)
        JOB.finish(result.as_fields())


async def _follow(
    backups: "Backups", interval_s: float, as_json: bool, recorder: RunRecorder
) -> BackupResult:
    """Make backups until SIGTERM, one line each; return the last."""
    stopped = stopped_by_signal("ends after the backup that it is at")
    clock, last, made, damaged = SystemClock(), BackupResult(), 0, list[str]()
    while not stopped.is_set():
        begun = clock.monotonic()
        try:
            last = BackupResult.of_done(await backups.make(recorder.progress))
        except StoreUnavailable as error:
            recorder.at(f"waits for a store: {error}")
            typer.echo(f"lakehead: {error}; trying again", err=True)
        else:
            made += 1
            damaged += last.damaged
            _show_line(last, as_json)
            recorder.at(f"backup {last.backup} has all until {last.has_all_until}")
            recorder.found({"backups": made} | last.labelled())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, begun + interval_s - clock.monotonic())):
                await stopped.wait()
    return replace(last, damaged=tuple(damaged), damaged_objects=len(damaged))


def _show_line(done: BackupResult, as_json: bool) -> None:
    for key in done.damaged:
        typer.echo(f"lakehead: {key} is damaged, and was copied as it is", err=True)
    if as_json:
        typer.echo(json.dumps(json_names(done.labelled())))
        return
    typer.echo(
        f"{done.has_all_until}  backup {done.backup}: {done.objects} objects, "
        f"{done.copied_objects} copied ({done.copied_bytes} bytes) in {done.took_ms} ms"
    )


backup = job_command(JOB, extended_by=_backup)
