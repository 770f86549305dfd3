"""Levels of loggers: DescribeConfigs shows them, IncrementalAlterConfigs sets them (KIP-412).

There is one logger, `root`: that of the process. A level that is set lasts as long as the process
does.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import ConfigType
from lakehead.broker.configs.entries import ConfigEntry, ConfigSource
from lakehead.broker.observability.event_log import LEVELS, level_word, set_level
from lakehead.broker.protocol.errors import KafkaError

_ROOT = "root"
_SET, _DELETE = 0, 1


def logger_entries() -> list[ConfigEntry]:
    """Return the loggers with their levels."""
    entry = ConfigEntry(
        name=_ROOT,
        value=level_word(),
        source=ConfigSource.BROKER_LOGGER,
        is_read_only=False,
        is_sensitive=False,
        kind=ConfigType.UNKNOWN,
        documentation="Events from this level on are written, until the process ends.",
        synonyms=(),
    )
    return [entry]


def change_levels(resource: Any, node_id: int, *, only_check: bool) -> None:
    """Set the levels that a resource of a request names; all, or none.

    Raises KafkaError for another broker's loggers and for what cannot be set.
    """
    if resource.resource_name != str(node_id):
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {node_id} but received {resource.resource_name}",
        )
    for change in resource.configs:
        _check(change)
    for change in () if only_check else resource.configs:
        set_level(change.value)


def _check(change: Any) -> None:
    operation = getattr(change, "config_operation", None)  # AlterConfigs has none
    if operation not in {_SET, _DELETE}:
        raise KafkaError(
            ErrorCode.invalid_request, "Levels of loggers can be set and reset, nothing else."
        )
    if change.name != _ROOT:
        raise KafkaError(ErrorCode.invalid_config, f"Logger {change.name} does not exist!")
    if operation == _DELETE:
        raise KafkaError(
            ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed"
        )
    if change.value not in LEVELS:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {_ROOT} to {change.value} as it is not a supported log "
            f"level. Valid log levels are {', '.join(sorted(LEVELS))}",
        )
