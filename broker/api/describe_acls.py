"""DescribeAcls, key 29, versions 1-3: the access rules that a filter selects (KIP-140, KIP-290).

v1: pattern types. v2: flexible. v3: resources of type USER (KIP-373).
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.acl_rules import acl_filter, disabled, entry_fields, pattern_fields
from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CLUSTER
from lakehead.storage.metadata.records import AclBinding

API = Api(key=29, name="DescribeAcls", versions=(1, 3), access=(DESCRIBE_CLUSTER,))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response from the metadata. Raises MalformedFrame."""
    wanted = acl_filter(request)
    code, message, resources = ErrorCode.none, None, list[Any]()
    try:
        context.check(DESCRIBE_CLUSTER)
        if not context.services.authorizer.is_enabled:
            raise disabled()
        selected: dict[tuple[str, str, str], list[AclBinding]] = {}
        turns = Turns()
        for acl in context.services.state.acls:
            await turns.step()
            if wanted.matches(acl):
                pattern = acl.resource_type, acl.resource_name, acl.pattern_type
                selected.setdefault(pattern, []).append(acl)
        for _, acls in sorted(selected.items()):
            await turns.step(len(acls))
            resources.append(_resource(acls, context))
    except KafkaError as error:
        code, message = error.code, error.message
    return entity(
        context.response,
        "DescribeAclsResponse",
        error_code=code,
        error_message=message,
        resources=resources,
    )


def _resource(acls: list[AclBinding], context: RequestContext) -> Any:
    return entity(
        context.response,
        "DescribeAclsResource",
        **pattern_fields(acls[0]),
        acls=[entity(context.response, "AclDescription", **entry_fields(acl)) for acl in acls],
    )
