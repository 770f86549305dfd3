"""Requests about one group as messages, and their answers as what is compared of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from tests.differential.sides import BOGUS, Answer, Identity, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request by one client in the name of an identity (mostly its own)."""

    kind: str
    client: int
    identity: int
    version: int
    group: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def send(self, side: Side) -> None:
        """Ask one server."""
        kind = KINDS[self.kind]
        module = schema(kind.key, self.version).request_module
        message = kind.build(module, self, side)
        side.asking_as[self.client] = self.identity
        side.send(self.client, kind.key, self.version, message, lambda a: kind.read(side, a, self))

    def who(self, side: Side) -> Identity:
        """Return the identity as this server knows it."""
        return side.identities[self.identity]

    def member_id(self, side: Side) -> str:
        """Return the member id to ask with."""
        return {"own": self.who(side).member_id, "none": "", "bogus": BOGUS}[self.fields["member"]]

    def generation(self, side: Side) -> int:
        """Return the generation to ask with; None in the fields is for no generation at all."""
        off = self.fields["generation"]
        return -1 if off is None else self.who(side).generation + int(off)


def _join(m: ModuleType, asked: Asked, side: Side) -> Any:
    f = asked.fields
    return entity(
        m,
        "JoinGroupRequest",
        group_id=asked.group,
        session_timeout=f["session_ms"],
        rebalance_timeout=60_000,
        member_id=asked.member_id(side),
        group_instance_id=f["instance"],
        protocol_type=f["protocol_type"],
        protocols=[
            entity(m, "JoinGroupRequestProtocol", name=name, metadata=metadata)
            for name, metadata in f["protocols"]
        ],
        reason="a reason",
    )


def _joined(side: Side, a: Any, asked: Asked) -> Answer:
    me = side.label(a.member_id)
    protocol_type = getattr(a, "protocol_type", None)
    leader = "me" if a.leader and a.leader == a.member_id else "other" if a.leader else ""
    if a.error_code.name in {"none", "member_id_required"}:
        side.identities[asked.identity] = Identity(
            a.member_id, a.generation_id, protocol_type, a.protocol_name, leader == "me"
        )
    members = sorted(
        (side.known(x.member_id), getattr(x, "group_instance_id", None) or "", x.metadata)
        for x in a.members
    )
    skip = getattr(a, "skip_assignment", None)
    code = a.error_code.name
    return code, me, a.generation_id, protocol_type, a.protocol_name, leader, members, skip


def _sync(m: ModuleType, asked: Asked, side: Side) -> Any:
    f, who = asked.fields, asked.who(side)
    given = [
        entity(m, "SyncGroupRequestAssignment", member_id=one.member_id, assignment=b"%d" % number)
        for number, one in enumerate(side.identities)
        if one.member_id
    ]
    return entity(
        m,
        "SyncGroupRequest",
        group_id=asked.group,
        generation_id=asked.generation(side),
        member_id=asked.member_id(side),
        group_instance_id=f["instance"],
        protocol_type={"own": who.protocol_type, "none": None, "wrong": "x"}[f["protocol_type"]],
        protocol_name={"own": who.protocol_name, "none": None, "wrong": "x"}[f["protocol_name"]],
        assignments=given if who.leads or f["assigns"] else [],
    )


def _synced(_: Side, a: Any, __: Asked) -> Answer:
    names = getattr(a, "protocol_type", None), getattr(a, "protocol_name", None)
    return a.error_code.name, *names, a.assignment


def _heartbeat(m: ModuleType, asked: Asked, side: Side) -> Any:
    return entity(
        m,
        "HeartbeatRequest",
        group_id=asked.group,
        generation_id=asked.generation(side),
        member_id=asked.member_id(side),
        group_instance_id=asked.fields["instance"],
    )


def _code(_: Side, a: Any, __: Asked) -> Answer:
    return (a.error_code.name,)


def _leave(m: ModuleType, asked: Asked, side: Side) -> Any:
    members: list[Any] = []
    if hasattr(m, "MemberIdentity"):
        own = {"member_id": asked.member_id(side), "group_instance_id": asked.fields["instance"]}
        others = [{"member_id": "", "group_instance_id": one} for one in asked.fields["others"]]
        members = [entity(m, "MemberIdentity", reason="gone", **one) for one in (own, *others)]
    return entity(
        m,
        "LeaveGroupRequest",
        group_id=asked.group,
        member_id=asked.member_id(side),
        members=members,
    )


def _left(side: Side, a: Any, asked: Asked) -> Answer:
    members = [
        (side.label(x.member_id), x.group_instance_id, x.error_code.name)
        for x in getattr(a, "members", ())
    ]
    if [a.error_code.name, *(code for _, _, code in members[:1])][-1] == "none":
        side.identities[asked.identity] = Identity()
    for _, instance, code in members[1:]:
        if code == "none":
            side.identities[int(instance.removeprefix("i"))] = Identity()
    return a.error_code.name, members


def _commit(m: ModuleType, asked: Asked, side: Side) -> Any:
    topics = []
    for topic, index, offset, metadata in asked.fields["offsets"]:
        partition = entity(
            m,
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=asked.fields["epoch"],
            committed_metadata=metadata,
        )
        where = {"name": topic, "topic_id": side.topic_ids[topic]}
        topics.append(entity(m, "OffsetCommitRequestTopic", partitions=[partition], **where))
    return entity(
        m,
        "OffsetCommitRequest",
        group_id=asked.group,
        generation_id_or_member_epoch=asked.generation(side),
        member_id=asked.member_id(side),
        group_instance_id=asked.fields["instance"],
        retention_time=-1,
        topics=topics,
    )


def _committed(side: Side, a: Any, _: Asked) -> Answer:
    return tuple(
        sorted(
            (side.topic_name(topic), p.partition_index, p.error_code.name)
            for topic in a.topics
            for p in topic.partitions
        )
    )


def _fetch(m: ModuleType, asked: Asked, side: Side) -> Any:
    f = asked.fields
    plural = "s" if hasattr(m, "OffsetFetchRequestGroup") else ""
    topics = f["topics"] and [
        entity(
            m,
            f"OffsetFetchRequestTopic{plural}",
            name=name,
            topic_id=side.topic_ids[name],
            partition_indexes=indexes,
        )
        for name, indexes in f["topics"]
    ]
    if not plural:
        return entity(m, "OffsetFetchRequest", group_id=asked.group, topics=topics)
    groups = [
        entity(m, "OffsetFetchRequestGroup", group_id=group, topics=topics)
        for group in (asked.group, *f["groups"])
    ]
    return entity(m, "OffsetFetchRequest", groups=groups, require_stable=f["stable"])


def _fetched(side: Side, a: Any, _: Asked) -> Answer:
    def offsets(topics: Any) -> Answer:
        return tuple(
            sorted(
                (
                    side.topic_name(topic),
                    p.partition_index,
                    p.committed_offset,
                    getattr(p, "committed_leader_epoch", None),
                    p.metadata,
                    p.error_code.name,
                )
                for topic in topics
                for p in topic.partitions
            )
        )

    if hasattr(a, "groups"):
        return tuple((g.group_id, g.error_code.name, offsets(g.topics)) for g in a.groups)
    code = getattr(a, "error_code", None)
    return None if code is None else code.name, offsets(a.topics)


def _delete_offsets(m: ModuleType, asked: Asked, _: Side) -> Any:
    topics = [
        entity(
            m,
            "OffsetDeleteRequestTopic",
            name=name,
            partitions=[
                entity(m, "OffsetDeleteRequestPartition", partition_index=index)
                for index in indexes
            ],
        )
        for name, indexes in asked.fields["topics"]
    ]
    return entity(m, "OffsetDeleteRequest", group_id=asked.group, topics=topics)


def _deleted_offsets(side: Side, a: Any, asked: Asked) -> Answer:
    return a.error_code.name, _committed(side, a, asked)


def _delete_groups(m: ModuleType, asked: Asked, _: Side) -> Any:
    names = [asked.group, *asked.fields["groups"]]
    return entity(m, "DeleteGroupsRequest", groups_names=names)


def _deleted_groups(_: Side, a: Any, __: Asked) -> Answer:
    return tuple(sorted((one.group_id, one.error_code.name) for one in a.results))


def _describe(m: ModuleType, asked: Asked, _: Side) -> Any:
    groups = [asked.group, *asked.fields["groups"]]
    operations = asked.fields["operations"]
    return entity(
        m, "DescribeGroupsRequest", groups=groups, include_authorized_operations=operations
    )


def _described(side: Side, a: Any, _: Asked) -> Answer:
    def members(group: Any) -> list[Answer]:
        return sorted(
            (
                side.known(x.member_id),
                getattr(x, "group_instance_id", None) or "",
                x.client_id,
                x.client_host,
                x.member_metadata,
                x.member_assignment,
            )
            for x in group.members
        )

    return tuple(
        sorted(
            (
                group.group_id,
                group.error_code.name,
                getattr(group, "error_message", None),
                group.group_state,
                group.protocol_type,
                group.protocol_data,
                getattr(group, "authorized_operations", None),
                members(group),
            )
            for group in a.groups
        )
    )


def _list(m: ModuleType, asked: Asked, _: Side) -> Any:
    states, types = asked.fields["states"], asked.fields["types"]
    return entity(m, "ListGroupsRequest", states_filter=states, types_filter=types)


def _listed(_: Side, a: Any, asked: Asked) -> Answer:
    groups = sorted(  # another group may differ, once it did
        (
            group.group_id,
            group.protocol_type,
            getattr(group, "group_state", None),
            getattr(group, "group_type", None),
        )
        for group in a.groups
        if group.group_id == asked.group
    )
    return a.error_code.name, groups


def _find(m: ModuleType, asked: Asked, _: Side) -> Any:
    return entity(
        m,
        "FindCoordinatorRequest",
        key=asked.group,
        key_type=asked.fields["type"],
        coordinator_keys=[asked.group, *asked.fields["groups"]],
    )


def _found(_: Side, a: Any, __: Asked) -> Answer:
    if hasattr(a, "coordinators"):
        return tuple((one.key, one.error_code.name) for one in a.coordinators)
    return (a.error_code.name,)


class Kind(NamedTuple):
    """One API: its key, versions, how it is asked and what is compared."""

    key: int
    versions: tuple[int, int]
    build: Callable[[ModuleType, Asked, Side], Any]
    read: Callable[[Side, Any, Asked], Answer]


KINDS: Mapping[str, Kind] = {
    "join": Kind(11, (0, 9), _join, _joined),
    "sync": Kind(14, (0, 5), _sync, _synced),
    "heartbeat": Kind(12, (0, 4), _heartbeat, _code),
    "leave": Kind(13, (0, 5), _leave, _left),
    "commit": Kind(8, (2, 10), _commit, _committed),
    "fetch": Kind(9, (1, 10), _fetch, _fetched),
    "delete_offsets": Kind(47, (0, 0), _delete_offsets, _deleted_offsets),
    "delete_groups": Kind(42, (0, 2), _delete_groups, _deleted_groups),
    "describe": Kind(15, (0, 6), _describe, _described),
    "list": Kind(16, (0, 5), _list, _listed),
    "find": Kind(10, (0, 6), _find, _found),
}
