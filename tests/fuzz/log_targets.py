"""Bytes that nodes recover from the store: states of partitions, objects of an object WAL."""

import struct
from collections.abc import Sequence

import msgspec
from crc32c import crc32c

from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.storage.format import checkpoint, parquet
from lakehead.storage.format.control_batch import Marker, encode_marker
from lakehead.storage.format.object_writer import ObjectWriter
from lakehead.storage.format.partition_state import (
    PackedState,
    PartitionState,
    ProducerBatch,
    ProducerRecord,
    StateSnapshot,
    decode_packed,
    decode_state,
    encode_packed,
    encode_state,
    newest_producers,
    open_transactions,
    opened_transactions,
    pack_producer,
    put_together,
)
from lakehead.storage.format.producer_headers import parse_producer_headers, producer_headers
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.wal.object.names import Seal, wal_key
from lakehead.storage.wal.object.seal import sealed_records
from lakehead.storage.wal.protocol import WalFloor
from tests.simulation.loop import simulate
from tests.support.object_wal_tools import CLUSTER, make_sealer
from tests.support.record_batches import seal_batch
from tests.unit.test_checkpoint_format import finish, sample

_FOOTER_AT, _EXTENSION_AT = 48, 32
_WRITER = "writer".ljust(16, ".")
_SEAL_CRC = struct.Struct(">I")
_HEAD = struct.Struct(">4sIQIIQI")
_Page = tuple[int, int, int, int, int, int]
_Column = tuple[str, list[str], list[_Page]]
_Directory = tuple[int, int, list[tuple[str, int, list[_Column]]], list[_Page]]
"""The directory of a checkpoint, as the docstring of `checkpoint` has it."""


def read_partition_state(data: bytes) -> None:
    """A state as an object carries it, alone and on top of another."""
    decode_state(data)
    packed = decode_packed(data)
    before = decode_packed(partition_state_seeds()[0])
    opened_transactions(newest_producers([before, packed]))
    open_transactions([before, packed])
    put_together([StateSnapshot(encode_packed(before)), StateSnapshot(data, 3)])
    ProducerStates.restore([partition_state_seeds()[0], data], end_offset=20)


def partition_state_seeds() -> list[bytes]:
    batches = [ProducerBatch(0, 4, 10, 15), ProducerBatch(5, 5, 15, 16)]
    records = [
        ProducerRecord(7, 1, 1_700_000_000_000, batches, 2, 10),
        ProducerRecord(8, 0, 1_700_000_000_000, []),
    ]
    aborted = struct.pack(">4q", 7, 3, 9, 3)
    packed = PackedState(b"".join(map(pack_producer, records)), aborted)
    return [encode_packed(packed), encode_state(PartitionState(records, aborted))]


def read_checkpoint(data: bytes) -> object:
    """A checkpoint of the metadata, with right checksums of head, directory, pages and tail."""
    return finish(checkpoint.decode("meta/checkpoint/1", _checkpoint(data)))


def _checkpoint(data: bytes) -> bytes:
    """Return bytes with the checksums of a checkpoint: of pages too, if they can be found."""
    start = len(parquet.MAGIC)
    if len(data) < start + _HEAD.size + 4:
        return data
    magic, version, place, length, _, _, zero = _HEAD.unpack_from(data, start)
    place = min(place, len(data))
    body, raw, tail = data[:place], data[place : place + length], data[place + length :]
    try:
        number, _, tables, others = msgspec.msgpack.decode(raw, type=_Directory)
    except ValueError:
        pass
    else:
        sealed = [
            (name, rows, [(one, words, _sealed(body, pages)) for one, words, pages in columns])
            for name, rows, columns in tables
        ]
        directory = (number, crc32c(tail), sealed, _sealed(body, others))
        raw = msgspec.msgpack.encode(directory)
    size = len(body) + len(raw) + len(tail)
    head = _HEAD.pack(magic, version, place, len(raw), crc32c(raw), size, zero)
    body = data[:start] + head + _SEAL_CRC.pack(crc32c(head)) + body[start + _HEAD.size + 4 :]
    return body + raw + tail


def _sealed(body: bytes, pages: list[_Page]) -> list[_Page]:
    return [(*page[:5], crc32c(body[page[0] : page[0] + page[2]])) for page in pages]


def checkpoint_seeds() -> list[bytes]:
    """Return a checkpoint without what only readers of Parquet want: it is large."""
    whole = b"".join(finish(checkpoint.encode(sample(5))))
    start = len(parquet.MAGIC)
    magic, version, place, length, *_ = _HEAD.unpack_from(whole, start)
    number, _, tables, _ = msgspec.msgpack.decode(whole[place : place + length])
    body = whole[: start + _HEAD.size + 4]
    for _, _, columns in tables:
        for column in columns:
            for page in column[2]:
                first = len(body)
                body += whole[page[0] : page[0] + page[2]]
                page[0] = first
    directory = msgspec.msgpack.encode([number, 0, tables, []])
    head = _HEAD.pack(magic, version, len(body), len(directory), 0, 0, 0)
    return [_checkpoint(body[:start] + head + body[start + _HEAD.size :] + directory)]


def read_producer_headers(data: bytes) -> None:
    """The headers of batches that an object carries without a state."""
    for _ in parse_producer_headers(data):
        pass


def producer_header_seeds() -> list[bytes]:
    value = b"\x10\0\0\0\x02k\x02v\0"
    batches = [
        seal_batch(
            value,
            base_offset=offset,
            last_offset_delta=0,
            record_count=1,
            attributes=attributes,
            producer_id=7,
        )
        for offset, attributes in ((0, 0), (1, 0x10), (2, 0x10))
    ]
    marker = encode_marker(Marker(True, 3), producer_id=7, producer_epoch=0, timestamp_ms=9)
    return [producer_headers(batches), producer_headers([*batches, marker])]


def _resealed(data: bytes) -> bytes:
    """Return bytes with the right checksums of an object's index and extension, or of a seal."""
    changed = bytearray(data)
    if len(changed) == len(_seal()):
        _SEAL_CRC.pack_into(changed, len(changed) - 4, crc32c(bytes(changed[:-4])))
    elif len(changed) >= _FOOTER_AT:
        size = len(changed)
        index = struct.unpack_from(">qi", changed, size - _FOOTER_AT)
        extension = struct.unpack_from(">qi", changed, size - _EXTENSION_AT)
        for place, (start, length) in ((20, index), (16, extension)):
            if 0 <= start <= size and 0 <= length <= size:
                crc = crc32c(bytes(changed[start : start + length]))
                struct.pack_into(">I", changed, size - place, crc)
    return bytes(changed)


def read_wal_objects(data: bytes) -> None:
    """The second object of a log of two: recovery seals the log and reads what it holds."""
    store = MemoryStore()
    store.objects[wal_key(0, 0, 0)] = wal_object_seeds()[0]
    store.objects[wal_key(0, 0, 1)] = _resealed(data)

    async def recover() -> None:
        log = await make_sealer(store).seal(WalFloor(0, 0), before=1)
        assert log.objects[0].key == wal_key(0, 0, 0), "the first object is whole"
        async for record in sealed_records(store, log.objects):
            bytes(record.payload)

    simulate(recover, seed=1)


def _seal() -> bytes:
    return Seal(sealer_id=1, incarnation="taker", created_ms=3).encode()


def wal_object_seeds() -> Sequence[bytes]:
    batch = seal_batch(
        b"\x10\0\0\0\x02k\x02v\0", base_offset=0, last_offset_delta=0, record_count=1
    )
    found = []
    for first in (0, 5):
        writer = ObjectWriter(
            kind="wal",
            cluster_id=CLUSTER,
            node_id=0,
            node_epoch=0,
            writer_id=_WRITER,
            created_ms=3,
        )
        for stream_id in (1, 2):
            writer.begin_stream(StreamInfo(stream_id=stream_id, topic="t", epoch=0))
            writer.add(0, first, 1, batch, 7)
        found.append(b"".join(bytes(piece) for piece in writer.finish().pieces))
    return [*found, _seal()]
