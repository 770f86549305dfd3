"""`lakehead backup`: a copy of a cluster in another store, once or followed."""

import asyncio
import json
import random
import signal
from contextlib import suppress
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import (
    DEFAULT_PATH,
    PathOption,
    open_at,
    open_log,
    place_uri,
    run,
    store_uri,
)
from lakehead.broker.cli.listing import JsonOption, json_names, show_fields
from lakehead.broker.cli.progress import ByteProgress
from lakehead.broker.plain_text import moment
from lakehead.storage.backup.manifest import Manifest
from lakehead.storage.backup.run import BackupDone, Backups
from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.settings import plain_address
from lakehead.storage.errors import SettingsError, StoreUnavailable
from lakehead.storage.jobs.job import DamageFound


def backup(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The place of the backups: a folder, or a store's URI (s3://bucket/prefix).",
        ),
    ],
    path: PathOption = DEFAULT_PATH,
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
    keep_hours: Annotated[
        int,
        typer.Option(
            "--keep-hours",
            min=0,
            metavar="HOURS",
            help="Hours of which the first backup each is kept, besides the newest two.",
        ),
    ] = 24,
    as_json: JsonOption = False,
) -> None:
    """Copy a cluster to another store, as it is at one moment. Objects that are there are not
    copied again.

    The cluster runs meanwhile. A backup that was killed leaves the one before as it is.
    `lakehead restore` makes a cluster of a backup.
    """
    source, place = store_uri(path), place_uri(target)
    if plain_address(source) == plain_address(place):
        raise SettingsError(f"the cluster itself is in {place}: give a backup another place")
    run(_backup(source, place, interval if follow else None, keep_hours, as_json))


async def _backup(
    source_uri: str, target_uri: str, interval_s: float | None, keep_hours: int, as_json: bool
) -> None:
    source, target = open_at(source_uri), open_at(target_uri)
    try:
        backups = await Backups.open(
            source,
            target,
            await open_log(source, writer="backup"),
            clock=SystemClock(),
            rng=random.SystemRandom(),
            keep_hours=keep_hours,
        )
        if interval_s is not None:
            await _follow(backups, interval_s, as_json)
            return
        with ByteProgress("copying", shown=not as_json) as progress:
            done = await backups.make(progress.update)
        show_fields(_fields(done), as_json)
        if done.manifest.damaged:
            raise DamageFound(
                f"{len(done.manifest.damaged)} objects do not match their checksums and were "
                f"copied as they are: {done.manifest.damaged[0]}; see: lakehead verify"
            )
    finally:
        await source.close()
        await target.close()


async def _follow(backups: Backups, interval_s: float, as_json: bool) -> None:
    """Make backups until SIGTERM, one line each."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    clock = SystemClock()
    while not stopped.is_set():
        begun = clock.monotonic()
        try:
            _show_line(await backups.make(), as_json)
        except StoreUnavailable as error:
            typer.echo(f"lakehead: {error}; trying again", err=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, begun + interval_s - clock.monotonic())):
                await stopped.wait()


def _show_line(done: BackupDone, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(json_names(_fields(done))))
        return
    manifest = done.manifest
    typer.echo(
        f"{moment(manifest.position_ms)}  backup {manifest.number}: {manifest.objects} objects, "
        f"{done.copied_objects} copied ({done.copied_bytes} bytes) in {done.took_ms} ms"
    )


def _fields(done: BackupDone) -> dict[str, Any]:
    return manifest_fields(done.manifest) | {
        "copied objects": done.copied_objects,
        "copied bytes": done.copied_bytes,
        "milliseconds": done.took_ms,
    }


def manifest_fields(manifest: Manifest) -> dict[str, Any]:
    """Return what people see of a backup."""
    elsewhere = [f"node {one.node_id} ({one.wal})" for one in manifest.logs_elsewhere]
    return {
        "backup": manifest.number,
        "cluster id": manifest.cluster_id,
        "has all until": moment(manifest.position_ms),
        "objects": manifest.objects,
        "bytes": manifest.size,
        "objects of write-ahead logs": manifest.tail_objects,
        "without the logs of": ", ".join(elsewhere) or None,
        "damaged objects": len(manifest.damaged),
    }
