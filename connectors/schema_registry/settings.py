"""Settings of a registry: its cluster, its address, and its users."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakehead.storage.errors import SettingsError

TOPIC = "_schemas"
BODY_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """The values. `client` is librdkafka's settings, with `bootstrap.servers`."""

    client: Mapping[str, str]
    topic: str = TOPIC
    replication_factor: int = 1
    host: str = "127.0.0.1"
    port: int = 8081
    timeout_ms: int = 20_000
    body_bytes_max: int = BODY_BYTES_MAX
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls_cert: Path | None = None
    tls_key: Path | None = None


def read_client_settings(file: Path) -> dict[str, str]:
    """Return the settings of a client from lines `name=value`. Raises SettingsError, OSError."""
    found: dict[str, str] = {}
    for number, line in _lines(file):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{file}, line {number}: a setting is name=value")
        found[name.strip()] = value.strip()
    return found


def read_users(file: Path) -> dict[str, str]:
    """Return passwords by user from lines `user:password`. Raises SettingsError, OSError."""
    found: dict[str, str] = {}
    for number, line in _lines(file):
        name, colon, password = line.partition(":")
        if not colon or not name or not password:
            raise SettingsError(f"{file}, line {number}: a user is name:password")
        if name in found:
            raise SettingsError(f"{file}, line {number}: user {name} is there twice")
        found[name] = password
    if not found:
        raise SettingsError(f"{file} names no user: a line for each, name:password")
    return found


def _lines(file: Path) -> list[tuple[int, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is not text in UTF-8") from None
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if line and not line.startswith("#")]
