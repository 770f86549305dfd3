"""JoinGroup, key 11, versions 0-9: become a member, or take part in a rebalance.

v1: rebalance timeout. v4: a first join is given its member id with MEMBER_ID_REQUIRED (KIP-394).
v5: static members (KIP-345). v6: flexible. v7: the protocol type in the response. v8: reason
(KIP-800). v9: skip_assignment for a static leader that came back (KIP-814). Left out: the reason is
not logged.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.messages import JoinRequest, JoinResult
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity, milliseconds
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP

API = Api(key=11, name="JoinGroup", versions=(0, 9), access=(READ_GROUP,))

_KNOWN_MEMBER_VERSION = 4
_NULLABLE_PROTOCOL_VERSION = 7
_SKIP_ASSIGNMENT_VERSION = 9


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response when the group's rebalance completes."""
    try:
        context.check(READ_GROUP, request.group_id)
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        result = await context.services.groups.join(
            request.group_id, _join_request(request, context)
        )
    except KafkaError as error:
        is_denied = error.code is READ_GROUP.error
        result = JoinResult(error=error.code, member_id="" if is_denied else request.member_id)
    protocol_name = result.protocol_name
    if protocol_name is None and context.version < _NULLABLE_PROTOCOL_VERSION:
        protocol_name = ""
    return entity(
        context.response,
        "JoinGroupResponse",
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            entity(
                context.response,
                "JoinGroupResponseMember",
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in result.members
        ],
    )


def _join_request(request: Any, context: RequestContext) -> JoinRequest:
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = session_timeout_ms
    if context.version >= 1:
        rebalance_timeout_ms = milliseconds(request.rebalance_timeout)
    return JoinRequest(
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",  # as Java shows an address
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(
            rebalance_timeout_ms if rebalance_timeout_ms > 0 else session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        needs_known_member_id=context.version >= _KNOWN_MEMBER_VERSION,
        can_skip_assignment=context.version >= _SKIP_ASSIGNMENT_VERSION,
    )
