"""DescribeGroups, key 15, versions 0-6: state and members of classic groups.

v3: authorized operations. v4: static members. v5: flexible. v6: GROUP_ID_NOT_FOUND with a message
for a group that does not exist (KIP-1043); before, such a group is Dead.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.group.coordinator import GroupDescription
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext

API = Api(key=15, name="DescribeGroups", versions=(0, 6))

_NOT_FOUND_VERSION = 6
_OPERATIONS_UNKNOWN = -(2**31)
_GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, as bits of AclOperation: without
authorizer all are allowed.
"""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for each group."""
    wants_operations = getattr(request, "include_authorized_operations", False)
    operations = _GROUP_OPERATIONS if wants_operations else _OPERATIONS_UNKNOWN
    groups, turns = [], Turns()
    for group_id in dict.fromkeys(request.groups):
        await turns.step()
        try:
            group = await context.services.groups.describe(group_id)
        except KafkaError as error:
            groups.append(_unknown(group_id, error.code, None, "", _OPERATIONS_UNKNOWN, context))
            continue
        if group is None:
            groups.append(_not_found(group_id, operations, context))
        else:
            groups.append(_known(group, operations, context))
            await turns.step(len(groups[-1].members))
    return entity(context.response, "DescribeGroupsResponse", groups=groups)


def _not_found(group_id: str, operations: int, context: RequestContext) -> Any:
    dead = GroupState.DEAD.value
    if context.version < _NOT_FOUND_VERSION:
        return _unknown(group_id, ErrorCode.none, None, dead, operations, context)
    code, message = ErrorCode.group_id_not_found, f"Group {group_id} not found."
    return _unknown(group_id, code, message, dead, _OPERATIONS_UNKNOWN, context)


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
