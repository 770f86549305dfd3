"""AlterClientQuotas, key 49, versions 0-1: set and remove quotas of entities (KIP-546).

v1: flexible. Each entity on its own: all of its changes, or none. `lakehead.broker.quota` enforces
quotas.
"""

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.quota_rules import check_entity, check_quota
from lakehead.broker.api.turns import change_each
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CONFIGS_OF_CLUSTER
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import ClientQuota

API = Api(
    key=49,
    name="AlterClientQuotas",
    versions=(0, 1),
    is_at_once=True,
    access=(ALTER_CONFIGS_OF_CLUSTER,),
)


Owner = tuple[tuple[str, str | None], ...]


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each entity, once its quotas are in the metadata."""
    requested: dict[Owner, list[Any]] = {}
    for entry in request.entries:
        pairs = {part.entity_type: part.entity_name for part in entry.entity}
        requested.setdefault(tuple(sorted(pairs.items())), []).append(entry.ops)
    module, deadline = context.response, Deadline()
    is_allowed = context.may(ALTER_CONFIGS_OF_CLUSTER)

    async def change(item: tuple[Owner, list[Any]]) -> Any:
        (owner, changes), code, message = item, ErrorCode.none, None
        try:
            if not is_allowed:
                raise KafkaError(ALTER_CONFIGS_OF_CLUSTER.error)
            await _alter(owner, changes, request.validate_only, context, deadline)
        except (LakeheadError, TimeoutError) as error:
            code, message = error_code(error), str(error)
        parts = [
            entity(module, "EntityData", entity_type=kind, entity_name=name) for kind, name in owner
        ]
        return entity(module, "EntryData", error_code=code, error_message=message, entity=parts)

    entries = await change_each(requested.items(), change, lambda item: sum(map(len, item[1])))
    return entity(module, "AlterClientQuotasResponse", entries=entries)


async def _alter(
    owner: Owner,
    changes: list[Any],
    validate_only: bool,
    context: RequestContext,
    deadline: Deadline,
) -> None:
    named = dict(owner)
    check_entity(named)
    if len(changes) > 1:
        raise KafkaError(ErrorCode.invalid_request, "The entity is named more than once.")
    values: dict[str, float | None] = {}
    for change in changes[0]:
        if change.key in values:
            raise KafkaError(ErrorCode.invalid_request, f"{change.key} is changed more than once.")
        if not change.remove:
            check_quota(named, change.key, change.value)
        values[change.key] = None if change.remove else change.value
    # As in Kafka, a quota that is not set may be removed, under any name.
    present: Mapping[str, float] = context.services.state.quotas.get(owner, {})
    values = {key: value for key, value in values.items() if value is not None or key in present}
    if values and not validate_only:
        async with deadline.limit():
            await context.services.metadata.commit([ClientQuota(entity=named, values=values)])
