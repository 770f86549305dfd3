"""Access to a node's page of metrics and probes: where it listens, its TLS, and the clients that it
serves.

Metrics name topics, groups and their load, so without TLS and authentication the page is for
programs of the machine. `metrics.host` opens it in spite of that, for a network that guards it.
"""

import base64
import hmac
import ssl
from collections.abc import Iterable
from pathlib import Path

from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError

LOOPBACK = "127.0.0.1"


class PageAccess:
    """The access that settings give. Raises SettingsError for a certificate that cannot be used,
    and for users that are not written `name:password`.
    """

    def __init__(self, settings: Settings) -> None:
        self._users = dict(map(_pair, _items(settings.metrics_users)))
        self._tokens = tuple(_items(settings.metrics_tokens))
        self._tls: _Certificate | None = None
        location = settings.metrics_ssl_keystore_location
        if location:
            self._tls = _Certificate(Path(location), settings.metrics_ssl_key_password)
        elif settings.metrics_ssl_key_password:
            raise SettingsError(
                "metrics.ssl.key.password needs metrics.ssl.keystore.location, the file of the key"
            )
        is_guarded = self.needs_authentication and self._tls is not None
        self.host = settings.metrics_host or (settings.host if is_guarded else LOOPBACK)
        """The address to listen at."""

    @property
    def needs_authentication(self) -> bool:
        """Return true if clients have to prove a name or show a token."""
        return bool(self._users or self._tokens)

    @property
    def challenge(self) -> str:
        """The header WWW-Authenticate of a refusal (RFC 7235)."""
        return "Bearer" if not self._users else 'Basic realm="lakehead"'

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of new connections, by the certificate that lies there now."""
        return None if self._tls is None else self._tls.current()

    def is_known(self, authorization: str) -> bool:
        """Return true if the header Authorization has a user's password or one of the tokens."""
        if not self.needs_authentication:
            return True
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() == "bearer":
            given = credentials.strip().encode(errors="replace")
            found = [hmac.compare_digest(token.encode(), given) for token in self._tokens]
            return any(found)
        name, password = basic_credentials(authorization)
        wanted = self._users.get(name)
        is_right = hmac.compare_digest((wanted or "").encode(), password.encode())
        return wanted is not None and is_right


def basic_credentials(authorization: str) -> tuple[str, str]:
    """Return the user and password of a header Authorization (RFC 7617); empty texts if it has
    none.
    """
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except ValueError:
        return "", ""
    user, _, password = text.partition(":")
    return user, password


class _Certificate:
    """A PEM file with a private key and its chain of certificates, read again when it changes."""

    def __init__(self, path: Path, password: str) -> None:
        self._path = path
        self._password = password
        self._seen = self._stamp()
        self._context = self._read()

    def current(self) -> ssl.SSLContext:
        """Return the context of the file; of the last good one while it cannot be read."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._context, self._seen = self._read(), stamp
        except SettingsError:
            pass  # half written: the next connection tries again
        return self._context

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except (OSError, ValueError) as error:
            raise self._refused(error) from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A text even if it is empty: without one, OpenSSL would request it at the terminal.
            context.load_cert_chain(self._path, password=self._password)
        except (OSError, ValueError) as error:
            raise self._refused(error) from None
        return context

    def _refused(self, error: Exception) -> SettingsError:
        reason = getattr(error, "strerror", None) or error
        return SettingsError(
            f"metrics.ssl.keystore.location: {self._path} is not a private key and its "
            f"certificates in PEM: {reason}"
        )


def _items(text: str) -> Iterable[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _pair(item: str) -> tuple[str, str]:
    name, colon, password = item.partition(":")
    if not (colon and name and password):
        raise SettingsError("metrics.users: a user is name:password, separated by commas")
    return name, password
