"""Configs of brokers: Kafka's, and Lakehead's own settings: `BROKER_CONFIGS`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lakehead.broker.configs.definition import ConfigDefinition, ConfigType, Effect
from lakehead.broker.configs.kafka_table import KAFKA_CONFIGS
from lakehead.broker.configs.topic_table import TOPIC_CONFIGS
from lakehead.broker.setting_sources import SETTINGS, Setting

_TYPES = {"bool": ConfigType.BOOLEAN, "int": ConfigType.LONG, "str": ConfigType.STRING}
_READ_WHILE_RUNNING = frozenset(
    (
        *(config.synonym for config in TOPIC_CONFIGS.values()),
        "log.cleaner.dedupe.buffer.size",
        "max.connections",
        "producer.id.expiration.ms",
    )
)
"""Settings of nodes that may also be set for brokers while these run."""


def shown(value: object) -> str:
    """Return the value of a setting as configs are written."""
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
        kind=_TYPES[setting.kind],
        default=shown(setting.default),
        note=setting.doc,
        effect=Effect.HONOURED,
        is_dynamic=False,
    )


BROKER_CONFIGS: Mapping[str, ConfigDefinition] = {
    config.name: config for config in sorted(_definitions(), key=lambda config: config.name)
}
"""By name. `is_dynamic` says whether they can be set while brokers run: that is so of the defaults
of topics, of what is looked up when it is needed, and of what is only kept.
"""
