"""Every config of brokers that Kafka 4.2 documents: `KAFKA_CONFIGS`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from broker.configs.definition import ConfigDefinition
from broker.configs.kafka_log_table import LOG_CONFIGS
from broker.configs.kafka_node_table import NODE_CONFIGS
from broker.configs.topic_table import TOPIC_CONFIGS


def _definitions() -> Iterator[ConfigDefinition]:
    for group in (*LOG_CONFIGS, *NODE_CONFIGS):
        yield from group.definitions()
    for config in TOPIC_CONFIGS.values():
        if config.synonym:
            yield replace(config, name=config.synonym, synonym="", is_dynamic=True)


KAFKA_CONFIGS: Mapping[str, ConfigDefinition] = {config.name: config for config in _definitions()}
"""By name. What a broker's config is the default of for topics is as it is for topics."""
