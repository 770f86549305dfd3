"""Configs of groups: the table of Kafka 4.2 (KIP-848, KIP-932, KIP-1071).

They are of kinds of groups that are not served yet; what is set is kept for when they are. Bounds
are those that Kafka's brokers have by default.
"""

import re
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import INT_MAX, ConfigDefinition, ConfigType, Effect
from lakehead.broker.protocol.errors import KafkaError

_NOTE = "Kept: groups of this kind are not served yet."
_OFFSET_RESETS = frozenset({"earliest", "latest"})
_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")


def _number(name: str, default: int, least: int, most: int = INT_MAX) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind=ConfigType.INT,
        default=str(default),
        note=_NOTE,
        effect=Effect.NO_EFFECT,
        least=least,
        most=most,
    )


def _text(name: str, default: str, choices: tuple[str, ...] | None) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind=ConfigType.STRING,
        default=default,
        note=_NOTE,
        effect=Effect.NO_EFFECT,
        choices=choices,
    )


_TABLE = (
    _number("consumer.heartbeat.interval.ms", 5000, 5000, 15_000),
    _number("consumer.session.timeout.ms", 45_000, 45_000, 60_000),
    _text("share.auto.offset.reset", "latest", None),
    _number("share.heartbeat.interval.ms", 5000, 5000, 15_000),
    _text("share.isolation.level", "read_uncommitted", ("read_committed", "read_uncommitted")),
    _number("share.record.lock.duration.ms", 30_000, 1000, 60_000),
    _number("share.session.timeout.ms", 45_000, 45_000, 60_000),
    _number("streams.heartbeat.interval.ms", 5000, 5000, 15_000),
    _number("streams.initial.rebalance.delay.ms", 3000, 0),
    _number("streams.num.standby.replicas", 0, 0, 2),
    _number("streams.session.timeout.ms", 45_000, 45_000, 60_000),
)

GROUP_CONFIGS: Mapping[str, ConfigDefinition] = {config.name: config for config in _TABLE}
"""Every config of a group, by name."""


def known_group_config(name: str) -> ConfigDefinition:
    """Return a config of groups. Raises INVALID_CONFIG when there is none of this name."""
    config = GROUP_CONFIGS.get(name)
    if config is None:
        raise KafkaError(ErrorCode.invalid_config, f"Unknown group config name: {name}")
    return config


def parse_group_configs(configs: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return what is set, None resetting it, in the form in which Kafka shows it. Raises
    INVALID_CONFIG for an unknown name or a bad value.
    """
    parsed: dict[str, str | None] = dict.fromkeys(configs)
    for name, value in configs.items():
        if value is None:
            continue
        text = parsed[name] = known_group_config(name).parse(value)
        if name == "share.auto.offset.reset" and not _is_offset_reset(text):
            raise KafkaError(
                ErrorCode.invalid_config,
                f"Invalid value {value} for configuration {name}: it must be earliest, latest or "
                "by_duration:<PnDTnHnMn.nS>",
            )
    return parsed


def _is_offset_reset(value: str) -> bool:
    return value in _OFFSET_RESETS or _DURATION.fullmatch(value) is not None
