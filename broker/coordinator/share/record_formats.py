"""Keys and values of the records in `__share_group_state`, byte by byte as Kafka 4.2 writes them.

Big-endian. A key is an i16 (0: a snapshot, 1: an update), the group (i16 length and UTF-8), the
topic's id (16 bytes) and the partition i32. A value opens with its version, i16 0, and goes on::

    snapshot   snapshot epoch i32, state epoch i32, leader epoch i32, start offset i64,
               creation i64 (ms), write i64 (ms), batches
    update     snapshot epoch i32, leader epoch i32, start offset i64, batches

Batches are an array (unsigned varint count plus one) of first offset i64, last offset i64, state i8
(0 available, 2 acknowledged, 3 archiving, 4 archived), delivery count i16 and tagged fields. A
value ends with tagged fields: 0 is the number of offsets that are done, i32, left out where it is
not known (-1).

An update adds to the state before it; -1 is a start offset that stays. A snapshot without value
deletes the state. Sources: Kafka's message definitions ShareSnapshotKey, ShareSnapshotValue,
ShareUpdateKey and ShareUpdateValue, KIP-932, KIP-1226.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from lakehead.broker.coordinator.record_reader import RecordReader, UnknownRecord
from lakehead.broker.share.record_state import RecordState, ShareState, StateBatch
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.format.varint import encode_uvarint

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_BATCH = struct.Struct(">qqbhB")
_SNAPSHOT = struct.Struct(">hiiiqqq")
_UPDATE = struct.Struct(">hiiq")

_SNAPSHOT_KEY, _UPDATE_KEY = 0, 1
_VERSION = 0
_ID_SIZE = 16
_COMPLETE_TAG = 0
_UNKNOWN_COUNT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshot:
    """A whole state. Times in milliseconds since the epoch."""

    epoch: int
    state: ShareState
    created_ms: int
    written_ms: int


class ShareUpdate(NamedTuple):
    """An addition to the snapshot of `epoch`."""

    epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class RecordKey(NamedTuple):
    """The share-partition that a record is about."""

    is_update: bool
    key: SharePartitionKey


def encode_key(key: SharePartitionKey, *, is_update: bool = False) -> bytes:
    """Return the bytes of a key."""
    group = key.group_id.encode()
    kind = _UPDATE_KEY if is_update else _SNAPSHOT_KEY
    return b"".join(
        (
            _SHORT.pack(kind),
            _SHORT.pack(len(group)),
            group,
            key.topic_id,
            _INT.pack(key.partition),
        )
    )


def decode_key(data: bytes) -> RecordKey:
    """Return the key of bytes. Raises UnknownRecord."""
    reader = RecordReader(data)
    kind = reader.i16()
    if kind not in {_SNAPSHOT_KEY, _UPDATE_KEY}:
        raise UnknownRecord(f"key of version {kind}")
    group_id = reader.text(reader.i16())
    key = SharePartitionKey(group_id, reader.take(_ID_SIZE), reader.i32())
    return RecordKey(kind == _UPDATE_KEY, key)


def encode_snapshot(snapshot: ShareSnapshot) -> bytes:
    """Return the value of a snapshot."""
    state = snapshot.state
    head = _SNAPSHOT.pack(
        _VERSION,
        snapshot.epoch,
        state.state_epoch,
        state.leader_epoch,
        state.start_offset,
        snapshot.created_ms,
        snapshot.written_ms,
    )
    return head + _batches(state.batches) + _tags(state.delivery_complete_count)


def decode_snapshot(data: bytes) -> ShareSnapshot:
    """Return the snapshot of a value. Raises UnknownRecord."""
    reader = _open(data)
    epoch, state_epoch, leader_epoch = reader.i32(), reader.i32(), reader.i32()
    start_offset, created_ms, written_ms = reader.i64(), reader.i64(), reader.i64()
    batches = _read_batches(reader)
    state = ShareState(start_offset, state_epoch, leader_epoch, _read_tags(reader), batches)
    return ShareSnapshot(epoch=epoch, state=state, created_ms=created_ms, written_ms=written_ms)


def encode_update(update: ShareUpdate) -> bytes:
    """Return the value of an update."""
    head = _UPDATE.pack(_VERSION, update.epoch, update.leader_epoch, update.start_offset)
    return head + _batches(update.batches) + _tags(update.delivery_complete_count)


def decode_update(data: bytes) -> ShareUpdate:
    """Return the update of a value. Raises UnknownRecord."""
    reader = _open(data)
    epoch, leader_epoch, start_offset = reader.i32(), reader.i32(), reader.i64()
    batches = _read_batches(reader)
    return ShareUpdate(epoch, leader_epoch, start_offset, _read_tags(reader), batches)


def _open(data: bytes) -> RecordReader:
    reader = RecordReader(data)
    version = reader.i16()
    if version != _VERSION:
        raise UnknownRecord(f"value of version {version}")
    return reader


def _batches(batches: tuple[StateBatch, ...]) -> bytes:
    return encode_uvarint(len(batches) + 1) + b"".join(_BATCH.pack(*one, 0) for one in batches)


def _read_batches(reader: RecordReader) -> tuple[StateBatch, ...]:
    found = []
    for _ in range(reader.uvarint() - 1):
        first_offset, last_offset, state, count = (
            reader.i64(),
            reader.i64(),
            reader.i8(),
            reader.i16(),
        )
        try:
            found.append(StateBatch(first_offset, last_offset, RecordState(state), count))
        except ValueError as error:
            raise UnknownRecord(f"state {state}") from error
        _read_tags(reader)
    return tuple(found)


def _tags(delivery_complete_count: int) -> bytes:
    if delivery_complete_count == _UNKNOWN_COUNT:
        return b"\0"
    return bytes((1, _COMPLETE_TAG, _INT.size)) + _INT.pack(delivery_complete_count)


def _read_tags(reader: RecordReader) -> int:
    """Take tagged fields; return the number of offsets that are done."""
    count = _UNKNOWN_COUNT
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        data = reader.take(reader.uvarint())
        if tag == _COMPLETE_TAG:
            count = RecordReader(data).i32()
    return count
