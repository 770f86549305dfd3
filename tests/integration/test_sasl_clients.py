"""Real clients and Kafka's tools authenticate by every mechanism, and are refused in time."""

import asyncio
import base64
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from aiokafka.errors import KafkaError as AsyncKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from joserfc.jwk import RSAKey
from kio.schema.errors import ErrorCode

from tests.support.kafka_tools import require_kafka_tools, run
from tests.support.sasl_client import SaslClient, scram_final
from tests.support.token_issuer import TokenIssuer
from tests.support.waiting import wait_until
from tests.support.watched_node import WatchedNode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError as PythonKafkaError
    from kafka.net.sasl.oauth import AbstractTokenProvider

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORDS = {"PLAIN": "alice-s3cret", "SCRAM-SHA-256": "admin-s3cret"}
PASSWORDS["SCRAM-SHA-512"] = PASSWORDS["SCRAM-SHA-256"]
USERS = {"PLAIN": "alice", "SCRAM-SHA-256": "admin", "SCRAM-SHA-512": "admin"}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    one = TokenIssuer()
    with one.place:
        yield one


@pytest.fixture(scope="module")
def node(issuer: TokenIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENT://127.0.0.1:0,SHORT://127.0.0.1:0",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.client.plain.sasl.jaas.config": (
            f'{PLAIN} required user_alice="{PASSWORDS["PLAIN"]}";'
        ),
        "listener.name.short.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.short.connections.max.reauth.ms": "2000",
        **issuer.settings,
        "bootstrap.admin": "admin",
        "bootstrap.admin.password": PASSWORDS["SCRAM-SHA-256"],
        "delegation.token.secret.key": "key-s3cret",
        "delegation.token.expiry.check.interval.ms": "200",
        "num.partitions": "1",
    }
    with WatchedNode(tmp_path_factory.mktemp("clients"), settings) as running:
        yield running


def at(node: WatchedNode, listener: str = "CLIENT") -> str:
    return f"127.0.0.1:{node.node.services.addresses[listener].port}"


def confluent(
    node: WatchedNode, mechanism: str, issuer: TokenIssuer, password: str | None = None
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": at(node),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "log_level": 0,
        "reconnect.backoff.ms": 200,
    }
    if mechanism == "OAUTHBEARER":
        bad: dict[str, Any] = {} if password is None else {"aud": password}

        def token(_: str) -> tuple[str, float]:
            return issuer.token(**bad), time.time() + 300

        return settings | {"oauth_cb": token}
    return settings | {
        "sasl.username": USERS[mechanism],
        "sasl.password": PASSWORDS[mechanism] if password is None else password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(node: WatchedNode, issuer: TokenIssuer, mechanism: str) -> None:
    topic = f"confluent-{mechanism}"
    producer = Producer(confluent(node, mechanism, issuer))
    producer.produce(topic, b"value")
    assert producer.flush(LIMIT_S) == 0
    group = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(confluent(node, mechanism, issuer) | group)
    consumer.subscribe([topic])
    message = consumer.poll(LIMIT_S)
    consumer.close()
    assert message is not None
    assert message.value() == b"value"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_with_wrong_credentials(
    node: WatchedNode, issuer: TokenIssuer, mechanism: str
) -> None:
    errors: list[str] = []
    settings = confluent(node, mechanism, issuer, "wrong")
    client = AdminClient(settings | {"error_cb": lambda error: errors.append(str(error))})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    assert wait_until(lambda: client.poll(0.1) >= 0 and bool(errors), LIMIT_S)
    assert "_AUTHENTICATION" in " ".join(errors) or "uthentication" in " ".join(errors)


class PythonToken(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, issuer: TokenIssuer) -> None:
        self._issuer = issuer

    def token(self) -> str:
        return self._issuer.token()


def kafka_python(
    node: WatchedNode, mechanism: str, issuer: TokenIssuer, password: str | None = None
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": [at(node)],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return settings | {"sasl_oauth_token_provider": PythonToken(issuer)}
    return settings | {
        "sasl_plain_username": USERS[mechanism],
        "sasl_plain_password": PASSWORDS[mechanism] if password is None else password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(node: WatchedNode, issuer: TokenIssuer, mechanism: str) -> None:
    topic = f"python-{mechanism}"
    settings = kafka_python(node, mechanism, issuer)
    producer = KafkaProducer(**settings)
    producer.send(topic, b"value").get(LIMIT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert next(iter(consumer)).value == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_python_with_a_wrong_password(
    node: WatchedNode, issuer: TokenIssuer, mechanism: str
) -> None:
    settings = kafka_python(node, mechanism, issuer, "wrong")
    with pytest.raises(PythonKafkaError):
        KafkaProducer(**settings, bootstrap_timeout_ms=1_000)


class AsyncToken(AsyncTokenProvider):  # type: ignore[misc]
    def __init__(self, issuer: TokenIssuer) -> None:
        self._issuer = issuer

    async def token(self) -> str:
        return self._issuer.token()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka(node: WatchedNode, issuer: TokenIssuer, mechanism: str) -> None:
    topic = f"aio-{mechanism}"
    settings: dict[str, Any] = {
        "bootstrap_servers": at(node),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = AsyncToken(issuer)
    else:
        settings |= {
            "sasl_plain_username": USERS[mechanism],
            "sasl_plain_password": PASSWORDS[mechanism],
        }
    producer = AIOKafkaProducer(**settings)
    await producer.start()
    await producer.send_and_wait(topic, b"value")
    await producer.stop()
    consumer = AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest")
    await consumer.start()
    async with asyncio.timeout(LIMIT_S):
        assert (await consumer.getone()).value == b"value"
    await consumer.stop()
    if mechanism != "OAUTHBEARER":
        wrong = AIOKafkaProducer(**settings | {"sasl_plain_password": "wrong"})
        with pytest.raises(AsyncKafkaError):
            await wrong.start()
        await wrong.stop()


def scram_login(port: int, user: str, password: str, extension: str = "") -> Any:
    """Log in by SCRAM-SHA-512, by hand; return the last response."""
    with SaslClient(port) as client:
        client.handshake("SCRAM-SHA-512")
        bare = f"n={user},r=abcdef{extension}"
        challenge = client.authenticate(f"n,,{bare}".encode())
        if challenge.error_code is not ErrorCode.none:
            return challenge
        return client.authenticate(scram_final(bare, challenge.auth_bytes, password, "sha512"))


def port_of(node: WatchedNode) -> int:
    return node.node.services.addresses["CLIENT"].port


def test_a_credential_counts_from_its_change_on_and_open_connections_stay(
    node: WatchedNode, issuer: TokenIssuer
) -> None:
    admin = AdminClient(confluent(node, "SCRAM-SHA-512", issuer))

    def alter(change: Any) -> None:
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(LIMIT_S)

    def upsert(password: bytes) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        alter(UserScramCredentialUpsertion("dave", info, password, b"salt-of-dave"))

    upsert(b"first")
    opened = SaslClient(port_of(node))
    opened.handshake("SCRAM-SHA-512")
    bare = "n=dave,r=abcdef"
    challenge = opened.authenticate(f"n,,{bare}".encode()).auth_bytes
    assert (
        opened.authenticate(scram_final(bare, challenge, "first", "sha512")).error_code
        is ErrorCode.none
    )
    begun = time.monotonic()
    upsert(b"second")
    assert scram_login(port_of(node), "dave", "second").error_code is ErrorCode.none
    assert time.monotonic() - begun < 1.0 + LIMIT_S / 10
    refused = scram_login(port_of(node), "dave", "first")
    assert refused.error_code is ErrorCode.sasl_authentication_failed
    futures: Any = admin.describe_user_scram_credentials(["dave"])
    described = futures["dave"].result(LIMIT_S)
    assert [one.iterations for one in described.scram_credential_infos] == [8192]
    alter(UserScramCredentialDeletion("dave", ScramMechanism.SCRAM_SHA_512))
    refused = scram_login(port_of(node), "dave", "second")
    assert refused.error_code is ErrorCode.sasl_authentication_failed
    with opened:
        assert opened.metadata().brokers  # as in Kafka, until it must authenticate again


def test_a_client_authenticates_again_while_it_produces(
    node: WatchedNode, issuer: TokenIssuer
) -> None:
    errors: list[str] = []
    settings = confluent(node, "SCRAM-SHA-256", issuer) | {
        "bootstrap.servers": at(node, "SHORT"),
        "error_cb": lambda error: errors.append(str(error)),
    }
    producer = Producer(settings)
    delivered: list[Any] = []
    until = time.monotonic() + 6.0
    sent = 0
    while time.monotonic() < until:
        producer.produce("again", b"x", on_delivery=lambda error, _: delivered.append(error))
        sent += 1
        producer.poll(0.05)
    assert producer.flush(LIMIT_S) == 0
    assert delivered == [None] * sent


# Tokens.


def bearer(port: int, token: str) -> Any:
    with SaslClient(port) as client:
        client.handshake("OAUTHBEARER")
        response = client.authenticate(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        if response.auth_bytes:
            assert response.auth_bytes == b'{"status":"invalid_token"}'
            return client.authenticate(b"\x01")
        return response


def test_a_token_is_good_until_it_expires(node: WatchedNode, issuer: TokenIssuer) -> None:
    response = bearer(port_of(node), issuer.token())
    assert response.error_code is ErrorCode.none
    assert 290 <= response.session_lifetime.total_seconds() <= 300
    now = int(time.time())
    for claims in (
        {"exp": now - 60},
        {"aud": "other"},
        {"iss": "other"},
        {"sub": ""},
        {"iat": now + 60},
    ):
        refused = bearer(port_of(node), issuer.token(**claims))
        assert refused.error_code is ErrorCode.sasl_authentication_failed
        assert refused.error_message == '{"status":"invalid_token"}'


def test_a_refused_token_is_counted_once_even_if_the_client_leaves(
    node: WatchedNode, issuer: TokenIssuer
) -> None:
    failed = node.node.authenticator.failed_total
    place = ("CLIENT", "OAUTHBEARER")
    message = f"n,,\x01auth=Bearer {issuer.token(aud='other')}\x01\x01".encode()
    # It leaves; it ends the exchange; it sends another token, and ends the exchange.
    for ends in ((), (b"\x01",), (message, b"\x01")):
        before = failed[place]
        with SaslClient(port_of(node)) as client:
            client.handshake("OAUTHBEARER")
            assert client.authenticate(message).auth_bytes == b'{"status":"invalid_token"}'
            for end in ends:
                client.authenticate(end)
        assert failed[place] == before + 1 + (message in ends)


def test_a_new_key_of_the_issuer_counts_at_once_and_the_old_one_no_more(
    node: WatchedNode, issuer: TokenIssuer
) -> None:
    old = issuer.keys[-1]
    issuer.rotate("second")
    assert bearer(port_of(node), issuer.token()).error_code is ErrorCode.none
    refused = bearer(port_of(node), issuer.token(old))
    assert refused.error_code is ErrorCode.sasl_authentication_failed
    fetches = len(issuer.place.requests)
    stranger = RSAKey.generate_key(2048, {"kid": "stranger"})
    for _ in range(5):
        refused = bearer(port_of(node), issuer.token(stranger))
        assert refused.error_code is ErrorCode.sasl_authentication_failed
    assert len(issuer.place.requests) <= fetches + 1


def test_known_keys_go_on_while_the_issuer_is_down(node: WatchedNode, issuer: TokenIssuer) -> None:
    assert bearer(port_of(node), issuer.token()).error_code is ErrorCode.none
    issuer.is_down = True
    try:
        assert bearer(port_of(node), issuer.token()).error_code is ErrorCode.none
    finally:
        issuer.is_down = False


# Kafka's tools.


def properties(folder: Path, node: WatchedNode, user: str, password: str, more: str = "") -> str:
    path = folder / f"{abs(hash((user, password)))}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required username="{user}" password="{password}" {more};\n'
    )
    return str(path)


def tool(name: str, node: WatchedNode, config: str, *arguments: str, stdin: str = "") -> str:
    done = run(
        name, "--bootstrap-server", at(node), "--command-config", config, *arguments, stdin=stdin
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafka_configs_sets_shows_and_removes_credentials(
    node: WatchedNode, tmp_path: Path
) -> None:
    require_kafka_tools()
    admin = properties(tmp_path, node, "admin", PASSWORDS["SCRAM-SHA-512"])
    entity = ("--entity-type", "users", "--entity-name", "erin")
    secret = "SCRAM-SHA-512=[iterations=8192,password=erin-s3cret]"
    tool("kafka-configs", node, admin, "--alter", *entity, "--add-config", secret)
    shown = tool("kafka-configs", node, admin, "--describe", *entity)
    assert "SCRAM-SHA-512=iterations=8192" in shown
    erin = properties(tmp_path, node, "erin", "erin-s3cret")
    assert tool("kafka-topics", node, erin, "--list") is not None
    tool("kafka-configs", node, admin, "--alter", *entity, "--delete-config", "SCRAM-SHA-512")
    done = run("kafka-topics", "--bootstrap-server", at(node), "--command-config", erin, "--list")
    assert done.returncode != 0
    assert "due to invalid credentials with SASL mechanism SCRAM-SHA-512" in (
        done.stdout + done.stderr
    )


def test_kafka_delegation_tokens_makes_renews_and_ends_tokens(
    node: WatchedNode, tmp_path: Path
) -> None:
    require_kafka_tools()
    admin = properties(tmp_path, node, "admin", PASSWORDS["SCRAM-SHA-512"])
    made = tool(
        *("kafka-delegation-tokens", node, admin, "--create"),
        *("--max-life-time-period", "3600000", "--renewer-principal", "User:erin"),
    )
    row = next(line for line in made.splitlines() if "User:admin" in line).split()
    token_id, token_hmac = row[0], row[1]
    describe = ("--describe", "--owner-principal", "User:admin")  # without owners it shows none
    assert token_id in tool("kafka-delegation-tokens", node, admin, *describe)
    by_token = properties(tmp_path, node, token_id, token_hmac, "tokenauth=true")
    assert tool("kafka-topics", node, by_token, "--list") is not None
    denied = run(
        *("kafka-delegation-tokens", "--bootstrap-server", at(node), "--command-config", by_token),
        *("--create", "--max-life-time-period", "-1"),
    )
    assert "Delegation Token requests are not allowed" in denied.stdout + denied.stderr
    renew = ("--renew", "--renew-time-period", "-1", "--hmac", token_hmac)
    renewed = tool("kafka-delegation-tokens", node, admin, *renew)
    assert "renew" in renewed.lower()
    expire = ("--expire", "--expiry-time-period", "-1", "--hmac", token_hmac)
    tool("kafka-delegation-tokens", node, admin, *expire)
    assert token_id not in tool("kafka-delegation-tokens", node, admin, *describe)
    refused = scram_login(port_of(node), token_id, token_hmac, ",tokenauth=true")
    assert refused.error_code is ErrorCode.sasl_authentication_failed


def test_java_clients_produce_and_consume(node: WatchedNode, tmp_path: Path) -> None:
    require_kafka_tools()
    admin = properties(tmp_path, node, "admin", PASSWORDS["SCRAM-SHA-512"])
    tool("kafka-console-producer", node, admin, "--topic", "java", stdin="from java\n")
    read = ("--topic", "java", "--from-beginning", "--max-messages", "1")
    assert "from java" in tool("kafka-console-consumer", node, admin, *read)


# Delegation tokens, by hand.


def test_tokens_have_owner_requester_and_an_end(node: WatchedNode, issuer: TokenIssuer) -> None:
    port = port_of(node)
    with SaslClient(port) as client:
        client.plain("alice", PASSWORDS["PLAIN"])
        made = client.ask(
            *(38, 3, "CreateDelegationTokenRequest"),
            owner_principal_type="User",
            owner_principal_name="frank",
            renewers=(),
            max_lifetime=1_500,
        )
        assert made.error_code is ErrorCode.none
        assert (made.principal_name, made.token_requester_principal_name) == ("frank", "alice")
        assert len(made.hmac) == 64
        password = base64.b64encode(made.hmac).decode()
        done = scram_login(port, made.token_id, password, ",tokenauth=true")
        assert done.error_code is ErrorCode.none
        assert 0 < done.session_lifetime.total_seconds() <= 1.5
        plain_user = scram_login(port, made.token_id, password)
        assert plain_user.error_code is ErrorCode.sasl_authentication_failed
        seen = client.ask(41, 3, "DescribeDelegationTokenRequest", owners=None)
        assert made.token_id in {token.token_id for token in seen.tokens}
        none = client.ask(41, 3, "DescribeDelegationTokenRequest", owners=())
        assert none.tokens == ()
        mismatch = client.ask(39, 2, "RenewDelegationTokenRequest", hmac=made.hmac, renew_period=1)
        assert mismatch.error_code is ErrorCode.delegation_token_owner_mismatch
        unknown = client.ask(40, 2, "ExpireDelegationTokenRequest", hmac=b"x", expiry_time_period=1)
        assert unknown.error_code is ErrorCode.delegation_token_not_found
        wait_until(lambda: made.token_id not in node.node.state.delegation_tokens, LIMIT_S)
        refused = scram_login(port, made.token_id, password, ",tokenauth=true")
        assert refused.error_code is ErrorCode.sasl_authentication_failed


def test_tokens_are_only_for_authenticated_clients(node: WatchedNode) -> None:
    with SaslClient(node.node.services.addresses["PLAINTEXT"].port) as client:
        made = client.ask(38, 2, "CreateDelegationTokenRequest", renewers=(), max_lifetime=-1)
        assert made.error_code is ErrorCode.delegation_token_request_not_allowed
        seen = client.ask(41, 2, "DescribeDelegationTokenRequest", owners=None)
        assert seen.error_code is ErrorCode.delegation_token_request_not_allowed


@pytest.mark.parametrize("max_lifetime_ms", [2**63 - 1, -(2**63), 0])
def test_any_lifetime_of_a_token_gets_a_response(node: WatchedNode, max_lifetime_ms: int) -> None:
    with SaslClient(port_of(node)) as client:
        client.plain("alice", PASSWORDS["PLAIN"])
        body = b"\0\0\0\0" + max_lifetime_ms.to_bytes(8, "big", signed=True)
        head = b"\x00\x26\x00\x01\x00\x00\x00\x09\xff\xff"
        client.send((len(head) + len(body)).to_bytes(4, "big") + head + body)
        made = client.take(38, 1)
        assert made.error_code is ErrorCode.none
        lifetime = made.max_timestamp - made.issue_timestamp
        assert lifetime.total_seconds() == 604_800


def test_commands_about_topics_log_in_by_a_client_s_settings(
    node: WatchedNode, tmp_path: Path
) -> None:
    def topics(password: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        config = tmp_path / "client.properties"
        login = f'{SCRAM} required username="admin" password="{password}";'
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.jaas.config={login}\n"
        )
        flags = ("--bootstrap-server", at(node), "--command-config", str(config))
        command = [sys.executable, "-m", "lakehead", "topics", *arguments, *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    password = PASSWORDS["SCRAM-SHA-256"]
    created = topics(password, "create", "commanded")
    assert created.stderr == ""
    assert created.stdout == "created topic commanded with 1 partition\n"
    assert topics(password, "alter", "commanded", "--set", "retention.ms=1").returncode == 0
    assert topics(password, "delete", "commanded", "--yes").returncode == 0
    refused = topics("wrong", "create", "commanded")
    assert refused.returncode == 1
    assert "uthentication failed" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert "wrong" not in refused.stderr
