"""Configs of groups: the table of Kafka 4.3 (KIP-848, KIP-932, KIP-1071), and those of dead letters
(KIP-1191).

Those of consumer groups have the defaults and bounds that a node's settings give
(`group.consumer.*`). Those of share groups have the bounds that Kafka's brokers have by default,
and defaults that are settings of nodes (`group.share.*`). Those of streams groups are kept: these
groups are not served.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import INT_MAX, ConfigDefinition, ConfigType, Effect
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings

_STREAMS_NOTE = "Kept: streams groups are not served."
_INTERVAL_NOTE = "Large groups are assigned at intervals that follow from their size."
_OFFSET_RESETS = frozenset({"earliest", "latest"})
_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")


def _number(
    name: str, default: int, least: int, most: int = INT_MAX, note: str = _STREAMS_NOTE
) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind=ConfigType.INT,
        default=str(default),
        note=note,
        effect=Effect.NO_EFFECT,
        least=least,
        most=most,
    )


def _text(name: str, default: str, choices: tuple[str, ...] | None, note: str) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind=ConfigType.STRING,
        default=default,
        note=note,
        effect=Effect.HONOURED,
        choices=choices,
    )


HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT = "consumer.session.timeout.ms"


def _of_consumers(name: str, default: int, least: int, most: int, note: str) -> ConfigDefinition:
    return replace(
        _number(name, default, least, most),
        note=f"{note}; bounds are settings of nodes, group.consumer.*.",
        effect=Effect.HONOURED,
    )


def _of_shares(name: str, default: int, least: int, most: int, note: str) -> ConfigDefinition:
    return replace(_number(name, default, least, most), note=note, effect=Effect.HONOURED)


def _flag(name: str, default: str, note: str) -> ConfigDefinition:
    return replace(_text(name, default, None, note), kind=ConfigType.BOOLEAN)


DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"

_TABLE = (
    _of_consumers(
        *(HEARTBEAT_INTERVAL, 5000, 5000, 15_000),
        "Time between heartbeats of a member of a consumer group, in ms",
    ),
    _of_consumers(
        *(SESSION_TIMEOUT, 45_000, 45_000, 60_000),
        "Time after which a silent member of a consumer group is fenced, in ms",
    ),
    _number("consumer.assignment.interval.ms", 1000, 0, 15_000, _INTERVAL_NOTE),
    _flag(
        *("errors.deadletterqueue.copy.record.enable", "false"),
        "Dead letters of a share group have the key and the value of their record",
    ),
    _text(
        *(DEAD_LETTER_TOPIC, "", None),
        "Topic that gets the dead letters of a share group; empty: there are none",
    ),
    _number(
        *("share.assignment.interval.ms", 1000, 0, 15_000),
        "Each change of a share group has its own assignment.",
    ),
    _text(
        *("share.auto.offset.reset", "latest", None),
        "Start of a share group in a partition: latest, earliest or by_duration:PnDTnHnMn.nS",
    ),
    _of_shares(
        *("share.delivery.count.limit", 5, 2, 10), "Maximum deliveries of a record to a share group"
    ),
    _of_shares(
        *("share.heartbeat.interval.ms", 5000, 5000, 15_000),
        "Time between heartbeats of a member of a share group, in ms",
    ),
    _text(
        *("share.isolation.level", "read_uncommitted", ("read_committed", "read_uncommitted")),
        "read_committed: without records of transactions that are open or aborted",
    ),
    _of_shares(
        *("share.partition.max.record.locks", 2000, 100, 4000),
        "Maximum records of a partition in flight in a share group",
    ),
    _of_shares(
        *("share.record.lock.duration.ms", 30_000, 1000, 60_000),
        "Time for which a member of a share group has a record, in ms",
    ),
    _flag(
        *("share.renew.acknowledge.enable", "true"),
        "Members of a share group may renew the locks of records",
    ),
    _of_shares(
        *("share.session.timeout.ms", 45_000, 45_000, 60_000),
        "Time after which a silent member of a share group is removed, in ms",
    ),
    _number("streams.assignment.interval.ms", 1000, 0, 15_000, _STREAMS_NOTE),
    _number("streams.heartbeat.interval.ms", 5000, 5000, 15_000, _STREAMS_NOTE),
    _number("streams.initial.rebalance.delay.ms", 3000, 0, note=_STREAMS_NOTE),
    _number("streams.num.standby.replicas", 0, 0, 2, _STREAMS_NOTE),
    _number("streams.session.timeout.ms", 45_000, 45_000, 60_000, _STREAMS_NOTE),
)

GROUP_CONFIGS: Mapping[str, ConfigDefinition] = {config.name: config for config in _TABLE}
"""Every config of a group, by name."""


def configs_of_groups(settings: Settings) -> Mapping[str, ConfigDefinition]:
    """Return every config of a group, by name, with the defaults and bounds of these settings."""
    heartbeat = replace(
        GROUP_CONFIGS[HEARTBEAT_INTERVAL],
        default=str(settings.group_consumer_heartbeat_interval_ms),
        least=settings.group_consumer_min_heartbeat_interval_ms,
        most=settings.group_consumer_max_heartbeat_interval_ms,
    )
    session = replace(
        GROUP_CONFIGS[SESSION_TIMEOUT],
        default=str(settings.group_consumer_session_timeout_ms),
        least=settings.group_consumer_min_session_timeout_ms,
        most=settings.group_consumer_max_session_timeout_ms,
    )
    return {**GROUP_CONFIGS, HEARTBEAT_INTERVAL: heartbeat, SESSION_TIMEOUT: session}


def known_group_config(name: str) -> ConfigDefinition:
    """Return a config of groups. Raises INVALID_CONFIG when there is none of this name."""
    config = GROUP_CONFIGS.get(name)
    if config is None:
        raise KafkaError(ErrorCode.invalid_config, f"Unknown group config name: {name}")
    return config


def parse_group_configs(
    configs: Mapping[str, str | None], present: Mapping[str, str], settings: Settings
) -> dict[str, str | None]:
    """Return what is set, None resetting it, in the form in which Kafka shows it. `present` is set
    before. Raises INVALID_CONFIG for an unknown name or a bad value.
    """
    definitions = configs_of_groups(settings)
    parsed: dict[str, str | None] = dict.fromkeys(configs)
    for name, value in configs.items():
        if value is None:
            continue
        text = parsed[name] = definitions[known_group_config(name).name].parse(value)
        if name == "share.auto.offset.reset" and not _is_offset_reset(text):
            raise KafkaError(
                ErrorCode.invalid_config,
                f"Invalid value {value} for configuration {name}: it must be earliest, latest or "
                "by_duration:<PnDTnHnMn.nS>",
            )
        if name == DEAD_LETTER_TOPIC and text.startswith("__"):
            raise KafkaError(
                ErrorCode.invalid_config, f"{name}: DLQ topic name must not start with '__'"
            )
    after = {name: value for name, value in {**present, **parsed}.items() if value is not None}
    session, heartbeat = (
        int(after.get(name, definitions[name].default or "0"))
        for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL)
    )
    if parsed.keys() & {SESSION_TIMEOUT, HEARTBEAT_INTERVAL} and session <= heartbeat:
        raise KafkaError(
            ErrorCode.invalid_config, f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}"
        )
    return parsed


def _is_offset_reset(value: str) -> bool:
    return value in _OFFSET_RESETS or _DURATION.fullmatch(value) is not None
