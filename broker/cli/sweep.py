"""`lakehead sweep`: delete what nothing needs any more; `lakehead leak-check`: compare the bucket
with the metadata.

A running node does the same by itself. The commands are for a cluster that is down, for a look
before, and for Airflow.
"""

from typing import Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from broker.cli.listing import JsonOption, show_fields, show_rows
from broker.cli.progress import ByteProgress
from storage.errors import SettingsError
from storage.garbage.sweep import GRACE_MS, MARGIN_MS, SweepTimes
from storage.jobs.sweep import SweepSettings, find_leaks, plan_sweep
from storage.jobs.sweep import sweep as run_sweep


def sweep(
    path: PathOption = DEFAULT_PATH,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")
    ] = False,
    grace_s: Annotated[
        int,
        typer.Option(
            "--grace",
            min=0,
            metavar="SECONDS",
            help="Objects stay this long after their last reference went.",
        ),
    ] = GRACE_MS // 1000,
    margin_s: Annotated[
        int,
        typer.Option(
            "--margin",
            min=0,
            metavar="SECONDS",
            help="What was never committed is deleted at this age.",
        ),
    ] = MARGIN_MS // 1000,
    as_json: JsonOption = False,
) -> None:
    """Delete objects that no stream refers to, and what crashes left in the bucket."""
    times = SweepTimes(grace_ms=grace_s * 1000, margin_ms=margin_s * 1000)
    settings = SweepSettings(path=store_uri(path), times=times)
    if dry_run:
        rows = [
            {"key": one.key, "bytes": one.size, "why": one.verdict.value}
            for item in plan_sweep(settings)
            for one in item.doomed
        ]
        show_rows(rows, {"key": "KEY", "bytes": "BYTES", "why": "WHY"}, as_json)
        return
    with ByteProgress("sweep", shown=not as_json) as progress:
        figures = run_sweep(settings, on_progress=progress.update)
    show_fields(
        {
            "deleted objects": figures.objects,
            "deleted bytes": figures.bytes,
            "dropped from the metadata": figures.dropped,
            "abandoned uploads given up": figures.uploads,
        },
        as_json,
    )


def leak_check(path: PathOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:
    """Compare the bucket with the metadata. Status 1 if something is missing or has leaked."""
    report = find_leaks(store_uri(path))
    show_fields(
        {
            "referenced objects": report.referenced,
            "missing": len(report.missing),
            "leaked": len(report.leaked),
            "waiting for their grace": len(report.delayed),
            "being uploaded": len(report.uploading),
            "write-ahead log": len(report.wal),
            "tombstones": report.tombstones,
            "held since a rebuild of the catalog": len(report.held),
            "strange names": len(report.strange),
        },
        as_json,
    )
    if report.missing:
        raise SettingsError(f"{len(report.missing)} objects are missing: {report.missing[0]}")
    if report.leaked:
        raise SettingsError(
            f"{len(report.leaked)} objects have leaked: {report.leaked[0]}; see: lakehead sweep"
        )
