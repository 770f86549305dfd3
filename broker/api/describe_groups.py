"""DescribeGroups, key 15, versions 0-6: state and members of classic groups.

v3: authorized operations. v4: static members. v5: flexible. v6: GROUP_ID_NOT_FOUND with a message
for a group that does not exist, or is not classic (KIP-1043); before, such a group is Dead.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.authorized_operations import NOT_REQUESTED, on_group
from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.group.coordinator import GroupDescription
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_GROUP

API = Api(key=15, name="DescribeGroups", versions=(0, 6), access=(DESCRIBE_GROUP,))

_NOT_FOUND_VERSION = 6


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for each group."""
    wants_operations = getattr(request, "include_authorized_operations", False)
    groups, turns = [], Turns()
    for group_id in dict.fromkeys(request.groups):
        await turns.step()
        operations = on_group(group_id, context) if wants_operations else NOT_REQUESTED
        try:
            context.check(DESCRIBE_GROUP, group_id)
            group = await context.services.groups.describe(group_id)
        except KafkaError as error:
            groups.append(_unknown(group_id, error.code, None, "", NOT_REQUESTED, context))
            continue
        if group is None or group.snapshot is None:
            reason = "not found" if group is None else "is not a classic group"
            groups.append(_not_found(group_id, reason, operations, context))
        else:
            groups.append(_known(group, operations, context))
            await turns.step(len(groups[-1].members))
    return entity(context.response, "DescribeGroupsResponse", groups=groups)


def _not_found(group_id: str, reason: str, operations: int, context: RequestContext) -> Any:
    dead = GroupState.DEAD.value
    if context.version < _NOT_FOUND_VERSION:
        return _unknown(group_id, ErrorCode.none, None, dead, operations, context)
    code, message = ErrorCode.group_id_not_found, f"Group {group_id} {reason}."
    return _unknown(group_id, code, message, dead, NOT_REQUESTED, context)


def _unknown(
    group_id: str,
    code: ErrorCode,
    message: str | None,
    state: str,
    operations: int,
    context: RequestContext,
) -> Any:
    return entity(
        context.response,
        "DescribedGroup",
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=operations,
    )


def _known(group: GroupDescription, operations: int, context: RequestContext) -> Any:
    snapshot = group.snapshot
    assert snapshot is not None, "not a classic group"
    # Between generations metadata is of the past: Kafka shows none either.
    is_stable = group.state is GroupState.STABLE
    members = [
        entity(
            context.response,
            "DescribedGroupMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.subscription if is_stable else b"",
            member_assignment=member.assignment,
        )
        for member in snapshot.members
    ]
    return entity(
        context.response,
        "DescribedGroup",
        error_code=ErrorCode.none,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=snapshot.protocol_type,
        protocol_data=(snapshot.protocol_name or "") if is_stable else "",
        members=members,
        authorized_operations=operations,
    )
