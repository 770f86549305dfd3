"""Configs of groups: the table of Kafka 4.3 (KIP-848, KIP-932, KIP-1071), and those of dead letters
(KIP-1191).

Numbers of consumer groups and share groups have the defaults and bounds that a node's settings give
(`group.consumer.*`, `group.share.*`). One that a group set within other bounds counts as the
nearest that is within them, as in Kafka. Those of streams groups are kept: these groups are not
served.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import INT_MAX, ConfigDefinition, ConfigType, Effect
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings

_STREAMS_NOTE = "Kept: streams groups are not served."
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
SHARE_DELIVERIES = "share.delivery.count.limit"
SHARE_HEARTBEAT_INTERVAL = "share.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
SHARE_ASSIGNMENT_INTERVAL = "share.assignment.interval.ms"
SHARE_LOCK_DURATION = "share.record.lock.duration.ms"
SHARE_RECORD_LOCKS = "share.partition.max.record.locks"
SHARE_SESSION_TIMEOUT = "share.session.timeout.ms"
_BOUNDED = frozenset(
    {
        *(HEARTBEAT_INTERVAL, SESSION_TIMEOUT, SHARE_DELIVERIES, SHARE_HEARTBEAT_INTERVAL),
        *(SHARE_LOCK_DURATION, SHARE_RECORD_LOCKS, SHARE_SESSION_TIMEOUT),
        *(ASSIGNMENT_INTERVAL, SHARE_ASSIGNMENT_INTERVAL),
    }
)
_SESSIONS = (
    (SESSION_TIMEOUT, HEARTBEAT_INTERVAL),
    (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL),
)
"""Session timeouts, each with the interval that it has to exceed."""


def _bounded(name: str, default: int, least: int, note: str) -> ConfigDefinition:
    edges = " and ".join(_bound_name(name, edge) for edge in ("min", "max"))
    return replace(
        _number(name, default, least), note=f"{note}; bounds: {edges}", effect=Effect.HONOURED
    )


def _bound_name(name: str, edge: str) -> str:
    """Return the setting of nodes that is a bound of a config."""
    kind, _, rest = name.partition(".")
    return f"group.{kind}.{edge}.{rest}"


def _flag(name: str, default: str, note: str) -> ConfigDefinition:
    return replace(_text(name, default, None, note), kind=ConfigType.BOOLEAN)


DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"

_TABLE = (
    _bounded(
        *(HEARTBEAT_INTERVAL, 5000, 1),
        "Time between heartbeats of a member of a consumer group, in ms",
    ),
    _bounded(
        *(SESSION_TIMEOUT, 45_000, 1),
        "Time after which a silent member of a consumer group is fenced, in ms",
    ),
    _bounded(
        *(ASSIGNMENT_INTERVAL, 1000, 0),
        "Shortest time between two assignments of a consumer group, in ms",
    ),
    _flag(
        *("errors.deadletterqueue.copy.record.enable", "false"),
        "Dead letters of a share group have the key and the value of their record",
    ),
    _text(
        *(DEAD_LETTER_TOPIC, "", None),
        "Topic that gets the dead letters of a share group; empty: there are none",
    ),
    _bounded(
        *(SHARE_ASSIGNMENT_INTERVAL, 1000, 0),
        "Shortest time between two assignments of a share group, in ms",
    ),
    _text(
        *("share.auto.offset.reset", "latest", None),
        "Start of a share group in a partition: latest, earliest or by_duration:PnDTnHnMn.nS",
    ),
    _bounded(
        *(SHARE_DELIVERIES, 5, 2),
        "Maximum deliveries of a record to a share group",
    ),
    _bounded(
        *(SHARE_HEARTBEAT_INTERVAL, 5000, 1),
        "Time between heartbeats of a member of a share group, in ms",
    ),
    _text(
        *("share.isolation.level", "read_uncommitted", ("read_committed", "read_uncommitted")),
        "read_committed: without records of transactions that are open or aborted",
    ),
    _bounded(
        *(SHARE_RECORD_LOCKS, 2000, 100),
        "Maximum records of a partition in flight in a share group",
    ),
    _bounded(
        *(SHARE_LOCK_DURATION, 30_000, 1000),
        "Time for which a member of a share group has a record, in ms",
    ),
    _flag(
        *("share.renew.acknowledge.enable", "true"),
        "Members of a share group may renew the locks of records",
    ),
    _bounded(
        *(SHARE_SESSION_TIMEOUT, 45_000, 1),
        "Time after which a silent member of a share group is removed, in ms",
    ),
    _number("streams.assignment.interval.ms", 1000, 0, 15_000, _STREAMS_NOTE),
    _number("streams.heartbeat.interval.ms", 5000, 5000, 15_000, _STREAMS_NOTE),
    _number("streams.initial.rebalance.delay.ms", 3000, 0, note=_STREAMS_NOTE),
    _number("streams.num.standby.replicas", 0, 0, 2, _STREAMS_NOTE),
    _number("streams.session.timeout.ms", 45_000, 45_000, 60_000, _STREAMS_NOTE),
)

GROUP_CONFIGS: dict[str, ConfigDefinition] = {config.name: config for config in _TABLE}
"""Every config of a group, by name."""


def number_in_force(name: str, own: Mapping[str, str], settings: Settings) -> int:
    """Return the value of a number that has bounds: what the group sets, within the bounds of the
    node of these settings, else the node's value for all groups.
    """
    value = own.get(name)
    if value is None:
        return _setting(settings, f"group.{name}")
    least, most = (_setting(settings, _bound_name(name, edge)) for edge in ("min", "max"))
    return min(max(int(value), least), most)


def _setting(settings: Settings, name: str) -> int:
    return int(getattr(settings, name.replace(".", "_")))


def configs_of_groups(settings: Settings) -> Mapping[str, ConfigDefinition]:
    """Return every config of a group, by name, with the defaults of these settings."""
    return GROUP_CONFIGS | {
        name: replace(GROUP_CONFIGS[name], default=str(number_in_force(name, {}, settings)))
        for name in sorted(_BOUNDED)
    }


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
        if name in _BOUNDED:
            _check_bounds(name, int(text), settings)
    after = {name: value for name, value in {**present, **parsed}.items() if value is not None}
    for pair in _SESSIONS:
        session, interval = (int(after.get(name, definitions[name].default or 0)) for name in pair)
        if parsed.keys() & set(pair) and session <= interval:
            raise KafkaError(ErrorCode.invalid_config, " must be greater than ".join(pair))
    return parsed


def _check_bounds(name: str, value: int, settings: Settings) -> None:
    least, most = (_bound_name(name, edge) for edge in ("min", "max"))
    if value < _setting(settings, least):
        raise KafkaError(
            ErrorCode.invalid_config, f"{name} must be greater than or equal to {least}"
        )
    if value > _setting(settings, most):
        raise KafkaError(ErrorCode.invalid_config, f"{name} must be less than or equal to {most}")


def _is_offset_reset(value: str) -> bool:
    return value in _OFFSET_RESETS or _DURATION.fullmatch(value) is not None
