"""`lakehead inspect`: what is in an object, a write-ahead log, the metadata log. Reads only.

For people who debug, so it prefers to show what is there over refusing: a damaged item is marked
and the rest goes on.
"""

from typing import Annotated, Any

import msgspec
import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, load_state, run, store_uri
from broker.cli.listing import JsonOption, moment, show_fields, show_rows
from broker.cli.wal_file import WalFileReport, read_wal_file
from storage.errors import CorruptObject, LakeheadError, ObjectNotFound, SettingsError
from storage.format.record_batch import iter_headers
from storage.format.stream_object import (
    IndexItem,
    ObjectIndex,
    check_item,
    iter_records,
    read_index,
)
from storage.metadata.entry import PREFIX, decode_entry, entry_key
from storage.metadata.state import ClusterState
from storage.object_store import ObjectStore, open_store

app = typer.Typer(
    no_args_is_help=True,
    help="Look inside: the cluster's state, its metadata log, an object, a write-ahead log.",
)

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="Key of the object, as `inspect objects` shows it.")
]


@app.command("state")
def inspect_state(path: PathOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:
    """Show the cluster as the metadata log says it is: nodes, streams, counts."""
    state = run(load_state(path))
    summary = {
        "cluster id": state.cluster_id,
        "store": store_uri(path),
        "entries": state.next_entry,
        "topics": len(state.topics),
        "streams": len(state.streams),
        "objects": len(state.objects),
        "object bytes": sum(item.size for item in state.objects.values()),
        "objects to delete": len(state.unreferenced_objects()),
        "next producer id": state.next_producer_id,
    }
    nodes = [_node(state, node_id) for node_id in sorted(state.nodes)]
    if as_json:
        show_fields({**summary, "nodes": nodes}, as_json)
        return
    show_fields(summary, as_json)
    typer.echo()
    columns = {"node": "NODE", "epoch": "EPOCH", "address": "ADDRESS", "rack": "RACK"}
    show_rows(nodes, {**columns, "fenced": "FENCED", "streams": "STREAMS"}, as_json)


def _node(state: ClusterState, node_id: int) -> dict[str, Any]:
    node = state.nodes[node_id]
    owned = sum(stream.is_open and stream.node_id == node_id for stream in state.streams.values())
    return {
        "node": node_id,
        "epoch": node.epoch,
        "address": f"{node.host}:{node.port}",
        "rack": node.rack,
        "fenced": node.is_fenced,
        "streams": owned,
    }


@app.command("log")
def inspect_log(
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", min=0, help="Show entry N in full, as JSON.")
    ] = None,
    path: PathOption = DEFAULT_PATH,
    last: Annotated[
        int, typer.Option("--last", min=1, metavar="N", help="How many entries to list.")
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the newest entries of the metadata log, or show one."""
    store = open_store(store_uri(path))
    if number is not None:
        typer.echo(run(_entry_text(store, number)))
        return
    rows = run(_log_rows(store, last))
    columns = {"entry": "ENTRY", "time": "TIME (UTC)", "writer": "WRITER", "records": "RECORDS"}
    show_rows(rows, columns, as_json)


async def _entry_text(store: ObjectStore, number: int) -> str:
    try:
        body = await store.get(entry_key(number))
    except ObjectNotFound:
        raise SettingsError(f"the metadata log has no entry {number}") from None
    return msgspec.json.format(body, indent=2).decode()


async def _log_rows(store: ObjectStore, last: int) -> list[dict[str, Any]]:
    found = await store.list(PREFIX)
    rows = []
    for item in found[-last:]:
        entry = decode_entry(item.key, await store.get(item.key))
        counts: dict[str, int] = {}
        for record in entry.records:
            counts[type(record).__name__] = counts.get(type(record).__name__, 0) + 1
        words = [name if n == 1 else f"{n} x {name}" for name, n in counts.items()]
        rows.append(
            {
                "entry": int(item.key.removeprefix(PREFIX).removesuffix(".json")),
                "time": moment(entry.time_ms),
                "writer": entry.writer,
                "records": ", ".join(words),
            }
        )
    return rows


@app.command("objects")
def inspect_objects(
    path: PathOption = DEFAULT_PATH,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only objects that hold this topic.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the objects that the metadata log names."""
    state = run(load_state(path))
    wanted = frozenset(state.streams)
    if topic is not None:
        if topic not in state.topics:
            raise SettingsError(f"there is no topic {topic!r} in this cluster")
        wanted = frozenset(state.topics[topic].partitions)
    rows = [
        {
            "key": item.key,
            "kind": item.kind,
            "bytes": item.size,
            "node": item.node_id,
            "epoch": item.node_epoch,
            "streams": len(item.stream_ids),
            "created": moment(item.created_ms),
        }
        for item in sorted(state.objects.values(), key=lambda item: (item.created_ms, item.key))
        if item.stream_ids & wanted
    ]
    columns = {"key": "KEY", "kind": "KIND", "bytes": "BYTES", "node": "NODE", "epoch": "EPOCH"}
    show_rows(rows, {**columns, "streams": "STREAMS", "created": "CREATED (UTC)"}, as_json)


@app.command("object")
def inspect_object(
    key: KeyArgument,
    path: PathOption = DEFAULT_PATH,
    batches: Annotated[
        bool, typer.Option("--batches", help="List every record batch, not only the index.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the index of an object and check every byte of it against its checksums."""
    store = open_store(store_uri(path))
    index, rows, damage = run(_object_rows(store, key, batches))
    if not as_json:
        show_fields(_object_head(index), as_json)
        typer.echo()
    columns = _BATCH_COLUMNS if batches else _ITEM_COLUMNS
    show_rows(rows, columns, as_json)
    if damage:
        raise SettingsError(f"{len(damage)} damaged: {damage[0]}")


_ITEM_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "stream": "STREAM",
    "start_offset": "START",
    "end_offset": "END",
    "batches": "BATCHES",
    "position": "POSITION",
    "bytes": "BYTES",
    "max_timestamp": "NEWEST (UTC)",
    "crc": "CRC",
}
_BATCH_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "offset": "OFFSET",
    "records": "RECORDS",
    "bytes": "BYTES",
    "codec": "CODEC",
    "epoch": "EPOCH",
    "producer": "PRODUCER",
    "sequence": "SEQUENCE",
    "max_timestamp": "NEWEST (UTC)",
}
_CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


def _object_head(index: ObjectIndex) -> dict[str, Any]:
    return {
        "key": index.key,
        "kind": index.kind,
        "bytes": index.size,
        "cluster": index.cluster_id,
        "node": f"{index.node_id} (epoch {index.node_epoch})",
        "writer": index.writer_id,
        "created": moment(index.created_ms),
    }


async def _object_rows(
    store: ObjectStore, key: str, batches: bool
) -> tuple[ObjectIndex, list[dict[str, Any]], list[str]]:
    """Return the index, a row for each item or batch, and what is damaged."""
    try:
        index = await read_index(store, key)
    except ObjectNotFound:
        raise SettingsError(f"there is no object {key}; see: lakehead inspect objects") from None
    rows: list[dict[str, Any]] = []
    damage: list[str] = []
    for item in index.items:
        data = await store.get_range(key, item.position, item.size)
        try:
            check_item(key, item, data)
            found = _batch_rows(index, item, data) if batches else [_item_row(index, item, "ok")]
        except (CorruptObject, ValueError) as error:
            damage.append(str(error))
            found = [] if batches else [_item_row(index, item, "BAD")]
        rows += found
    return index, rows, damage


def _place(index: ObjectIndex, item: IndexItem) -> dict[str, Any]:
    info = index.streams.get(item.stream_id)
    return {
        "topic": info.topic if info else None,
        "partition": info.partition if info else None,
        "stream": item.stream_id,
    }


def _item_row(index: ObjectIndex, item: IndexItem, crc: str) -> dict[str, Any]:
    return {
        **_place(index, item),
        "start_offset": item.start_offset,
        "end_offset": item.end_offset,
        "batches": item.record_count,
        "position": item.position,
        "bytes": item.size,
        "max_timestamp": moment(item.max_timestamp),
        "crc": crc,
    }


def _batch_rows(index: ObjectIndex, item: IndexItem, data: bytes) -> list[dict[str, Any]]:
    rows = []
    for record in iter_records(data):
        for _, header in iter_headers(record.payload):
            rows.append(
                {
                    **_place(index, item),
                    "offset": header.base_offset,
                    "records": header.record_count,
                    "bytes": 12 + header.length,
                    "codec": _CODECS.get(header.attributes & 7, "?"),
                    "epoch": header.leader_epoch,
                    "producer": header.producer_id if header.producer_id >= 0 else None,
                    "sequence": header.base_sequence if header.base_sequence >= 0 else None,
                    "max_timestamp": moment(header.max_timestamp),
                }
            )
    return rows


@app.command("wal")
def inspect_wal(
    wal: Annotated[
        str, typer.Argument(metavar="PATH", help="File or disk of a block write-ahead log.")
    ],
    records: Annotated[
        bool, typer.Option("--records", help="List every record, not only a summary.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a block write-ahead log holds that is not yet in objects."""
    for report in run(_wal_reports(wal)):
        if records:
            show_rows(report.rows, _WAL_COLUMNS, as_json)
        else:
            show_fields(report.summary, as_json)
        if report.damage:
            raise SettingsError(report.damage)


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
    except LakeheadError as error:
        raise SettingsError(str(error)) from None
