"""Every config of brokers that Kafka 4.2 documents: `KAFKA_CONFIGS`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lakehead.broker.configs.definition import ConfigDefinition
from lakehead.broker.configs.kafka_log_table import LOG_CONFIGS
from lakehead.broker.configs.kafka_node_table import NODE_CONFIGS
from lakehead.broker.configs.topic_table import TOPIC_CONFIGS

_WITHOUT_DEFAULT = frozenset(
    ("log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms")
)
"""Broker configs that are null unless they are set: topics have the default of their own then, and
of Kafka's broker it is a config in hours that has it.
"""


def _definitions() -> Iterator[ConfigDefinition]:
    for group in (*LOG_CONFIGS, *NODE_CONFIGS):
        yield from group.definitions()
    for config in TOPIC_CONFIGS.values():
        if config.synonym:
            default = None if config.synonym in _WITHOUT_DEFAULT else config.default
            name = config.synonym
            yield replace(config, name=name, synonym="", is_dynamic=True, default=default)


KAFKA_CONFIGS: Mapping[str, ConfigDefinition] = {config.name: config for config in _definitions()}
"""By name. What a broker's config is the default of for topics is as it is for topics."""
