"""The TLS contexts of a node's listeners, as the settings and files are now.

A key that changes counts for new connections; those that are open stay. When files are changed, or
settings are set while the node runs, the new ones are tried first: if they make no context, the old
one stays and an event says why.
"""

import ssl
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.network.listeners import Listener
from lakehead.broker.network.tls import HandshakeFailed
from lakehead.broker.security.key_store import (
    UnreadableKeyMaterial,
    Value,
    allowed_ciphers,
    chain_of,
    client_context,
    files_of,
    load_material,
    server_context,
)
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.broker.security.ssl_principal import SslPrincipalMapper
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_NAMES = (
    *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.key"),
    *("ssl.keystore.certificate.chain", "ssl.key.password", "ssl.truststore.type"),
    *("ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.certificates"),
    *("ssl.client.auth", "ssl.principal.mapping.rules", "ssl.enabled.protocols"),
    *("ssl.cipher.suites", "ssl.endpoint.identification.algorithm"),
)
_log = structlog.get_logger("broker.network")

Configs = Callable[[], BrokerValues]
"""Returns the present configs of this broker."""
_Stamp = tuple[int, int, int, int]
_Seen = tuple[tuple[str, ...], tuple[_Stamp | None, ...]]


@dataclass(slots=True)
class _Present:
    """The present contexts of a listener, and the settings and files of which they were made."""

    server: ssl.SSLContext
    client: ssl.SSLContext | None
    mapper: SslPrincipalMapper
    ciphers: frozenset[str]
    chain: "Sequence[Certificate]"
    """The certificate of the listener and those that sign it."""
    seen: _Seen


class _Refusal(NamedTuple):
    """The settings and files that made no context, and the reason. It keeps no exception: that
    would keep what its frames have.
    """

    seen: _Seen
    reason: str
    is_unreadable: bool
    """True if the system did not let the files be read: they are tried again as they are."""


class TlsContexts:
    """The contexts of those listeners that have TLS. Raises SettingsError."""

    def __init__(self, listeners: Collection[Listener], settings: Settings) -> None:
        self._configs: Configs = lambda: BrokerValues(settings=settings)
        self._listeners = {one.name: one for one in listeners if one.protocol.is_tls}
        self._has_others = len(listeners) > 1
        """True if clients may have a listener of their own, beside that between nodes."""
        self._present = {name: self._load(one) for name, one in self._listeners.items()}
        self._refused: dict[str, _Refusal] = {}
        self.reloads_total: int = 0
        self.refused_total: int = 0

    def ends_s(self) -> dict[str, float]:
        """Return the end of the certificate of each listener, or of the first one that ends of
        those that sign it, in seconds since 1970.
        """
        return {
            name: min(one.not_valid_after_utc.timestamp() for one in chain)
            for name, chain in self.chains().items()
        }

    def chains(self) -> "dict[str, Sequence[Certificate]]":
        """Return the certificate of each listener, and those that sign it."""
        return {name: present.chain for name, present in self._present.items()}

    def follow(self, configs: Configs) -> None:
        """Follow configs that are set while the node runs."""
        self._configs = configs

    def context(self, listener: str) -> ssl.SSLContext:
        """Return the present context of a listener."""
        return self._present[listener].server

    def client_context(self, listener: str) -> ssl.SSLContext | None:
        """Return the context of connections to other nodes at their listener of this name; None:
        it has no TLS. Raises ConnectionAbortedError if the settings make none.
        """
        present = self._present.get(listener)
        if present is None:
            return None
        if present.client is None:
            # Other nodes may use a listener that this node has for clients, until it restarts.
            try:
                value = self._value(self._listeners[listener])
                present.client = client_context(load_material(value), value)
            except SettingsError as error:
                raise ConnectionAbortedError(f"listener {listener}: {error}") from None
        return present.client

    def peer_principal(self, listener: str, certificate: bytes) -> KafkaPrincipal:
        """Return the name in a client's certificate (DER). Raises HandshakeFailed."""
        try:
            return self._present[listener].mapper.principal(certificate)
        except ValueError as error:
            raise HandshakeFailed(f"its certificate gives it no name: {error}") from None

    def check_cipher(self, listener: str, name: str) -> None:
        """Raise HandshakeFailed if a listener does not allow a cipher suite of TLS 1.3."""
        allowed = self._present[listener].ciphers
        if allowed and name.startswith("TLS_") and name not in allowed:
            raise HandshakeFailed(f"{name} is not in ssl.cipher.suites")

    def refresh(self) -> None:
        """Load what has changed. To be called every few seconds."""
        for name, listener in self._listeners.items():
            seen = self._look(listener)
            if seen == self._present[name].seen:
                continue
            before = self._refused.get(name)
            if before is not None and seen == before.seen and not before.is_unreadable:
                continue
            try:
                self._present[name] = self._load(listener)
            except SettingsError as error:
                is_unreadable = isinstance(error, UnreadableKeyMaterial)
                refusal = self._refused[name] = _Refusal(seen, str(error), is_unreadable)
                if refusal != before:
                    self.refused_total += 1
                    _log.error("certificate_not_loaded", listener=name, reason=refusal.reason)
                continue
            self._refused.pop(name, None)
            self.reloads_total += 1
            _log.info("certificate_loaded", listener=name)

    def _load(self, listener: Listener) -> _Present:
        value = self._value(listener)
        seen = self._look(listener)  # before the files are read: a later change is seen again
        is_between = listener.is_inter_broker
        auth = value("ssl.client.auth").lower()
        is_named_by_tls = is_between and not listener.protocol.is_sasl
        if is_named_by_tls and (auth == "none" or self._has_others):
            auth = "required" if self._has_others else "requested"
        try:
            material = load_material(value)  # once: files that change meanwhile do not mix
            return _Present(
                server=server_context(material, value, auth),
                client=client_context(material, value) if is_between else None,
                mapper=SslPrincipalMapper(value("ssl.principal.mapping.rules")),
                ciphers=allowed_ciphers(value),
                chain=chain_of(material),
                seen=seen,
            )
        except SettingsError as error:
            raise type(error)(f"listener {listener.name}: {error}") from None

    def _value(self, listener: Listener) -> Value:
        values = self._configs()
        return lambda name: values.of_listener(listener.prefix, name)

    def _look(self, listener: Listener) -> _Seen:
        value = self._value(listener)
        return tuple(map(value, _NAMES)), tuple(map(_stamp, files_of(value)))


def _stamp(path: str) -> _Stamp | None:
    """Return values of which one differs after each change of a file: also of its permissions
    alone, and of its content where the time of modification is kept, as by `cp -p`.
    """
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
