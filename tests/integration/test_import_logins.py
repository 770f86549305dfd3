"""`lakehead import` from Apache Kafka by each login that it has: TLS with SASL by PLAIN, SCRAM and
OAUTHBEARER, and TLS on both sides.
"""

import base64
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from bench.apache_kafka.server import kafka_server
from bench.maven import MissingTool
from bench.process import free_port
from bench.tls_and_sasl import MECHANISM, PASSWORD, USER, TlsAndSasl
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock
from tests.support.http_places import HttpPlace
from tests.support.template_process import lakehead_command
from tests.support.token_issuer import unsigned_token

pytestmark = pytest.mark.slow

MODULES = "org.apache.kafka.common.security"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", MECHANISM, "OAUTHBEARER")
LOGINS = (*MECHANISMS, "OAUTHBEARER-FILE", "mutual TLS", "mutual TLS, two files")
RECORDS = 500


class EveryLogin(TlsAndSasl):
    """A listener with SASL by every mechanism, and one with certificates of clients."""

    mutual_port = 0

    def kafka(self, port: int, controller_port: int) -> tuple[dict[str, str], list[str]]:
        settings, users = super().kafka(port, controller_port)
        self.mutual_port = free_port()
        mutual = f",SSL://127.0.0.1:{self.mutual_port}"
        prefix = "listener.name.sasl_ssl."
        scram = settings[f"{prefix}scram-sha-512.sasl.jaas.config"]
        return settings | {
            "listeners": settings["listeners"] + mutual,
            "advertised.listeners": settings["advertised.listeners"] + mutual,
            "listener.security.protocol.map": (
                settings["listener.security.protocol.map"] + ",SSL:SSL"
            ),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{prefix}scram-sha-256.sasl.jaas.config": scram,
            f"{prefix}plain.sasl.jaas.config": (
                f'{MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
            f"{prefix}oauthbearer.sasl.jaas.config": (
                f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
                f'unsecuredLoginStringClaim_sub="{USER}";'
            ),
        }, users


@dataclass(frozen=True, slots=True)
class Source:
    bootstrap: str
    mutual: str
    folder: Path
    """Has `ca.pem` of the authority and `client.pem` of a client."""
    authority: str
    client: str
    tokens: str


def token_of_now() -> str:
    now = int(time.time())
    return unsigned_token(sub=USER, iat=now, exp=now + 600)


def respond(_: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    if base64.b64decode(headers["Authorization"].removeprefix("Basic ")) != b"me:s3cret":
        return 401, b""
    return 200, json.dumps({"access_token": token_of_now(), "expires_in": 600}).encode()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("kafka")
    secured = EveryLogin(folder)
    authority = DevelopmentCa(folder, utc(SystemClock().now_ms()))
    try:
        server = kafka_server(folder, {"log.retention.ms": "-1"}, secured)
    except MissingTool as missing:
        pytest.skip(str(missing))
    with server, HttpPlace(respond) as place:
        client: dict[str, Any] = {
            "bootstrap.servers": server.bootstrap,
            **secured.client.librdkafka,
        }
        admin = AdminClient(client)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(USER, info, PASSWORD.encode(), b"salt")]
        )[USER].result(30)
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(30)
        producer = Producer(client)
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number, partition=number % 2)
        assert producer.flush(30) == 0
        yield Source(
            bootstrap=server.bootstrap,
            mutual=f"127.0.0.1:{secured.mutual_port}",
            folder=folder,
            authority=str(authority.certificate_path),
            client=str(authority.issue("client", hosts=())),
            tokens=place.url,
        )


def properties(source: Source, login: str, tmp_path: Path, password: str) -> dict[str, str]:
    """Settings of a Java client."""
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": source.authority}
    if login == "mutual TLS":
        keys = {"ssl.keystore.type": "PEM", "ssl.keystore.location": source.client}
        return {"security.protocol": "SSL", **trusted, **keys}
    if login == "mutual TLS, two files":
        text = Path(source.client).read_text()
        names = {"ssl.certificate.location": "CERTIFICATE-----\n", "ssl.key.location": "KEY-----\n"}
        found = {"security.protocol": "SSL", "ssl.ca.location": source.authority}
        for name, end in names.items():
            found[name] = str(tmp_path / name)
            parts = [part for part in text.split("-----BEGIN ") if f"{end}" in f"{part}\n"]
            Path(found[name]).write_text("".join(f"-----BEGIN {part}" for part in parts))
        return found
    mechanism = login.removesuffix("-FILE")
    user = f'required username="{USER}" password="{password}";'
    found = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **trusted}
    if mechanism == "PLAIN":
        return found | {"sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule {user}"}
    if mechanism.startswith("SCRAM"):
        return found | {"sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule {user}"}
    url = f"{source.tokens}/token"
    secret = "s3cret" if password == PASSWORD else password
    options = f'required clientId="me" clientSecret="{secret}"'
    if login.endswith("-FILE"):
        file = tmp_path / "token"
        file.write_text(token_of_now() if password == PASSWORD else "e30.e30.")
        url, options = file.as_uri(), "required"
    return found | {
        "sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule {options};",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.login.callback.handler.class": (
            f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
    }


def run_import(
    source: Source, login: str, tmp_path: Path, *flags: str, password: str = PASSWORD
) -> "tuple[int, str, str]":
    file = tmp_path / "client.properties"
    found = properties(source, login, tmp_path, password)
    file.write_text("".join(f"{name}={value}\n" for name, value in found.items()))
    address = source.mutual if login.startswith("mutual") else source.bootstrap
    done = lakehead_command(
        *("import", address, "--command-config", str(file), "--path", str(tmp_path / "data")),
        *("--json", *flags),
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("login", LOGINS)
def test_each_login_imports(source: Source, login: str, tmp_path: Path) -> None:
    status, rows, told = run_import(source, login, tmp_path)
    assert status == 0, told
    assert json.loads(rows.splitlines()[0])["records"] == RECORDS
    status, rows, told = run_import(source, login, tmp_path, "--verify")
    assert status == 0, told
    assert [json.loads(line)["same"] for line in rows.splitlines()] == [True, True]


@pytest.mark.parametrize("login", [one for one in LOGINS if not one.startswith("mutual")])
def test_a_wrong_password_or_token_is_one_clear_line(
    source: Source, login: str, tmp_path: Path
) -> None:
    status, rows, told = run_import(source, login, tmp_path, password="wrong")
    assert status == 1
    assert not rows
    lines = told.splitlines()
    assert len(lines) == 1, told
    assert source.bootstrap in told or "HTTP status 401" in told


def refused(source: Source, tmp_path: Path, **settings: str) -> str:
    """Return the line of an import with these settings of a client."""
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    done = lakehead_command(
        *("import", source.bootstrap, "--command-config", str(file)),
        *("--path", str(tmp_path / "data")),
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line


def test_a_certificate_of_another_authority_is_named(source: Source, tmp_path: Path) -> None:
    other = DevelopmentCa(tmp_path / "other", utc(SystemClock().now_ms())).certificate_path
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(other)}
    line = refused(source, tmp_path, **{"security.protocol": "SSL", **trusted})
    assert f"{source.bootstrap}: its certificate is not trusted" in line


def test_a_listener_with_tls_without_settings_is_named(source: Source, tmp_path: Path) -> None:
    line = refused(source, tmp_path)
    assert "a listener with TLS or SASL needs --command-config" in line
