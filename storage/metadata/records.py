"""The typed records of the metadata log, and the entry that carries them.

An entry is one JSON object, `meta/log/<20-digit number>.json`, created with put-if-absent::

    {"version": 1, "writer": "<who>", "nonce": "<unique>", "time_ms": 1,
     "records": [{"type": "CreateTopic", …}, …]}

`writer` and `nonce` tell a writer its own entry when the answer to a put was lost. Names of records
and fields never change meaning; a field that is added has a default, so that older entries stay
readable.
"""

import msgspec

ENTRY_VERSION = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """What every record shares: its class name is its `type`."""


class ClusterCreated(_Record, frozen=True, kw_only=True, tag=True):
    """The first record of the first entry: the cluster's id."""

    cluster_id: str


class RegisterNode(_Record, frozen=True, kw_only=True, tag=True):
    """A broker process starts. `epoch` is one more than the node's last one; `incarnation` is
    unique.
    """

    node_id: int
    epoch: int
    incarnation: str
    host: str
    port: int
    rack: str | None = None


class FenceNode(_Record, frozen=True, kw_only=True, tag=True):
    """A node's epoch ends: nothing more is accepted from it."""

    node_id: int
    epoch: int


class RetireNode(_Record, frozen=True, kw_only=True, tag=True):
    """A node id is gone for good. It owns no stream."""

    node_id: int


class CreateTopic(_Record, frozen=True, kw_only=True, tag=True):
    """A topic without partitions yet; `CreateStream` records of the same entry give them."""

    name: str
    topic_id: str
    configs: dict[str, str] = {}


class DeleteTopic(_Record, frozen=True, kw_only=True, tag=True):
    """A topic goes, with its streams."""

    topic_id: str


class TopicConfig(_Record, frozen=True, kw_only=True, tag=True):
    """Set configs of a topic; a value of null removes one."""

    topic_id: str
    configs: dict[str, str | None]


class BrokerConfig(_Record, frozen=True, kw_only=True, tag=True):
    """Set configs of a broker, or of all (`node_id` -1); a value of null removes one."""

    node_id: int
    configs: dict[str, str | None]


class CreateStream(_Record, frozen=True, kw_only=True, tag=True):
    """The storage of one partition. Stream ids are given in order; partitions of a topic too."""

    stream_id: int
    topic_id: str
    partition: int


class OpenStream(_Record, frozen=True, kw_only=True, tag=True):
    """A node becomes the owner, under the next stream epoch."""

    stream_id: int
    epoch: int
    node_id: int
    node_epoch: int


class CloseStream(_Record, frozen=True, kw_only=True, tag=True):
    """The owner gives the stream up; everything of it is in objects."""

    stream_id: int
    epoch: int


class TrimStream(_Record, frozen=True, kw_only=True, tag=True):
    """Offsets below `start_offset` are gone."""

    stream_id: int
    start_offset: int


class DeleteStream(_Record, frozen=True, kw_only=True, tag=True):
    """A stream goes, alone."""

    stream_id: int


class CommittedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets [start_offset, end_offset) of a stream, written under a stream epoch, `size` bytes in
    the object.

    `max_timestamp` in milliseconds.
    """

    stream_id: int
    epoch: int
    start_offset: int
    end_offset: int
    max_timestamp: int
    size: int


class CommittedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that holds data from now on. `kind`: `sso`, `so` or `wal`."""

    key: str
    kind: str
    size: int
    created_ms: int
    ranges: tuple[CommittedRange, ...]


class CommitObjects(_Record, frozen=True, kw_only=True, tag=True):
    """What a node has uploaded, in the order of offsets. Checked: node epoch, stream epoch,
    continuity.

    `wal_epoch` and `wal_floor` say that recovery needs none of the node's WAL objects with a lower
    (epoch, sequence number); -1: no change. With `taker_id` a live node commits what a fenced one
    left behind; `node_id` and `node_epoch` are the fenced one's.
    """

    node_id: int
    node_epoch: int
    objects: tuple[CommittedObject, ...]
    removed_wal_objects: tuple[str, ...] = ()
    wal_epoch: int = -1
    wal_floor: int = 0
    taker_id: int = -1
    taker_epoch: int = -1


class ReplaceObjects(_Record, frozen=True, kw_only=True, tag=True):
    """Compaction: `objects` hold exactly what `sources` held of their streams."""

    sources: tuple[str, ...]
    objects: tuple[CommittedObject, ...]


class DropObjects(_Record, frozen=True, kw_only=True, tag=True):
    """Objects that no stream refers to any more have been deleted from the store."""

    keys: tuple[str, ...]


class ProducerIdBlock(_Record, frozen=True, kw_only=True, tag=True):
    """Producer ids [start, start + count) are reserved for a node."""

    node_id: int
    start: int
    count: int


class ControllerLease(_Record, frozen=True, kw_only=True, tag=True):
    """A node is the controller. `term` is one more than the last one's."""

    node_id: int
    node_epoch: int
    term: int


Record = (
    ClusterCreated
    | RegisterNode
    | FenceNode
    | RetireNode
    | CreateTopic
    | DeleteTopic
    | TopicConfig
    | BrokerConfig
    | CreateStream
    | OpenStream
    | CloseStream
    | TrimStream
    | DeleteStream
    | CommitObjects
    | ReplaceObjects
    | DropObjects
    | ProducerIdBlock
    | ControllerLease
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic commit."""

    version: int
    writer: str
    nonce: str
    time_ms: int
    records: tuple[Record, ...]


class EntryVersion(msgspec.Struct, frozen=True):
    """The part of an entry that every release can read."""

    version: int
