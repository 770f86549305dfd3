"""Validators of OAUTHBEARER tokens: by keys of an issuer, by AWS STS, or without any check."""

import asyncio
import hashlib
from collections import OrderedDict
from urllib.parse import urlsplit

import structlog
from joserfc.jwk import KeySet

from lakehead.broker.security.https_client import HttpClient
from lakehead.broker.security.sasl.jwks import DOCUMENT_MAX, Jwks, JwksError
from lakehead.broker.security.sasl.jwt import (
    KeyUnknown,
    validate_signed,
    validate_unsecured,
)
from lakehead.broker.security.sasl.outcome import InvalidToken, ValidToken
from lakehead.broker.security.sasl.sts import (
    RESPONSE_MAX,
    StsRules,
    is_sts_token,
    sts_identity,
    sts_request,
)
from lakehead.broker.security.sasl.token_rules import TokenRules, UnsecuredRules
from lakehead.storage.clock import Clock

KEYS_WAIT_S = 5.0
"""Longest wait of a login for the keys of the issuer."""
_CHECKED_MAX = 4_096
_log = structlog.get_logger("broker.security")


class JwksKeys:
    """The keys of an issuer, fetched from `url` while `run` runs."""

    def __init__(self, url: str, jwks: Jwks, client: HttpClient, clock: Clock) -> None:
        self._url = url
        self._jwks = jwks
        self._client = client
        self._clock = clock
        self._is_early = asyncio.Event()
        self._fetched = asyncio.Event()

    async def run(self) -> None:
        """Fetch the keys at once, each interval, and early for unknown keys."""
        while True:
            self._is_early.clear()
            await self._fetch()
            fetched, self._fetched = self._fetched, asyncio.Event()
            fetched.set()
            try:
                async with asyncio.timeout(self._jwks.wait_s(self._clock.monotonic())):
                    await self._is_early.wait()
            except TimeoutError:
                pass

    async def keys(self) -> KeySet | None:
        """Return the keys; wait for them a moment after the start. None: there are none yet."""
        if self._jwks.keys is None:
            await self._next_fetch()
        return self._jwks.keys

    async def keys_with(self, key_id: str) -> KeySet | None:
        """Return the keys after a fetch for an unknown key, if one is allowed now."""
        if self._jwks.should_fetch_for(key_id, self._clock.monotonic()):
            self._is_early.set()
        if self._is_early.is_set():
            await self._next_fetch()
        return self._jwks.keys

    async def _next_fetch(self) -> None:
        fetched = self._fetched
        try:
            async with asyncio.timeout(KEYS_WAIT_S):
                await fetched.wait()
        except TimeoutError:
            pass

    async def _fetch(self) -> None:
        try:
            response = await self._client.get(
                self._url, headers={"Accept": "application/json"}, body_max=DOCUMENT_MAX
            )
            if response.status != 200:
                raise OSError(f"the response has status {response.status}")
            now = self._clock.monotonic()
            self._jwks.loaded(response.body, now)
        except (OSError, JwksError) as error:
            now = self._clock.monotonic()
            wait_s = self._jwks.failed(now)
            _log.warning(
                "jwks_unreachable",
                url=self._url,
                reason=str(error) or type(error).__name__,
                has_keys=self._jwks.keys is not None,
                keys_age_s=round(min(now - self._jwks.fetched_at, 1e9)),
                retry_s=wait_s,
            )


class SignedTokens:
    """Checks JSON Web Tokens by the keys of their issuer."""

    def __init__(self, rules: TokenRules, keys: JwksKeys, clock: Clock) -> None:
        self._rules = rules
        self._keys = keys
        self._clock = clock

    def takes(self, token: str) -> bool:
        """See `authentication.TokenValidator.takes`."""
        return not is_sts_token(token)

    async def validate(self, token: str) -> ValidToken | InvalidToken:
        """See `authentication.TokenValidator.validate`."""
        keys = await self._keys.keys()
        if keys is None:
            return InvalidToken("the keys of the issuer could not be fetched yet")
        try:
            return validate_signed(token, keys, self._rules, self._clock.now_ms())
        except KeyUnknown as unknown:
            keys = await self._keys.keys_with(unknown.key_id) or keys
        try:
            return validate_signed(token, keys, self._rules, self._clock.now_ms())
        except KeyUnknown as unknown:
            return InvalidToken(str(unknown))

    async def run(self) -> None:
        """See `authentication.TokenValidator.run`."""
        await self._keys.run()


class UnsecuredTokens:
    """Believes tokens without a signature: for tests."""

    def __init__(self, rules: UnsecuredRules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock

    def takes(self, token: str) -> bool:
        """See `authentication.TokenValidator.takes`."""
        return not is_sts_token(token)

    async def validate(self, token: str) -> ValidToken | InvalidToken:
        """See `authentication.TokenValidator.validate`."""
        return validate_unsecured(token, self._rules, self._clock.now_ms())

    async def run(self) -> None:
        """See `authentication.TokenValidator.run`: there is nothing to keep."""


class StsTokens:
    """Checks presigned requests by sending them to AWS STS, or to `endpoint` in place of it.

    A token that was found valid is not checked again while it lives: the clients of a role come
    with one token after the other, and each may open many connections.
    """

    def __init__(self, rules: StsRules, endpoint: str, client: HttpClient, clock: Clock) -> None:
        self._rules = rules
        self._endpoint = endpoint.rstrip("/")
        self._client = client
        self._clock = clock
        self._checked: OrderedDict[bytes, ValidToken] = OrderedDict()

    def takes(self, token: str) -> bool:
        """See `authentication.TokenValidator.takes`."""
        return is_sts_token(token)

    async def validate(self, token: str) -> ValidToken | InvalidToken:
        """See `authentication.TokenValidator.validate`."""
        now_ms = self._clock.now_ms()
        request = sts_request(token, self._rules, now_ms)
        if isinstance(request, InvalidToken):
            return request
        digest = hashlib.sha256(token.encode()).digest()
        known = self._checked.get(digest)
        if known is not None and now_ms < known.expires_ms:
            return known
        url = f"{self._endpoint or f'https://{request.host}'}{request.target}"
        try:
            response = await self._client.get(url, headers=request.headers, body_max=RESPONSE_MAX)
        except OSError as error:
            place = urlsplit(self._endpoint).netloc or request.host
            reason = str(error) or type(error).__name__
            _log.warning("sts_unreachable", host=place, reason=reason)
            return InvalidToken("AWS STS cannot be reached")
        found = sts_identity(response.status, response.body, self._rules, request.expires_ms)
        if isinstance(found, ValidToken):
            self._checked[digest] = found
            if len(self._checked) > _CHECKED_MAX:
                self._checked.popitem(last=False)
        return found

    async def run(self) -> None:
        """See `authentication.TokenValidator.run`: there is nothing to keep."""
