"""Limits for configs of a topic that lead outside the cluster: the root of its table, and a schema
registry.

The hosts of jobs use both, with their credentials, and any Kafka client may set configs. So nodes
have a list of each, which an operator sets when they start (`table.roots`, `table.registries`): no
request changes it. Without a list, tables lie in the cluster's own folder of tables, and only the
registry that is served beside the nodes is used.
"""

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.lake.declaration.paths import ANYWHERE, allowed_roots
from lakehead.lake.declaration.roots import TableRoots
from lakehead.lake.declaration.table_declaration import (
    PREFIX,
    TABLES,
    declared_paths,
    default_table_uri,
)
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import MetadataImage

_PATH, _ENABLE = f"{PREFIX}path", f"{PREFIX}enable"
_REGISTRY = ".schema.registry.url"
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened at
_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str, int | None]


class TablePlaces:
    """The places that a node allows. Raises SettingsError for a setting that names none."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._roots = allowed_roots(settings.table_roots)
        self._registries = _allowed_registries(settings)
        self._known: tuple[MetadataImage, TableRoots] | None = None

    def check(
        self,
        topic: str,
        changes: Mapping[str, str | None],
        present: Mapping[str, str],
        state: MetadataImage,
    ) -> None:
        """Raise INVALID_CONFIG if `changes` to what a topic sets (`present`) give its table a root
        that is not its own, or a place or registry that is not allowed.
        """
        merged = {**present, **changes}
        given = {name: value for name, value in merged.items() if value is not None}
        try:
            for name, value in changes.items():
                if value and name.startswith(PREFIX) and name.endswith(_REGISTRY):
                    self._check_registry(name, value)
            if any(name in {_ENABLE, TABLES} or _is_path(name) for name in changes):
                is_enabled = given.get(_ENABLE, "").strip().lower() == "true"
                tables = declared_paths(topic, given)
                for name, path in tables.items():
                    if path or is_enabled:
                        self._check_root(topic, name, path, state)
                if len(tables) > 1 and is_enabled:
                    self._check_apart(tables, state)
        except SettingsError as error:
            raise KafkaError(ErrorCode.invalid_config, str(error)) from None

    def _check_apart(self, tables: Mapping[str, str], state: MetadataImage) -> None:
        roots, store = self._roots_of(state), self._settings.store_uri
        if roots.default is not None:
            uris = [path or default_table_uri(store, name) for name, path in tables.items()]
            roots.check_apart(uris)

    def _check_root(self, topic: str, name: str, path: str, state: MetadataImage) -> None:
        roots = self._roots_of(state)
        if roots.default is None and not path:
            return  # a store in memory: there is no table to be
        uri = path or default_table_uri(self._settings.store_uri, name)
        try:
            roots.check(uri, topic)
            if path:
                roots.check_allowed(path, self._roots)
        except SettingsError as error:
            raise SettingsError(f"{_PATH if path else _ENABLE}: {error}") from None

    def _roots_of(self, state: MetadataImage) -> TableRoots:
        """The roots of a state. A state with the same nodes changes those of the topics that
        differ: to make the roots of all topics again takes longer with each topic.
        """
        known = self._known
        if known is None or known[0].nodes is not state.nodes:
            settings = self._settings
            roots = TableRoots(state, settings.store_uri, wals=(settings.wal_uri,))
        else:
            roots = known[1]
            if known[0].topics is not state.topics:
                roots.take_topics(state)
        self._known = state, roots
        return roots

    def _check_registry(self, name: str, urls: str) -> None:
        if self._registries is None:
            return
        for url in filter(None, map(str.strip, urls.split(","))):
            origin, path = _place(url)
            if not any(
                origin == known and f"{path}/".startswith(f"{above}/")
                for known, above in self._registries
            ):
                raise SettingsError(
                    f"{name}: {url} is not a registry that tables may use: have the operator "
                    "add it to the setting table.registries of the nodes"
                )


def _is_path(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(".path")


def registries_with_own(settings: Settings) -> str:
    """Return the setting `table.registries` with the registry that a supervisor serves."""
    items = [settings.table_registries] if settings.table_registries else []
    if settings.registry_port > 0:
        hosts = {"localhost", "127.0.0.1", settings.host, settings.advertised_host} - {""}
        scheme = "https" if settings.registry_tls_cert else "http"
        items += [f"{scheme}://{host}:{settings.registry_port}" for host in sorted(hosts)]
    return ",".join(items)


def own_registry(settings: Settings) -> str:
    """Return the URL of the registry that a supervisor serves; empty if there is none, or if its
    port is not known before it listens.
    """
    if settings.registry_port <= 0:
        return ""
    host = settings.registry_host
    scheme = "https" if settings.registry_tls_cert else "http"
    return f"{scheme}://{'127.0.0.1' if host in _EVERYWHERE else host}:{settings.registry_port}"


def _allowed_registries(settings: Settings) -> tuple[tuple[Origin, str], ...] | None:
    items = [item.strip() for item in settings.table_registries.split(",") if item.strip()]
    if ANYWHERE in items:
        return None
    try:
        return tuple(_place(item) for item in items)
    except SettingsError as error:
        raise SettingsError(f"table.registries: {error}") from None


def _place(url: str) -> tuple[Origin, str]:
    """The origin of a URL and the path on it, which a request goes below."""
    try:
        parts = urlsplit(url)
        origin = _origin(parts)
    except ValueError:
        raise SettingsError(f"{url!r} is not a URL: write https://host:port") from None
    if parts.scheme not in _PORTS or not parts.hostname or any(one in url for one in "?#%\\"):
        raise SettingsError(f"{url!r} is not the URL of a registry: write https://host:port")
    if "@" in parts.netloc:
        raise SettingsError(
            f"the URL of the registry at {parts.hostname} holds a password, which every client of "
            "the topic could read: give it to jobs in the environment, as LAKEHEAD_SCHEMA_REGISTRY"
        )
    if {".", ".."} & set(parts.path.split("/")):
        raise SettingsError(f"{url!r} has a part that is . or ..: write it without")
    return origin, parts.path.rstrip("/")


def _origin(parts: SplitResult) -> Origin:
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
