"""Configs of subscriptions to metrics of clients: the table of Kafka 4.2 (KIP-714)."""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import ConfigDefinition, ConfigType, split_list
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.patterns import InvalidPattern, Pattern

METRICS, INTERVAL_MS, MATCH = "metrics", "interval.ms", "match"
DEFAULT_INTERVAL_MS = 300_000
_LEAST_MS, _MOST_MS = 100, 3_600_000

CLIENT_INSTANCE_ID, CLIENT_ID = "client_instance_id", "client_id"
SOFTWARE_NAME, SOFTWARE_VERSION = "client_software_name", "client_software_version"
SOURCE_ADDRESS, SOURCE_PORT = "client_source_address", "client_source_port"
ATTRIBUTES = frozenset(
    {CLIENT_INSTANCE_ID, CLIENT_ID, SOFTWARE_NAME, SOFTWARE_VERSION, SOURCE_ADDRESS, SOURCE_PORT}
)
"""Attributes of a client that `match` may name."""

_TABLE = (
    ConfigDefinition(
        name=INTERVAL_MS,
        kind=ConfigType.INT,
        default=str(DEFAULT_INTERVAL_MS),
        note="Time between two pushes of a client, in ms.",
    ),
    ConfigDefinition(
        name=MATCH,
        kind=ConfigType.LIST,
        default="",
        note="Clients that push: attribute=pattern, all of which match. Empty: every client.",
    ),
    ConfigDefinition(
        name=METRICS,
        kind=ConfigType.LIST,
        default="",
        note="Beginnings of the names of metrics that clients push; *: every metric.",
    ),
)

CLIENT_METRICS_CONFIGS: Mapping[str, ConfigDefinition] = {config.name: config for config in _TABLE}
"""Every config of a subscription, by name."""


def known_client_metrics_config(name: str) -> ConfigDefinition:
    """Return a config of subscriptions. Raises INVALID_REQUEST when there is none of this name."""
    config = CLIENT_METRICS_CONFIGS.get(name)
    if config is None:
        raise KafkaError(ErrorCode.invalid_request, f"Unknown client metrics configuration: {name}")
    return config


def parse_client_metrics_configs(configs: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return what is set, None resetting it, in the form in which Kafka shows it. Raises
    INVALID_REQUEST for an unknown name or an interval out of bounds, INVALID_CONFIG for another bad
    value.
    """
    parsed: dict[str, str | None] = dict.fromkeys(configs)
    for name, value in configs.items():
        config = known_client_metrics_config(name)
        if value is None:
            continue
        text = parsed[name] = config.parse(value)
        if name == INTERVAL_MS and not _LEAST_MS <= int(text) <= _MOST_MS:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Invalid value {text} for {name}, interval must be between {_LEAST_MS} and "
                f"{_MOST_MS} (1 hour)",
            )
        if name == MATCH:
            parse_match(text)
    return parsed


def parse_match(value: str) -> dict[str, Pattern]:
    """Return the pattern of each attribute that `match` names; of two for one attribute, the last.
    Raises INVALID_CONFIG.
    """
    found: dict[str, Pattern] = {}
    for item in split_list(value):
        parts = item.split("=")
        attribute, text = parts[0].strip(), parts[-1].strip()
        try:
            if len(parts) != 2 or not parts[1] or attribute not in ATTRIBUTES:
                raise InvalidPattern
            found[attribute] = Pattern(text)
        except InvalidPattern:
            raise KafkaError(
                ErrorCode.invalid_config, f"Illegal client matching pattern: {item}"
            ) from None
    return found
