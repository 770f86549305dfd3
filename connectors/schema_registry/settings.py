"""Settings of a registry: its cluster, its address, and the access to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakehead.connectors.schema_registry.access import Access

TOPIC = "_schemas"
BODY_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """The values. `client` is librdkafka's settings, with `bootstrap.servers`."""

    client: Mapping[str, str] = field(repr=False)
    topic: str = TOPIC
    replication_factor: int = 1
    host: str = "127.0.0.1"
    port: int = 8081
    timeout_ms: int = 20_000
    body_bytes_max: int = BODY_BYTES_MAX
    access: Access = field(default_factory=Access)
    tls_cert: Path | None = None
    tls_key: Path | None = None
