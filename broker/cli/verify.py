"""`lakehead verify`: whether everything is there and unharmed."""

import json
from functools import partial
from typing import Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from broker.cli.listing import JsonOption, show_fields, show_rows
from broker.cli.maintain import DryRunOption
from broker.cli.progress import ByteProgress
from storage.jobs.verify import VerifyReport, VerifySettings, plan_verify, verify
from storage.verification.damage import Damage, InvalidBatch

_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "offsets": "OFFSETS",
    "object": "OBJECT",
    "what": "WHAT",
    "to do": "TO DO",
}
_INVALID_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "offsets": "OFFSETS",
    "object": "OBJECT",
    "reason": "CANNOT BE READ",
}


def verify_cluster(
    path: PathOption = DEFAULT_PATH,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="This topic only.")
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            "--sample", min=1, max=100, metavar="PERCENT", help="Read this share of the objects."
        ),
    ] = 100,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Another number, another sample.")
    ] = 0,
    processes: Annotated[
        int, typer.Option("--processes", min=1, metavar="N", help="How many work at once.")
    ] = 1,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Read everything, and compare it with its checksums and with the metadata. Status 1 on damage.

    From the metadata log to each record batch: checksums, offsets without a gap, indexes, the
    states of partitions, objects that are missing. Writes nothing; the cluster may go on meanwhile.
    Batches that were produced so that nothing can read them are named apart, and are no damage.
    """
    settings = VerifySettings(path=store_uri(path), topic=topic, sample_percent=sample, seed=seed)
    if dry_run:
        plan = plan_verify(settings)
        objects = sum(len(item.objects) for item in plan.items)
        size = sum(item.size for item in plan.items)
        show_fields(
            {"objects to read": objects, "bytes to read": size, "damages": len(plan.damages)},
            as_json,
        )
        return
    from lake.jobs.local_pool import run_items

    with ByteProgress("verify", shown=not as_json) as progress:
        runner = partial(run_items, processes=processes)
        report = verify(settings, runner=runner, on_progress=progress.update)
    _show(report, as_json)
    if report.damages:
        raise typer.Exit(1)


def _show(report: VerifyReport, as_json: bool) -> None:
    figures = report.figures
    fields = {
        "objects": figures.objects,
        "bytes": figures.bytes,
        "batches": figures.batches,
        "records": figures.records,
        "gaps in producers' sequences": figures.sequence_gaps,
        "leaked objects": report.leaked,
        "strange names": report.strange,
        "batches that cannot be read": figures.invalid_batches,
        "batches with times out of range": figures.invalid_times,
        "damages": len(report.damages),
    }
    rows = [_row(damage) for damage in report.damages]
    invalid = [_invalid_row(one) for one in report.invalid]
    if as_json:
        typer.echo(json.dumps({**fields, "damages": rows, "invalid batches": invalid}))
        return
    if invalid:
        show_rows(invalid, _INVALID_COLUMNS, as_json=False)
        typer.echo("")
    if rows:
        show_rows(rows, _COLUMNS, as_json=False)
        typer.echo("")
    show_fields(fields, as_json=False)


def _row(damage: Damage) -> dict[str, object]:
    return {**_where(damage), "what": damage.what, "to do": damage.to_do}


def _invalid_row(found: InvalidBatch) -> dict[str, object]:
    return {**_where(found), "reason": found.reason}


def _where(found: Damage | InvalidBatch) -> dict[str, object]:
    place = found.place
    return {
        "topic": place.topic or f"(stream {place.stream_id})",
        "partition": place.partition,
        "offsets": f"{place.start_offset} to {place.end_offset - 1}",
        "object": found.object_key,
    }
