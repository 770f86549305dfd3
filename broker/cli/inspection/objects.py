"""Objects that hold records: which there are, and what is in one."""

from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, load_state, open_cluster, run
from lakehead.broker.cli.listing import JsonOption, show_fields, show_rows
from lakehead.storage.errors import CorruptObject, NotFound, ObjectNotFound
from lakehead.storage.format.record_batch import iter_headers
from lakehead.storage.format.stream_object import (
    IndexItem,
    ObjectIndex,
    check_item,
    iter_records,
    read_index,
)
from lakehead.storage.jobs.job import DamageFound
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.plain_text import moment
from lakehead.storage.wal.object.names import Seal, WalName
from lakehead.storage.wal.object.seal import read_wal_object

KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="Key of the object, as `inspect objects` and `inspect wal object:` show it.",
    ),
]


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
            raise NotFound(f"there is no topic {topic!r} in this cluster")
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


def inspect_object(
    key: KeyArgument,
    path: PathOption = DEFAULT_PATH,
    batches: Annotated[
        bool, typer.Option("--batches", help="List every record batch, not only the index.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the index of an object and check every byte of it against its checksums."""
    store = open_cluster(path)
    index = run(_index(store, key))
    if isinstance(index, Seal):
        show_fields(_tombstone(key, index), as_json)
        return
    rows, damage = run(_object_rows(store, index, batches))
    if not as_json:
        show_fields(_object_head(index), as_json)
        typer.echo()
    columns = _BATCH_COLUMNS if batches else _ITEM_COLUMNS
    show_rows(rows, columns, as_json)
    if damage:
        raise DamageFound(f"{len(damage)} damaged: {damage[0]}")


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


async def _index(store: ObjectStore, key: str) -> Seal | ObjectIndex:
    try:
        return await (read_wal_object if WalName.parse(key) else read_index)(store, key)
    except ObjectNotFound:
        raise NotFound(f"there is no object {key}; see: lakehead inspect objects") from None


def _tombstone(key: str, tombstone: Seal) -> dict[str, Any]:
    return {
        "key": key,
        "kind": "tombstone: the log of this epoch ends before it",
        "sealed by": f"node {tombstone.sealer_id}",
        "writer": tombstone.incarnation,
        "created": moment(tombstone.created_ms),
    }


async def _object_rows(
    store: ObjectStore, index: ObjectIndex, batches: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each item or batch, and what is damaged."""
    rows: list[dict[str, Any]] = []
    damage: list[str] = []
    for item in index.items:
        data = await store.get_range(index.key, item.position, item.size)
        try:
            check_item(index.key, item, data)
            found = _batch_rows(index, item, data) if batches else [_item_row(index, item, "ok")]
        except (CorruptObject, ValueError) as error:
            damage.append(str(error))
            found = [] if batches else [_item_row(index, item, "BAD")]
        rows += found
    return rows, damage


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


def _batch_rows(index: ObjectIndex, item: IndexItem, data: Buffer) -> list[dict[str, Any]]:
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
