"""A group as it is found in the log."""

from collections.abc import Callable

from lakehead.broker.coordinator.group.members import Member
from lakehead.broker.coordinator.group.messages import GroupSettings, GroupSnapshot, GroupState
from lakehead.broker.coordinator.group.state_machine import Group


def restored_group(
    group_id: str,
    settings: GroupSettings,
    new_member_id: Callable[[str], str],
    snapshot: GroupSnapshot,
    now: float,
) -> Group:
    """Return the group as it was stored; its members have a session timeout to show that they
    live.
    """
    group = Group(group_id, settings, new_member_id)
    group.generation = snapshot.generation
    group.protocol_type = snapshot.protocol_type
    group.protocol_name = snapshot.protocol_name
    for stored in snapshot.members:
        group.members.add(Member.restored(stored, snapshot.protocol_name, now))
    if snapshot.members:
        group.state = GroupState.STABLE
        group.members.leader = snapshot.leader
    return group
