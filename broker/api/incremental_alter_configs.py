"""IncrementalAlterConfigs, key 44, versions 0-1: set, reset, add to or take from configs (KIP-339).

v1: flexible. Configs of brokers are settings that are given when a broker starts: altering them is
refused with INVALID_REQUEST, as are those of loggers, client metrics and groups. Resetting what was
never set is taken, and so are throttles of replication, of which there is none.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from broker.api.config_changes import DELETE, answer_changes
from broker.configs import TOPIC_CONFIGS, ConfigType, check_topic_configs
from broker.protocol.api import Api, RequestContext
from broker.protocol.errors import KafkaError
from storage.metadata.state import TopicState

API = Api(key=44, name="IncrementalAlterConfigs", versions=(0, 1))

_SET, _APPEND, _SUBTRACT = 0, 2, 3


async def handle(request: Any, context: RequestContext) -> Any:
    """Answer for each resource, once its new configs are in the metadata."""
    return await answer_changes(request, context, "IncrementalAlterConfigsResponse", _changes)


def _changes(resource: Any, topic: TopicState) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for change in resource.configs:
        if change.name in changes:
            raise KafkaError(ErrorCode.invalid_request, f"{change.name} is changed more than once.")
        changes[change.name] = _new_value(change, topic)
    check_topic_configs(changes)
    return changes


def _new_value(change: Any, topic: TopicState) -> str | None:
    operation, name = change.config_operation, change.name
    if operation == DELETE:
        return None
    value: str | None = change.value
    if value is None:
        raise KafkaError(ErrorCode.invalid_request, f"Null value not supported for: {name}")
    if operation == _SET:
        return value
    if operation not in {_APPEND, _SUBTRACT}:
        raise KafkaError(ErrorCode.invalid_request, f"Unknown operation {operation} for {name}")
    config = TOPIC_CONFIGS.get(name)
    if config is None or config.kind is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.invalid_config, f"{name} is not a list: it can be set, but not added to."
        )
    present = _items(topic.configs.get(name, config.default))
    given = _items(value)
    if operation == _APPEND:
        kept = present + [item for item in given if item not in present]
    else:
        kept = [item for item in present if item not in given]
    return ",".join(kept)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
