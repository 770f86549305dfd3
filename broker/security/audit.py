"""The audit log: decisions about access and results of authentication, as log events.

Kafka writes denials at level INFO and what is allowed at DEBUG; here the setting
`audit.log.allowed` adds what is allowed. A client decides how often it is denied, so events are
bounded: one a minute of the same principal, operation and resource, and of one principal `_BURST`
at once and `_RATE_S` a second. The next event of the same counts those between as `repeated`.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import structlog

from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.storage.clock import Clock

INTERVAL_S = 60.0
"""Time after which the same decision is an event again."""
_BURST, _RATE_S = 50, 5.0
_KEYS_MAX, _PRINCIPALS_MAX = 8_192, 1_024
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


class _Bucket:
    """Tokens of one principal."""

    __slots__ = ("at", "left", "suppressed")

    def __init__(self, now: float) -> None:
        self.at = now
        self.left = float(_BURST)
        self.suppressed = 0


class AuditLog:
    """Writes events, a bounded number of them. `sinks` get each event that is written."""

    def __init__(self, clock: Clock, *, logs_allowed: bool) -> None:
        self.logs_allowed = logs_allowed
        self.sinks: list[Sink] = []
        self.denied_total = 0
        """Denials that were reported to clients."""
        self.suppressed_total = 0
        """Events that were not written, because there were too many like them."""
        self._clock = clock
        self._seen: OrderedDict[tuple[Any, ...], list[float]] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

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
        repeated = self._admitted(key, principal)
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
        repeated = self._admitted((event, host, listener, *shown.items()), f"{event} {host}")
        if repeated is not None:
            self._write(event, repeated, {"client_host": host, "listener": listener, **shown})

    def _admitted(self, key: tuple[Any, ...], owner: str) -> int | None:
        """Return how many events like this were not written since the last one; None if this one
        is not written either.
        """
        now = self._clock.monotonic()
        seen = self._seen.get(key)
        if seen is not None and now - seen[0] < INTERVAL_S:
            seen[1] += 1
            self.suppressed_total += 1
            return None
        bucket = self._bucket(owner, now)
        if bucket.left < 1:
            bucket.suppressed += 1
            self.suppressed_total += 1
            return None
        bucket.left -= 1
        repeated = bucket.suppressed + (0 if seen is None else int(seen[1]))
        bucket.suppressed = 0
        self._seen[key] = [now, 0]
        self._seen.move_to_end(key)
        if len(self._seen) > _KEYS_MAX:
            self._seen.popitem(last=False)
        return repeated

    def _bucket(self, owner: str, now: float) -> _Bucket:
        bucket = self._buckets.get(owner)
        if bucket is None:
            bucket = self._buckets[owner] = _Bucket(now)
            if len(self._buckets) > _PRINCIPALS_MAX:
                self._buckets.popitem(last=False)
        bucket.left = min(float(_BURST), bucket.left + (now - bucket.at) * _RATE_S)
        bucket.at = now
        return bucket

    def _write(self, event: str, repeated: int, fields: Mapping[str, str]) -> None:
        counted = {**fields, "repeated": repeated} if repeated else fields
        _log.info(event, **counted)
        for sink in self.sinks:
            sink({"event": event, **counted})


def _shown(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
