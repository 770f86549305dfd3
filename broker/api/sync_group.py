"""SyncGroup, key 14, versions 0-5: the leader sends the assignment, each member gets its own.

v3: static members (KIP-345). v5: protocol type and name: required, checked and returned.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.messages import SyncRequest, SyncResult
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP

API = Api(key=14, name="SyncGroup", versions=(0, 5), is_at_once=True, access=(READ_GROUP,))

_PROTOCOL_VERSION = 5


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response when the leader's assignment is stored."""
    try:
        sync = _sync_request(request)
        if context.version >= _PROTOCOL_VERSION and None in (
            sync.protocol_type,
            sync.protocol_name,
        ):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        context.check(READ_GROUP, request.group_id)
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        result = await context.services.groups.sync(request.group_id, sync)
    except KafkaError as error:
        result = SyncResult(error=error.code)
    return entity(
        context.response,
        "SyncGroupResponse",
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


def _sync_request(request: Any) -> SyncRequest:
    return SyncRequest(
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
        assignments=tuple((a.member_id, a.assignment) for a in request.assignments),
    )
