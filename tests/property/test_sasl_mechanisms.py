"""SASL mechanisms by the vectors of their RFCs, and under messages that no honest client sends."""

import base64
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.broker.security.sasl.oauthbearer import OAuthBearerServer
from lakehead.broker.security.sasl.outcome import (
    Authenticated,
    Challenge,
    InvalidToken,
    Outcome,
    SaslFailure,
    SaslMechanism,
    TokenToValidate,
    ValidToken,
)
from lakehead.broker.security.sasl.plain import PlainServer, PlainUsers
from lakehead.broker.security.sasl.scram import (
    SCRAM_MECHANISMS,
    SHA_256,
    SHA_512,
    ScramClient,
    ScramIdentity,
    ScramMechanism,
    ScramServer,
    principal_of,
    secure_text,
)
from tests.support.repetitions import examples

LARGE = 1 << 20
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
scram_mechanisms = st.sampled_from(sorted(SCRAM_MECHANISMS)).map(SCRAM_MECHANISMS.__getitem__)


def scram_server(
    mechanism: ScramMechanism, user: str, password: str, *, salt: bytes = b"salt", nonce: str = "s"
) -> ScramServer:
    identity = ScramIdentity(mechanism.credential_of(password, salt, 4096), principal_of(user))
    nobody = ScramIdentity(mechanism.credential_of("?", b"x", 4096), principal_of("nobody"))
    return ScramServer(mechanism, lambda name, _: identity if name == user else nobody, nonce)


def scram_client(mechanism: ScramMechanism, user: str, password: str) -> ScramClient:
    def salted(salt: bytes, rounds: int) -> bytes:
        return mechanism.salted_password(password, salt, rounds)

    return ScramClient(mechanism, user, salted, secure_text(random.Random(7)))


def log_in(server: ScramServer, client: ScramClient) -> Authenticated:
    challenge = server.evaluate(client.first())
    assert isinstance(challenge, Challenge)
    outcome = server.evaluate(client.final(challenge.message))
    assert isinstance(outcome, Authenticated)
    client.check(outcome.message)
    return outcome


def test_scram_sha_256_follows_the_vector_of_rfc_7677() -> None:
    server = scram_server(
        SHA_256,
        "user",
        "pencil",
        salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="),
        nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    assert server.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    outcome = server.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert outcome == Authenticated(
        KafkaPrincipal("User", "user"), b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )


@settings(max_examples=examples(40), deadline=None)
@given(scram_mechanisms, names, names)
def test_scram_lets_every_user_in_by_the_own_password(
    mechanism: ScramMechanism, user: str, password: str
) -> None:
    server = scram_server(mechanism, user, password)
    outcome = log_in(server, scram_client(mechanism, user, password))
    assert outcome.principal == principal_of(user)


@settings(max_examples=examples(40), deadline=None)
@given(scram_mechanisms, names, names, names)
def test_scram_refuses_every_other_password_at_the_last_message(
    mechanism: ScramMechanism, user: str, password: str, other: str
) -> None:
    server = scram_server(mechanism, user, password)
    client = scram_client(mechanism, user, other)
    challenge = server.evaluate(client.first())
    assert isinstance(challenge, Challenge)
    final = client.final(challenge.message)
    if other == password:
        assert isinstance(server.evaluate(final), Authenticated)
        return
    with pytest.raises(SaslFailure) as refused:
        server.evaluate(final)
    assert refused.value.shown is None


def test_scram_refuses_a_final_message_that_was_sent_before() -> None:
    client = scram_client(SHA_512, "alice", "secret")
    first = scram_server(SHA_512, "alice", "secret", nonce="one")
    challenge = first.evaluate(client.first())
    assert isinstance(challenge, Challenge)
    final = client.final(challenge.message)
    assert isinstance(first.evaluate(final), Authenticated)
    with pytest.raises(SaslFailure):
        first.evaluate(final)
    second = scram_server(SHA_512, "alice", "secret", nonce="two")
    second.evaluate(client.first())
    with pytest.raises(SaslFailure, match="nonce"):
        second.evaluate(final)


def test_scram_names_the_client_that_sends_its_nonce_twice() -> None:
    client, server = scram_client(SHA_512, "alice", "secret"), scram_server(SHA_512, "alice", "x")
    first = client.first()
    challenge = server.evaluate(first)
    assert isinstance(challenge, Challenge)
    own = first.partition(b",r=")[2]
    doubled = client.final(challenge.message).replace(b"r=" + own, b"r=" + own + own)
    with pytest.raises(SaslFailure, match=r"librdkafka before 2\.6\.1"):
        server.evaluate(doubled)


def test_scram_refuses_another_authorization_id_with_kafkas_words() -> None:
    server = scram_server(SHA_256, "alice", "secret")
    with pytest.raises(SaslFailure) as refused:
        server.evaluate(b"n,a=bob,n=alice,r=abc")
    assert "authorization id that is different from username" in (refused.value.shown or "")


def test_scram_binds_the_header_of_the_first_message() -> None:
    server = scram_server(SHA_256, "alice", "secret")
    client = scram_client(SHA_256, "alice", "secret")
    challenge = server.evaluate(b"n,a=alice," + client.first()[3:])
    assert isinstance(challenge, Challenge)
    with pytest.raises(SaslFailure, match="channel binding"):
        server.evaluate(client.final(challenge.message))


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = scram_client(SHA_256, "node", "secret")
    impostor = scram_server(SHA_256, "node", "other")
    challenge = impostor.evaluate(client.first())
    assert isinstance(challenge, Challenge)
    client.final(challenge.message)
    with pytest.raises(SaslFailure, match="does not know"):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(SaslFailure, match="iterations"):
        client.final(challenge.message.replace(b"i=4096", b"i=1"))


HOSTILE_SCRAM = [
    b"",
    b"n,,",
    b"p=tls-unique,,n=a,r=b",
    b"n,,n=,r=b",
    b"n,,n=a=b,r=c",
    b"n,,m=ext,n=a,r=b",
    b"n,,r=b,n=a",
    b"n,,n=a,r=",
    b"n,,n=a,r=b c",
    b"n,,n=a\0b,r=c",
    b"n,,n=\xff\xfe,r=c",
    b"n,x=a,n=a,r=b",
    b"n,,n=a,r=b" + b",x=y" * 100_000,
    b"," * LARGE,
    b"n,,n=a,r=" + b"r" * LARGE,
]


@pytest.mark.parametrize("message", HOSTILE_SCRAM, ids=range(len(HOSTILE_SCRAM)))
def test_scram_refuses_malformed_first_messages_at_once(message: bytes) -> None:
    begun = time.monotonic()
    with pytest.raises(SaslFailure):
        scram_server(SHA_256, "a", "b").evaluate(message)
    assert time.monotonic() - begun < 0.5


def test_scram_takes_a_user_name_of_a_mebibyte_for_an_unknown_user() -> None:
    server = scram_server(SHA_256, "a", "b")
    outcome = server.evaluate(b"n,,n=" + b"u" * LARGE + b",r=abc")
    assert isinstance(outcome, Challenge)
    assert len(outcome.message) < 200


def mechanism_servers() -> list[SaslMechanism]:
    return [
        scram_server(SHA_256, "alice", "secret"),
        scram_server(SHA_512, "alice", "secret"),
        PlainServer(PlainUsers({"alice": "secret"})),
        OAuthBearerServer(),
    ]


PIECES = (
    *(b"n,", b"y", b",", b"a=", b"n=", b"alice", b"r=", b"c=biws", b"p=", b"=2C", b"=", b"\0"),
    *(b"\x01", b"auth=", b"Bearer ", b"tok", b"secret", b"tokenauth=true", b"\xff"),
)
messages = st.one_of(
    st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join)
)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 3), st.lists(messages, min_size=1, max_size=4))
def test_arbitrary_messages_end_in_a_refusal_and_prove_no_name(
    which: int, sent: list[bytes]
) -> None:
    server = mechanism_servers()[which]
    for message in sent:
        try:
            outcome: Outcome = server.evaluate(message)
        except SaslFailure:
            return
        if isinstance(outcome, Authenticated):
            assert which == 2
            assert message in {b"\0alice\0secret", b"alice\0alice\0secret"}


OTHER_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


def test_plain_has_kafkas_messages() -> None:
    server = PlainServer(PlainUsers({"alice": "secret", "bob": "x"}))
    for message, text in [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"a\0b", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0" * 9, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0Secret", "Authentication failed: Invalid username or password"),
        (b"\0carol\0secret", "Authentication failed: Invalid username or password"),
        (
            b"bob\0alice\0secret",
            OTHER_ID,
        ),
    ]:
        with pytest.raises(SaslFailure) as refused:
            server.evaluate(message)
        assert refused.value.shown == text
        assert "secret" not in refused.value.reason.lower()
    assert server.evaluate(b"\0alice\0secret") == Authenticated(principal_of("alice"))


def test_plain_takes_a_user_name_of_a_mebibyte_in_no_time() -> None:
    begun = time.monotonic()
    with pytest.raises(SaslFailure):
        PlainServer(PlainUsers({"alice": "secret"})).evaluate(b"\0" + b"u" * LARGE + b"\0p")
    assert time.monotonic() - begun < 0.5


def test_oauthbearer_sends_the_error_first_and_fails_at_the_next_message() -> None:
    server = OAuthBearerServer()
    assert server.evaluate(b"n,,\x01auth=Bearer abc.def.ghi\x01\x01") == TokenToValidate(
        "abc.def.ghi"
    )
    challenge = server.validated(InvalidToken("expired"))
    assert challenge == Challenge(b'{"status":"invalid_token"}')
    with pytest.raises(SaslFailure) as refused:
        server.evaluate(b"\x01")
    assert refused.value.shown == '{"status":"invalid_token"}'


def test_oauthbearer_takes_extensions_and_the_tokens_own_name_as_authorization_id() -> None:
    server = OAuthBearerServer()
    message = b"n,a=alice,\x01auth=bearer t0ken==\x01trace=12\x01\x01"
    assert server.evaluate(message) == TokenToValidate("t0ken==")
    done = server.validated(ValidToken("alice", 5))
    assert done == Authenticated(principal_of("alice"), expires_ms=5)
    server.evaluate(message)
    with pytest.raises(SaslFailure, match="different from the token's principal name"):
        server.validated(ValidToken("bob", 5))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Basic dXNlcg==\x01\x01",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Bearer \xc3\xa9\x01\x01",
        b"n,,\x01auth=Bearer t\x01x\x01\x01",
        b"n,b=x,\x01auth=Bearer t\x01\x01",
        b"n,,\x01" + b"a=b\x01" * 300_000 + b"\x01",
        b"n,,\x01auth=Bearer " + b"." * LARGE + b"!\x01\x01",
        b"n,a=" + b"=2C" * 300_000 + b"=,\x01auth=Bearer t\x01\x01",
    ],
    ids=range(12),
)
def test_oauthbearer_refuses_malformed_messages_at_once(message: bytes) -> None:
    begun = time.monotonic()
    with pytest.raises(SaslFailure):
        OAuthBearerServer().evaluate(message)
    assert time.monotonic() - begun < 0.5
