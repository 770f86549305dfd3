"""The audit log has what is denied, and no client can flood it."""

from collections.abc import Mapping
from typing import Any

from lakehead.broker.security.audit import Attempt, AuditLog
from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.storage.clock import SystemClock


class _Clock(SystemClock):
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class _Audit:
    def __init__(self, *, logs_allowed: bool = False) -> None:
        self.clock = _Clock()
        self.log = AuditLog(self.clock, logs_allowed=logs_allowed)
        self.events: list[Mapping[str, Any]] = []
        self.log.sinks.append(self.events.append)


def attempt(name: str = "orders", user: str = "alice") -> Attempt:
    return Attempt(
        principal=KafkaPrincipal("User", user),
        host="10.0.0.7",
        listener="SASL_SSL",
        client_id="app",
        api="Produce",
        operation=AclOperation.WRITE,
        resource_type=ResourceType.TOPIC,
        resource=name,
    )


def test_an_event_has_all_of_a_denial() -> None:
    audit = _Audit()
    audit.log.denied(attempt())
    assert audit.events == [
        {
            "event": "authorization_denied",
            "principal": "User:alice",
            "client_host": "10.0.0.7",
            "listener": "SASL_SSL",
            "client_id": "app",
            "api": "Produce",
            "operation": "WRITE",
            "resource_type": "TOPIC",
            "resource": "orders",
        }
    ]


def test_the_same_denial_is_an_event_once_a_minute_with_the_number_of_the_others() -> None:
    audit = _Audit()
    for second in range(130):
        audit.clock.now = 1000.0 + second
        audit.log.denied(attempt())
    assert [event.get("repeated", 0) for event in audit.events] == [0, 59, 59]
    assert audit.log.denied_total == 130
    assert audit.log.suppressed_total == 127


def test_a_client_that_makes_up_names_writes_few_events() -> None:
    audit = _Audit()
    for number in range(10_000):
        audit.clock.now += 0.001
        audit.log.denied(attempt(f"topic-{number}"))
    assert 50 <= len(audit.events) <= 50 + 10 * 5 + 1
    audit.log.denied(attempt("orders", user="bob"))  # others are not silenced
    assert audit.events[-1]["principal"] == "User:bob"
    audit.clock.now += 10
    audit.log.denied(attempt("orders"))
    assert audit.events[-1]["repeated"] > 0


def test_a_long_name_is_cut() -> None:
    audit = _Audit()
    audit.log.denied(attempt("x" * 30_000, user="y" * 1_000_000))
    assert len(str(audit.events[0])) < 1200


def test_what_is_allowed_is_an_event_only_if_that_is_wanted() -> None:
    for is_wanted in (False, True):
        audit = _Audit(logs_allowed=is_wanted)
        audit.log.allowed(attempt())
        principal = KafkaPrincipal("User", "alice")
        audit.log.authentication_succeeded(
            principal, host="10.0.0.7", listener="SASL_SSL", mechanism="PLAIN"
        )
        names = [event["event"] for event in audit.events]
        wanted = ["authorization_allowed", "authentication_succeeded"]
        assert names == (wanted if is_wanted else [])


def test_failed_authentications_are_events_bounded_by_address() -> None:
    audit = _Audit()
    for number in range(1_000):
        audit.log.authentication_failed(
            host="10.0.0.7",
            listener="SASL_SSL",
            mechanism="PLAIN",
            name=f"user-{number}",
            reason="wrong credentials",
        )
    assert len(audit.events) == 50
    assert audit.events[0]["reason"] == "wrong credentials"
