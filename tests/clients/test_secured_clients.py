"""Each client on each kind of listener, by each mechanism: let in, or refused for the right reason.

A node has a listener for each case: certificates that are good, expired, of another host or about
to change; sessions that end soon. Run by `make clients`.
"""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock
from tests.clients.programs import CannotBeHad
from tests.clients.secured_programs import MAKERS, Login, SecuredProgram, Start
from tests.support.token_issuer import TokenIssuer
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until
from tests.support.watched_node import WatchedNode

pytestmark = [
    pytest.mark.skipif("CLIENTS" not in os.environ, reason="run by make clients"),
    pytest.mark.timeout(700),
]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USER, PASSWORD = "alice", "alice-s3cret"
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "OPEN": "SASL_PLAINTEXT",
    "CLIENT": "SASL_SSL",
    "SHORT": "SASL_SSL",
    "EXPIRED": "SASL_SSL",
    "ELSEWHERE": "SASL_SSL",
    "CHANGING": "SASL_SSL",
}
HOSTS = ("localhost", "127.0.0.1")
SESSION_MS = 4_000
LIMIT_S = 120.0
REFUSED_S = 20
"""Until a client gives up that is refused: some go on trying."""
OF_CERTIFICATES = re.compile(r"certificate|SSL|TLS|hostname|CertPath|handshake", re.IGNORECASE)
OF_CREDENTIALS = re.compile(r"authenticat|credential|invalid_token|SASL|oauth", re.IGNORECASE)
CLOSED = re.compile("closed connection|connection .*closed|socket disconnected", re.IGNORECASE)
"""Words of clients that do not read the reason: see docs/authentication.md."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node, the authority of its certificates, and the issuer of its tokens."""

    node: WatchedNode
    authority: DevelopmentCa
    issuer: TokenIssuer
    folder: Path

    def login(self, listener: str, mechanism: str = "") -> Login:
        """Return a login by which a client is let in."""
        protocol = LISTENERS[listener]
        mechanism = mechanism or ("SCRAM-SHA-256" if protocol.startswith("SASL") else "")
        return Login(
            bootstrap=f"localhost:{self.node.node.services.addresses[listener].port}",
            protocol=protocol,
            authority=str(self.authority.certificate_path),
            mechanism=mechanism,
            user=USER,
            password=PASSWORD,
            token_file=self.token_file() if mechanism == "OAUTHBEARER" else "",
        )

    def token_file(self, name: str = "token", **claims: Any) -> str:
        """Return a file with a token of the issuer."""
        path = self.folder / name
        path.write_text(self.issuer.token(**claims))
        return str(path)

    def failures(self, listener: str, mechanism: str) -> int:
        """Return how many authentications have failed."""
        return self.node.node.authenticator.failed_total[listener, mechanism]

    @property
    def bootstrap(self) -> str:
        """The listener of the tests' own connections."""
        return f"127.0.0.1:{self.node.node.services.addresses['PLAINTEXT'].port}"

    def alter(self, change: UserScramCredentialDeletion | UserScramCredentialUpsertion) -> None:
        """Change a user's credential."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(LIMIT_S)

    def add_user(self, name: str, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256) -> None:
        """Give a user the password of all."""
        info = ScramCredentialInfo(mechanism, 4096)
        self.alter(UserScramCredentialUpsertion(name, info, PASSWORD.encode()))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("secured")
    now = utc(SystemClock().now_ms())
    authority = DevelopmentCa(folder / "ca", now)
    for name in ("node", "changing"):
        authority.issue(name, hosts=HOSTS)
    authority.issue("expired", hosts=HOSTS, begins=now - timedelta(days=9), days=3)
    authority.issue("elsewhere", hosts=("elsewhere.example",))
    authority.issue("client", is_client_only=True)
    settings = {
        "listeners": ",".join(f"{name}://localhost:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(map(":".join, LISTENERS.items())),
        "ssl.keystore.location": str(authority.folder / "node.pem"),
        "ssl.truststore.location": str(authority.certificate_path),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
        "bootstrap.admin": "admin",
        "bootstrap.admin.password": "admin-s3cret",
    }
    for name in ("expired", "elsewhere", "changing"):
        path = authority.folder / f"{name}.pem"
        settings[f"listener.name.{name}.ssl.keystore.location"] = str(path)
    for name, protocol in LISTENERS.items():
        if protocol.startswith("SASL"):
            users = f'{PLAIN} required user_{USER}="{PASSWORD}";'
            settings[f"listener.name.{name.lower()}.plain.sasl.jaas.config"] = users
    issuer = TokenIssuer()
    with issuer.place, WatchedNode(folder, settings | issuer.settings) as node:
        made = Place(node=node, authority=authority, issuer=issuer, folder=folder)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            made.add_user(USER, mechanism)
        yield made


@cache
def _made(name: str) -> Start | CannotBeHad:
    try:
        return MAKERS[name]()
    except CannotBeHad as error:
        return error


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(name: str) -> Start:
    found = _made(name)
    if isinstance(found, CannotBeHad):
        pytest.skip(f"{name} cannot be had: {found}")
    return found


@pytest.fixture
def topic(place: Place, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)
    create_topic(place.bootstrap, name, 1)
    return name


def assert_let_in(client: SecuredProgram) -> None:
    assert client.send("first") == ""
    assert client.send("second") == ""
    assert client.read(2) == ["first", "second"]


def of_credentials(name: str, login: Login) -> re.Pattern[str]:
    """Return the words of a client about wrong credentials."""
    does_not_read = name == "kafka-python" or (
        name in {"aiokafka", "kafkajs"} and login.mechanism == "OAUTHBEARER"
    )
    if not does_not_read:
        return OF_CREDENTIALS
    return re.compile(f"{OF_CREDENTIALS.pattern}|{CLOSED.pattern}", re.IGNORECASE)


def assert_refused(client: SecuredProgram, reason: re.Pattern[str], place: Place) -> None:
    found = client.send("never")
    print(found)
    assert found != "", "the client was let in"
    assert reason.search(found), found
    assert place.node.is_well


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("TLS", ""), *((name, one) for name in ("OPEN", "CLIENT") for one in MECHANISMS)],
)
def test_a_client_is_let_in(
    place: Place, start: Start, topic: str, listener: str, mechanism: str
) -> None:
    with start(place.login(listener, mechanism), topic) as client:
        assert_let_in(client)


def test_a_client_with_a_certificate_is_let_in(place: Place, start: Start, topic: str) -> None:
    certificate = str(place.authority.folder / "client.pem")
    with start(replace(place.login("MUTUAL"), certificate=certificate), topic) as client:
        assert_let_in(client)
    with start(replace(place.login("MUTUAL"), limit_s=REFUSED_S), topic) as client:
        assert client.send("never") != ""


@pytest.mark.parametrize("listener", ["OPEN", "CLIENT"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_credentials_are_refused(
    place: Place, name: str, start: Start, topic: str, listener: str, mechanism: str
) -> None:
    wrong = replace(place.login(listener, mechanism), password="wrong", limit_s=REFUSED_S)
    if mechanism == "OAUTHBEARER":
        wrong = replace(wrong, token_file=place.token_file("other", aud="other"))
    before = place.failures(listener, mechanism)
    with start(wrong, topic) as client:
        assert_refused(client, of_credentials(name, wrong), place)
    assert place.failures(listener, mechanism) > before


@pytest.mark.parametrize("listener", ["EXPIRED", "ELSEWHERE"])
def test_a_wrong_certificate_is_refused_by_the_client(
    place: Place, start: Start, topic: str, listener: str
) -> None:
    with start(replace(place.login(listener), limit_s=REFUSED_S), topic) as client:
        assert_refused(client, OF_CERTIFICATES, place)


def test_an_unknown_authority_is_refused_by_the_client(
    place: Place, start: Start, topic: str, tmp_path: Path
) -> None:
    other = DevelopmentCa(tmp_path / "other", utc(SystemClock().now_ms()))
    path = str(other.certificate_path)
    login = replace(place.login("CLIENT"), authority=path, limit_s=REFUSED_S)
    with start(login, topic) as client:
        assert_refused(client, OF_CERTIFICATES, place)


def test_a_user_that_is_removed_is_refused_when_its_session_ends(
    place: Place, name: str, start: Start, topic: str
) -> None:
    user = f"of-{topic}"
    place.add_user(user)
    with (
        start(replace(place.login("CLIENT"), user=user), topic) as staying,
        start(replace(place.login("SHORT"), user=user, limit_s=REFUSED_S), topic) as client,
    ):
        assert staying.send("first") == ""
        # Over several sessions: the client authenticates again, or connects again.
        sent = 0
        begun = SystemClock().now_ms()
        while SystemClock().now_ms() - begun < 2 * SESSION_MS:
            assert client.send(f"value-{sent}") == ""
            sent += 1
        place.alter(UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256))
        assert staying.send("second") == "", "as in Kafka, an open connection stays"
        before = place.failures("SHORT", "SCRAM-SHA-256")
        # The words differ: a timeout of the record, where the producer connects again and again.
        assert wait_until(lambda: client.send("late") != "", LIMIT_S)
        assert place.failures("SHORT", "SCRAM-SHA-256") > before
        removed = replace(place.login("CLIENT"), user=user, limit_s=REFUSED_S)
        with start(removed, topic) as late:
            assert_refused(late, of_credentials(name, removed), place)


def test_a_new_certificate_counts_and_open_connections_stay(
    place: Place, start: Start, topic: str, tmp_path: Path
) -> None:
    tls = place.node.node.server.tls
    path = place.authority.folder / "changing.pem"
    with start(place.login("CHANGING"), topic) as client:
        assert client.send("first") == ""
        other = DevelopmentCa(tmp_path / "other", utc(SystemClock().now_ms()))
        before = tls.reloads_total
        kept = path.read_bytes()
        shutil.copy(other.issue("changing", hosts=HOSTS), path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
        try:
            assert wait_until(lambda: tls.reloads_total > before, LIMIT_S)
            login = replace(place.login("CHANGING"), authority=str(other.certificate_path))
            with start(login, topic) as late:
                assert late.send("second") == ""
            assert client.send("third") == "", "the connection is open"
            with start(replace(place.login("CHANGING"), limit_s=REFUSED_S), topic) as old:
                assert_refused(old, OF_CERTIFICATES, place)
        finally:
            before = tls.reloads_total
            path.with_suffix(".new").write_bytes(kept)
            path.with_suffix(".new").chmod(0o600)
            path.with_suffix(".new").rename(path)
            assert wait_until(lambda: tls.reloads_total > before, LIMIT_S)


def test_a_new_key_of_the_issuer_counts_and_the_old_one_no_more(
    place: Place, name: str, start: Start, topic: str
) -> None:
    login = place.login("CLIENT", "OAUTHBEARER")
    before = place.issuer.keys[-1]
    place.issuer.rotate(topic)
    renewed = replace(login, token_file=place.token_file("renewed"))
    with start(renewed, topic) as client:
        # Brokers fetch keys at most every ten seconds; a client may give up before.
        assert wait_until(lambda: client.send("first") == "", LIMIT_S)
    token_file = place.token_file("old", key=before)
    old = replace(login, token_file=token_file, limit_s=REFUSED_S)
    with start(old, topic) as client:
        assert_refused(client, of_credentials(name, old), place)
