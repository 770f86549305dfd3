"""The outcome of a client's SASL message, and the interface of the mechanisms (RFC 4422)."""

from typing import NamedTuple, Protocol

from lakehead.broker.security.principal import KafkaPrincipal


class Challenge(NamedTuple):
    """The exchange goes on: the client gets `message` and sends another one."""

    message: bytes


class Authenticated(NamedTuple):
    """The client has proven a name. `message` is the last one that it gets, often empty.

    `expires_ms` is the end of its credential, in milliseconds since 1970; None: it has no end.
    """

    principal: KafkaPrincipal
    message: bytes = b""
    expires_ms: int | None = None


class TokenToValidate(NamedTuple):
    """The exchange waits until `value`, the token of the client, is validated: see
    `TokenMechanism.validated`.
    """

    value: str


class SaslFailure(Exception):
    """The client has not proven a name. `reason` is for the event log and holds no secret.

    `shown` is the message that the client gets. Without one it gets a general text, as in Kafka,
    from which it does not learn if a user exists.
    """

    def __init__(self, reason: str, shown: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.shown = shown


Outcome = Challenge | Authenticated | TokenToValidate


class SaslMechanism(Protocol):
    """One exchange of one client, the server's side."""

    def evaluate(self, message: bytes) -> Outcome:
        """Take the next message of the client. Raises SaslFailure; the exchange is over then."""


class ValidToken(NamedTuple):
    """A token that was found valid: the name that it proves, and until when (milliseconds)."""

    name: str
    expires_ms: int


class InvalidToken(NamedTuple):
    """A token that was refused. `status`, and the `scope` that it lacks, are what the client gets
    (RFC 7628, section 3.2.2); `reason` is for the event log.
    """

    reason: str
    status: str = "invalid_token"
    scope: str | None = None


class TokenMechanism(SaslMechanism, Protocol):
    """A mechanism that returns `TokenToValidate`."""

    def validated(self, result: ValidToken | InvalidToken) -> Outcome:
        """Go on with the result of the validation. Raises SaslFailure."""
