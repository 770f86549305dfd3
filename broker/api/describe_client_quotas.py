"""DescribeClientQuotas, key 48, versions 0-1: quotas of the entities that a filter selects
(KIP-546).

v1: flexible.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.quota_rules import Component, check_filter, is_selected
from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CONFIGS_OF_CLUSTER

API = Api(
    key=48,
    name="DescribeClientQuotas",
    versions=(0, 1),
    is_at_once=True,
    access=(DESCRIBE_CONFIGS_OF_CLUSTER,),
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response from the metadata."""
    components = [
        Component(kind=requested.entity_type, match_type=requested.match_type, name=requested.match)
        for requested in request.components
    ]
    try:
        context.check(DESCRIBE_CONFIGS_OF_CLUSTER)
        check_filter(components)
    except KafkaError as error:
        return entity(
            context.response,
            "DescribeClientQuotasResponse",
            error_code=error.code,
            error_message=str(error),
            entries=None,
        )
    entries, turns = [], Turns()
    for owner, values in context.services.state.quotas.items():
        await turns.step()
        if is_selected(owner, components, is_strict=request.strict):
            entries.append(_entry(owner, values, context))
    return entity(
        context.response,
        "DescribeClientQuotasResponse",
        error_code=ErrorCode.none,
        error_message="",
        entries=entries,
    )


def _entry(owner: Any, values: Any, context: RequestContext) -> Any:
    module = context.response
    return entity(
        module,
        "EntryData",
        entity=[
            entity(module, "EntityData", entity_type=kind, entity_name=name) for kind, name in owner
        ],
        values=[
            entity(module, "ValueData", key=key, value=value)
            for key, value in sorted(values.items())
        ],
    )
