"""A partition's state as objects carry it: its producers, their open transactions, and which
transactions were aborted.

Version 3, MessagePack: `[3, producers, aborted transactions]`. `producers` are packed records, one
after the other, big-endian: producer id i64, epoch i16, timestamp ms i64, coordinator epoch i32,
first offset of its open transaction i64, number of batches u8; then each batch, oldest first: first
sequence i32, base offset i64, number of offsets i32. -1 where there is no coordinator epoch or open
transaction. Of a producer that is there twice the later record counts. Aborted transactions are
packed as `transaction_index` says. So a record is bytes from the append that changed it to the
object, and a million of them are read without making a million values.

A state is whole, or *incremental*: what changed since the state before it, and a share of all the
rest. Incremental ones are read oldest first; `newest` puts them together.

Version 2: `[2, [[producer id, epoch, timestamp ms, [[first sequence, last sequence, base offset,
end offset], …], coordinator epoch, first offset of its open transaction], …], aborted
transactions]`; always whole. Written below feature level 2. Version 1 has neither these two fields
of a producer nor aborted transactions.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from lakehead.storage.errors import UnsupportedFormat

VERSION = 3
OLD_VERSION = 2
NONE = -1
_SEQUENCE_MAX = 0x7FFFFFFF
_HEAD = struct.Struct(">qhqiqB")
_BATCH = struct.Struct(">iqi")
_ID = struct.Struct(">q")
_TRANSACTION_START = struct.Struct(">22xq")
_COUNT_AT = 30
_SIZES = [_HEAD.size + count * _BATCH.size for count in range(256)]
_TIMES = struct.Struct(">10xq4xq")
_ABORTED = struct.Struct(">qqqq")
_MARKER = 2


class ProducerBatch(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """One batch of a producer: its sequence numbers, inclusive, and offsets [base, end)."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


class ProducerRecord(NamedTuple):
    """The state of one producer. `timestamp` in milliseconds."""

    producer_id: int
    epoch: int
    timestamp: int
    batches: Sequence[ProducerBatch]
    coordinator_epoch: int = NONE
    transaction_start: int = NONE


class PartitionState(NamedTuple):
    """A partition's state as of some end offset. `aborted` is packed."""

    producers: Sequence[ProducerRecord] = ()
    aborted: bytes = b""


class PackedState(NamedTuple):
    """A state, or an incremental one, with its producers as packed records."""

    producers: bytes = b""
    aborted: bytes = b""

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield (producer id, packed record) of each. Raises ValueError for one cut short."""
        data, id_of = self.producers, _ID.unpack_from
        for first, end in pairwise(_places(data)):
            yield id_of(data, first)[0], data[first:end]


class StateSnapshot(NamedTuple):
    """A state as an upload carries it. `since` of an incremental one: it takes the states of all
    objects that reach beyond this offset to have the whole; -1: this one is whole.
    """

    data: bytes
    since: int = -1


def pack_producer(record: ProducerRecord) -> bytes:
    """Return one producer as a packed record."""
    producer_id, epoch, timestamp, batches, coordinator_epoch, start = record
    head = _HEAD.pack(producer_id, epoch, timestamp, coordinator_epoch, start, len(batches))
    if len(batches) == 1:  # most of very many
        return head + _packed(batches[0])
    return head + b"".join(map(_packed, batches))


def _packed(batch: ProducerBatch) -> bytes:
    return _BATCH.pack(
        batch.first_sequence, batch.base_offset, batch.end_offset - batch.base_offset
    )


def unpack_producer(data: bytes) -> ProducerRecord:
    """Return the producer of a packed record."""
    producer_id, epoch, timestamp, coordinator_epoch, start, _ = _HEAD.unpack_from(data)
    batches = [
        ProducerBatch(first, (first + count - 1) & _SEQUENCE_MAX, base, base + count)
        for first, base, count in _BATCH.iter_unpack(memoryview(data)[_HEAD.size :])
    ]
    return ProducerRecord(producer_id, epoch, timestamp, batches, coordinator_epoch, start)


def packed_times(data: bytes) -> tuple[int, int]:
    """Return timestamp and start of the open transaction of a packed record."""
    timestamp, start = _TIMES.unpack_from(data)
    return timestamp, start


def newest_producers(states: Sequence[PackedState]) -> dict[int, bytes]:
    """Return the packed records that count of incremental states, the oldest first, by producer id.
    Raises ValueError for one cut short.

    A new leader waits for this, perhaps for a million of them.
    """
    return {key: record for state in states for key, record in state.records()}


def opened_transactions(producers: Mapping[int, bytes]) -> dict[int, int]:
    """Return where the open transaction begins, by producer id, of packed records."""
    start_of = _TRANSACTION_START.unpack_from
    starts = [start_of(record)[0] for record in producers.values()]
    if max(starts, default=NONE) < 0:
        return {}  # as of most partitions
    return {key: start for key, start in zip(producers, starts, strict=True) if start >= 0}


def _places(data: bytes) -> list[int]:
    """Return where packed records begin, and their end. Raises ValueError for one cut short."""
    places, at, end = [], 0, len(data)
    try:
        while at < end:
            places.append(at)
            at += _SIZES[data[at + _COUNT_AT]]
    except IndexError:
        at = end + 1
    if at != end:
        raise ValueError(f"a producer's record is cut short at byte {end}")
    places.append(end)
    return places


def newest(states: Sequence[PackedState]) -> PackedState:
    """Return what counts of incremental states, the oldest first. Raises ValueError."""
    records: dict[int, bytes] = {}
    for state in states:
        for producer_id, record in state.records():
            records.pop(producer_id, None)  # in the order of what was written last
            records[producer_id] = record
    aborted = union_of_aborted([one.aborted for one in states])
    return PackedState(b"".join(records.values()), aborted)


def put_together(states: Sequence[StateSnapshot]) -> StateSnapshot:
    """Return one state for those of neighbours, the oldest first, true where the last of them is.
    Raises UnsupportedFormat, ValueError.
    """
    whole = [number for number, one in enumerate(states) if one.since < 0]
    counting = states[whole[-1] if whole else 0 :]
    if len(counting) == 1:
        return counting[0]
    packed = newest([decode_packed(one.data) for one in counting])
    return StateSnapshot(encode_packed(packed), -1 if whole else counting[-1].since)


def open_transactions(states: Sequence[PackedState]) -> list[tuple[int, int]]:
    """Return (first offset, producer id) of what is open by states, the oldest first. Raises
    ValueError.
    """
    found = opened_transactions(newest_producers(states))
    return [(start, producer_id) for producer_id, start in found.items()]


def union_of_aborted(parts: Sequence[bytes]) -> bytes:
    """Return packed aborted transactions of several states, each once, in the order of markers.
    Raises ValueError for bytes that are not whole.
    """
    held = [part for part in parts if part]
    if len(held) <= 1:
        return held[0] if held else b""
    data = b"".join(held)
    if len(data) % _ABORTED.size:
        raise ValueError("a packed aborted transaction is cut short")
    rows = list(_ABORTED.iter_unpack(data))
    first = {row[_MARKER]: row for row in reversed(rows)}
    return b"".join([_ABORTED.pack(*first[marker]) for marker in sorted(first)])


def encode_state(state: PartitionState) -> bytes:
    """Return the bytes of a whole state, as every release reads it (version 2)."""
    return msgspec.msgpack.encode((OLD_VERSION, *state))


def encode_packed(state: PackedState) -> bytes:
    """Return the bytes of a state, whole or incremental (version 3)."""
    return msgspec.msgpack.encode((VERSION, *state))


def decode_state(data: bytes) -> PartitionState:
    """Return the state in `data`. Raises UnsupportedFormat, ValueError."""
    version, fields = _fields(data)
    if version < VERSION:
        return msgspec.convert(fields, PartitionState)
    packed = msgspec.convert(fields, PackedState)
    records = dict(packed.records())
    return PartitionState([unpack_producer(one) for one in records.values()], packed.aborted)


def decode_packed(data: bytes) -> PackedState:
    """Return the state in `data`, producers packed. Raises UnsupportedFormat, ValueError."""
    version, fields = _fields(data)
    if version >= VERSION:
        return msgspec.convert(fields, PackedState)
    state = msgspec.convert(fields, PartitionState)
    try:
        return PackedState(b"".join(map(pack_producer, state.producers)), state.aborted)
    except struct.error as error:
        raise ValueError(f"a producer's state has a number out of its range: {error}") from None


def _fields(data: bytes) -> tuple[int, list[object]]:
    version, *fields = msgspec.msgpack.decode(data, type=list) or [None]
    if not isinstance(version, int):
        raise ValueError("a partition state does not begin with its version")  # noqa: TRY004 (bytes)
    if version > VERSION:
        raise UnsupportedFormat(
            f"a partition state has version {version}, this Lakehead reads {VERSION}: upgrade it"
        )
    return version, fields
