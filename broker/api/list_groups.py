"""ListGroups, key 16, versions 0-5: the groups that this node coordinates.

v3: flexible. v4: state, and a filter by state (KIP-518). v5: type, and a filter by type (KIP-848).
Filters ignore case.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import in_turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CLUSTER, DESCRIBE_GROUP

_EVERY_GROUP = DESCRIBE_CLUSTER.silent("A denial leaves it to DESCRIBE of each group.")
_LISTED = DESCRIBE_GROUP.silent("A denial leaves a group out.")
API = Api(key=16, name="ListGroups", versions=(0, 5), access=(_EVERY_GROUP, _LISTED))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with every group that passes the filters."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    try:
        groups = await context.services.groups.list_groups()
    except KafkaError as error:
        return entity(context.response, "ListGroupsResponse", error_code=error.code, groups=[])
    is_whole = context.may(_EVERY_GROUP)
    listed = [
        entity(
            context.response,
            "ListedGroup",
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state.value,
            group_type=group.kind.value,
        )
        async for group in in_turns(groups)
        if (not states or group.state.value.lower() in states)
        and (not types or group.kind.value in types)
        and (is_whole or context.may(_LISTED, group.group_id))
    ]
    return entity(context.response, "ListGroupsResponse", error_code=ErrorCode.none, groups=listed)
