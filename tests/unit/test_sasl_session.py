"""The order of SASL messages is that of Kafka, and a session keeps its principal."""

import pytest

from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.broker.security.sasl.outcome import Authenticated, SaslFailure
from lakehead.broker.security.sasl.plain import PlainServer, PlainUsers
from lakehead.broker.security.sasl.session import (
    IllegalSaslState,
    SaslSession,
    SaslState,
    UnsupportedMechanism,
)

USERS = PlainUsers({"alice": "a", "bob": "b"})
MECHANISMS = {"PLAIN": lambda: PlainServer(USERS), "PLAIN-2": lambda: PlainServer(USERS)}
ALICE = b"\0alice\0a"


def session(max_reauth_ms: int = 0) -> SaslSession:
    return SaslSession(MECHANISMS, {"PLAIN": max_reauth_ms})


def authenticate(one: SaslSession, message: bytes, *, now_ms: int = 0, at_ms: int = 0) -> int:
    outcome = one.token(message)
    assert isinstance(outcome, Authenticated)
    return one.completed(outcome, now_ms, at_ms)


@pytest.mark.parametrize("shows_versions", [True, False])
@pytest.mark.parametrize(("version", "state"), [(0, SaslState.RAW), (1, SaslState.AUTHENTICATE)])
def test_versions_handshake_tokens(shows_versions: bool, version: int, state: SaslState) -> None:
    one = session()
    if shows_versions:
        one.versions_shown()
    one.handshake(version, "PLAIN")
    assert one.state is state
    assert authenticate(one, ALICE) == 0
    assert one.state is SaslState.COMPLETE
    assert one.principal == KafkaPrincipal("User", "alice")
    assert not one.has_ended(10**9)


def test_versions_are_shown_once() -> None:
    one = session()
    one.versions_shown()
    with pytest.raises(IllegalSaslState):
        one.versions_shown()
    with pytest.raises(IllegalSaslState):
        one.handshake(1, "PLAIN")


def test_a_token_before_the_handshake_and_a_second_handshake_are_illegal() -> None:
    with pytest.raises(IllegalSaslState):
        session().token(ALICE)
    one = session()
    one.handshake(1, "PLAIN")
    with pytest.raises(IllegalSaslState):
        one.handshake(1, "PLAIN")
    with pytest.raises(IllegalSaslState):
        one.token(ALICE)


def test_a_mechanism_that_is_not_enabled_ends_the_exchange() -> None:
    one = session()
    with pytest.raises(UnsupportedMechanism):
        one.handshake(1, "GSSAPI")
    assert one.state is SaslState.FAILED


def test_no_message_is_taken_after_a_failure() -> None:
    one = session()
    one.handshake(1, "PLAIN")
    with pytest.raises(SaslFailure):
        one.token(b"\0alice\0wrong")
    with pytest.raises(IllegalSaslState):
        one.token(ALICE)


def test_a_session_ends_with_the_credential_or_the_setting_what_comes_first() -> None:
    alice = KafkaPrincipal("User", "alice")
    for most, expires, lifetime in [
        (0, None, 0),
        (500, None, 500),
        (0, 1_300, 300),
        (500, 1_300, 300),
        (200, 1_300, 200),
        (500, 900, 0),
    ]:
        one = session(most)
        one.handshake(1, "PLAIN")
        assert one.completed(Authenticated(alice, expires_ms=expires), 1_000, 50) == lifetime
        has_end = bool(most or expires)
        assert one.has_ended(50 + lifetime + 1) is has_end
        assert not one.has_ended(50 + lifetime)


def test_a_client_authenticates_again_by_the_same_mechanism_as_the_same_principal() -> None:
    one = session(500)
    one.handshake(1, "PLAIN")
    authenticate(one, ALICE, at_ms=0)
    assert one.begin_again(2_000)
    one.handshake(1, "PLAIN")
    assert authenticate(one, ALICE, at_ms=2_000) == 500
    assert not one.begin_again(2_900)
    assert one.begin_again(3_100)
    one.handshake(1, "PLAIN")
    with pytest.raises(SaslFailure) as refused:
        one.token(b"\0bob\0b")
    assert refused.value.shown == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )


def test_another_mechanism_fails_at_the_message_after_the_handshake() -> None:
    one = session(500)
    one.handshake(1, "PLAIN")
    authenticate(one, ALICE)
    assert one.begin_again(2_000)
    one.handshake(1, "PLAIN-2")
    with pytest.raises(SaslFailure, match="not supported for re-authentication") as refused:
        one.token(ALICE)
    assert refused.value.shown is not None


def test_a_session_without_an_end_does_not_begin_again() -> None:
    one = session()
    one.handshake(1, "PLAIN")
    authenticate(one, ALICE)
    assert not one.begin_again(10**6)


def test_the_general_text_names_mechanism_and_kind() -> None:
    one = session(500)
    one.handshake(1, "PLAIN")
    hidden = SaslFailure("no such user")
    assert one.failure_text(hidden) == (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism PLAIN"
    )
    authenticate(one, ALICE)
    one.begin_again(5_000)
    assert "during re-authentication due to" in one.failure_text(hidden)
    assert one.failure_text(SaslFailure("a", "shown")) == "shown"
