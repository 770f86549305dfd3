"""Which requests a classic group refuses, and with which error: checks without effect."""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.members import Members, cost_of
from lakehead.broker.coordinator.group.memory import MEMBER_OBJECTS
from lakehead.broker.coordinator.group.messages import (
    TEXT_SIZE_MAX,
    UNKNOWN_MEMBER,
    GroupSettings,
    GroupState,
    JoinRequest,
    SyncRequest,
)

if TYPE_CHECKING:
    from lakehead.broker.coordinator.group.state_machine import Group

_MEMORY_PER_RECORD = 2
"""The memory that members of a group may take, as a multiple of its longest record."""


def check_member(members: Members, member_id: str, instance_id: str | None) -> ErrorCode | None:
    """Refuse a member that is not known, or whose instance id is held by another now (KIP-345)."""
    if instance_id is not None:
        static = members.of_instance(instance_id)
        if static is None:
            return ErrorCode.unknown_member_id
        return None if static.member_id == member_id else ErrorCode.fenced_instance_id
    return None if member_id in members else ErrorCode.unknown_member_id


def refuse_request(request: JoinRequest, settings: GroupSettings) -> ErrorCode | None:
    """Return why this JoinGroup is none, whatever the group, or None."""
    if not _is_storable(request):
        return ErrorCode.invalid_request
    timeout = request.session_timeout_ms
    if not settings.min_session_timeout_ms <= timeout <= settings.max_session_timeout_ms:
        return ErrorCode.invalid_session_timeout
    return None


def refuse_join(
    group: "Group", request: JoinRequest, settings: GroupSettings, room: float
) -> ErrorCode | None:
    """Return why this JoinGroup cannot be taken, or None. `room`: bytes that all groups may grow
    by.
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    has_place = _has_room_for(group, request, settings.max_size)
    if not (has_place and _fits(group, request, settings, room)):
        return ErrorCode.group_max_size_reached
    if not _speaks_to_all(group, request):
        return ErrorCode.inconsistent_group_protocol
    if request.member_id in group.pending:
        # Only a dynamic member is given an id before it joins. Kafka knows no better error.
        return None if request.instance_id is None else ErrorCode.unknown_server_error
    if request.member_id == UNKNOWN_MEMBER:
        return None
    return check_member(group.members, request.member_id, request.instance_id)


def refuse_sync(group: "Group", request: SyncRequest) -> ErrorCode | None:
    """Return why this SyncGroup cannot be taken, or None."""
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    error = check_member(group.members, request.member_id, request.instance_id)
    if error is not None:
        return error
    if request.generation != group.generation:
        return ErrorCode.illegal_generation
    for given, ours in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if given is not None and given != ours:
            return ErrorCode.inconsistent_group_protocol
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return None


def refuse_heartbeat(
    group: "Group", member_id: str, instance_id: str | None, generation: int
) -> ErrorCode | None:
    """Return why this Heartbeat is not of a member of the present generation, or None."""
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    error = check_member(group.members, member_id, instance_id)
    if error is None and generation != group.generation:
        return ErrorCode.illegal_generation
    return error


def refuse_commit(
    group: "Group", member_id: str, instance_id: str | None, generation: int
) -> ErrorCode | None:
    """Return why offsets may not be committed in the name of this member, or None.

    Without a generation the request is of an admin, or of a consumer that chooses its partitions
    itself: both may write while nobody is a member.
    """
    if generation < 0 and group.state is GroupState.EMPTY:
        return None
    error = refuse_heartbeat(group, member_id, instance_id, generation)
    if error is None and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return error


def refuse_transactional_commit(
    group: "Group | None", member_id: str, instance_id: str | None, generation: int
) -> ErrorCode | None:
    """Return why a producer may not commit offsets in the name of this member, or None (KIP-447).

    A producer that names nobody may: it is fenced by its epoch.
    """
    if generation < 0 and not member_id and instance_id is None:
        return None
    if group is None:
        return None if generation < 0 else ErrorCode.illegal_generation
    if generation < 0 and group.state is GroupState.EMPTY:
        return None
    return refuse_heartbeat(group, member_id, instance_id, generation)


def _is_storable(request: JoinRequest) -> bool:
    """Whether every text fits into a stored group, where lengths are 16 bits."""
    names = (name for name, _ in request.protocols)
    texts = (request.client_id, request.instance_id or "", request.protocol_type, *names)
    return all(len(text.encode()) <= TEXT_SIZE_MAX for text in texts)


def _speaks_to_all(group: "Group", request: JoinRequest) -> bool:
    """Whether the group goes on to have a protocol in common, as it is before this member changes
    what it speaks.
    """
    if not request.protocol_type or not request.protocols:
        return False
    if group.state is GroupState.EMPTY:
        return True
    if request.protocol_type != group.protocol_type:
        return False
    if not group.members:
        return True
    common = group.members.common_protocols()
    return any(name in common for name, _ in request.protocols)


def _fits(group: "Group", request: JoinRequest, settings: GroupSettings, room: float) -> bool:
    """Whether the members would be within the memory for one group (some protocols of each, of
    which one is stored), and grow by no more than the room for all groups.
    """
    texts = request.member_id, request.instance_id, request.client_id, request.client_host
    others = (
        member.cost
        for member in group.members
        if member.member_id != request.member_id
        and (request.instance_id is None or member.instance_id != request.instance_id)
    )
    total = cost_of(texts, request.protocols) + sum(others)
    is_known = group.members.get(request.member_id) or (
        request.instance_id is not None and group.members.of_instance(request.instance_id)
    )
    growth = total - group.members.cost + (0 if is_known else MEMBER_OBJECTS)
    return total <= _MEMORY_PER_RECORD * settings.record_max and (growth <= max(room, 0))


def _has_room_for(group: "Group", request: JoinRequest, max_size: int) -> bool:
    """Whether a member may (re)join. While a group rebalances, those count that have rejoined:
    where there are too many, the last ones are out.
    """
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        member = group.members.of_instance(request.instance_id) or member
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        waiting = sum(1 for other in group.members if other.is_awaiting_join)
        return waiting < max_size or (member is not None and member.is_awaiting_join)
    return member is not None or len(group.members) < max_size
