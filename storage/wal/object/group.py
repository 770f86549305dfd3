"""A group commit: what gathers until a put starts, and the object that it becomes."""

from __future__ import annotations

import struct

import msgspec

from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.producer_headers import producer_headers
from lakehead.storage.format.record_batch import HEADER_SIZE, MAX_TIMESTAMP_POSITION, NO_TIMESTAMP
from lakehead.storage.wal.protocol import Buffer, WalOwner

_MAX_TIMESTAMP = struct.Struct(">q")

Records = tuple[int, list[tuple[int, int, Buffer]]]
"""Of one stream: its epoch, then base offset, offset count and payload of each record."""


class Group:
    """Records that are put together. `limit` is what they may take, in bytes; -1 sends every append
    the slow way. `began` is the event loop's time at the first of them, `end` the position after
    the last, set when the group is closed.
    """

    __slots__ = ("began", "end", "is_done", "limit", "size", "streams")

    def __init__(self, limit: int, began: float) -> None:
        self.streams: dict[int, Records] = {}
        self.size = 0
        self.limit = limit
        self.began = began
        self.end = 0
        self.is_done = False

    @classmethod
    def none(cls) -> Group:
        """There is no group: the next record begins one."""
        return cls(-1, 0.0)


def build(group: Group, owner: WalOwner, node_epoch: int) -> WrittenObject:
    """Return the object of a group, streams in order of their ids. Payloads are not copied."""
    writer = ObjectWriter(
        kind="wal",
        cluster_id=owner.cluster_id,
        node_id=owner.node_id,
        node_epoch=node_epoch,
        writer_id=owner.incarnation,
        created_ms=owner.clock.now_ms(),
    )
    add, timestamp_of = writer.add, _MAX_TIMESTAMP.unpack_from
    for stream_id in sorted(group.streams):
        epoch, records = group.streams[stream_id]
        headers = producer_headers([payload for _, _, payload in records])
        info = msgspec.structs.replace(owner.describe(stream_id), epoch=epoch, headers=headers)
        writer.begin_stream(info)
        for base_offset, count, payload in records:
            is_batch = len(payload) >= HEADER_SIZE
            newest = timestamp_of(payload, MAX_TIMESTAMP_POSITION)[0] if is_batch else NO_TIMESTAMP
            add(epoch, base_offset, count, payload, newest)
    return writer.finish()
