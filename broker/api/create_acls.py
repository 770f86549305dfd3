"""CreateAcls, key 30, versions 1-3: create access rules (KIP-140, KIP-290).

v1: pattern types. v2: flexible. v3: resources of type USER (KIP-373). A rule that exists is created
again without an error. Rules that are wrong fail alone; the others are in one entry of the
metadata. The response comes when they are in force at this node; other nodes follow within moments.
"""

from collections.abc import Generator
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.acl_rules import CHANGES_MAX, binding, disabled
from lakehead.broker.api.turns import STEPS_AT_ONCE, Turns
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER
from lakehead.broker.security.acls import check_new
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import AclBinding, AclCreate, Record
from lakehead.storage.metadata.state import MetadataImage

API = Api(key=30, name="CreateAcls", versions=(1, 3), access=(ALTER_CLUSTER,))

Refusal = tuple[ErrorCode, str | None]
_NOT_REFUSED: Refusal = (ErrorCode.none, None)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each rule, once the right ones are in the metadata.
    Raises MalformedFrame.
    """
    requested, turns = [], Turns()
    for one in request.creations:
        await turns.step()
        requested.append(binding(one))
    try:
        context.check(ALTER_CLUSTER)
        if not context.services.authorizer.is_enabled:
            raise disabled()
        if len(requested) > CHANGES_MAX:
            raise KafkaError(ErrorCode.unknown_server_error, f"More than {CHANGES_MAX} rules.")
        refusals = []
        for acl in requested:
            await turns.step()
            refusals.append(_refusal(acl))
        good = [acl for acl, one in zip(requested, refusals, strict=True) if one is _NOT_REFUSED]
        await _create(good, context)
    except (LakeheadError, TimeoutError) as error:
        refusals = [(error_code(error), error_message(error))] * len(requested)
    results = [
        entity(context.response, "AclCreationResult", error_code=code, error_message=message)
        for code, message in refusals
    ]
    return entity(context.response, "CreateAclsResponse", results=results)


def _refusal(acl: AclBinding) -> Refusal:
    try:
        check_new(acl)
    except KafkaError as error:
        return error.code, error.message
    return _NOT_REFUSED


async def _create(acls: list[AclBinding], context: RequestContext) -> None:
    def plan(state: MetadataImage) -> Generator[None, None, list[Record]]:
        new: dict[AclBinding, None] = {}
        for number, acl in enumerate(acls, 1):
            if not number % STEPS_AT_ONCE:
                yield
            if acl not in state.acls:
                new[acl] = None
        return [AclCreate(acls=tuple(new))] if new else []

    async with Deadline().limit():
        await context.services.metadata.commit_with(plan)
