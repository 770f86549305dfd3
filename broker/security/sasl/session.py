"""The order of SASL messages on one connection, exactly as Kafka's SaslServerAuthenticator.

::

    [ApiVersions]  SaslHandshake v0   raw tokens, each a frame of its own
    [ApiVersions]  SaslHandshake v1   SaslAuthenticate, as often as the mechanism needs
    SaslHandshake                     later, to authenticate again (KIP-368)

No other request is served before the client has proven a name. A session ends with the credential,
or `connections.max.reauth.ms` after the authentication; the client may authenticate again before
that, by the same mechanism and as the same principal. Times are milliseconds: `now_ms` since 1970,
`at_ms` of a monotonic clock.
"""

from collections.abc import Callable, Mapping
from enum import Enum

from lakehead.broker.security.principal import NODE, KafkaPrincipal
from lakehead.broker.security.sasl.outcome import (
    Authenticated,
    InvalidToken,
    Outcome,
    SaslFailure,
    SaslMechanism,
    TokenMechanism,
    ValidToken,
)

LIFETIME_MAX_MS = 2**62
REAUTHENTICATION_MIN_MS = 1_000
"""Least time between two authentications on a connection."""

MakeMechanism = Callable[[], SaslMechanism]


class SaslState(Enum):
    """The messages that a connection waits for."""

    INITIAL = "ApiVersions or SaslHandshake"
    HANDSHAKE = "SaslHandshake"
    AUTHENTICATE = "SaslAuthenticate"
    RAW = "raw tokens"
    COMPLETE = "requests"
    FAILED = "nothing"


class IllegalSaslState(SaslFailure):
    """A request came that the order of messages does not allow."""


class UnsupportedMechanism(SaslFailure):
    """The client requests a mechanism that is not enabled."""


class SaslSession:
    """The authentication of one connection. `mechanisms` are those enabled, by name, and
    `max_reauth_ms` the longest session by mechanism; 0: no limit.
    """

    def __init__(
        self, mechanisms: Mapping[str, MakeMechanism], max_reauth_ms: Mapping[str, int]
    ) -> None:
        self._mechanisms = mechanisms
        self._max_reauth_ms = max_reauth_ms
        self._mechanism: SaslMechanism | None = None
        self._name = ""
        self._before: tuple[str, KafkaPrincipal] | None = None
        self._is_other_mechanism = False
        self._begun_at_ms: int | None = None
        self.state = SaslState.INITIAL
        self.principal: KafkaPrincipal | None = None
        """Proven; None before the first authentication."""
        self.ends_at_ms: int | None = None
        """Monotonic end of the session; None: it has no end."""

    @property
    def mechanism(self) -> str:
        """The mechanism of the exchange, empty before the handshake."""
        return self._name

    @property
    def is_again(self) -> bool:
        """Return true if the client authenticates again."""
        return self._before is not None

    def versions_shown(self) -> None:
        """Take note that the client got the ApiVersions response. Raises IllegalSaslState."""
        if self.state is not SaslState.INITIAL:
            raise self._illegal("ApiVersions")
        self.state = SaslState.HANDSHAKE

    def handshake(self, version: int, mechanism: str) -> None:
        """Begin an exchange by a mechanism. Raises IllegalSaslState, UnsupportedMechanism."""
        if self.state not in {SaslState.INITIAL, SaslState.HANDSHAKE}:
            raise self._illegal("SaslHandshake")
        make = self._mechanisms.get(mechanism)
        if make is None:
            self.state = SaslState.FAILED
            raise UnsupportedMechanism(f"the mechanism {mechanism[:64]!r} is not enabled")
        self._is_other_mechanism = self._before is not None and self._before[0] != mechanism
        self._name, self._mechanism = mechanism, make()
        self.state = SaslState.AUTHENTICATE if version >= 1 else SaslState.RAW

    def begin_again(self, at_ms: int) -> bool:
        """Begin another authentication, if a session has an end and the last one was not just
        begun; return whether it has begun. The handshake comes next.
        """
        if self.state is not SaslState.COMPLETE or self.ends_at_ms is None:
            return False
        if self._begun_at_ms is not None and at_ms - self._begun_at_ms < REAUTHENTICATION_MIN_MS:
            return False
        assert self.principal is not None
        self._begun_at_ms = at_ms
        self._before = (self._name, self.principal)
        self.state = SaslState.HANDSHAKE
        return True

    def has_ended(self, at_ms: int) -> bool:
        """Return true if the session has ended: the next request closes the connection."""
        return self.ends_at_ms is not None and at_ms > self.ends_at_ms

    def token(self, message: bytes) -> Outcome:
        """Take a message of the mechanism. Raises SaslFailure. `completed` comes after
        Authenticated, `validated` after TokenToValidate.
        """
        if self.state not in {SaslState.AUTHENTICATE, SaslState.RAW}:
            raise self._illegal("SaslAuthenticate")
        assert self._mechanism is not None
        if self._is_other_mechanism:
            assert self._before is not None
            raise self._failed(
                f"SASL mechanism '{self._name}' requested by client is not supported for "
                f"re-authentication of mechanism '{self._before[0]}'"
            )
        try:
            return self._checked(self._mechanism.evaluate(message))
        except SaslFailure:
            self.state = SaslState.FAILED
            raise

    def validated(self, result: ValidToken | InvalidToken) -> Outcome:
        """Go on after the validation of a token. Raises SaslFailure."""
        mechanism: TokenMechanism = self._mechanism  # type: ignore[assignment]
        try:
            return self._checked(mechanism.validated(result))
        except SaslFailure:
            self.state = SaslState.FAILED
            raise

    def completed(self, outcome: Authenticated, now_ms: int, at_ms: int) -> int:
        """End the exchange; return the lifetime of the session in milliseconds, 0: without end."""
        self.state = SaslState.COMPLETE
        self.principal = outcome.principal
        self._mechanism = None
        limits = []
        if outcome.expires_ms is not None:
            limits.append(outcome.expires_ms - now_ms)
        most = self._max_reauth_ms.get(self._name, 0)
        if most > 0 and outcome.principal.principal_type != NODE:  # nodes keep their channels
            limits.append(most)
        if not limits:
            self.ends_at_ms = None
            return 0
        lifetime_ms = max(0, min(*limits, LIFETIME_MAX_MS))
        self.ends_at_ms = at_ms + lifetime_ms
        return lifetime_ms

    def failure_text(self, failure: SaslFailure) -> str:
        """Return the message of a failure for the client."""
        if failure.shown is not None:
            return failure.shown
        kind = "re-authentication" if self.is_again else "authentication"
        return (
            f"Authentication failed during {kind} due to invalid credentials with SASL mechanism "
            f"{self._name}"
        )

    def _checked(self, outcome: Outcome) -> Outcome:
        """Refuse another principal than before."""
        if isinstance(outcome, Authenticated) and self._before is not None:
            before = self._before[1]
            if before[:2] != outcome.principal[:2]:
                raise self._failed(
                    "Cannot change principals during re-authentication from "
                    f"{before.principal_type}.{before.name}: "
                    f"{outcome.principal.principal_type}.{outcome.principal.name}"
                )
        return outcome

    def _failed(self, shown: str) -> SaslFailure:
        self.state = SaslState.FAILED
        return SaslFailure(shown, shown)

    def _illegal(self, request: str) -> IllegalSaslState:
        state, self.state = self.state, SaslState.FAILED
        return IllegalSaslState(f"{request} while the connection waits for {state.value}")
