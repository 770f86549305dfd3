"""Configs of topics: the table of Kafka 4.2, what each does here, and those that declare a table.

One table serves DescribeConfigs, CreateTopics and the AlterConfigs APIs. A topic that does not set
a config has the broker's value, under the name of its synonym. `note` says what Lakehead makes of
it: storage is one shared log of immutable objects, so what tunes files, replicas or caches of a
broker is kept and shown, and changes nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import LONG_MAX, ConfigDefinition, ConfigType, Effect
from lakehead.broker.protocol.errors import KafkaError
from lakehead.lake.declaration.table_declaration import (
    PREFIX,
    TABLE_CONFIGS,
    TABLES,
    TABLES_MAX,
    TableConfig,
    check_declaration,
)
from lakehead.storage.errors import SettingsError
from lakehead.storage.maintenance.configs import MAINTENANCE_CONFIGS


def _definition(config: TableConfig) -> ConfigDefinition:
    return ConfigDefinition(
        name=f"{PREFIX}{config.name}",
        kind=ConfigType[config.kind.upper()],
        default=config.default,
        note=config.note,
        choices=config.choices,
        least=config.least,
        pattern=config.pattern,
    )


_TABLES = ConfigDefinition(
    name=TABLES,
    kind=ConfigType.LIST,
    default="",
    note=f"Names of the topic's tables, at most {TABLES_MAX}; lakehead.table.NAME.* sets a config "
    "for one of them. Empty: one table, with the topic's name.",
    pattern=r"[A-Za-z_][A-Za-z0-9_]{0,99}",
)

DECLARED_TABLE_CONFIGS: Mapping[str, ConfigDefinition] = {
    config.name: config for config in (*map(_definition, TABLE_CONFIGS), _TABLES)
}
"""By name. Brokers have no defaults for them."""


def check_table_configs(changes: Mapping[str, str | None], merged: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG if `changes` are of a table, and what the topic then sets (`merged`)
    declares none that could be.
    """
    if not any(name == TABLES or name.startswith(PREFIX) for name in changes):
        return
    try:
        check_declaration(merged)
    except SettingsError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None


def _number(
    name: str,
    default: float,
    synonym: str,
    note: str,
    *,
    kind: ConfigType = ConfigType.LONG,
    least: float | None = None,
    most: float | None = None,
    excluded: float | None = None,
) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind=kind,
        default=str(default),
        synonym=synonym,
        note=note,
        effect=_effect(note),
        least=least,
        most=most,
        excluded=excluded,
    )


def _of_maintenance(
    name: str,
    note: str,
    *,
    kind: ConfigType = ConfigType.LONG,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> ConfigDefinition:
    """Return one that upkeep goes by, which has its default."""
    config = MAINTENANCE_CONFIGS[name]
    return ConfigDefinition(
        name=name,
        kind=kind,
        default=config.default,
        synonym=config.synonym,
        note=note,
        least=least,
        most=most,
        choices=choices,
    )


def _flag(name: str, synonym: str, note: str) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind=ConfigType.BOOLEAN,
        default="false",
        synonym=synonym,
        note=note,
        effect=_effect(note),
    )


def _text(
    name: str,
    default: str,
    synonym: str,
    note: str,
    choices: tuple[str, ...] | None,
    *,
    kind: ConfigType = ConfigType.STRING,
    pattern: str | None = None,
) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind=kind,
        default=default,
        synonym=synonym,
        note=note,
        effect=_effect(note),
        choices=choices,
        pattern=pattern,
    )


def _effect(note: str) -> Effect:
    if note == _TIERED:
        return Effect.REFUSED
    return Effect.NO_EFFECT if note == _UNUSED else Effect.HONOURED


_INT, _LONG, _DOUBLE, _LIST = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_UNUSED = "Kept for tools; has no effect on shared storage."
_TIERED = "Kafka's tiered storage is not here: all records are in the object store in any case."
_LEVEL = "Level of batches that are compressed again."
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_REPLICAS = r"[0-9]+:[0-9]+"

_TABLE = (
    _of_maintenance(
        "cleanup.policy",
        "delete: retention removes old records; compact: the newest record per key is kept.",
        kind=_LIST,
        choices=("compact", "delete"),
    ),
    _number(
        "compression.gzip.level",
        -1,
        "compression.gzip.level",
        _LEVEL,
        kind=_INT,
        least=-1,
        most=9,
        excluded=0,
    ),
    _number(
        "compression.lz4.level", 9, "compression.lz4.level", _UNUSED, kind=_INT, least=1, most=17
    ),
    _text(
        "compression.type",
        "producer",
        "compression.type",
        "producer: batches stay as they come; else those in another codec are compressed again.",
        _CODECS,
    ),
    _number(
        "compression.zstd.level",
        3,
        "compression.zstd.level",
        _LEVEL,
        kind=_INT,
        least=-131072,
        most=22,
    ),
    _of_maintenance(
        "delete.retention.ms",
        "Time that compaction keeps the tombstone of a deleted key, in ms.",
        least=0,
    ),
    _flag(
        "errors.deadletterqueue.group.enable",
        "",
        "Share groups may write dead letters to the topic (KIP-1191, Kafka 4.4).",
    ),
    _number("file.delete.delay.ms", 60_000, "log.segment.delete.delay.ms", _UNUSED, least=0),
    _number("flush.messages", LONG_MAX, "log.flush.interval.messages", _UNUSED, least=1),
    _number("flush.ms", LONG_MAX, "log.flush.interval.ms", _UNUSED, least=0),
    _text(
        "follower.replication.throttled.replicas",
        "",
        "",
        _UNUSED,
        None,
        kind=_LIST,
        pattern=_REPLICAS,
    ),
    _number("index.interval.bytes", 4096, "log.index.interval.bytes", _UNUSED, kind=_INT, least=0),
    _text(
        "leader.replication.throttled.replicas",
        "",
        "",
        _UNUSED,
        None,
        kind=_LIST,
        pattern=_REPLICAS,
    ),
    _number("local.retention.bytes", -2, "log.local.retention.bytes", _UNUSED, least=-2),
    _number("local.retention.ms", -2, "log.local.retention.ms", _UNUSED, least=-2),
    _of_maintenance(
        "max.compaction.lag.ms",
        "A record is compacted at the latest after this, in ms.",
        least=1,
    ),
    _number(
        "max.message.bytes",
        1_048_588,
        "message.max.bytes",
        "Largest record batch that is taken, in bytes.",
        kind=_INT,
        least=0,
    ),
    _number(
        "message.timestamp.after.max.ms",
        3_600_000,
        "log.message.timestamp.after.max.ms",
        "Maximum time of a record's timestamp ahead of the broker's clock, in ms.",
        least=0,
    ),
    _number(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "log.message.timestamp.before.max.ms",
        "Maximum time of a record's timestamp behind the broker's clock, in ms.",
        least=0,
    ),
    _text(
        "message.timestamp.type",
        "CreateTime",
        "log.message.timestamp.type",
        "CreateTime: records keep the producer's timestamps; LogAppendTime: they get the broker's.",
        ("CreateTime", "LogAppendTime"),
    ),
    _of_maintenance(
        "min.cleanable.dirty.ratio",
        "Share of uncompacted records that makes compaction worth while.",
        kind=_DOUBLE,
        least=0,
        most=1,
    ),
    _of_maintenance(
        "min.compaction.lag.ms",
        "A record is not compacted before this, in ms.",
        least=0,
    ),
    _number("min.insync.replicas", 1, "min.insync.replicas", _UNUSED, kind=_INT, least=1),
    _flag("preallocate", "log.preallocate", _UNUSED),
    _flag("remote.log.copy.disable", "", _UNUSED),
    _flag("remote.log.delete.on.disable", "", _UNUSED),
    _flag("remote.storage.enable", "", _TIERED),
    _of_maintenance(
        "retention.bytes",
        "Size of a partition above which old records are removed; -1: no limit.",
    ),
    _of_maintenance(
        "retention.ms",
        "Age above which records are removed, in ms; -1: never.",
        least=-1,
    ),
    _number(
        "segment.bytes", 1_073_741_824, "log.segment.bytes", _UNUSED, kind=_INT, least=1_048_576
    ),
    _number(
        "segment.index.bytes", 10_485_760, "log.index.size.max.bytes", _UNUSED, kind=_INT, least=4
    ),
    _number("segment.jitter.ms", 0, "log.roll.jitter.ms", _UNUSED, least=0),
    _number("segment.ms", 604_800_000, "log.roll.ms", _UNUSED, least=1),
    _flag("unclean.leader.election.enable", "unclean.leader.election.enable", _UNUSED),
)

KAFKA_TOPIC_CONFIGS: Mapping[str, ConfigDefinition] = {config.name: config for config in _TABLE}
"""Those that Kafka has, by name."""

_VALIDATION = _flag(
    "lakehead.record.validation",
    "",
    "Check each record of a batch that is produced, as Kafka does, not its header alone.",
)

LAKEHEAD_TOPIC_CONFIGS: Mapping[str, ConfigDefinition] = {_VALIDATION.name: _VALIDATION}
"""Those that Kafka does not have, but for those of tables."""

TOPIC_CONFIGS: Mapping[str, ConfigDefinition] = {
    **KAFKA_TOPIC_CONFIGS,
    **LAKEHEAD_TOPIC_CONFIGS,
    **DECLARED_TABLE_CONFIGS,
}
"""Every config of a topic, by name."""


def parse_topic_configs(
    configs: Mapping[str, str | None], present: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Return what is set, None resetting it, in the form in which Kafka shows it.

    Raises INVALID_CONFIG for an unknown name, a bad value or a config that is refused, and for
    values that contradict what else the topic sets (`present`).
    """
    parsed: dict[str, str | None] = dict.fromkeys(configs)
    for name, value in configs.items():
        if value is not None:
            parsed[name] = _parsed(known_topic_config(name), value)
    merged: dict[str, str | None] = {**(present or {}), **parsed}
    least, most = merged.get("min.compaction.lag.ms"), merged.get("max.compaction.lag.ms")
    if least is not None and most is not None and int(least) > int(most):
        raise KafkaError(
            ErrorCode.invalid_config,
            f"conflict topic config setting min.compaction.lag.ms ({least}) > "
            f"max.compaction.lag.ms ({most})",
        )
    given = {name: value for name, value in merged.items() if value is not None}
    check_table_configs(parsed, given)
    return parsed


def _parsed(config: ConfigDefinition, value: str) -> str:
    text = config.parse(value)
    if config.effect is Effect.REFUSED and text != config.default:
        raise KafkaError(ErrorCode.invalid_config, f"{config.name} cannot be {text}: {config.note}")
    return text


def known_topic_config(name: str) -> ConfigDefinition:
    """Return a config of topics. Raises INVALID_CONFIG when there is none of this name."""
    config = TOPIC_CONFIGS.get(name) or _of_one_table(name)
    if config is None:
        raise KafkaError(ErrorCode.invalid_config, f"Unknown topic config name: {name}")
    return config


def is_topic_config(name: str) -> bool:
    """Return true if topics have a config of this name."""
    return name in TOPIC_CONFIGS or _of_one_table(name) is not None


def set_topic_configs(configs: Mapping[str, str]) -> list[ConfigDefinition]:
    """Return every config of a topic that sets `configs`; those of one of its tables if it sets
    them.
    """
    more = [_of_one_table(name) for name in configs if name not in TOPIC_CONFIGS]
    return [*TOPIC_CONFIGS.values(), *(config for config in more if config is not None)]


_ONE_TABLE = re.compile(rf"{re.escape(PREFIX)}{_TABLES.pattern}\.(.+)")


def _of_one_table(name: str) -> ConfigDefinition | None:
    """Return a config of one table among several: `lakehead.table.NAME.` and the rest of its name;
    None for another name.
    """
    found = _ONE_TABLE.fullmatch(name)
    config = None if found is None else DECLARED_TABLE_CONFIGS.get(f"{PREFIX}{found.group(1)}")
    return None if config is None else replace(config, name=name)
