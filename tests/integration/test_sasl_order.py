"""Before authentication a connection takes the messages that Kafka takes, in its order, and nothing
else; afterwards it acts under the name that was proven.
"""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.observability.event_rate_limit import EventRateLimit
from lakehead.broker.security.principal import KafkaPrincipal
from tests.support.sasl_client import AUTHENTICATE, SaslClient, scram_final
from tests.support.watched_node import WatchedNode

DELAY_MS = 150
# The loop counts its timers in whole milliseconds and may be one early.
TIMER_S = 0.001
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
ADMIN_PASSWORD, ALICE_PASSWORD = "admin-s3cret", "alice-s3cret"
ENABLED = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENT://127.0.0.1:0,SHORT://127.0.0.1:0",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT"
    ),
    "sasl.enabled.mechanisms": ENABLED,
    "sasl.jaas.config": f'{PLAIN} required user_alice="{ALICE_PASSWORD}" user_bob="b" user_a="b";',
    "listener.name.short.plain.connections.max.reauth.ms": "1500",
    "connection.failed.authentication.delay.ms": str(DELAY_MS),
    "bootstrap.admin": "admin",
    "bootstrap.admin.password": ADMIN_PASSWORD,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    with WatchedNode(tmp_path_factory.mktemp("sasl"), SETTINGS) as running:
        yield running


@pytest.fixture
def port(node: WatchedNode) -> int:
    return node.node.services.addresses["CLIENT"].port


@pytest.fixture
def short_port(node: WatchedNode) -> int:
    return node.node.services.addresses["SHORT"].port


def principals(node: WatchedNode) -> set[KafkaPrincipal]:
    return {connection.principal for connection in node.node.server.connections}


def test_versions_handshake_and_tokens_come_before_requests(node: WatchedNode, port: int) -> None:
    with SaslClient(port) as client:
        assert client.versions(0).error_code is ErrorCode.none
        response = client.plain("alice", ALICE_PASSWORD)
        assert response.error_code is ErrorCode.none
        assert response.auth_bytes == b""
        assert response.session_lifetime.total_seconds() == 0
        assert client.metadata().brokers
        assert KafkaPrincipal("User", "alice") in principals(node)
        # Both are refused, and the connection goes on, once the client is authenticated.
        assert client.handshake("PLAIN").error_code is ErrorCode.illegal_sasl_state
        assert client.authenticate(b"x").error_code is ErrorCode.illegal_sasl_state
        assert client.metadata().brokers


def test_a_version_that_is_not_served_may_be_followed_by_one_that_is(port: int) -> None:
    with SaslClient(port) as client:
        client.send(b"\0\0\0\x0e" + b"\0\x12\0\x63" + b"\0\0\0\x01" + b"\xff\xff" + b"\0\0\0\0")
        assert client.take(18, 0).error_code is ErrorCode.unsupported_version
        assert client.versions(0).error_code is ErrorCode.none
        assert client.plain("alice", ALICE_PASSWORD).error_code is ErrorCode.none


@pytest.mark.parametrize("mechanism", ["GSSAPI", "", "x" * 30_000, "plain"])
def test_an_unknown_mechanism_gets_the_enabled_ones_and_is_disconnected(
    port: int, mechanism: str
) -> None:
    begun = time.monotonic()
    with SaslClient(port) as client:
        response = client.handshake(mechanism)
        assert time.monotonic() - begun >= DELAY_MS / 1000 - TIMER_S
        assert response.error_code is ErrorCode.unsupported_sasl_mechanism
        assert list(response.mechanisms) == ENABLED.split(",")
        assert client.is_closed()


@pytest.mark.parametrize("shows_versions", [True, False])
def test_no_other_request_is_served_before_authentication(port: int, shows_versions: bool) -> None:
    with SaslClient(port) as client:
        if shows_versions:
            client.versions(0)
        with pytest.raises(EOFError):
            client.metadata()
    with SaslClient(port) as client:
        client.handshake("PLAIN")
        with pytest.raises(EOFError):
            client.metadata()


def test_versions_twice_and_a_token_before_the_handshake_close_the_connection(port: int) -> None:
    with SaslClient(port) as client:
        client.versions(0)
        with pytest.raises(EOFError):
            client.versions(0)
    with SaslClient(port) as client, pytest.raises(EOFError):
        client.authenticate(b"\0alice\0" + ALICE_PASSWORD.encode())


def test_requests_behind_a_wrong_password_are_not_served(port: int) -> None:
    with SaslClient(port) as client, SaslClient(port) as other:
        client.handshake("PLAIN")
        begun = time.monotonic()
        response = client.authenticate(b"\0alice\0wrong")
        assert time.monotonic() - begun >= DELAY_MS / 1000 - TIMER_S
        assert response.error_code is ErrorCode.sasl_authentication_failed
        assert response.error_message == "Authentication failed: Invalid username or password"
        assert client.is_closed()
        assert other.plain("alice", ALICE_PASSWORD).error_code is ErrorCode.none


@pytest.mark.parametrize("data", [b"\x60\x82\x01\x00" * 3, b"GET / HTTP/1.1\r\n", b"\0" * 12])
def test_what_is_no_request_of_kafka_is_disconnected(port: int, data: bytes) -> None:
    with SaslClient(port) as client:
        client.send(len(data).to_bytes(4, "big") + data)
        assert client.is_closed()


def test_a_frame_before_authentication_is_limited(port: int) -> None:
    with SaslClient(port) as client:
        client.send((524_289).to_bytes(4, "big") + b"\0\x11\0\x01")
        assert client.is_closed()
    with SaslClient(port) as client:
        client.handshake("PLAIN")
        response = client.authenticate(b"\0" + b"u" * 500_000 + b"\0p")
        assert response.error_code is ErrorCode.sasl_authentication_failed


def test_old_clients_send_tokens_without_headers(node: WatchedNode, port: int) -> None:
    with SaslClient(port) as client:
        assert client.handshake("PLAIN", version=0).error_code is ErrorCode.none
        assert client.raw(b"\0a\0b") == b""
        assert client.metadata().brokers
    with SaslClient(port) as client:
        assert client.handshake("SCRAM-SHA-256", version=0).error_code is ErrorCode.none
        bare = "n=admin,r=abcdef"
        challenge = client.raw(f"n,,{bare}".encode())
        assert client.raw(scram_final(bare, challenge, ADMIN_PASSWORD, "sha256"))[:2] == b"v="
        assert client.metadata().brokers
        assert KafkaPrincipal("User", "admin") in principals(node)
    for token in (b"", b"x", b"\0\0\0\0", b"\0alice\0wrong"):
        with SaslClient(port) as client:
            client.handshake("PLAIN", version=0)
            with pytest.raises(EOFError):
                client.raw(token)


def scram_first(client: SaslClient, user: str, mechanism: str = "SCRAM-SHA-512") -> bytes:
    client.handshake(mechanism)
    challenge: bytes = client.authenticate(f"n,,n={user},r=abcdef".encode()).auth_bytes
    return challenge


def test_an_unknown_user_cannot_be_told_from_a_known_one(port: int) -> None:
    shape = re.compile(rb"r=abcdef[0-9a-z]{20,26},s=[A-Za-z0-9+/]{28,36}=*,i=4096")
    salts: dict[str, bytes] = {}
    texts = set()
    for user in ("admin", "nobody", "admin", "nobody", "nobody2"):
        with SaslClient(port) as client:
            challenge = scram_first(client, user)
            assert shape.fullmatch(challenge), challenge
            salt = challenge.split(b",")[1]
            assert salts.setdefault(user, salt) == salt
            final = scram_final(f"n={user},r=abcdef", challenge, "wrong", "sha512")
            response = client.authenticate(final)
            assert response.error_code is ErrorCode.sasl_authentication_failed
            texts.add(response.error_message)
            assert client.is_closed()
    assert len(set(salts.values())) == 3
    (text,) = texts
    assert text == (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism SCRAM-SHA-512"
    )


def test_a_session_ends_unless_the_client_authenticates_again(
    node: WatchedNode, short_port: int
) -> None:
    with SaslClient(short_port) as stays, SaslClient(short_port) as leaves:
        for client in (stays, leaves):
            response = client.plain("alice", ALICE_PASSWORD)
            assert response.session_lifetime.total_seconds() == 1.5
        ended = node.node.authenticator.expired_total
        until = time.monotonic() + 3.5
        while time.monotonic() < until:
            assert stays.metadata().brokers
            assert stays.plain("alice", ALICE_PASSWORD).error_code is ErrorCode.none
            time.sleep(1.1)  # at most once a second, as in Kafka
        assert stays.metadata().brokers
        with pytest.raises(EOFError):
            leaves.metadata()
        assert node.node.authenticator.expired_total == ended + 1


def test_a_client_stays_the_principal_that_it_was(short_port: int) -> None:
    with SaslClient(short_port) as client:
        client.plain("alice", ALICE_PASSWORD)
        response = client.plain("bob", "b")
        assert response.error_code is ErrorCode.sasl_authentication_failed
        assert response.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        assert client.is_closed()
    with SaslClient(short_port) as client:
        client.plain("alice", ALICE_PASSWORD)
        client.handshake("SCRAM-SHA-256")
        response = client.authenticate(b"n,,n=admin,r=abc")
        assert response.error_code is ErrorCode.sasl_authentication_failed
        assert "not supported for re-authentication of mechanism 'PLAIN'" in response.error_message
        assert client.is_closed()


def test_no_request_is_served_in_the_middle_of_another_authentication(short_port: int) -> None:
    with SaslClient(short_port) as client:
        client.plain("alice", ALICE_PASSWORD)
        client.handshake("PLAIN")
        with pytest.raises(EOFError):
            client.metadata()


def _forget_events(node: WatchedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the audit log write an event that it has written a moment ago."""
    services = node.node.services
    monkeypatch.setattr(services.audit, "_limit", EventRateLimit(services.clock))


def test_the_settings_and_the_log_show_no_password(
    node: WatchedNode,
    port: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _forget_events(node, monkeypatch)
    settings = node.node.settings
    for text in (repr(settings), repr(node.node), str(node.node.services.settings)):
        assert ADMIN_PASSWORD not in text
        assert ALICE_PASSWORD not in text
    with SaslClient(port) as client:
        client.plain("alice", "wr0ng-s3cret")
        client.is_closed()
    shown = capfd.readouterr()
    assert "authentication_failed" in shown.out + shown.err
    assert "s3cret" not in shown.out + shown.err


def test_a_login_by_scram_costs_the_broker_little(node: WatchedNode, port: int) -> None:
    node.longest_stall()
    begun = time.process_time()
    finals = []
    for _ in range(5):
        with SaslClient(port) as client:
            challenge = scram_first(client, "admin", "SCRAM-SHA-256")
            work = time.process_time()
            final = scram_final("n=admin,r=abcdef", challenge, ADMIN_PASSWORD, "sha256")
            begun += time.process_time() - work
            assert client.authenticate(final).error_code is ErrorCode.none
            finals.append(final)
    assert (time.process_time() - begun) / 5 < 0.05  # with the client's part; the goal is 5 ms
    assert len(set(finals)) == 5


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(
    node: WatchedNode, port: int
) -> None:
    for messages in range(3):
        with SaslClient(port) as client:
            if messages > 0:
                client.handshake("PLAIN")
            if messages > 1:
                client.send(b"\0\0\0\x20" + AUTHENTICATE.to_bytes(2, "big"))
    with SaslClient(port) as client:
        client.handshake("PLAIN")
        client.send(b"\0\0\0\x13\0\x24\0\0\0\0\0\x01\xff\xff\0\0\0\x05\0a\0bx")
    with SaslClient(port) as client:
        assert client.plain("alice", ALICE_PASSWORD).error_code is ErrorCode.none
    assert node.is_well


def test_the_audit_log_has_failed_logins_and_those_that_succeed_if_they_are_wanted(
    node: WatchedNode, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = node.node.services.audit
    events: list[Mapping[str, Any]] = []
    _forget_events(node, monkeypatch)
    monkeypatch.setattr(audit, "sinks", [events.append])
    for is_wanted in (False, True):
        monkeypatch.setattr(audit, "logs_allowed", is_wanted)
        for password in ("wrong", "wr0ng", ALICE_PASSWORD):
            with SaslClient(port) as client:
                client.plain("alice", password)
    place = {"client_host": "127.0.0.1", "listener": "CLIENT", "mechanism": "PLAIN"}
    reason = "Authentication failed: Invalid username or password"
    assert events == [
        {"event": "authentication_failed", "reason": reason, **place},  # once a minute
        {"event": "authentication_succeeded", "principal": "User:alice", **place},
    ]
