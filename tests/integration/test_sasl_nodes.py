"""A cluster whose only listener has SASL: nodes authenticate to each other by its secret."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from bench.process import free_port
from lakehead.broker.security.bootstrap_admin import check_admin
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.broker.security.sasl.credentials import node_salted_password, node_user
from lakehead.broker.security.sasl.jaas import PLAIN_MODULE
from lakehead.broker.security.sasl.scram import SHA_512, ScramClient
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from tests.support.command_line import CommandLine
from tests.support.sasl_client import SaslClient
from tests.support.waiting import wait_until
from tests.support.watched_node import WatchedNode

LIMIT_S = 60.0


def settings(folder: Path, node_id: int, **more: str) -> dict[str, Any]:
    given = {
        "store": f"file:{folder / 'store'}",
        "wal": f"block:{folder / f'wal-{node_id}'}",
        "node.id": node_id,
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{free_port()}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "bootstrap.admin": "admin",
        "bootstrap.admin.password": "s3cret",
    }
    return given | {name.replace("_", "."): value for name, value in more.items()}


def client_settings(node: WatchedNode) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{node.port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "admin",
        "sasl.password": "s3cret",
    }


def node_login(port: int, secret: str, mechanism: str = "SCRAM-SHA-512") -> Any:
    def salted(salt: bytes, rounds: int) -> bytes:
        return node_salted_password(secret, SHA_512.name, salt, rounds)

    with SaslClient(port) as client:
        machine = ScramClient(SHA_512, node_user(9), salted, "abcdef")
        assert client.handshake(mechanism).error_code is ErrorCode.none
        challenge = client.authenticate(machine.first())
        return client.authenticate(machine.final(challenge.auth_bytes))


def test_nodes_hear_each_other_and_move_leaders(tmp_path: Path) -> None:
    first = WatchedNode(tmp_path, settings(tmp_path, 0))
    second = WatchedNode(tmp_path, settings(tmp_path, 1))
    with first, second:
        assert wait_until(lambda: set(first.node.lifecycle.ready()) == {0, 1}, LIMIT_S)
        assert wait_until(lambda: set(second.node.lifecycle.ready()) == {0, 1}, LIMIT_S)
        principals = {one.principal for one in first.node.server.connections}
        assert KafkaPrincipal("Node", "1") in principals
        admin = AdminClient(client_settings(first))
        for made in admin.create_topics([NewTopic("t", 4, 1)]).values():
            made.result(LIMIT_S)
        producer = Producer(client_settings(second) | {"transactional.id": "x"})
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        for partition in range(4):
            producer.produce("t", b"x", partition=partition)
        producer.commit_transaction(LIMIT_S)
        assert {0, 1} <= set(admin.list_topics(timeout=LIMIT_S).brokers)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_command_reaches_nodes_without_a_login_of_its_own(
    mechanism: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lakehead = CommandLine(monkeypatch, capsys)
    given = settings(tmp_path, 0, sasl_mechanism_inter_broker_protocol=mechanism)
    with WatchedNode(tmp_path, given):
        listed = lakehead("nodes", "--path", str(tmp_path / "store"), "--json")
    assert [json.loads(line)["state"] for line in listed.out.splitlines()] == ["live"]


def test_nodes_with_different_mechanisms_reach_each_other(tmp_path: Path) -> None:
    nodes = [
        WatchedNode(tmp_path, settings(tmp_path, n, sasl_mechanism_inter_broker_protocol=one))
        for n, one in enumerate(("SCRAM-SHA-256", "SCRAM-SHA-512"))
    ]
    with nodes[0], nodes[1]:
        assert wait_until(
            lambda: all(set(one.node.lifecycle.ready()) == {0, 1} for one in nodes), LIMIT_S
        )


def test_only_the_secret_of_the_cluster_makes_a_node(tmp_path: Path) -> None:
    with WatchedNode(tmp_path, settings(tmp_path, 0)) as node:
        secret = node.node.state.node_secret
        assert node_login(node.port, secret).error_code is ErrorCode.none
        refused = node_login(node.port, "0" * 64)
        assert refused.error_code is ErrorCode.sasl_authentication_failed
        with SaslClient(node.port) as client:  # the mechanism of nodes is not one of users
            client.handshake("SCRAM-SHA-512")
            challenge = client.authenticate(b"n,,n=admin,r=abc")
            assert challenge.error_code is ErrorCode.none  # as for any unknown user
        with SaslClient(node.port) as client:
            shown = client.handshake("PLAIN")
            assert list(shown.mechanisms) == ["SCRAM-SHA-256"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"bootstrap.admin.password": "other"}, "the password of 'admin' is another one"),
        ({"bootstrap.admin": "eve"}, "without a user 'eve'"),
        ({"bootstrap.admin.password": ""}, "its password is missing"),
        ({"bootstrap.admin": ""}, "name the user"),
        ({"sasl.enabled.mechanisms": ""}, "set sasl.enabled.mechanisms"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "'GSSAPI' is not one of"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "PLAIN needs .*PlainLoginModule"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "OAUTHBEARER needs"),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sts.cluster": "x"},
            "sts.accounts: name the AWS accounts",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "ftp://x",
            },
            "is not a URL",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.server.callback.handler.class": "com.example.Handler",
            },
            "this broker loads no classes",
        ),
    ],
)
def test_a_node_with_settings_that_do_not_agree_does_not_start(
    tmp_path: Path, change: dict[str, str], problem: str
) -> None:
    with WatchedNode(tmp_path, settings(tmp_path, 0)):
        pass
    changed = settings(tmp_path, 0) | change
    with pytest.raises(SettingsError, match=problem) as refused, WatchedNode(tmp_path, changed):
        pass
    assert "s3cret" not in str(refused.value)
    with WatchedNode(tmp_path, settings(tmp_path, 0)) as node:  # nothing has changed
        check_admin(node.node.settings, node.node.state)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_clients_and_nodes_share_one_listener_with_tls_and_sasl(
    tmp_path: Path, mechanism: str
) -> None:
    authority = DevelopmentCa(tmp_path / "ca", utc(SystemClock().now_ms()))
    authority.issue("node", hosts=("localhost", "127.0.0.1"))
    certificates = {
        "ssl.keystore.location": str(authority.folder / "node.pem"),
        "ssl.truststore.location": str(authority.certificate_path),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required user_admin="s3cret";'
        ),
    }
    nodes = [
        WatchedNode(
            tmp_path,
            settings(tmp_path, number)
            | certificates
            | {"listeners": f"SASL_SSL://localhost:{free_port()}"},
        )
        for number in (0, 1)
    ]
    with nodes[0], nodes[1]:
        assert wait_until(lambda: set(nodes[0].node.lifecycle.ready()) == {0, 1}, LIMIT_S)
        principals = {one.principal for one in nodes[0].node.server.connections}
        assert KafkaPrincipal("Node", "1") in principals
        client = client_settings(nodes[0]) | {
            "bootstrap.servers": f"localhost:{nodes[0].port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "ssl.ca.location": str(authority.certificate_path),
        }
        assert {0, 1} <= set(AdminClient(client).list_topics(timeout=LIMIT_S).brokers)
        producer = Producer(client)
        producer.produce("tls", b"x" * 100_000)
        assert producer.flush(LIMIT_S) == 0
        wrong = AdminClient(client | {"sasl.password": "wrong", "log_level": 0})
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=3)
