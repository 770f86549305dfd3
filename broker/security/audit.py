"""The audit log: decisions about access and results of authentication, as log events.

Kafka writes denials at level INFO and what is allowed at DEBUG; here the setting
`audit.log.allowed` adds what is allowed. A client decides how often it is denied, so events are
bounded (`EventRateLimit`), by their principal. Those that were left out are counted as `repeated`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import structlog

from lakehead.broker.observability.event_rate_limit import EventRateLimit
from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.storage.clock import Clock

_TEXT_MAX = 256
"""Characters of a name that an event shows: clients choose names."""

Sink = Callable[[Mapping[str, Any]], None]
_log = structlog.get_logger("broker.audit")


class Attempt(NamedTuple):
    """An operation of a client on a resource, as its request has it."""

    principal: KafkaPrincipal
    host: str
    listener: str
    client_id: str | None
    api: str
    operation: AclOperation
    resource_type: ResourceType
    resource: str


class AuditLog:
    """Writes events, a bounded number of them. `sinks` get each event that is written."""

    def __init__(self, clock: Clock, *, logs_allowed: bool) -> None:
        self.logs_allowed = logs_allowed
        self.sinks: list[Sink] = []
        self.denied_total = 0
        """Denials that were reported to clients."""
        self._limit = EventRateLimit(clock)

    @property
    def suppressed_total(self) -> int:
        """Events that were not written, because there were too many like them."""
        return self._limit.suppressed_total

    def denied(self, attempt: Attempt) -> None:
        """Note that something was denied."""
        self.denied_total += 1
        self._note("authorization_denied", attempt)

    def allowed(self, attempt: Attempt) -> None:
        """Note that something was allowed, if such events are wanted."""
        if self.logs_allowed:
            self._note("authorization_allowed", attempt)

    def authentication_failed(
        self, *, host: str, listener: str, mechanism: str, name: str = "", reason: str = ""
    ) -> None:
        """Note that a client could not prove its name. `reason` has no secret in it."""
        fields = {"mechanism": mechanism, "user": name, "reason": reason}
        self._note_client("authentication_failed", host, listener, fields)

    def authentication_succeeded(
        self, principal: KafkaPrincipal, *, host: str, listener: str, mechanism: str
    ) -> None:
        """Note that a client has proven its name, if what is allowed is wanted."""
        if self.logs_allowed:
            fields = {"principal": str(principal), "mechanism": mechanism}
            self._note_client("authentication_succeeded", host, listener, fields)

    def _note(self, event: str, attempt: Attempt) -> None:
        principal, kind = str(attempt.principal), attempt.resource_type
        name = _shown(attempt.resource)
        key = (event, principal, attempt.host, attempt.operation, kind, name)
        repeated = self._limit.admit(key, principal)
        if repeated is None:
            return
        self._write(
            event,
            repeated,
            {
                "principal": _shown(principal),
                "client_host": attempt.host,
                "listener": attempt.listener,
                "client_id": _shown(attempt.client_id or ""),
                "api": attempt.api,
                "operation": attempt.operation.name,
                "resource_type": kind.name,
                "resource": name,
            },
        )

    def _note_client(self, event: str, host: str, listener: str, fields: Mapping[str, str]) -> None:
        shown = {name: _shown(value) for name, value in fields.items() if value}
        repeated = self._limit.admit((event, host, listener, *shown.items()), f"{event} {host}")
        if repeated is not None:
            self._write(event, repeated, {"client_host": host, "listener": listener, **shown})

    def _write(self, event: str, repeated: int, fields: Mapping[str, str]) -> None:
        counted = {**fields, "repeated": repeated} if repeated else fields
        _log.info(event, **counted)
        for sink in self.sinks:
            sink({"event": event, **counted})


def _shown(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
