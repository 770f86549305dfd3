"""Committed offsets of consumer groups, as far as `__consumer_offsets` is uploaded.

Keys and values of its records are big-endian; a string has its length as an i16 before it (-1:
null). Keys of version 0 and 1 are of an offset (group, topic, partition i32), of version 2 of a
group. Values begin with an i16, their version. Source: Kafka's message definitions OffsetCommitKey,
OffsetCommitValue, GroupMetadataKey, GroupMetadataValue.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from lakehead.lake.catalog import Catalog, PartitionLog
from lakehead.lake.committed import committed_now
from lakehead.lake.moved_ranges import plan_moved
from lakehead.lake.planner import OffsetRange
from lakehead.lake.positions import EARLIEST, Bounds, GroupPosition, Position, Positions
from lakehead.lake.snapshot import Snapshot
from lakehead.lake.store_reader import StoreReader
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.varint import INT_BITS, read_uvarint

OFFSETS_TOPIC = "__consumer_offsets"

_OFFSET_KEYS = (0, 1)
_GROUP_KEY = 2
_EXPIRING, _FLEXIBLE = 1, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A committed offset. Times in milliseconds, -1: none."""

    topic: str
    partition: int
    offset: int
    metadata: str
    committed_ms: int
    expires_ms: int = -1


@dataclass(slots=True, kw_only=True)
class Group:
    """A group: what it has committed, and its members as it was last written."""

    group_id: str
    protocol_type: str | None = None
    generation: int | None = None
    members: int | None = None
    offsets: list[GroupOffset] = field(default_factory=list)


def read_groups(reader: StoreReader, catalog: Catalog) -> list[Group]:
    """Return the groups of a cluster, by id. Offsets of transactions that were aborted or are
    undecided do not count. Raises what reading objects raises.
    """
    groups: dict[str, Group] = {}
    if OFFSETS_TOPIC not in catalog.state.topics:
        return []
    for key, value in _newest(reader, catalog).items():
        try:
            _take(groups, _Fields(key), _Fields(value))
        except (struct.error, UnicodeDecodeError):
            continue  # of a version of Kafka that is not known here
    for group in groups.values():
        group.offsets.sort(key=lambda one: (one.topic, one.partition))
    return [groups[group_id] for group_id in sorted(groups)]


def without_groups(snapshot: Snapshot, logs: Sequence[PartitionLog], bounds: Bounds) -> Bounds:
    """Return bounds with the committed offsets in place of a group's name. A partition without a
    commit is at its beginning, and one that is committed beyond its records in objects at their
    end.

    Raises SettingsError for a group that has committed nothing of these topics that lies in
    objects, and what reading raises.
    """
    return replace(
        bounds,
        starting=_of_partitions(snapshot, logs, bounds.starting),
        ending=_of_partitions(snapshot, logs, bounds.ending),
    )


def _of_partitions(
    snapshot: Snapshot, logs: Sequence[PartitionLog], positions: Positions
) -> Positions:
    if not isinstance(positions, GroupPosition):
        return positions
    found = {
        (one.topic, one.partition): one.offset
        for group in read_groups(snapshot.reader, snapshot.catalog)
        for one in group.offsets
        if group.group_id == positions.group_id
    }
    # Of a read of some partitions, the group may have committed others of the topic.
    topics = {log.id.topic for log in logs}
    if topics and not any(topic in topics for topic, _ in found):
        shown = ", ".join(sorted(map(repr, topics)))
        raise SettingsError(
            f"group {positions.group_id!r} has committed no offset of topic {shown} that lies in "
            "objects"
        )
    return {
        log.id: Position("offset", min(found[log.id], log.end_offset))
        if log.id in found
        else EARLIEST
        for log in logs
    }


def _newest(reader: StoreReader, catalog: Catalog) -> dict[bytes, bytes]:
    """The newest value of each key that has one."""
    newest: dict[bytes, bytes] = {}
    for key, value in _records(reader, catalog):
        if key is not None and value is not None:
            newest[key] = value
        elif key is not None:
            newest.pop(key, None)
    return newest


def _records(reader: StoreReader, catalog: Catalog) -> Iterator[tuple[bytes | None, bytes | None]]:
    # The decoder brings compiled kernels, which a plan without a group does not need.
    from lakehead.lake.decode.decoder import RecordDecoder
    from lakehead.lake.record_reader import read_records

    logs = committed_now(reader, catalog, OFFSETS_TOPIC)
    requested = [
        OffsetRange(log=log, start=log.start_offset, end=log.end_offset)
        for log in logs
        if log.start_offset < log.end_offset
    ]
    decoder = RecordDecoder(("key", "value"))
    # Splits come in the order of offsets, so the last record of a key is its newest.
    for split in plan_moved(reader, requested):
        for batch in read_records(reader, split.ranges, decoder):
            yield from zip(
                batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
            )


def _take(groups: dict[str, Group], key: "_Fields", value: "_Fields") -> None:
    kind = key.number(">h")
    if kind not in (*_OFFSET_KEYS, _GROUP_KEY):
        return
    group_id = key.text() or ""
    group = groups.setdefault(group_id, Group(group_id=group_id))
    version = value.number(">h")
    if kind == _GROUP_KEY:
        if version < _FLEXIBLE:
            _take_members(group, value, version)
        return
    topic, partition = key.text() or "", key.number(">i")
    offset = value.number(">q")
    if version >= 3:
        value.number(">i")  # the leader's epoch
    metadata = value.compact_text() if version == _FLEXIBLE else value.text()
    group.offsets.append(
        GroupOffset(
            topic=topic,
            partition=partition,
            offset=offset,
            metadata=metadata or "",
            committed_ms=value.number(">q"),
            expires_ms=value.number(">q") if version == _EXPIRING else -1,
        )
    )


def _take_members(group: Group, value: "_Fields", version: int) -> None:
    group.protocol_type = value.text()
    group.generation = value.number(">i")
    value.text()  # the protocol
    value.text()  # the leader
    if version >= 2:
        value.number(">q")
    group.members = value.number(">i")


class _Fields:
    """Takes fields off bytes. Raises struct.error where they end too soon."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def text(self) -> str | None:
        return self._text(self.number(">h"))

    def compact_text(self) -> str | None:
        try:
            size, self._at = read_uvarint(self._data, self._at, INT_BITS)
        except (IndexError, ValueError) as error:
            raise struct.error(str(error)) from error
        return self._text(size - 1)

    def _text(self, size: int) -> str | None:
        if size < 0:
            return None
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise struct.error("cut short")
        self._at += size
        return data.decode()
