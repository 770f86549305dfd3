"""IncrementalAlterConfigs, key 44, versions 0-1: set, reset, add to or take from configs (KIP-339).

v1: flexible. Topics, groups, client metrics, loggers, and what brokers let change while they run
(see `config_changes`).
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.config_changes import (
    ACCESS,
    Changes,
    Configs,
    Definitions,
    handle_changes,
    refused,
)
from lakehead.broker.configs.definition import ConfigType, split_list
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.request_context import RequestContext

API = Api(key=44, name="IncrementalAlterConfigs", versions=(0, 1), is_at_once=True, access=ACCESS)

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each resource, once its new configs are in the
    metadata.
    """
    return await handle_changes(request, context, "IncrementalAlterConfigsResponse", _changes)


def _changes(resource: Any, present: Configs, definitions: Definitions) -> Changes:
    changes: Changes = {}
    for change in resource.configs:
        value = _new_value(change, present, definitions)
        if value is not None or change.name in present:
            changes[change.name] = value
    return changes


def _new_value(change: Any, present: Configs, definitions: Definitions) -> str | None:
    operation, name = change.config_operation, change.name
    if operation == _DELETE:
        return None
    value: str = change.value
    if operation == _SET:
        return value
    if operation not in {_APPEND, _SUBTRACT}:
        raise refused(f"Unknown operation {operation} for {name}")
    config = definitions(name)
    if config.kind is not ConfigType.LIST:
        word = "APPEND to" if operation == _APPEND else "SUBTRACT from"
        raise KafkaError(
            ErrorCode.invalid_config, f"Can't {word} key {name} because its type is not LIST."
        )
    items = split_list(present.get(name, config.default or ""))
    given = split_list(value)
    if operation == _APPEND and items and not value:
        raise KafkaError(ErrorCode.invalid_config, f"An empty value cannot be appended to {name}")
    if operation == _APPEND:
        return ",".join([*items, *(item for item in given if item not in items)])
    return ",".join([item for item in items if item not in given])
