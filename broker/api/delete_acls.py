"""DeleteAcls, key 31, versions 1-3: delete the access rules that filters select (KIP-140, KIP-290).

v1: pattern types. v2: flexible. v3: resources of type USER (KIP-373). All of them go in one entry
of the metadata. The response comes when they are out of force at this node; other nodes follow
within moments.
"""

from collections.abc import Generator
from itertools import chain
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.acl_rules import (
    CHANGES_MAX,
    acl_filter,
    disabled,
    entry_fields,
    pattern_fields,
)
from lakehead.broker.api.turns import STEPS_AT_ONCE, Turns
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER
from lakehead.broker.security.acls import AclFilter
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import AclBinding, AclDelete, Record
from lakehead.storage.metadata.state import MetadataImage

API = Api(key=31, name="DeleteAcls", versions=(1, 3), access=(ALTER_CLUSTER,))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with what each filter selected, once that is out of the metadata. Raises
    MalformedFrame.
    """
    filters, turns = [], Turns()
    for one in request.filters:
        await turns.step()
        filters.append(acl_filter(one))
    try:
        context.check(ALTER_CLUSTER)
        if not context.services.authorizer.is_enabled:
            raise disabled()
        selected = await _delete(filters, context, turns)
    except (LakeheadError, TimeoutError) as error:
        code, message = error_code(error), error_message(error)
        results = [_result([], code, message, context) for _ in filters]
        return entity(context.response, "DeleteAclsResponse", filter_results=results)
    results = []
    for wanted, acls in zip(filters, selected, strict=True):
        await turns.step(1 + len(acls))
        code, message = ErrorCode.none, None
        if wanted.is_unknown:
            code, message = ErrorCode.invalid_request, "The filter has a part that is unknown."
        results.append(_result(acls, code, message, context))
    return entity(context.response, "DeleteAclsResponse", filter_results=results)


async def _delete(
    filters: list[AclFilter], context: RequestContext, turns: Turns
) -> list[list[AclBinding]]:
    """Delete the rules that the filters select; return those of each."""
    acls = context.services.state.acls
    selected = []
    for wanted in filters:
        found = []
        for number, acl in enumerate(wanted.candidates(acls), 1):
            if not number % STEPS_AT_ONCE:
                await turns.give_way()
            if wanted.matches(acl):
                found.append(acl)
        await turns.step()
        selected.append(found)

    def plan(state: MetadataImage) -> Generator[None, None, list[Record]]:
        if state.acls is not acls:  # another change came first
            for number, wanted in enumerate(filters):
                yield
                candidates = wanted.candidates(state.acls)
                selected[number] = [acl for acl in candidates if wanted.matches(acl)]
        gone = dict.fromkeys(chain.from_iterable(selected))
        if len(gone) > CHANGES_MAX:
            raise KafkaError(
                ErrorCode.unknown_server_error,
                f"Cannot remove more than {CHANGES_MAX} acls in a single delete operation.",
            )
        return [AclDelete(acls=tuple(gone))] if gone else []

    async with Deadline().limit():
        await context.services.metadata.commit_with(plan)
    return selected


def _result(
    acls: list[AclBinding], code: ErrorCode, message: str | None, context: RequestContext
) -> Any:
    matching = [
        entity(
            context.response,
            "DeleteAclsMatchingAcl",
            error_code=ErrorCode.none,
            error_message=None,
            **pattern_fields(acl),
            **entry_fields(acl),
        )
        for acl in acls
    ]
    return entity(
        context.response,
        "DeleteAclsFilterResult",
        error_code=code,
        error_message=message,
        matching_acls=matching,
    )
