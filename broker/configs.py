"""Configs of topics as Kafka knows them: names, types, defaults, bounds, and what each does here.

One table serves DescribeConfigs, CreateTopics and the AlterConfigs APIs. A topic that does not set
a config has the broker's value: of the setting named as its synonym where this broker has that
setting, else the table's default. `note` says what Lakehead makes of it: storage is one shared log
of immutable objects, so what tunes files, replicas or caches of a broker is kept and shown, and
changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kio.schema.errors import ErrorCode

from broker.partition.record_rules import RecordRules
from broker.protocol.errors import KafkaError
from broker.setting_sources import SETTINGS
from broker.settings import Settings

_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1


class ConfigType(IntEnum):
    """Types, as DescribeConfigs numbers them (v3+)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it (KIP-226)."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One config. Bounds are inclusive; `synonym` is the broker's name for its default."""

    name: str
    kind: ConfigType
    default: str
    synonym: str
    note: str
    least: float | None = None
    most: float | None = None
    choices: frozenset[str] | None = None

    def check(self, value: str) -> None:
        """Raise INVALID_CONFIG when the value is not of the type or out of bounds."""
        text = value.strip()
        if self.kind is ConfigType.LIST:
            items = {item.strip() for item in text.split(",") if item.strip()}
            ok = self.choices is None or items <= self.choices
        elif self.choices is not None:
            ok = text in self.choices
        elif self.kind is ConfigType.BOOLEAN:
            ok = text.lower() in {"true", "false"}
        else:
            ok = self._is_number(text)
        if not ok:
            raise KafkaError(
                ErrorCode.invalid_config,
                f"Invalid value {value} for configuration {self.name}: {self._expectation()}",
            )

    def _is_number(self, text: str) -> bool:
        try:
            number = float(text) if self.kind is ConfigType.DOUBLE else int(text)
        except ValueError:
            return False
        least = -_LONG_MAX if self.least is None else self.least
        most = _INT_MAX if self.kind is ConfigType.INT else _LONG_MAX
        return least <= number <= (most if self.most is None else self.most)

    def _expectation(self) -> str:
        if self.choices is not None:
            return f"must be of {', '.join(sorted(self.choices))}"
        words = f"must be of type {self.kind.name}"
        if self.least is not None:
            words += f", at least {self.least:g}"
        if self.most is not None:
            words += f", at most {self.most:g}"
        return words


def _number(
    name: str,
    default: float,
    synonym: str,
    note: str,
    *,
    kind: ConfigType = ConfigType.LONG,
    least: float | None = None,
    most: float | None = None,
) -> TopicConfig:
    return TopicConfig(
        name=name,
        kind=kind,
        default=str(default),
        synonym=synonym,
        note=note,
        least=least,
        most=most,
    )


def _flag(name: str, synonym: str, note: str) -> TopicConfig:
    return TopicConfig(
        name=name, kind=ConfigType.BOOLEAN, default="false", synonym=synonym, note=note
    )


def _text(
    name: str,
    default: str,
    synonym: str,
    note: str,
    choices: frozenset[str] | None,
    *,
    kind: ConfigType = ConfigType.STRING,
) -> TopicConfig:
    return TopicConfig(
        name=name, kind=kind, default=default, synonym=synonym, note=note, choices=choices
    )


_INT, _LONG, _DOUBLE, _LIST = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_UNUSED = "Kept for tools; has no effect on shared storage."
_CODECS = frozenset({"uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"})

_TABLE = (
    _text(
        "cleanup.policy",
        "delete",
        "log.cleanup.policy",
        "delete: retention removes old records; compact: the newest record per key is kept.",
        frozenset({"delete", "compact"}),
        kind=_LIST,
    ),
    _number("compression.gzip.level", -1, "compression.gzip.level", _UNUSED, kind=_INT, most=9),
    _number("compression.lz4.level", 9, "compression.lz4.level", _UNUSED, kind=_INT, most=17),
    _text(
        "compression.type",
        "producer",
        "compression.type",
        "Batches stay as producers compressed them, whatever is set.",
        _CODECS,
    ),
    _number("compression.zstd.level", 3, "compression.zstd.level", _UNUSED, kind=_INT, most=22),
    _number(
        "delete.retention.ms",
        86_400_000,
        "log.cleaner.delete.retention.ms",
        "How long compaction keeps the mark of a deleted key, in ms.",
        least=0,
    ),
    _number("file.delete.delay.ms", 60_000, "log.segment.delete.delay.ms", _UNUSED, least=0),
    _number("flush.messages", _LONG_MAX, "log.flush.interval.messages", _UNUSED, least=1),
    _number("flush.ms", _LONG_MAX, "log.flush.interval.ms", _UNUSED, least=0),
    _text("follower.replication.throttled.replicas", "", "", _UNUSED, None, kind=_LIST),
    _number("index.interval.bytes", 4096, "log.index.interval.bytes", _UNUSED, kind=_INT, least=0),
    _text("leader.replication.throttled.replicas", "", "", _UNUSED, None, kind=_LIST),
    _number("local.retention.bytes", -2, "log.local.retention.bytes", _UNUSED, least=-2),
    _number("local.retention.ms", -2, "log.local.retention.ms", _UNUSED, least=-2),
    _number(
        "max.compaction.lag.ms",
        _LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
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
        "How far ahead of the broker's clock a record's timestamp may be, in ms.",
        least=0,
    ),
    _number(
        "message.timestamp.before.max.ms",
        _LONG_MAX,
        "log.message.timestamp.before.max.ms",
        "How far behind the broker's clock a record's timestamp may be, in ms.",
        least=0,
    ),
    _text(
        "message.timestamp.type",
        "CreateTime",
        "log.message.timestamp.type",
        "CreateTime: records keep the producer's timestamps; LogAppendTime: they get the broker's.",
        frozenset({"CreateTime", "LogAppendTime"}),
    ),
    _number(
        "min.cleanable.dirty.ratio",
        0.5,
        "log.cleaner.min.cleanable.ratio",
        "Share of uncompacted records that makes compaction worth while.",
        kind=_DOUBLE,
        least=0,
        most=1,
    ),
    _number(
        "min.compaction.lag.ms",
        0,
        "log.cleaner.min.compaction.lag.ms",
        "A record is not compacted before this, in ms.",
        least=0,
    ),
    _number("min.insync.replicas", 1, "min.insync.replicas", _UNUSED, kind=_INT, least=1),
    _flag("preallocate", "log.preallocate", _UNUSED),
    _flag("remote.log.copy.disable", "", _UNUSED),
    _flag("remote.log.delete.on.disable", "", _UNUSED),
    _flag("remote.storage.enable", "", "Everything is in the object store in any case."),
    _number(
        "retention.bytes",
        -1,
        "log.retention.bytes",
        "Size of a partition above which old records are removed; -1: no limit.",
    ),
    _number(
        "retention.ms",
        604_800_000,
        "log.retention.ms",
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

TOPIC_CONFIGS: Mapping[str, TopicConfig] = {config.name: config for config in _TABLE}
"""Every config of a topic, by name."""

_SETTINGS = {setting.name: setting for setting in SETTINGS}
_KINDS = {"bool": ConfigType.BOOLEAN, "int": ConfigType.LONG, "str": ConfigType.STRING}


def check_topic_configs(configs: Mapping[str, str | None]) -> None:
    """Raise INVALID_CONFIG for an unknown name or a bad value; None stands for the default."""
    for name, value in configs.items():
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise KafkaError(ErrorCode.invalid_config, f"Unknown topic config name: {name}")
        if value is not None:
            config.check(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """One of the places that a config's value could come from."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A config with its value, as DescribeConfigs shows it; the first synonym is in force."""

    name: str
    value: str
    source: ConfigSource
    is_read_only: bool
    kind: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]


def topic_entries(configs: Mapping[str, str], settings: Settings) -> list[ConfigEntry]:
    """Return every config of a topic that sets `configs`."""
    return [_topic_entry(config, configs.get(config.name), settings) for config in _TABLE]


def _topic_entry(config: TopicConfig, given: str | None, settings: Settings) -> ConfigEntry:
    synonyms = []
    if given is not None:
        synonyms.append(Synonym(name=config.name, value=given, source=ConfigSource.TOPIC))
    if config.synonym:
        synonyms.append(_broker_value(config, settings))
    value, source = config.default, ConfigSource.DEFAULT
    if synonyms:
        value, source = synonyms[0].value, synonyms[0].source
    return ConfigEntry(
        name=config.name,
        value=value,
        source=source,
        is_read_only=False,
        kind=config.kind,
        documentation=config.note,
        synonyms=tuple(synonyms),
    )


def _broker_value(config: TopicConfig, settings: Settings) -> Synonym:
    setting = _SETTINGS.get(config.synonym)
    if setting is None:
        return Synonym(name=config.synonym, value=config.default, source=ConfigSource.DEFAULT)
    value = getattr(settings, setting.field)
    is_default = value == setting.default
    source = ConfigSource.DEFAULT if is_default else ConfigSource.STATIC_BROKER
    return Synonym(name=config.synonym, value=_shown(value), source=source)


def record_rules(configs: Mapping[str, str], settings: Settings) -> RecordRules:
    """Return what a topic that sets `configs` asks of producers' batches."""

    def value(name: str) -> str:
        given = configs.get(name)
        return _broker_value(TOPIC_CONFIGS[name], settings).value if given is None else given

    return RecordRules(
        batch_size_max=int(value("max.message.bytes")),
        is_log_append_time=value("message.timestamp.type") == "LogAppendTime",
        before_ms=int(value("message.timestamp.before.max.ms")),
        after_ms=int(value("message.timestamp.after.max.ms")),
    )


def broker_entries(settings: Settings) -> list[ConfigEntry]:
    """Return the broker's settings, and the defaults of topics under the broker's names."""
    entries = {}
    for config in _TABLE:
        if config.synonym:
            synonym = _broker_value(config, settings)
            entries[config.synonym] = _broker_entry(synonym, config.kind, config.note)
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        source = ConfigSource.DEFAULT if value == setting.default else ConfigSource.STATIC_BROKER
        synonym = Synonym(name=setting.name, value=_shown(value), source=source)
        entries[setting.name] = _broker_entry(synonym, _KINDS[setting.kind], setting.doc)
    return [entries[name] for name in sorted(entries)]


def _broker_entry(synonym: Synonym, kind: ConfigType, documentation: str) -> ConfigEntry:
    return ConfigEntry(
        name=synonym.name,
        value=synonym.value,
        source=synonym.source,
        is_read_only=True,
        kind=kind,
        documentation=documentation,
        synonyms=(synonym,),
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
