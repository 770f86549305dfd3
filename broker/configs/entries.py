"""Configs with their values and where these come from, as DescribeConfigs shows them (KIP-226)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from immutables import Map

from lakehead.broker.configs.client_metrics_configs import CLIENT_METRICS_CONFIGS
from lakehead.broker.configs.definition import ConfigDefinition, ConfigType, Effect
from lakehead.broker.configs.group_configs import configs_of_groups
from lakehead.broker.configs.kafka_broker_configs import KAFKA_CONFIGS, THROTTLES
from lakehead.broker.configs.topic_configs import TOPIC_CONFIGS, set_topic_configs
from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.setting_sources import SETTINGS, Setting, split_override
from lakehead.broker.settings import OVERRIDE_PREFIX, Settings
from lakehead.storage.config_providers import Secret
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.compression import CODEC_NAMES
from lakehead.storage.maintenance.configs import ALL_BROKERS, BROKER_DEFAULTS, MaintenanceDefaults
from lakehead.storage.metadata.state import MetadataImage

_TYPES = {"bool": ConfigType.BOOLEAN, "int": ConfigType.LONG, "str": ConfigType.STRING}
_READ_WHILE_RUNNING = frozenset(
    (
        *(config.synonym for config in TOPIC_CONFIGS.values()),
        "errors.deadletterqueue.auto.create.topics.enable",
        "errors.deadletterqueue.topic.name.prefix",
        "log.cleaner.dedupe.buffer.size",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "producer.id.expiration.ms",
        "trace.client.ids",
    )
)
"""Settings of nodes that may also be set for brokers while these run."""


def shown(value: object) -> str:
    """Return the value of a setting as configs are written; a Secret remains one."""
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _definitions() -> Iterator[ConfigDefinition]:
    yield from KAFKA_CONFIGS.values()
    for setting in SETTINGS:
        yield _of_setting(setting)


def _of_setting(setting: Setting) -> ConfigDefinition:
    known = KAFKA_CONFIGS.get(setting.name)
    if known is not None:
        return replace(
            known,
            default=None if known.default is None else shown(setting.default),
            note=setting.doc,
            effect=Effect.HONOURED,
            is_dynamic=setting.name in _READ_WHILE_RUNNING,
            least=setting.least if known.least is None else known.least,
            most=setting.most if known.most is None else known.most,
        )
    return ConfigDefinition(
        name=setting.name,
        kind=ConfigType.PASSWORD if setting.is_secret else _TYPES[setting.kind],
        default=None if setting.is_secret else shown(setting.default),
        note=setting.doc,
        effect=Effect.HONOURED,
        is_dynamic=setting.name in _READ_WHILE_RUNNING,
    )


BROKER_CONFIGS: Mapping[str, ConfigDefinition] = {
    config.name: config for config in sorted(_definitions(), key=lambda config: config.name)
}
"""By name. `is_dynamic` says whether they can be set while brokers run: that is so of the defaults
of topics, of what is looked up when it is needed, and of what is only kept.
"""


def is_secret_config(name: str) -> bool:
    """Return true if the value of a broker's config is never shown; that of an unknown one is not
    either.
    """
    config = BROKER_CONFIGS.get(name)
    return config is None or config.kind is ConfigType.PASSWORD


_SETTINGS = {setting.name: setting for setting in SETTINGS}
_CODECS = {"producer": None, "uncompressed": 0, **{name: n for n, name in CODEC_NAMES.items()}}


_DYNAMIC_OF_LISTENERS = ("ssl.", "max.connection")


def listener_config(name: str) -> ConfigDefinition | None:
    """Return the config of a single listener, `listener.name.<name>.<setting>`; None if listeners
    have no such setting. Those of TLS, and limits of connections, can be set while brokers run, as
    in Kafka.
    """
    try:
        _, setting = split_override(name)
    except SettingsError:
        return None
    config = BROKER_CONFIGS.get(setting)
    if config is None:
        return None
    least = 1 if setting == "max.connection.creation.rate" else config.least
    is_dynamic = setting.startswith(_DYNAMIC_OF_LISTENERS)
    return replace(config, name=name, least=least, is_dynamic=is_dynamic)


class ConfigSource(IntEnum):
    """The source of a value, as DescribeConfigs numbers it."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """One of the places that a config's value could come from."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A config with its value, as DescribeConfigs shows it; the first synonym is in force."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    kind: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerValues:
    """The values of a broker's configs. `own` and `shared` were set while it ran, for it and for
    all brokers; `facts` is what the node knows of itself.
    """

    settings: Settings
    own: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str | None:
        """Return the value in force of a config: that of the first of its synonyms."""
        for values in (self.own, self.shared, self.facts):
            if name in values:
                return values[name]
        setting = _SETTINGS.get(name)
        if setting is not None:
            return shown(getattr(self.settings, setting.field))
        return BROKER_CONFIGS[name].default

    def of_listener(self, prefix: str, name: str) -> str:
        """Return the value in force of a setting for a listener: of its own, by the `prefix` of
        its settings, or that of all. Empty without a value.
        """
        own = self.own_of_listener(prefix, name)
        return (self.value(name) or "") if own is None else own

    def own_of_listener(self, prefix: str, name: str) -> str | None:
        """Return the value in force of a setting that is a listener's own, by the `prefix` of its
        settings; None if it has none.
        """
        for values in (self.own, self.shared, self.settings.listener_overrides):
            if prefix + name in values:
                return values[prefix + name]
        return None

    def number(self, name: str) -> int:
        """Return the value in force of a config that is a whole number."""
        value = self.value(name)
        assert value is not None
        return int(value)

    def synonyms(self, name: str) -> list[Synonym]:
        """Return every place that has a value for a config, the one in force first."""
        found = []
        for values, source in (
            (self.own, ConfigSource.BROKER),
            (self.shared, ConfigSource.ALL_BROKERS),
            (self.facts, ConfigSource.STATIC_BROKER),
        ):
            if name in values:
                found.append(Synonym(name=name, value=values[name], source=source))
        setting = _SETTINGS.get(name)
        if setting is not None and name not in self.facts:
            value = getattr(self.settings, setting.field)
            if value != setting.default:
                source = ConfigSource.STATIC_BROKER
                found.append(Synonym(name=name, value=shown(value), source=source))
        default = BROKER_CONFIGS[name].default
        if default is not None:
            found.append(Synonym(name=name, value=default, source=ConfigSource.DEFAULT))
        return found


def broker_values(
    state: MetadataImage, settings: Settings, facts: Mapping[str, str] | None = None
) -> BrokerValues:
    """Return what the configs of the node of these settings are."""
    nothing: Mapping[str, str] = Map()
    return BrokerValues(
        settings=settings,
        own=state.broker_configs.get(settings.node_id, nothing),
        shared=state.broker_configs.get(ALL_BROKERS, nothing),
        facts=facts or {},
    )


def maintenance_defaults(settings: Settings) -> MaintenanceDefaults:
    """Return what upkeep is to know of the node of these settings."""
    values = BrokerValues(settings=settings)
    given = {name: values.value(name) for name in BROKER_DEFAULTS}
    return MaintenanceDefaults(
        given={name: value for name, value in given.items() if value is not None},
        node_id=settings.node_id,
    )


def topic_entries(configs: Mapping[str, str], values: BrokerValues) -> list[ConfigEntry]:
    """Return every config of a topic that sets `configs`."""
    return [
        _entry(config, _topic_synonyms(config, configs, values), is_read_only=False)
        for config in set_topic_configs(configs)
    ]


def _topic_synonyms(
    config: ConfigDefinition, configs: Mapping[str, str], values: BrokerValues
) -> list[Synonym]:
    synonyms = []
    given = configs.get(config.name)
    if given is not None:
        source = ConfigSource.TOPIC
        synonyms.append(Synonym(name=config.name, value=given, source=source))
    if config.synonym:
        synonyms += values.synonyms(config.synonym)
    return synonyms


def broker_entries(values: BrokerValues) -> list[ConfigEntry]:
    """Return every config of a broker; throttles where they are set, as Kafka does."""
    return [
        _entry(config, values.synonyms(name), is_read_only=not config.is_dynamic)
        for name, config in BROKER_CONFIGS.items()
        if name not in THROTTLES or name in values.own or name in values.shared
    ] + _listener_entries(values)


def _listener_entries(values: BrokerValues) -> list[ConfigEntry]:
    """Return the configs of single listeners that are set."""
    found = []
    sources = (
        (values.own, ConfigSource.BROKER),
        (values.shared, ConfigSource.ALL_BROKERS),
        (values.settings.listener_overrides, ConfigSource.STATIC_BROKER),
    )
    names = {name for given, _ in sources for name in given if name.startswith(OVERRIDE_PREFIX)}
    for name in sorted(names):
        config = listener_config(name)
        if config is not None:
            synonyms = [
                Synonym(name=name, value=given[name], source=source)
                for given, source in sources
                if name in given
            ]
            found.append(_entry(config, synonyms, is_read_only=not config.is_dynamic))
    return found


def shared_entries(shared: Mapping[str, str]) -> list[ConfigEntry]:
    """Return the configs that are set for all brokers."""
    source = ConfigSource.ALL_BROKERS
    return [
        _entry(BROKER_CONFIGS[name], [Synonym(name=name, value=value, source=source)])
        for name, value in sorted(shared.items())
        if name in BROKER_CONFIGS
    ]


def group_entries(configs: Mapping[str, str], values: BrokerValues) -> list[ConfigEntry]:
    """Return every config of a group that sets `configs`, on a node with these values."""
    return [
        _entry(config, _group_synonyms(config, configs, values))
        for config in configs_of_groups(values.settings).values()
    ]


def _group_synonyms(
    config: ConfigDefinition, configs: Mapping[str, str], values: BrokerValues
) -> list[Synonym]:
    """Return what the group sets, then the broker's value for all groups, as Kafka 4.3 does."""
    name, of_all_groups = config.name, f"group.{config.name}"
    synonyms = []
    if name in configs:
        synonyms.append(Synonym(name=name, value=configs[name], source=ConfigSource.GROUP))
    if of_all_groups in BROKER_CONFIGS:
        return synonyms + values.synonyms(of_all_groups)
    return [*synonyms, Synonym(name=name, value=config.default, source=ConfigSource.DEFAULT)]


def _set_or_default(
    config: ConfigDefinition, configs: Mapping[str, str], source: ConfigSource
) -> Synonym:
    name = config.name
    if name in configs:
        return Synonym(name=name, value=configs[name], source=source)
    return Synonym(name=name, value=config.default, source=ConfigSource.DEFAULT)


def client_metrics_entries(configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every config of a subscription to metrics of clients that sets `configs`."""
    return [
        _entry(config, [_set_or_default(config, configs, ConfigSource.CLIENT_METRICS)])
        for config in CLIENT_METRICS_CONFIGS.values()
    ]


def _entry(
    config: ConfigDefinition, synonyms: list[Synonym], *, is_read_only: bool = False
) -> ConfigEntry:
    is_sensitive = config.kind is ConfigType.PASSWORD or any(
        isinstance(synonym.value, Secret) for synonym in synonyms
    )
    return ConfigEntry(
        name=config.name,
        value=synonyms[0].value if synonyms else config.default,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_read_only=is_read_only,
        is_sensitive=is_sensitive,
        kind=config.kind,
        documentation=config.note,
        synonyms=tuple(synonyms),
    )


def topic_value(name: str, configs: Mapping[str, str], values: BrokerValues) -> str:
    """Return the value in force of a config, for a topic that sets `configs`."""
    value = configs.get(name)
    if value is None:
        config = TOPIC_CONFIGS[name]
        value = values.value(config.synonym) if config.synonym else None
        value = config.default if value is None else value
    assert value is not None
    return value.strip()


def record_rules(configs: Mapping[str, str], values: BrokerValues) -> RecordRules:
    """Return the rules for produced batches of a topic that sets `configs`."""
    return RecordRules(
        batch_size_max=int(topic_value("max.message.bytes", configs, values)),
        is_log_append_time=topic_value("message.timestamp.type", configs, values)
        == "LogAppendTime",
        before_ms=int(topic_value("message.timestamp.before.max.ms", configs, values)),
        after_ms=int(topic_value("message.timestamp.after.max.ms", configs, values)),
        needs_keys="compact" in topic_value("cleanup.policy", configs, values),
        validates_records=topic_value("lakehead.record.validation", configs, values) == "true",
        codec=_CODECS[topic_value("compression.type", configs, values)],
        level=_level(configs, values),
    )


def _level(configs: Mapping[str, str], values: BrokerValues) -> int | None:
    name = f"compression.{topic_value('compression.type', configs, values)}.level"
    return int(topic_value(name, configs, values)) if name in TOPIC_CONFIGS else None
