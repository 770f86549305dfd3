"""Keys and values of the records in `__transaction_state`, byte by byte as Kafka writes them.

Big-endian. A key is i16 0 and the transactional id (i16 length and UTF-8). A value opens with its
version, i16, and goes on::

    producer id i64, producer epoch i16, timeout i32 (ms), state i8, partitions, last update i64
    (ms), start i64 (ms; -1: none)

Partitions are an array (i32 count; null, -1, in state Empty) of topic string and i32 array. Version
1, which is written, is flexible: lengths are unsigned varints plus one, each partition array ends
with tagged fields, and so does the value: 0 the previous producer id i64, 1 the next one i64, 2 the
client's transaction version i16; those with their defaults (-1, -1, 0) are left out. Version 0 is
read too. A record without value deletes its key. Source: Kafka's message definitions
TransactionLogKey and TransactionLogValue, KIP-890 and KIP-915.
"""

import struct
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from lakehead.broker.coordinator.record_reader import RecordReader, UnknownRecord
from lakehead.broker.coordinator.transaction.messages import (
    NO_PRODUCER_ID,
    TV_0,
    TopicPartition,
    Transaction,
    TransactionState,
)
from lakehead.storage.format.varint import encode_uvarint

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")

_KEY_VERSION = 0
_WRITTEN_VERSION = 1
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _TRANSACTION_VERSION_TAG = 0, 1, 2

T = TypeVar("T")


def encode_key(transactional_id: str) -> bytes:
    """Return the key's bytes."""
    data = transactional_id.encode()
    return _SHORT.pack(_KEY_VERSION) + _SHORT.pack(len(data)) + data


def encode_value(value: Transaction) -> bytes:
    """Return the value of a transactional id."""
    head = _HEAD.pack(
        _WRITTEN_VERSION,
        value.producer_id,
        value.producer_epoch,
        value.timeout_ms,
        value.state,
    )
    tags = [
        (_PREVIOUS_ID_TAG, _LONG, value.previous_producer_id, NO_PRODUCER_ID),
        (_NEXT_ID_TAG, _LONG, value.next_producer_id, NO_PRODUCER_ID),
        (_TRANSACTION_VERSION_TAG, _SHORT, value.transaction_version, TV_0),
    ]
    tagged = [
        encode_uvarint(tag) + encode_uvarint(layout.size) + layout.pack(number)
        for tag, layout, number, default in tags
        if number != default
    ]
    times = _TIMES.pack(value.updated_ms, value.start_ms)
    return b"".join((head, _partitions(value), times, encode_uvarint(len(tagged)), *tagged))


def decode_key(data: bytes) -> str:
    """Return the transactional id. Raises UnknownRecord."""
    reader = RecordReader(data)
    version = reader.i16()
    if version != _KEY_VERSION:
        raise UnknownRecord(f"key of kind {version}")
    return reader.text(reader.i16())


def decode_value(transactional_id: str, data: bytes) -> Transaction:
    """Return the state of a transactional id. Raises UnknownRecord."""
    reader = RecordReader(data)
    version = reader.i16()
    if version not in {0, 1}:
        raise UnknownRecord(f"value of version {version}")
    producer_id, epoch, timeout_ms = reader.i64(), reader.i16(), reader.i32()
    state = _state(reader.i8())
    partitions = _read_partitions(reader, is_flexible=version == 1)
    updated_ms, start_ms = reader.i64(), reader.i64()
    tags = _tags(reader) if version == 1 else {}
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        updated_ms=updated_ms,
        start_ms=start_ms,
        previous_producer_id=_tag(tags, _PREVIOUS_ID_TAG, RecordReader.i64, NO_PRODUCER_ID),
        next_producer_id=_tag(tags, _NEXT_ID_TAG, RecordReader.i64, NO_PRODUCER_ID),
        transaction_version=_tag(tags, _TRANSACTION_VERSION_TAG, RecordReader.i16, TV_0),
    )


def _partitions(value: Transaction) -> bytes:
    if value.state is TransactionState.EMPTY:
        return encode_uvarint(0)  # null
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(value.partitions):
        by_topic[topic].append(index)
    parts = [encode_uvarint(len(by_topic) + 1)]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        parts += (encode_uvarint(len(name) + 1), name, encode_uvarint(len(indexes) + 1))
        parts += map(_INT.pack, indexes)
        parts.append(encode_uvarint(0))  # tagged fields
    return b"".join(parts)


def _state(number: int) -> TransactionState:
    try:
        return TransactionState(number)
    except ValueError as error:
        raise UnknownRecord(f"state {number}") from error


def _tag(tags: dict[int, bytes], tag: int, read: Callable[[RecordReader], T], default: T) -> T:
    data = tags.get(tag)
    return default if data is None else read(RecordReader(data))


def _read_partitions(reader: RecordReader, *, is_flexible: bool) -> list[TopicPartition]:
    found = []
    for _ in range(_count(reader, is_flexible)):
        topic = reader.text(reader.uvarint() - 1 if is_flexible else reader.i16())
        found += [(topic, reader.i32()) for _ in range(_count(reader, is_flexible))]
        if is_flexible:
            _tags(reader)
    return found


def _tags(reader: RecordReader) -> dict[int, bytes]:
    found = {}
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        found[tag] = reader.take(reader.uvarint())
    return found


def _count(reader: RecordReader, is_flexible: bool) -> int:
    """The length of an array; null counts as empty."""
    return reader.uvarint() - 1 if is_flexible else reader.i32()
