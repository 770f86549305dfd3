"""Authenticates the connections of listeners with SASL, before any other request is served.

The state machines of `lakehead.broker.security.sasl` decide; this shell reads frames, waits for
validators of tokens, and writes responses. A connection that fails gets its response, and is
closed, after `connection.failed.authentication.delay.ms`: it can be tried again only so often.

Before KIP-152, after SaslHandshake version 0, messages of mechanisms are frames without a header.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.network.connection import Connection, Slot
from lakehead.broker.protocol.api import API_VERSIONS_KEY, Registry
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame, UnsupportedVersion
from lakehead.broker.protocol.frame import RequestHeader, encode_response, read_header
from lakehead.broker.protocol.messages import entity
from lakehead.broker.security.audit import AuditLog
from lakehead.broker.security.sasl.outcome import (
    Authenticated,
    Challenge,
    InvalidToken,
    Outcome,
    SaslFailure,
    TokenToValidate,
    ValidToken,
)
from lakehead.broker.security.sasl.session import (
    IllegalSaslState,
    MakeMechanism,
    SaslSession,
    SaslState,
    UnsupportedMechanism,
)
from lakehead.storage.clock import Clock
from lakehead.storage.tasks import TaskScope

HANDSHAKE, AUTHENTICATE = 17, 36
_ELEMENTS_MAX = 100
_log = structlog.get_logger("broker.security")


class TokenValidator(Protocol):
    """Says what a token proves."""

    def takes(self, token: str) -> bool:
        """Return true if the token is of the form that this validator checks."""

    async def validate(self, token: str) -> ValidToken | InvalidToken:
        """Return what a token proves. Never raises, and takes some seconds at most."""

    async def run(self) -> None:
        """Keep what the validator needs current, until it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslListener:
    """The mechanisms of a listener. `enabled` are the names that clients are shown;
    `mechanisms` has those of nodes, too.
    """

    enabled: tuple[str, ...]
    mechanisms: Mapping[str, MakeMechanism]
    max_reauth_ms: Mapping[str, int]
    max_receive_size: int
    validators: Sequence[TokenValidator] = ()


class VersionsServer(Protocol):
    """Serves ApiVersions: the dispatcher."""

    registry: Registry

    def respond(self, connection: Connection, header: RequestHeader, frame: memoryview) -> Any:
        """Return the response to a request that is handled at once. Raises MalformedFrame."""


class Authenticator:
    """Authenticates all connections of a node."""

    def __init__(
        self,
        listeners: Mapping[str, SaslListener],
        server: VersionsServer,
        clock: Clock,
        scope: TaskScope,
        audit: AuditLog,
        *,
        delay_s: float,
    ) -> None:
        self._listeners = listeners
        self.server = server
        self.clock = clock
        self.scope = scope
        self.audit = audit
        self.delay_s = delay_s
        self.succeeded_total: Counter[tuple[str, str]] = Counter()
        """By listener and mechanism."""
        self.failed_total: Counter[tuple[str, str]] = Counter()
        self.expired_total: int = 0
        """Connections that were closed because their session had ended."""

    def watch(self, connection: Connection) -> None:
        """Authenticate a new connection before it may send requests, if its listener has SASL."""
        listener = self._listeners.get(connection.listener.name)
        if listener is not None:
            connection.gate = Authentication(self, connection, listener)
            connection.limit_frames(most=listener.max_receive_size)

    async def run(self) -> None:
        """Keep current what validators of tokens need."""
        async with asyncio.TaskGroup() as group:
            for listener in self._listeners.values():
                for validator in listener.validators:
                    group.create_task(validator.run())


class Authentication:
    """The gate of one connection: takes frames until the client is authenticated."""

    __slots__ = ("_connection", "_is_noted", "_listener", "_session", "_shared")

    def __init__(
        self, shared: Authenticator, connection: Connection, listener: SaslListener
    ) -> None:
        self._shared = shared
        self._connection = connection
        self._listener = listener
        self._session = SaslSession(listener.mechanisms, listener.max_reauth_ms)
        self._is_noted = False
        """True after a token was refused, until the client ends the exchange or sends another."""

    def takes(self, frame: bytearray) -> bool:
        """Take a frame of the authentication: true. False: it is a request to serve."""
        session, view = self._session, memoryview(frame)
        if session.state is SaslState.FAILED:
            return True
        if session.state is SaslState.COMPLETE:
            at_ms = self._now_ms()
            is_handshake = int.from_bytes(frame[:2], "big") == HANDSHAKE
            if not (is_handshake and session.begin_again(at_ms)):
                return self._is_over(at_ms)
        slot = self._connection.slot()
        if session.state is SaslState.RAW:
            self._advance(slot, None, bytes(frame))
            return True
        try:
            header = read_header(view, self._shared.server.registry)
            self._take(slot, header, view)
        except (MalformedFrame, UnsupportedVersion) as error:
            self._fail(slot, SaslFailure(f"{error}, before authentication"), None)
        return True

    def _is_over(self, at_ms: int) -> bool:
        if not self._session.has_ended(at_ms):
            return False
        self._shared.expired_total += 1
        _log.info(
            "session_expired",
            client_host=self._connection.client_host,
            principal=str(self._session.principal),
        )
        self._connection.abort()
        return True

    def _take(self, slot: Slot, header: RequestHeader, view: memoryview) -> None:
        if header.key == API_VERSIONS_KEY and self._session.state is SaslState.INITIAL:
            response = self._shared.server.respond(self._connection, header, view)
            if response.error_code is ErrorCode.none:
                self._session.versions_shown()
            slot.complete([encode_response(response, header.correlation_id)])
        elif header.key == HANDSHAKE:
            self._shake_hands(slot, header, self._decoded(header, view).mechanism)
        elif header.key == AUTHENTICATE:
            self._advance(slot, header, bytes(self._decoded(header, view).auth_bytes))
        else:
            name = header.schema.request_class.__name__
            self._fail(slot, IllegalSaslState(f"{name} before authentication"), None)

    @staticmethod
    def _decoded(header: RequestHeader, view: memoryview) -> Any:
        return decode(header.schema.request_class, view, header.body, _ELEMENTS_MAX)

    def _shake_hands(self, slot: Slot, header: RequestHeader, mechanism: str) -> None:
        code = ErrorCode.none
        failure: SaslFailure | None = None
        try:
            self._session.handshake(header.version, mechanism)
        except UnsupportedMechanism as error:
            code, failure = ErrorCode.unsupported_sasl_mechanism, error
        except SaslFailure as error:
            code, failure = ErrorCode.illegal_sasl_state, error
        response = entity(
            header.schema.response_module,
            "SaslHandshakeResponse",
            error_code=code,
            mechanisms=() if code is ErrorCode.illegal_sasl_state else self._listener.enabled,
        )
        frame = encode_response(response, header.correlation_id)
        if failure is not None:
            self._fail(slot, failure, frame)
            return
        if self._session.state is SaslState.RAW:
            self._connection.limit_frames(most=self._listener.max_receive_size, is_raw=True)
        slot.complete([frame])

    def _advance(self, slot: Slot, header: RequestHeader | None, message: bytes) -> None:
        try:
            outcome = self._session.token(message)
        except SaslFailure as failure:
            self._refuse(slot, header, failure)
            return
        if not isinstance(outcome, TokenToValidate):
            self._reply(slot, header, outcome)
            return
        shared, self._is_noted = self._shared, False
        task = shared.scope.spawn_apart(
            self._validate(slot, header, outcome.value),
            name="validate a token",
            on_error=partial(self._crashed, slot, header),
        )
        slot.cancel = task.cancel

    async def _validate(self, slot: Slot, header: RequestHeader | None, token: str) -> None:
        result = await _validated(self._listener.validators, token)
        slot.cancel = None
        if isinstance(result, InvalidToken):
            # A client may leave without the message that ends its exchange, as some do.
            self._note(result.reason)
            self._is_noted = True
        try:
            outcome = self._session.validated(result)
        except SaslFailure as failure:
            self._refuse(slot, header, failure)
        else:
            self._reply(slot, header, outcome)

    def _crashed(self, slot: Slot, header: RequestHeader | None, error: BaseException) -> None:
        _log.error("authentication_crashed", exc_info=error)
        self._refuse(slot, header, SaslFailure(f"an error of the broker: {type(error).__name__}"))

    def _reply(self, slot: Slot, header: RequestHeader | None, outcome: Outcome) -> None:
        assert isinstance(outcome, Challenge | Authenticated)
        lifetime_ms = 0
        if isinstance(outcome, Authenticated):
            lifetime_ms = self._let_in(outcome)
        if header is None:
            slot.complete([len(outcome.message).to_bytes(4, "big") + outcome.message])
            return
        response = entity(
            header.schema.response_module,
            "SaslAuthenticateResponse",
            error_code=ErrorCode.none,
            error_message=None,
            auth_bytes=outcome.message,
            session_lifetime=lifetime_ms,
        )
        slot.complete([encode_response(response, header.correlation_id)])

    def _let_in(self, outcome: Authenticated) -> int:
        session, connection = self._session, self._connection
        lifetime_ms = session.completed(outcome, self._shared.clock.now_ms(), self._now_ms())
        connection.principal = outcome.principal
        connection.is_authenticated = True
        connection.limit_frames()
        if session.ends_at_ms is None:
            connection.gate = None
        self._shared.succeeded_total[connection.listener.name, session.mechanism] += 1
        self._shared.audit.authentication_succeeded(
            outcome.principal,
            host=connection.client_host,
            listener=connection.listener.name,
            mechanism=session.mechanism,
        )
        return lifetime_ms

    def _refuse(self, slot: Slot, header: RequestHeader | None, failure: SaslFailure) -> None:
        """Fail the exchange, with a response unless the client sends raw tokens."""
        is_illegal = isinstance(failure, IllegalSaslState)
        frame = None
        if header is not None and not (is_illegal and self._session.mechanism == ""):
            response = entity(
                header.schema.response_module,
                "SaslAuthenticateResponse",
                error_code=(
                    ErrorCode.illegal_sasl_state
                    if is_illegal
                    else ErrorCode.sasl_authentication_failed
                ),
                error_message=self._session.failure_text(failure),
                auth_bytes=b"",
            )
            frame = encode_response(response, header.correlation_id)
        self._fail(slot, failure, frame)

    def _fail(self, slot: Slot, failure: SaslFailure, frame: bytes | None) -> None:
        """Close the connection after a delay, with a response or without one."""
        connection = self._connection
        self._session.state = SaslState.FAILED
        if not self._is_noted:
            self._note(failure.reason)
        loop = asyncio.get_running_loop()

        def end() -> None:
            slot.cancel = None
            if frame is not None:
                slot.complete([frame])
            loop.call_soon(connection.close)

        slot.cancel = loop.call_later(self._shared.delay_s, end).cancel

    def _note(self, reason: str) -> None:
        """Count a failure, and give it to the audit log."""
        connection, mechanism = self._connection, self._session.mechanism
        self._shared.failed_total[connection.listener.name, mechanism] += 1
        self._shared.audit.authentication_failed(
            host=connection.client_host,
            listener=connection.listener.name,
            mechanism=mechanism,
            reason=reason,
        )

    def _now_ms(self) -> int:
        return int(self._shared.clock.monotonic() * 1000)


async def _validated(validators: Sequence[TokenValidator], token: str) -> ValidToken | InvalidToken:
    """Return what a token proves by the validator for its form."""
    for one in validators:
        if one.takes(token):
            return await one.validate(token)
    return InvalidToken("tokens of this form are not accepted")
