"""Heartbeat, key 12, versions 0-4: a member lives, and learns that a rebalance has begun.

v3: static members (KIP-345). v4: flexible.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP

API = Api(key=12, name="Heartbeat", versions=(0, 4), access=(READ_GROUP,))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response at once."""
    try:
        context.check(READ_GROUP, request.group_id)
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        code = await context.services.groups.heartbeat(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
        )
    except KafkaError as error:
        code = error.code
    return entity(context.response, "HeartbeatResponse", error_code=code)
