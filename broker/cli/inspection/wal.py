"""Write-ahead logs: the slices of a block WAL, the numbered objects of an object WAL."""

from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import (
    DEFAULT_PATH,
    PathOption,
    open_at,
    open_cluster,
    read_state,
    run,
)
from lakehead.broker.cli.inspection.wal_file import WalFileReport, read_wal_file
from lakehead.broker.cli.listing import JsonOption, show_fields, show_rows
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import DamageFound
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectMeta, ObjectStore
from lakehead.storage.plain_text import moment
from lakehead.storage.wal.object.names import PREFIX, WalName, is_seal_size


def inspect_wal(
    wal: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="File or disk of a block WAL; `object:` for the object WAL in the cluster's store,"
            " `object:s3://bucket/prefix` for one elsewhere.",
        ),
    ],
    path: PathOption = DEFAULT_PATH,
    records: Annotated[
        bool,
        typer.Option("--records", help="List every record, or every object: not only a summary."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a write-ahead log holds that is not trimmed: one summary for each node's part."""
    if wal.startswith("object:"):
        _show_object_wal(wal.removeprefix("object:").partition("?")[0], path, records, as_json)
        return
    for report in run(_wal_reports(wal)):
        if records:
            show_rows(report.rows, _WAL_COLUMNS, as_json)
        else:
            show_fields(report.summary, as_json)
        if report.damage:
            raise DamageFound(report.damage)


_WAL_COLUMNS = {
    "position": "POSITION",
    "bytes": "BYTES",
    "stream": "STREAM",
    "epoch": "EPOCH",
    "offset": "OFFSET",
    "records": "RECORDS",
}


async def _wal_reports(path: str) -> list[WalFileReport]:
    try:
        return await read_wal_file(path.removeprefix("block:").partition("?")[0])
    except IsADirectoryError:
        raise SettingsError(
            f"{path} is a folder: give the file of the log, like {path}/wal"
        ) from None


_LOG_COLUMNS = {
    "node": "NODE",
    "epoch": "EPOCH",
    "objects": "OBJECTS",
    "bytes": "BYTES",
    "first": "FIRST",
    "last": "LAST",
    "sealed_at": "SEALED AT",
    "floor": "FLOOR",
}
_OBJECT_COLUMNS = {"key": "KEY", "kind": "KIND", "bytes": "BYTES", "written": "WRITTEN (UTC)"}


def _show_object_wal(place: str, path: str, records: bool, as_json: bool) -> None:
    state, found = run(_wal_objects(place, path))
    if records:
        rows = [
            {
                "key": item.key,
                "kind": "tombstone" if is_seal_size(item.size) else "data",
                "bytes": item.size,
                "written": moment(item.modified_ms),
            }
            for _, item in found
        ]
        show_rows(rows, _OBJECT_COLUMNS, as_json)
        return
    logs: dict[tuple[int, int], list[tuple[WalName, ObjectMeta]]] = {}
    for name, item in found:
        logs.setdefault((name.node_id, name.epoch), []).append((name, item))
    show_rows([_log_row(state, *key, items) for key, items in logs.items()], _LOG_COLUMNS, as_json)


async def _wal_objects(
    place: str, path: str
) -> tuple[MetadataImage, list[tuple[WalName, ObjectMeta]]]:
    cluster: ObjectStore = open_cluster(path)
    logs = open_at(place) if place else cluster
    try:
        state = await read_state(cluster)
        listed = await logs.list(PREFIX)
    finally:
        await cluster.close()
        await logs.close()
    return state, [(name, item) for item in listed if (name := WalName.parse(item.key))]


def _log_row(
    state: MetadataImage, node_id: int, epoch: int, items: list[tuple[WalName, ObjectMeta]]
) -> dict[str, Any]:
    """Summarise the log of a node's epoch. `floor`: recovery begins at this (epoch, number)."""
    data = [name.number for name, item in items if not is_seal_size(item.size)]
    tombstones = [name.number for name, item in items if is_seal_size(item.size)]
    node = state.nodes.get(node_id)
    return {
        "node": node_id,
        "epoch": epoch,
        "objects": len(data),
        "bytes": sum(item.size for _, item in items),
        "first": min(data, default=None),
        "last": max(data, default=None),
        "sealed_at": min(tombstones, default=None),
        "floor": None if node is None else f"{node.wal_epoch}/{node.wal_floor}",
    }
