"""DeleteGroups, key 42, versions 0-2: delete groups without members, and their offsets.

v2: flexible. The response comes when the deletion is durable: a deleted group does not come back.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DELETE_GROUP
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import for_each

API = Api(key=42, name="DeleteGroups", versions=(0, 2), access=(DELETE_GROUP,))

_AT_ONCE = 100
"""Groups whose deletions share writes of the write-ahead log."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with one code for each group."""
    turns = Turns()
    codes: dict[str, ErrorCode] = dict.fromkeys(request.groups_names, ErrorCode.none)

    async def delete(group_id: str) -> None:
        await turns.give_way()  # also where nothing is to be waited for
        try:
            context.check(DELETE_GROUP, group_id)
            await context.services.groups.delete_group(group_id)
        except (LakeheadError, TimeoutError) as error:
            codes[group_id] = error_code(error)

    await for_each(list(codes), delete, at_once=_AT_ONCE)
    results = [
        entity(context.response, "DeletableGroupResult", group_id=group_id, error_code=code)
        for group_id, code in codes.items()
    ]
    return entity(context.response, "DeleteGroupsResponse", results=results)
