"""`lakehead sweep`: delete what nothing needs any more; `lakehead leak-check`: compare the bucket
with the metadata.

A running node does the same by itself. The commands are for a cluster that is down, for a look
before, and for Airflow.
"""

import random
from typing import Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, open_cluster, run
from broker.cli.listing import JsonOption, show_fields, show_rows
from storage.clock import SystemClock
from storage.errors import SettingsError
from storage.garbage.leak_check import LeakReport, check_leaks
from storage.garbage.sweep import (
    GRACE_MS,
    MARGIN_MS,
    SweepPlan,
    SweepResult,
    SweepSettings,
    perform,
    plan_sweep,
)
from storage.metadata.log import MetadataLog
from storage.object_store import ObjectStore


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
    settings = SweepSettings(grace_ms=grace_s * 1000, margin_ms=margin_s * 1000)
    plan, result = run(_sweep(path, settings, dry_run))
    if dry_run:
        rows = [
            {"key": one.key, "bytes": one.size, "why": one.verdict.value} for one in plan.doomed
        ]
        show_rows(rows, {"key": "KEY", "bytes": "BYTES", "why": "WHY"}, as_json)
        return
    assert result is not None
    show_fields(
        {
            "deleted objects": result.deleted,
            "deleted bytes": result.deleted_bytes,
            "dropped from the metadata": result.dropped,
            "abandoned uploads given up": result.uploads,
        },
        as_json,
    )


def leak_check(path: PathOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:
    """Compare the bucket with the metadata. Status 1 if something is missing or has leaked."""
    report = run(_check(path))
    show_fields(
        {
            "referenced objects": report.referenced,
            "missing": len(report.missing),
            "leaked": len(report.leaked),
            "waiting for their grace": len(report.delayed),
            "being uploaded": len(report.uploading),
            "write-ahead log": len(report.wal),
            "tombstones": report.tombstones,
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


async def _sweep(
    path: str, settings: SweepSettings, dry_run: bool
) -> tuple[SweepPlan, SweepResult | None]:
    store = open_cluster(path)
    try:
        metadata = await _metadata(store)
        plan = await plan_sweep(store, metadata, SystemClock(), settings)
        return plan, None if dry_run else await perform(plan, store, metadata)
    finally:
        await store.close()


async def _check(path: str) -> LeakReport:
    store = open_cluster(path)
    try:
        return await check_leaks(store, await _metadata(store))
    finally:
        await store.close()


async def _metadata(store: ObjectStore) -> MetadataLog:
    rng = random.SystemRandom()
    writer = f"sweep/{rng.getrandbits(64):016x}"
    log = await MetadataLog.open(store, writer_id=writer, clock=SystemClock(), rng=rng)
    if not log.state.cluster_id:
        raise SettingsError(f"there is no cluster in {store.uri}")
    return log
