"""The Fetch request, parsed by hand, and its response as a list of pieces: versions 4 to 18.

The response's records are the views that storage gave: they are sent as they are, never copied.
Since version 7 there are sessions, since 12 compact lengths and tagged fields, since 13 topic ids.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lakehead.broker.protocol.decode import ELEMENTS_MAX, Cursor
from lakehead.broker.protocol.encode import compact_text, plain_text
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.node_endpoints import NodeEndpoint, tagged_endpoints
from lakehead.broker.protocol.produce import TopicKey
from lakehead.storage.format.varint import encode_uvarint

SESSIONS = 7
FLEXIBLE = 12
TOPIC_IDS = 13
NODE_ENDPOINTS = 16

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_WAIT_MIN_MAX = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")


class FetchPartition(NamedTuple):
    """One partition of a fetch request; epochs are -1 if the client does not know them."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """The partitions of one topic."""

    key: TopicKey
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    """A request. `session_id` 0 and `session_epoch` -1 mean no session (KIP-227)."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[tuple[TopicKey, list[int]]]
    rack_id: str


class PartitionResult(NamedTuple):
    """One partition of a fetch response; `records` are whole batches that follow each other.

    `aborted` holds (producer id, first offset) pairs, None unless the request reads committed
    records; `leader` is (node id, epoch) if the client should go elsewhere; `diverging` is (epoch,
    end offset); `read_replica` is the node that the client should fetch from (KIP-392), or -1.
    """

    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Sequence[memoryview] = ()
    aborted: Sequence[tuple[int, int]] | None = None
    leader: tuple[int, int] | None = None
    diverging: tuple[int, int] | None = None
    read_replica: int = -1


def parse(
    frame: memoryview, position: int, version: int, elements_max: int = ELEMENTS_MAX
) -> FetchRequest:
    """Return the request whose body begins at `position`. Raises MalformedFrame."""
    cursor = Cursor(frame, position, elements_max)
    compact = version >= FLEXIBLE
    if version <= 14:
        cursor.take(4)  # replica id: brokers copy nothing from each other
    max_wait_ms, min_bytes, max_bytes, isolation = _WAIT_MIN_MAX.unpack(cursor.take(13))
    session_id, session_epoch = 0, -1
    if version >= SESSIONS:
        session_id, session_epoch = _SESSION.unpack(cursor.take(8))
    topics = []
    for _ in range(_some(cursor.count(compact=compact))):
        key = _topic_key(cursor, version)
        count = _some(cursor.count(compact=compact))
        partitions = [_partition(cursor, version) for _ in range(count)]
        if compact:
            cursor.skip_tags()
        topics.append(FetchTopic(key, partitions))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= SESSIONS:
        for _ in range(_some(cursor.count(compact=compact))):
            key = _topic_key(cursor, version)
            count = _some(cursor.count(compact=compact))
            forgotten.append((key, [cursor.fixed(_INT32) for _ in range(count)]))
            if compact:
                cursor.skip_tags()
    rack_id = (cursor.text(compact=compact) or "") if version >= 11 else ""
    if compact:
        cursor.skip_tags()
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
    )


def _some(count: int) -> int:
    if count < 0:
        raise MalformedFrame("an array is null that must not be")
    return count


def _topic_key(cursor: Cursor, version: int) -> TopicKey:
    if version >= TOPIC_IDS:
        return bytes(cursor.take(16))
    name = cursor.text(compact=version >= FLEXIBLE)
    if name is None:
        raise MalformedFrame("a topic without name")
    return name


def _partition(cursor: Cursor, version: int) -> FetchPartition:
    if version >= FLEXIBLE:
        index, epoch, offset, fetched_epoch, _, size = _PARTITION_V12.unpack(cursor.take(32))
        cursor.skip_tags()
        return FetchPartition(index, epoch, offset, fetched_epoch, size)
    if version >= 9:
        index, epoch, offset, _, size = _PARTITION_V9.unpack(cursor.take(28))
        return FetchPartition(index, epoch, offset, -1, size)
    if version >= 5:
        index, offset, _, size = _PARTITION_V5.unpack(cursor.take(24))
        return FetchPartition(index, -1, offset, -1, size)
    index, offset, size = _PARTITION_V4.unpack(cursor.take(16))
    return FetchPartition(index, -1, offset, -1, size)


_HEAD_V4 = struct.Struct(">ihqq")
_HEAD_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING_TAG = struct.Struct(">BBiqB")
_LEADER_TAG = struct.Struct(">BBiiB")


class ResponseWriter:
    """Puts a response together: small pieces of our own between the views of storage."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._compact = version >= FLEXIBLE
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._own = bytearray()
        self._size = 0

    def _count(self, number: int) -> bytes:
        return encode_uvarint(number + 1) if self._compact else _INT32.pack(number)

    def begin(self, error: int, session_id: int, topics: int, throttle_ms: int = 0) -> None:
        """Write what stands before the topics."""
        self._own += _INT32.pack(throttle_ms)
        if self._version >= SESSIONS:
            self._own += _INT16.pack(error) + _INT32.pack(session_id)
        self._own += self._count(topics)

    def begin_topic(self, key: TopicKey, partitions: int) -> None:
        """Write what stands before a topic's partitions."""
        if isinstance(key, bytes):
            self._own += key
        else:
            self._own += compact_text(key) if self._compact else plain_text(key)
        self._own += self._count(partitions)

    def end_topic(self) -> None:
        """Write what stands after a topic's partitions."""
        if self._compact:
            self._own += b"\x00"

    def partition(self, result: PartitionResult) -> None:
        """Write one partition."""
        own, version = self._own, self._version
        head = result[:4] if version < 5 else result[:5]
        own += (_HEAD_V4 if version < 5 else _HEAD_V5).pack(*head)
        if result.aborted is None:
            own += b"\x00" if self._compact else b"\xff\xff\xff\xff"
        else:
            own += self._count(len(result.aborted))
            for entry in result.aborted:
                own += _ABORTED.pack(*entry)
                if self._compact:
                    own += b"\x00"
        if version >= 11:
            own += _INT32.pack(result.read_replica)
        size = sum(map(len, result.records))
        own += self._count(size)
        if result.records:
            self._pieces.append(own)
            self._pieces.extend(result.records)
            self._size += len(own) + size
            own = self._own = bytearray()
        if self._compact:
            own += self._tags(result)

    @staticmethod
    def _tags(result: PartitionResult) -> bytes:
        if result.diverging is None and result.leader is None:
            return b"\x00"
        tags, count = b"", 0
        if result.diverging is not None:
            tags += _DIVERGING_TAG.pack(0, 13, *result.diverging, 0)
            count += 1
        if result.leader is not None:
            tags += _LEADER_TAG.pack(1, 9, *result.leader, 0)
            count += 1
        return bytes([count]) + tags

    def finish(
        self, correlation_id: int, endpoints: Iterable[NodeEndpoint] = ()
    ) -> list[bytes | bytearray | memoryview]:
        """Return the pieces of the whole frame, length included. `endpoints` are of the nodes that
        results name as leaders.
        """
        if self._compact:
            self._own += tagged_endpoints(endpoints if self._version >= NODE_ENDPOINTS else ())
        if self._own:
            self._pieces.append(self._own)
            self._size += len(self._own)
        if self._compact:
            prefix = _SESSION.pack(self._size + 5, correlation_id) + b"\x00"
        else:
            prefix = _SESSION.pack(self._size + 4, correlation_id)
        self._pieces[0] = prefix + bytes(self._pieces[0])
        return self._pieces
