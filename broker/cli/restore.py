"""`lakehead restore`: a cluster made of a backup, or of a copy of a cluster's prefix."""

import random
from functools import partial
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import open_at, place_uri, run, store_uri
from lakehead.broker.cli.confirmation import YesOption, confirm
from lakehead.broker.cli.listing import JsonOption, show_fields
from lakehead.broker.cli.progress import ByteProgress
from lakehead.broker.coordinator.group.restored_offsets import corrected_offsets
from lakehead.storage.backup.manifest import named_objects
from lakehead.storage.backup.promotion import promote_copy
from lakehead.storage.backup.restore import (
    RestorePoint,
    find_point,
    refuse_occupied,
    restore_cluster,
)
from lakehead.storage.backup.run import logs_elsewhere
from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.settings import plain_address
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.backup import StoredBackup, elsewhere_text
from lakehead.storage.plain_text import moment


def restore(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The place of the backups, or a copy of a cluster's prefix: a folder or a "
            "store's URI.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            show_default=False,
            help="The place of the restored cluster: an empty folder or prefix.",
        ),
    ] = "",
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Make the place of the backups the cluster: nothing is copied. It takes no "
            "backups any more.",
        ),
    ] = False,
    replicated: Annotated[
        bool,
        typer.Option(
            "--replicated",
            help="With --in-place: SOURCE is a prefix that S3 replication has filled. Its "
            "replication is off, and no node writes there.",
        ),
    ] = False,
    number: Annotated[
        int | None,
        typer.Option(
            "--backup", min=0, metavar="NUMBER", help="This backup, not the newest complete one."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
) -> None:
    """Make a cluster of a backup.

    With its id, topics, offsets, groups, users and rights.

    Nodes of the cluster that was copied must serve no client any more: the restored one has other
    records from the moment of the backup on. Start its nodes with this store, and with new disks
    for block write-ahead logs.
    """
    if in_place == bool(target) and not dry_run:
        raise SettingsError("give a TARGET, or --in-place")
    if replicated and (target or number is not None):
        raise SettingsError("--replicated is for --in-place, without --backup")
    place = _source_uri(source)
    wanted = place_uri(target) if target else place
    if target and plain_address(wanted) == plain_address(place):
        raise SettingsError(f"{wanted} is the SOURCE: for that there is --in-place")
    if replicated and not dry_run:
        confirm(
            f"Make {place} a cluster of its own, and fence all nodes that write there?", yes=yes
        )
        run(_promote(place, as_json))
    else:
        run(_restore(place, wanted, number, dry_run, as_json))


def _source_uri(source: str) -> str:
    try:
        return store_uri(source)
    except SettingsError:
        return place_uri(source)


async def _restore(
    source_uri: str, target_uri: str, number: int | None, dry_run: bool, as_json: bool
) -> None:
    source = open_at(source_uri)
    target = source if target_uri == source_uri else open_at(target_uri)
    try:
        if not dry_run:
            await refuse_occupied(target, is_in_place=target is source)
        point = await find_point(source, number)
        fields = _point_fields(point)
        if dry_run:
            show_fields(fields, as_json)
            return
        clock = SystemClock()
        with ByteProgress("copying", shown=not as_json) as progress:
            done = await restore_cluster(
                point,
                source,
                target,
                correct=partial(corrected_offsets, clock=clock),
                clock=clock,
                rng=random.SystemRandom(),
                on_progress=progress.update,
            )
        fields |= {
            "copied objects": done.copied_objects,
            "copied bytes": done.copied_bytes,
            "corrected offsets of groups": done.corrections,
            "restored in": target.uri,
        }
        show_fields(fields, as_json)
    finally:
        await source.close()
        if target is not source:
            await target.close()


async def _promote(uri: str, as_json: bool) -> None:
    store, clock = open_at(uri), SystemClock()
    try:
        correct = partial(corrected_offsets, clock=clock)
        done = await promote_copy(store, correct=correct, clock=clock, rng=random.SystemRandom())
        fields: dict[str, Any] = {"cluster id": done.promotion.cluster_id}
        if done.point is not None:
            fields = _point_fields(done.point)
        fields |= {
            "promoted at": moment(done.promotion.time_ms),
            "corrected offsets of groups": done.corrections,
            "restored in": store.uri,
        }
        show_fields(fields, as_json)
    finally:
        await store.close()


def _point_fields(point: RestorePoint) -> dict[str, Any]:
    state = point.state
    if point.manifest is not None:
        fields = StoredBackup.of(point.manifest).labelled()
    else:
        named = named_objects(state)
        fields = {
            "cluster id": state.cluster_id,
            "last entry at": moment(point.position_ms),
            "entries left out": point.entries_left,
            "left out until": moment(point.left_until_ms),
            "objects missing": len(point.missing),
            "without the logs of": elsewhere_text(logs_elsewhere(state)),
            "objects": len(named),
            "bytes": sum(named.values()),
        }
    return fields | {"topics": len(state.topics), "partitions": len(state.streams)}
