"""The configs of topics that declare a table: Lakehead's own, beside Kafka's."""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import ConfigDefinition, ConfigType
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.errors import SettingsError
from lakehead.storage.tables.declaration import (
    PREFIX,
    TABLE_CONFIGS,
    TableConfig,
    check_declaration,
)


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


DECLARED_TABLE_CONFIGS: Mapping[str, ConfigDefinition] = {
    config.name: config for config in map(_definition, TABLE_CONFIGS)
}
"""By name. Brokers have no defaults for them."""


def check_table_configs(changes: Mapping[str, str | None], merged: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG if `changes` are of a table, and what the topic then sets (`merged`)
    declares none that could be.
    """
    if not any(name.startswith(PREFIX) for name in changes):
        return
    try:
        check_declaration(merged)
    except SettingsError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None
