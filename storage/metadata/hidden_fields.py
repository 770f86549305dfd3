"""Secrets in the metadata: fields that no command and no log shows.

The metadata themselves hold them in clear, as Kafka's do: read access to the prefix `meta/` of a
cluster is access to all of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

HIDDEN = "[hidden]"
"""Shown in place of a secret, as by Kafka."""

SECRET_FIELDS: Mapping[str, frozenset[str]] = {
    "NodeSecret": frozenset({"secret"}),
    "ScramUpsert": frozenset({"salt", "stored_key", "server_key"}),
}
"""Of records, by type."""

SECRET_COLUMNS: Mapping[str, frozenset[str]] = {
    "cluster": frozenset({"node_secret"}),
    "credentials": frozenset({"document"}),
}
"""Of checkpoints, by table."""


def without_secrets(entry: dict[str, Any], is_secret_config: Callable[[str], bool]) -> None:
    """Hide the secrets of a decoded entry. `is_secret_config` says which configs of brokers are."""
    for record in entry.get("records", ()):
        for name in SECRET_FIELDS.get(record.get("type"), ()):
            if name in record:
                record[name] = HIDDEN
        if record.get("type") == "BrokerConfig":
            configs = record.get("configs", {})
            for name in filter(is_secret_config, configs):
                configs[name] = HIDDEN
