"""The ShareFetch response as a list of pieces: versions 1 and 2.

The response's records are the views that storage gave: they are sent as they are, never copied.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lakehead.broker.protocol.encode import compact_text
from lakehead.broker.protocol.node_endpoints import NodeEndpoint
from lakehead.storage.format.varint import encode_uvarint

_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">ih")
_PARTITION = struct.Struct(">ih")
_ERROR = struct.Struct(">h")
_LEADER = struct.Struct(">iiB")
_ACQUIRED = struct.Struct(">qqhB")
_PREFIX = struct.Struct(">iiB")

_NO_LEADER = (-1, -1)


class SharePartitionResult(NamedTuple):
    """One partition of a response; `records` are whole batches that follow each other, of which
    the member has only what is `acquired`: (first offset, last offset, delivery count).
    """

    partition: int
    error: int = 0
    message: str | None = None
    acknowledge_error: int = 0
    acknowledge_message: str | None = None
    leader: tuple[int, int] = _NO_LEADER
    records: Sequence[memoryview] = ()
    acquired: Sequence[tuple[int, int, int]] = ()


class ShareResponseWriter:
    """Puts a response together: small pieces of our own between the views of storage."""

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._own = bytearray()
        self._size = 0

    def begin(
        self, error: int, message: str | None, lock_ms: int, topics: int, throttle_ms: int = 0
    ) -> None:
        """Write what stands before the topics."""
        self._own += _HEAD.pack(throttle_ms, error) + compact_text(message)
        self._own += _INT32.pack(lock_ms) + encode_uvarint(topics + 1)

    def topic(self, topic_id: bytes, results: Sequence[SharePartitionResult]) -> None:
        """Write a topic."""
        self._own += topic_id + encode_uvarint(len(results) + 1)
        for result in results:
            self._partition(result)
        self._own += b"\x00"

    def _partition(self, result: SharePartitionResult) -> None:
        own = self._own
        own += _PARTITION.pack(result.partition, result.error) + compact_text(result.message)
        own += _ERROR.pack(result.acknowledge_error) + compact_text(result.acknowledge_message)
        own += _LEADER.pack(*result.leader, 0)
        size = sum(map(len, result.records))
        own += encode_uvarint(size + 1)
        if result.records:
            self._pieces.append(own)
            self._pieces.extend(result.records)
            self._size += len(own) + size
            own = self._own = bytearray()
        own += encode_uvarint(len(result.acquired) + 1)
        for one in result.acquired:
            own += _ACQUIRED.pack(*one, 0)
        own += b"\x00"

    def finish(
        self, correlation_id: int, endpoints: Sequence[NodeEndpoint] = ()
    ) -> list[bytes | bytearray | memoryview]:
        """Return the pieces of the whole frame, length included. `endpoints` are of the nodes that
        results name as leaders.
        """
        self._own += _endpoints(endpoints) + b"\x00"
        self._pieces.append(self._own)
        self._size += len(self._own)
        prefix = _PREFIX.pack(self._size + 5, correlation_id, 0)
        self._pieces[0] = prefix + bytes(self._pieces[0])
        return self._pieces


def _endpoints(endpoints: Iterable[NodeEndpoint]) -> bytes:
    nodes = [
        _INT32.pack(node.node_id)
        + compact_text(node.host)
        + _INT32.pack(node.port)
        + compact_text(node.rack)
        + b"\x00"
        for node in endpoints
    ]
    return encode_uvarint(len(nodes) + 1) + b"".join(nodes)
