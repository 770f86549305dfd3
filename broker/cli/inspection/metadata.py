"""The cluster as its metadata says: the state, the entries of the log, the checkpoints."""

from typing import Annotated, Any

import msgspec
import typer

from lakehead.broker.cli.cluster import (
    DEFAULT_PATH,
    PathOption,
    load_state,
    open_cluster,
    run,
    store_uri,
)
from lakehead.broker.cli.listing import JsonOption, show_fields, show_rows
from lakehead.broker.diagnosis.metadata_log import public_entry, record_counts
from lakehead.storage.errors import CorruptObject, NotFound, ObjectNotFound
from lakehead.storage.format.checkpoint import Checkpoint, decode, rows_of
from lakehead.storage.metadata.entry import PREFIX, decode_entry, entry_number
from lakehead.storage.metadata.hidden_fields import HIDDEN, SECRET_COLUMNS
from lakehead.storage.metadata.layout import META, Listing, checkpoint_key
from lakehead.storage.metadata.log_reader import in_steps
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.plain_text import address_text, moment


def inspect_state(path: PathOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:
    """Show the cluster as the metadata log says it is: nodes, streams, counts."""
    state = run(load_state(path))
    summary = {"store": store_uri(path), **state_summary(state)}
    nodes = [_node(state, node_id) for node_id in sorted(state.nodes)]
    if as_json:
        show_fields({**summary, "nodes": nodes}, as_json)
        return
    show_fields(summary, as_json)
    typer.echo()
    columns = {"node": "NODE", "epoch": "EPOCH", "address": "ADDRESS", "rack": "RACK"}
    show_rows(
        nodes,
        {
            **columns,
            "host": "HOST",
            "fenced": "FENCED",
            "draining": "DRAINING",
            "streams": "STREAMS",
            "assigned": "ASSIGNED",
            "wal": "WAL",
            "wal_floor": "WAL FLOOR",
        },
        as_json,
    )


def state_summary(state: MetadataImage) -> dict[str, Any]:
    """Return the counts of a cluster's metadata."""
    return {
        "cluster id": state.cluster_id,
        "entries": state.next_entry,
        "topics": len(state.topics),
        "streams": len(state.streams),
        "objects": len(state.objects),
        "object bytes": sum(item.size for item in state.objects.values()),
        "objects to delete": len(state.unreferenced_objects()),
        "next producer id": state.next_producer_id,
    }


def _node(state: MetadataImage, node_id: int) -> dict[str, Any]:
    node = state.nodes[node_id]
    owned = sum(stream.is_open and stream.node_id == node_id for stream in state.streams.values())
    assigned = sum(stream.assigned == node_id for stream in state.streams.values())
    return {
        "node": node_id,
        "epoch": node.epoch,
        "address": address_text(node.host, node.port),
        "rack": node.rack,
        "host": node.host_id or None,
        "fenced": node.is_fenced,
        "draining": node.is_draining,
        "wal": node.wal or None,
        "wal_floor": f"{node.wal_epoch}/{node.wal_floor}",
        "streams": owned,
        "assigned": assigned,
    }


def inspect_log(
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", min=0, help="Show entry N in full, as JSON.")
    ] = None,
    path: PathOption = DEFAULT_PATH,
    last: Annotated[
        int, typer.Option("--last", min=1, metavar="N", help="Number of entries to list.")
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the newest entries of the metadata log, or show one."""
    store = open_cluster(path)
    if number is not None:
        entry = run(public_entry(store, number))
        typer.echo(msgspec.json.format(msgspec.json.encode(entry), indent=2).decode())
        return
    rows = run(_log_rows(store, last))
    columns = {"entry": "ENTRY", "time": "TIME (UTC)", "writer": "WRITER", "records": "RECORDS"}
    show_rows(rows, columns, as_json)


async def _log_rows(store: ObjectStore, last: int) -> list[dict[str, Any]]:
    found = await store.list(PREFIX)
    rows = []
    for item in found[-last:]:
        number = entry_number(item.key)
        try:
            entry = decode_entry(item.key, await store.get(item.key))
        except CorruptObject as error:
            damage = f"DAMAGED at byte {error.position}: {error.reason}"
            rows.append({"entry": number, "time": None, "writer": None, "records": damage})
            continue
        rows.append(
            {
                "entry": number,
                "time": moment(entry.time_ms),
                "writer": entry.writer,
                "records": record_counts(entry.records),
            }
        )
    return rows


def inspect_checkpoint(
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", min=0, help="Show checkpoint N: its tables.")
    ] = None,
    path: PathOption = DEFAULT_PATH,
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="Show the rows of this table.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of the metadata, or show one; every byte is checked.

    A checkpoint is a Parquet file: Spark and DuckDB read it too.
    """
    store = open_cluster(path)
    if number is None:
        rows = run(_checkpoint_rows(store))
        columns = {"checkpoint": "CHECKPOINT", "bytes": "BYTES", "written": "WRITTEN (UTC)"}
        show_rows(rows, columns, as_json)
        return
    tables = run(_read_checkpoint(store, number)).tables
    if table is None:
        sizes = [{"table": name, "rows": rows_of(columns)} for name, columns in tables.items()]
        show_rows(sizes, {"table": "TABLE", "rows": "ROWS"}, as_json)
        return
    if table not in tables:
        raise NotFound(f"there is no table {table!r}: there are {', '.join(tables)}")
    chosen = tables[table]
    hidden = SECRET_COLUMNS.get(table, frozenset())
    show_rows(
        [
            {
                name: HIDDEN if name in hidden and column[row] else column[row]
                for name, column in chosen.items()
            }
            for row in range(rows_of(chosen))
        ],
        {name: name.upper() for name in chosen},
        as_json,
    )


async def _checkpoint_rows(store: ObjectStore) -> list[dict[str, Any]]:
    found = await store.list(META)
    by_key = {item.key: item for item in found}
    items = [(number, by_key[checkpoint_key(number)]) for number in Listing.of(found).checkpoints]
    return [
        {"checkpoint": number, "bytes": item.size, "written": moment(item.modified_ms)}
        for number, item in items
    ]


async def _read_checkpoint(store: ObjectStore, number: int) -> Checkpoint:
    key = checkpoint_key(number)
    try:
        body = await store.get(key)
    except ObjectNotFound:
        raise NotFound(f"there is no checkpoint {number}") from None
    return await in_steps(decode(key, body))
