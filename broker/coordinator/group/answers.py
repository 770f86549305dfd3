"""What a member is told when all is well: the generation it is part of, and its assignment."""

from typing import TYPE_CHECKING

from lakehead.broker.coordinator.group.members import Member
from lakehead.broker.coordinator.group.messages import UNKNOWN_MEMBER, JoinResult, SyncResult

if TYPE_CHECKING:
    from lakehead.broker.coordinator.group.state_machine import Group


def generation_for(group: "Group", member: Member) -> JoinResult:
    """Return the answer to JoinGroup: the leader learns of everyone, the others of the leader."""
    is_leader = member.member_id == group.members.leader
    return JoinResult(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.members.leader or UNKNOWN_MEMBER,
        members=group.members.view(group.protocol_name) if is_leader else (),
    )


def unchanged_for(
    group: "Group", member: Member, old_leader: str | None, can_skip_assignment: bool
) -> JoinResult:
    """Return the answer to a static member that came back into an unchanged, stable generation.

    If it leads, it must not compute an assignment that nobody asked for: a client that knows the
    flag is told to skip it, an older one is told of the leader that it was before (KIP-345, 814).
    """
    leader = group.members.leader if can_skip_assignment else old_leader
    skip = can_skip_assignment and member.member_id == leader
    return JoinResult(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader or UNKNOWN_MEMBER,
        skip_assignment=skip,
        members=group.members.view(group.protocol_name) if skip else (),
    )


def assignment_of(group: "Group", member: Member) -> SyncResult:
    """Return the answer to SyncGroup in a stable generation."""
    return SyncResult(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
