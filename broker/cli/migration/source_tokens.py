"""Tokens by which an import logs in to a source with OAUTHBEARER: those of a file, which another
program keeps up to date, or of a token endpoint, for client credentials (RFC 6749, 4.4).

The settings are those of KIP-768: the token's place is `sasl.oauthbearer.token.endpoint.url`, with
`file:` or `https:`.
"""

import base64
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from lakehead.broker.security.https_client import HttpsClient
from lakehead.storage.clock import Clock
from lakehead.storage.errors import BrokerUnavailable, RequestRefused, SettingsError

MECHANISM = "OAUTHBEARER"
_PREFIX = "sasl.oauthbearer."
_BODY_MAX = 1 << 20
_LIFETIME_S = 300.0
"""Of a token without one."""
_LEFT_S = 30.0
"""A token that expires sooner is not used again."""
_CONNECT_S, _READ_S = 10.0, 20.0


class SourceToken(NamedTuple):
    """A token, and when it expires: seconds since 1970."""

    value: str
    expires_s: float


class SourceTokens:
    """Made of librdkafka's settings. Raises SettingsError for those that name no token."""

    def __init__(self, settings: Mapping[str, str], clock: Clock) -> None:
        self._url = settings.get(f"{_PREFIX}token.endpoint.url", "")
        self._id = settings.get(f"{_PREFIX}client.id", "")
        self._secret = settings.get(f"{_PREFIX}client.secret", "")
        self._scope = settings.get(f"{_PREFIX}scope", "")
        pairs = settings.get(f"{_PREFIX}extensions", "").split(",")
        self.extensions = dict(one.strip().partition("=")[::2] for one in pairs if "=" in one)
        """SASL extensions (KIP-342)."""
        self._clock = clock
        self._http = HttpsClient(clock, connect_s=_CONNECT_S, read_s=_READ_S)
        self._lock = threading.Lock()
        self._token = SourceToken("", 0)
        scheme = urlsplit(self._url).scheme
        if scheme not in ("file", "http", "https"):
            raise SettingsError(
                f"{MECHANISM} needs {_PREFIX}token.endpoint.url: file:///PATH of a token, or the "
                "https address of an identity provider"
            )
        if scheme != "file" and not (self._id and self._secret):
            raise SettingsError(
                f"{MECHANISM} with a token endpoint needs {_PREFIX}client.id and "
                f"{_PREFIX}client.secret"
            )

    def token(self) -> SourceToken:
        """Return a token that is valid for a while; this may wait for a response. Raises
        BrokerUnavailable, RequestRefused.
        """
        with self._lock:
            if self._token.expires_s - self._now() < _LEFT_S:
                is_file = urlsplit(self._url).scheme == "file"
                self._token = self._of_file() if is_file else self._of_endpoint()
            return self._token

    def callback(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Be the `oauth_cb` of a client of librdkafka."""
        token = self.token()
        return token.value, token.expires_s, "", self.extensions

    def _now(self) -> float:
        return self._clock.now_ms() / 1000

    def _of_file(self) -> SourceToken:
        path = Path(urlsplit(self._url).path)
        try:
            value = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestRefused(f"the token in {path} cannot be read: {error}") from None
        return self._checked(value, _LIFETIME_S)

    def _of_endpoint(self) -> SourceToken:
        form = {"grant_type": "client_credentials"} | (
            {"scope": self._scope} if self._scope else {}
        )
        login = base64.b64encode(f"{self._id}:{self._secret}".encode()).decode()
        headers = {
            "Authorization": f"Basic {login}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        content = urlencode(form).encode()
        try:
            response = self._http.request(
                "POST", self._url, headers=headers, body_max=_BODY_MAX, content=content
            )
        except OSError as error:
            raise BrokerUnavailable(f"{self._url} gives no token: {error}") from None
        if response.status == 429 or response.status >= 500:
            raise BrokerUnavailable(f"{self._url} gives no token: HTTP status {response.status}")
        if response.status != 200:
            raise RequestRefused(f"{self._url} gives no token: HTTP status {response.status}")
        try:
            fields = json.loads(response.body)
            value, lifetime_s = str(fields["access_token"]), float(fields.get("expires_in", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RequestRefused(f"{self._url} gives no token, but another response") from None
        return self._checked(value, lifetime_s or _LIFETIME_S)

    def _checked(self, value: str, lifetime_s: float) -> SourceToken:
        if not value:
            raise RequestRefused(f"{self._url} has an empty token")
        expires_s = _claims(value).get("exp")
        if not isinstance(expires_s, int | float):
            expires_s = self._now() + lifetime_s
        return SourceToken(value, expires_s)


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a token if it is a JWT, without a check: the source checks it."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}
