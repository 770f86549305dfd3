"""An issuer of signed tokens on loopback, whose keys brokers fetch; unsigned tokens."""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support.http_places import HttpPlace

ISSUER, AUDIENCE, SUBJECT = "issuer", "lake", "carol"
LIFETIME_S = 300


def unsigned_token(**claims: object) -> str:
    """Return a token with these claims and no signature (RFC 7519, section 6)."""
    parts = ({"alg": "none"}, claims)
    texts = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in parts]
    return b".".join([*texts, b""]).decode()


class TokenIssuer:
    """Signs tokens and serves its keys. `is_down` makes it fail."""

    def __init__(self) -> None:
        self.keys = [RSAKey.generate_key(2048, {"kid": "first"})]
        self.is_down = False
        self.place = HttpPlace(self._respond)

    def _respond(self, target: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self.is_down:
            return 503, b"down"
        keys = [key.as_dict(private=False) for key in self.keys]
        return 200, json.dumps({"keys": keys}).encode()

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a broker that trusts this issuer."""
        return {
            "sasl.oauthbearer.jwks.endpoint.url": f"{self.place.url}/keys",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }

    def rotate(self, name: str) -> None:
        """Have one key, which is new."""
        self.keys = [RSAKey.generate_key(2048, {"kid": name})]

    def token(self, key: RSAKey | None = None, **claims: Any) -> str:
        """Return a token by a key, by default the last one, with these claims beside the usual."""
        key, now = key or self.keys[-1], int(time.time())
        content = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": SUBJECT,
            "iat": now,
            "exp": now + LIFETIME_S,
        }
        return jwt.encode({"alg": "RS256", "kid": key.kid}, content | claims, key)
