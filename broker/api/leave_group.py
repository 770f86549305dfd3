"""LeaveGroup, key 13, versions 0-5: members go, and the others rebalance at once.

v3: several members, static ones by their instance id (KIP-345). v4: flexible. v5: reason (KIP-800).
Left out: the reason is not logged.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP

API = Api(key=13, name="LeaveGroup", versions=(0, 5), is_at_once=True, access=(READ_GROUP,))

_BATCH_VERSION = 3


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each member."""
    is_batch = context.version >= _BATCH_VERSION
    members = (
        [(member.member_id, member.group_instance_id) for member in request.members]
        if is_batch
        else [(request.member_id, None)]
    )
    try:
        context.check(READ_GROUP, request.group_id)
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        codes = await context.services.groups.leave(request.group_id, members)
    except KafkaError as error:
        return entity(context.response, "LeaveGroupResponse", error_code=error.code, members=[])
    if not is_batch:
        return entity(context.response, "LeaveGroupResponse", error_code=codes[0])
    return entity(
        context.response,
        "LeaveGroupResponse",
        error_code=ErrorCode.none,
        members=[
            entity(
                context.response,
                "MemberResponse",
                member_id=member_id,
                group_instance_id=instance_id,
                error_code=code,
            )
            for (member_id, instance_id), code in zip(members, codes, strict=True)
        ],
    )
