"""The typed records of the metadata log, and the entry that carries them.

An entry is one JSON object, `meta/log/<20-digit number>.json`, created with put-if-absent::

{"crc32c": "89abcdef", "version": 2, "writer": "<its id>", "nonce": "<unique>", "time_ms": 1,
     "records": [{"type": "CreateTopic", …}, …]}

`crc32c` covers what follows it (see `entry.py`). `version` is the feature level in force. `writer`
and `nonce` let a writer recognise its own entry when the response to a put was lost. Names of
records and fields never change meaning. A record or field that is added is declared in
`lakehead.storage.metadata.additions`; a field has a default, so that older entries stay readable.
"""

from typing import Annotated

import msgspec

from lakehead.storage.format.feature_level import METADATA_VERSION
from lakehead.storage.format.stream_object import StreamInfo

Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Whole numbers fit in 64 bits: what a checkpoint holds."""


class RecordBase(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """The base of every record: its class name is its `type`."""


class ClusterCreated(RecordBase, frozen=True, kw_only=True, tag=True):
    """The first record of the first entry: the cluster's id."""

    cluster_id: str


class FeatureLevel(RecordBase, frozen=True, kw_only=True, tag=True):
    """A feature is at this level from now on, this entry included (Kafka's FeatureLevelRecord)."""

    name: str
    level: Long

    @property
    def is_metadata_version(self) -> bool:
        """Return true if it says which records and fields may be written."""
        return self.name == METADATA_VERSION


class NodeSecret(RecordBase, frozen=True, kw_only=True, tag=True):
    """By this secret, 64 hex digits, nodes prove to each other that they are of the cluster."""

    secret: str

    def __repr__(self) -> str:
        return "NodeSecret(...)"


class RegisterNode(RecordBase, frozen=True, kw_only=True, tag=True):
    """A broker process starts. `epoch` is one more than the node's last one; `incarnation` is
    unique.

    `host_id` is the machine it runs on. `wal` is the address at which others find its write-ahead
    log: `object:` in the cluster's store, `block:<absolute path or device>`; empty: no other node
    reaches it. `process` names its process on that machine (`lakehead.storage.wal.holder`), for a
    node that has to end it. Its release supports the feature levels from `min_level` to `max_level`
    (0: it did not say). `tables` says whether it keeps the tables that topics declare
    (`TablesKeeping`). `host` and `port` are its address for other nodes, `endpoints` those of all
    its listeners (`lakehead.storage.metadata.endpoints`).
    """

    node_id: Long
    epoch: Long
    incarnation: str
    host: str
    port: Long
    rack: str | None = None
    host_id: str = ""
    wal: str = ""
    process: str = ""
    min_level: Long = 0
    max_level: Long = 0
    tables: str = ""
    endpoints: str = ""


class StartLog(RecordBase, frozen=True, kw_only=True, tag=True):
    """A node has begun its present epoch on a write-ahead log: from now on what it acknowledges
    lies there, and its next start has to find it. Before this it acknowledges nothing.

    `log_id` is that of the log (`lakehead.storage.wal.protocol.LogIdentity`); empty: nothing has
    to be found, since it is in the cluster's store, or ends with its process. The epoch begins at
    `position`; -1: positions of the log say nothing.
    """

    node_id: Long
    node_epoch: Long
    log_id: str
    position: Long = -1


class AcceptLogLoss(RecordBase, frozen=True, kw_only=True, tag=True):
    """A node starts without the records of its log, since an operator accepted their loss. It goes
    on with the log `log_id` (empty: the next start need not find it), in the entry that registers
    it.

    `streams` is how many it had open: what of them was acknowledged and not uploaded is lost.
    """

    node_id: Long
    node_epoch: Long
    log_id: str
    streams: Long


class FenceNode(RecordBase, frozen=True, kw_only=True, tag=True):
    """End a node's epoch: nothing more is accepted from it.

    `term` is that of the controller that fences it; -1: an operator, or any node.
    """

    node_id: Long
    epoch: Long
    term: Long = -1


class DrainNode(RecordBase, frozen=True, kw_only=True, tag=True):
    """A node is to lead nothing (any more), or again like any other. Its next epoch begins
    undrained.
    """

    node_id: Long
    epoch: Long
    is_draining: bool


class RetireNode(RecordBase, frozen=True, kw_only=True, tag=True):
    """A node id is gone for good. It owns no stream."""

    node_id: Long


class CreateTopic(RecordBase, frozen=True, kw_only=True, tag=True):
    """A topic without partitions yet. `CreateStream` records give it those, in this entry or later
    ones.
    """

    name: str
    topic_id: str
    configs: dict[str, str] = msgspec.field(default_factory=dict)


class DeleteTopic(RecordBase, frozen=True, kw_only=True, tag=True):
    """A topic goes, with its streams."""

    topic_id: str


class TopicConfig(RecordBase, frozen=True, kw_only=True, tag=True):
    """Set configs of a topic; a value of null removes one."""

    topic_id: str
    configs: dict[str, str | None]


class BrokerConfig(RecordBase, frozen=True, kw_only=True, tag=True):
    """Set configs of a broker, or of all (`node_id` -1); a value of null removes one."""

    node_id: Long
    configs: dict[str, str | None]


class GroupConfig(RecordBase, frozen=True, kw_only=True, tag=True):
    """Set configs of a group, which need not exist; a value of null removes one."""

    group: str
    configs: dict[str, str | None]


class ClientMetricsConfig(RecordBase, frozen=True, kw_only=True, tag=True):
    """Set configs of a subscription to metrics of clients (KIP-714); a value of null removes one.
    Without any the subscription is gone.
    """

    subscription: str
    configs: dict[str, str | None]


class CreateStream(RecordBase, frozen=True, kw_only=True, tag=True):
    """The storage of one partition. Stream ids are given in order; partitions of a topic too."""

    stream_id: Long
    topic_id: str
    partition: Long


class AssignStreams(RecordBase, frozen=True, kw_only=True, tag=True):
    """Assign streams to a node: no other node may open them from now on. The node that has one open
    gives it up.

    The first assignment of a stream, and one that `is_preferred`, sets its preferred leader
    (Kafka's first replica). `term` is as in `FenceNode`.
    """

    node_id: Long
    stream_ids: tuple[Long, ...]
    is_preferred: bool = False
    term: Long = -1


class OpenStream(RecordBase, frozen=True, kw_only=True, tag=True):
    """A node becomes the owner, under the next stream epoch."""

    stream_id: Long
    epoch: Long
    node_id: Long
    node_epoch: Long


class CloseStream(RecordBase, frozen=True, kw_only=True, tag=True):
    """The owner gives the stream up; everything of it is in objects."""

    stream_id: Long
    epoch: Long


class TrimStream(RecordBase, frozen=True, kw_only=True, tag=True):
    """Offsets below `start_offset` are gone. `drops_state`: what of the partition's state came from
    them is over as well.
    """

    stream_id: Long
    start_offset: Long
    drops_state: bool = False


class DeleteStream(RecordBase, frozen=True, kw_only=True, tag=True):
    """A stream goes, alone."""

    stream_id: Long


WHOLE, INCREMENTAL, HEADERS = "whole", "incremental", "headers"
COMPACTED = "compacted"
"""The kind of the objects that compaction by keys writes."""
TAIL = "tail"
"""The kind of an object whose records lie in the log of a fenced node yet (`InheritTail`)."""


class CommittedRange(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Offsets [start_offset, end_offset) of a stream, written under a stream epoch, `size` bytes in
    the object.

    `max_timestamp` in milliseconds. `state` is what the object carries of the partition's state:
    `whole` as of `end_offset`; `incremental`: with the states of all objects that reach beyond
    `state_since` it is whole; `headers` that are to be added to what it was before; or nothing.
    """

    stream_id: Long
    epoch: Long
    start_offset: Long
    end_offset: Long
    max_timestamp: Long
    size: Long
    state: str = ""
    state_since: Long = -1


class CommittedObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object that holds data from now on. `kind`: `sso`, `so`, `wal`, `compacted` or `tail`."""

    key: str
    kind: str
    size: Long
    created_ms: Long
    ranges: tuple[CommittedRange, ...]


class CommitObjects(RecordBase, frozen=True, kw_only=True, tag=True):
    """Objects that a node has uploaded, in the order of offsets. Checked: node epoch, stream epoch,
    continuity.

    `wal_epoch` and `wal_floor` say that recovery needs none of the node's WAL objects with a lower
    (epoch, sequence number); -1: no change. With `taker_id` a live node commits what a fenced one
    left behind; `node_id` and `node_epoch` are the fenced one's. Nothing below `wal_position` of
    the node's log, if that has an id (`StartLog`), is needed any more; -1: no change.
    """

    node_id: Long
    node_epoch: Long
    objects: tuple[CommittedObject, ...]
    removed_wal_objects: tuple[str, ...] = ()
    wal_epoch: Long = -1
    wal_floor: Long = 0
    taker_id: Long = -1
    taker_epoch: Long = -1
    wal_position: Long = -1


class ReplaceObjects(RecordBase, frozen=True, kw_only=True, tag=True):
    """Compaction: `objects` stand for `sources`: they cover exactly the offsets that those held.

    Of all the streams in the sources; or of `streams` alone, then the sources stay for the others.
    With `forgets`, the number of a certificate, records of a key were removed by request: nodes
    drop what they have cached of the sources.
    """

    sources: tuple[str, ...]
    objects: tuple[CommittedObject, ...]
    streams: tuple[Long, ...] = ()
    forgets: Long = -1


class InheritTail(RecordBase, frozen=True, kw_only=True, tag=True):
    """A fenced node's log was read: its streams reach so far, and may be opened elsewhere. The
    records themselves lie in that log until `CommitTail`.

    `objects`, of kind `tail`, have the ranges, and the headers for the partitions' states; no
    records. `taker_id` and `taker_epoch` name the live node that read the log of node `node_id`,
    fenced in `node_epoch`.
    """

    node_id: Long
    node_epoch: Long
    taker_id: Long
    taker_epoch: Long
    objects: tuple[CommittedObject, ...]


class CommitTail(RecordBase, frozen=True, kw_only=True, tag=True):
    """The records of an inherited tail are in `objects` now, which stand for the tail objects
    `sources` of these `streams`: they cover the same offsets. Then the log of node `node_id` is
    needed for them no more.

    `taker_id` and `taker_epoch` name the live node that has uploaded them; it may be `node_id`
    itself in a later epoch.
    """

    node_id: Long
    taker_id: Long
    taker_epoch: Long
    sources: tuple[str, ...]
    objects: tuple[CommittedObject, ...]
    streams: tuple[Long, ...]


class DropObjects(RecordBase, frozen=True, kw_only=True, tag=True):
    """Objects that no stream refers to any more have been deleted from the store."""

    keys: tuple[str, ...]


class ProducerIdBlock(RecordBase, frozen=True, kw_only=True, tag=True):
    """Producer ids [start, start + count) are reserved for a node."""

    node_id: Long
    start: Long
    count: Long


class ControllerLease(RecordBase, frozen=True, kw_only=True, tag=True):
    """A node is the controller. `term` is one more than the last one's."""

    node_id: Long
    node_epoch: Long
    term: Long


class TakeTable(RecordBase, frozen=True, kw_only=True, tag=True):
    """Lease of a table: the process named `holder` writes the table of a topic until `until_ms`, by
    its own clock; 0: the lease is given up. `term` is one more than the last one's.
    """

    topic_id: str
    holder: str
    term: Long
    until_ms: Long


class RequestTable(RecordBase, frozen=True, kw_only=True, tag=True):
    """Request for the lease of a table: the process named `requester` waits for it until
    `until_ms`, by its own clock; 0: no more. The holder releases the lease between two commits, and
    only the requester takes it then.
    """

    topic_id: str
    requester: str
    until_ms: Long


class TableProgress(RecordBase, frozen=True, kw_only=True, tag=True):
    """The table of a topic holds what lies below `offsets[i]` of partition i, if not more.

    `term` is that of the lease it was written under. `problem` is why the last turn at the table
    failed (empty: it did not).
    """

    topic_id: str
    term: Long
    offsets: tuple[Long, ...]
    problem: str = ""


class ClientQuota(RecordBase, frozen=True, kw_only=True, tag=True):
    """Set quotas of an entity, by quota name; a value of null removes one.

    `entity` maps entity types (`user`, `client-id`, `ip`) to names; null is the default entity.
    """

    entity: dict[str, str | None]
    values: dict[str, float | None]


class AclBinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One access rule, in Kafka's words in lower case (`topic`, `literal`, `read`, `allow`)."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class AclCreate(RecordBase, frozen=True, kw_only=True, tag=True):
    """Access rules that were not there."""

    acls: tuple[AclBinding, ...]


class AclDelete(RecordBase, frozen=True, kw_only=True, tag=True):
    """Access rules go."""

    acls: tuple[AclBinding, ...]


class ScramUpsert(RecordBase, frozen=True, kw_only=True, tag=True):
    """Set a user's credential for a mechanism (`SCRAM-SHA-256`, `SCRAM-SHA-512`). Bytes travel as
    Base64.
    """

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Long

    def __repr__(self) -> str:
        return f"ScramUpsert({self.user!r}, {self.mechanism}, ...)"


class ScramDelete(RecordBase, frozen=True, kw_only=True, tag=True):
    """A user's credential for a mechanism goes."""

    user: str
    mechanism: str


class DelegationTokenUpsert(RecordBase, frozen=True, kw_only=True, tag=True):
    """A delegation token (KIP-48) as it is from now on: Kafka's DelegationTokenRecord. Principals
    are written `type:name`, times are milliseconds since 1970. Its HMAC follows from its id and a
    key that is not in the metadata.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    issue_ms: Long
    expiry_ms: Long
    max_ms: Long


class DelegationTokenDelete(RecordBase, frozen=True, kw_only=True, tag=True):
    """A delegation token goes: it was revoked, or has expired."""

    token_id: str


Record = (
    ClusterCreated
    | FeatureLevel
    | NodeSecret
    | RegisterNode
    | StartLog
    | AcceptLogLoss
    | FenceNode
    | DrainNode
    | RetireNode
    | CreateTopic
    | DeleteTopic
    | TopicConfig
    | BrokerConfig
    | GroupConfig
    | ClientMetricsConfig
    | CreateStream
    | AssignStreams
    | OpenStream
    | CloseStream
    | TrimStream
    | DeleteStream
    | CommitObjects
    | ReplaceObjects
    | InheritTail
    | CommitTail
    | DropObjects
    | ClientQuota
    | AclCreate
    | AclDelete
    | ScramUpsert
    | ScramDelete
    | DelegationTokenUpsert
    | DelegationTokenDelete
    | ProducerIdBlock
    | ControllerLease
    | TakeTable
    | RequestTable
    | TableProgress
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic commit. `version` is the feature level in force, raised by the entry itself."""

    version: Long
    writer: str
    nonce: str
    time_ms: Long
    records: tuple[Record, ...]


class EntryVersion(msgspec.Struct, frozen=True):
    """The part of an entry that every release can read."""

    version: Long


def state_kind(info: StreamInfo) -> str:
    """Return what an object carries of a partition's state (`CommittedRange.state`)."""
    if info.state is not None:
        return WHOLE if info.state_since < 0 else INCREMENTAL
    return HEADERS if info.headers else ""
