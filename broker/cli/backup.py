"""`lakehead backup`: the job `backup` as a command, once or followed."""

import asyncio
import json
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.broker.cli.jobs import JobCall, job_command
from lakehead.broker.cli.listing import json_names
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError, StoreUnavailable
from lakehead.storage.jobs.backup import JOB, BackupResult, with_backups

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

    async def make(backups: "Backups") -> BackupResult:
        return await _follow(backups, interval, call.as_json)

    with_backups(call.store, call.options, make)


async def _follow(backups: "Backups", interval_s: float, as_json: bool) -> BackupResult:
    """Make backups until SIGTERM, one line each; return the last."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    clock, last = SystemClock(), BackupResult()
    while not stopped.is_set():
        begun = clock.monotonic()
        try:
            last = BackupResult.of_done(await backups.make())
            _show_line(last, as_json)
        except StoreUnavailable as error:
            typer.echo(f"lakehead: {error}; trying again", err=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, begun + interval_s - clock.monotonic())):
                await stopped.wait()
    return last


def _show_line(done: BackupResult, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(json_names(done.labelled())))
        return
    typer.echo(
        f"{done.has_all_until}  backup {done.backup}: {done.objects} objects, "
        f"{done.copied_objects} copied ({done.copied_bytes} bytes) in {done.took_ms} ms"
    )


backup = job_command(JOB, extended_by=_backup)
