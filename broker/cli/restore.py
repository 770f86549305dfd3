"""`lakehead restore`: a cluster made of a backup, or of a copy of a cluster's prefix."""

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import open_at, place_uri, run, store_uri
from lakehead.broker.cli.confirmation import YesOption, confirm
from lakehead.broker.cli.listing import JsonOption, show_fields
from lakehead.broker.cli.node_network import CommandConfigOption
from lakehead.broker.cli.nodes import responding_node
from lakehead.broker.cli.progress import ByteProgress, waiting
from lakehead.broker.cli.recorded_run import recorded_run
from lakehead.broker.coordinator.group.restored_offsets import corrected_offsets
from lakehead.storage.backup.manifest import MANIFESTS, list_manifests, named_objects
from lakehead.storage.backup.promotion import promote_copy, read_promotion
from lakehead.storage.backup.restore import (
    RestorePoint,
    find_point,
    newest_in_copy,
    refuse_occupied,
    restore_cluster,
)
from lakehead.storage.backup.run import logs_elsewhere
from lakehead.storage.backup.signs_of_life import WatchedPrefix
from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.settings import plain_address
from lakehead.storage.errors import RequestRefused, SettingsError
from lakehead.storage.garbage import listed
from lakehead.storage.jobs.backup import StoredBackup, elsewhere_text
from lakehead.storage.jobs.job import to_both
from lakehead.storage.jobs.run_recorder import RunRecorder
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.plain_text import moment

WATCH_S = 12.0
"""Seconds that a prefix is watched before it is promoted: longer than records wait for an upload
(`upload.age.ms`), so a node that takes records shows.
"""


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
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --replicated: go on though SOURCE looks as if nodes or jobs write to it. "
            "For a region that was lost just now, whose leases and objects are as fresh.",
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
    command_config: CommandConfigOption = None,  # noqa: ARG001 - by its callback
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
    if force and not replicated:
        raise SettingsError("--force is for --in-place --replicated")
    place = _source_uri(source)
    wanted = place_uri(target) if target else place
    if target and plain_address(wanted) == plain_address(place):
        raise SettingsError(f"{wanted} is the SOURCE: for that there is --in-place")
    if replicated and not dry_run:
        if not force:
            run(_refuse_in_use(place))
        confirm(
            f"Make {place} a cluster of its own, and fence all nodes that write there?", yes=yes
        )
        with recorded_run("restore", place) as recorder:
            run(_promote(place, as_json, recorder))
    elif dry_run:
        run(_show_point(place, number, as_json))
    else:
        run(_refuse_occupied(wanted, is_in_place=in_place))  # before a record of the run is there
        with recorded_run("restore", wanted) as recorder:
            run(_restore(place, wanted, number, as_json, recorder))


def _source_uri(source: str) -> str:
    place, plain = place_uri(source), place_uri(plain_address(source))
    if plain.startswith("file:") and (Path(plain.removeprefix("file:")) / MANIFESTS).is_dir():
        return place  # also with a cluster in its folder `store`
    try:
        return store_uri(source)
    except SettingsError:
        return place


def _refuse_store_inside(uri: str) -> None:
    """Raise RequestRefused for a data folder: commands and nodes would go on with the cluster in
    its folder `store`.
    """
    plain = plain_address(uri)
    if plain.startswith("file:") and (Path(plain.removeprefix("file:")) / "store/meta").is_dir():
        raise RequestRefused(
            f"{plain} holds a cluster already, in its folder store: restore to an empty folder"
        )


async def _refuse_occupied(uri: str, *, is_in_place: bool) -> None:
    if not is_in_place:
        _refuse_store_inside(uri)
    store = open_at(uri)
    try:
        await refuse_occupied(store, is_in_place=is_in_place)
    finally:
        await store.close()


async def _show_point(uri: str, number: int | None, as_json: bool) -> None:
    source = open_at(uri)
    try:
        point = await find_point(source, number)
        _show_damaged(point)
        show_fields(_point_fields(point), as_json)
    finally:
        await source.close()


async def _restore(
    source_uri: str, target_uri: str, number: int | None, as_json: bool, recorder: RunRecorder
) -> None:
    source = open_at(source_uri)
    target = source if target_uri == source_uri else open_at(target_uri)
    try:
        point = await find_point(source, number)
        _show_damaged(point)
        clock = SystemClock()
        with ByteProgress("copying", shown=not as_json) as progress:
            done = await restore_cluster(
                point,
                source,
                target,
                correct=partial(corrected_offsets, clock=clock),
                clock=clock,
                rng=random.SystemRandom(),
                on_progress=to_both(progress.update, recorder.progress),
            )
        fields = _point_fields(point) | {
            "copied objects": done.copied_objects,
            "copied bytes": done.copied_bytes,
            "corrected offsets of groups": done.corrections,
            "restored in": target.uri,
        }
        recorder.found(fields)
        show_fields(fields, as_json)
    finally:
        await source.close()
        if target is not source:
            await target.close()


async def _refuse_in_use(uri: str) -> None:
    """Raise RequestRefused if nodes or jobs seem to use the prefix: a promotion would fence them.
    One that was decided before goes on: nothing is lost by that.
    """
    store = open_at(uri)
    try:
        if await list_manifests(store) or await read_promotion(store) is not None:
            return
        with waiting(f"watching {uri} for {WATCH_S:.0f} s"):
            sign = await _sign_of_use(store)
    finally:
        await store.close()
    if sign:
        raise RequestRefused(
            f"{uri} looks like a cluster in use, which would be fenced: {sign}. Stop its nodes, "
            "jobs and replication, and run this again a minute later; for a region that is lost, "
            "give --force"
        )


async def _sign_of_use(store: ObjectStore) -> str:
    there = {one.key for one in await listed(store)}
    state = (await newest_in_copy(store, there)).state
    if found := await responding_node(state):
        return found
    prefix = WatchedPrefix(store, SystemClock())
    if sign := await prefix.first_sign(state):
        return sign
    await asyncio.sleep(WATCH_S)
    return await prefix.change()


async def _promote(uri: str, as_json: bool, recorder: RunRecorder) -> None:
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
        recorder.found(fields)
        show_fields(fields, as_json)
    finally:
        await store.close()


def _show_damaged(point: RestorePoint) -> None:
    for number, error in point.damaged.items():
        typer.echo(f"lakehead: backup {number} is damaged and was passed over: {error}", err=True)


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
