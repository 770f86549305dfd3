"""Configs of share groups, set as an administrator does."""

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.support.traffic import NO_SECURITY, QUICK_RECONNECT

LIMIT_S = 120.0
EARLIEST: Mapping[str, str] = {"share.auto.offset.reset": "earliest"}
READ_COMMITTED: Mapping[str, str] = {"share.isolation.level": "read_committed"}


def set_group_configs(
    bootstrap: str,
    group: str,
    configs: Mapping[str, str] = EARLIEST,
    *,
    security: Mapping[str, str | int | float] = NO_SECURITY,
) -> None:
    """Set configs of a group."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUICK_RECONNECT, **security})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(LIMIT_S)
