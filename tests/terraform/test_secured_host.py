"""Nodes with the settings that Terraform renders for SASL_SSL, and secrets from an emulated Secrets
Manager: they wait for values, serve clients with a password alone, and load a new certificate. The
cluster is encrypted, as Terraform's `encryption` has it.
"""

import json
import random
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.own_environment import NotInstalled
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.key_file import add_key
from lakehead.storage.encryption.settings import joined_address
from tests.aws_day.day_hosts import figures
from tests.support.supervised import Supervised, supervised
from tests.support.waiting import wait_until
from tests.terraform.emulator import Emulator, emulator
from tests.terraform.terraform import SOURCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NODES, LIMIT_S = 2, 60.0
ASSERTED = re.compile(r'^ +"\\"([a-z.]+)\\" = \\"(.*)\\"",$', re.MULTILINE)
PASSWORD = "first words"
CLIENT = SOURCE.parents[1] / "tests" / "aws_day" / "on_host" / "client.py"


def rendered() -> dict[str, str]:
    """Return the settings that Terraform's own test saw, for free ports of this machine."""
    found = dict(ASSERTED.findall((SOURCE / "tests" / "security.tftest.hcl").read_text()))
    assert {"listeners", "inter.broker.listener.name", "ssl.keystore.location"} <= found.keys()
    found["listeners"] = re.sub(r"//0\.0\.0\.0:\d+", "//127.0.0.1:0", found["listeners"])
    return found


class Host:
    """A folder that stands for a host, with the commands of its script."""

    def __init__(self, folder: Path, aws: Emulator) -> None:
        self.aws = aws
        self.folder = folder
        self.copies = folder / "run"
        self.copies.mkdir()
        self.authority = DevelopmentCa(folder / "ca", utc(SystemClock().now_ms()))
        self.secrets = aws.client("secretsmanager")
        for name in ("tls", "first-admin"):
            self.secrets.create_secret(Name=f"lake/{name}")  # without a value, as Terraform does
        add_key(folder / "keys", "first", rng=random.Random(1))
        self.encryption = {
            "encryption.key.provider": "file",
            "encryption.key.file": str(folder / "keys"),
            "encryption.required": "true",
        }
        own = {"advertised.host": "127.0.0.1", "store": f"file:{folder}/data/store"}
        own |= self.encryption
        lines = [f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in (own | rendered()).items()]
        self.given = "".join(lines).replace("/run/lakehead", str(self.copies))
        (folder / "merged.toml").write_text(self.given)

    def put(self, name: str, fields: Mapping[str, str]) -> None:
        self.secrets.put_secret_value(SecretId=f"lake/{name}", SecretString=json.dumps(fields))

    def put_certificate(self, *hosts: str) -> str:
        """Put a new certificate; return it."""
        fields = self.authority.secret_of(self.authority.issue("node", hosts=hosts))
        self.put("tls", fields)
        return fields["certificate"]

    def copy(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lakehead", "settings", "secrets"]
        command += [str(self.folder / "merged.toml"), str(self.copies)]
        command += ["--prefix", "lake", "--region", "us-east-1"]
        return subprocess.run(
            command, env=self.aws.environment(), capture_output=True, text=True, check=False
        )

    def nodes_shown(self) -> list[dict[str, Any]]:
        """Return the nodes as a command of the host's script sees them."""
        command = [sys.executable, "-m", "lakehead", "nodes", "--json"]
        command += ["--path", joined_address(str(self.folder / "data"), self.encryption)]
        command += ["--command-config", str(self.copies / "nodes.properties")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def client(self, password: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.certificate_path),
        }


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    try:
        with emulator(tmp_path / "emulator.log") as aws:
            yield Host(tmp_path, aws)
            assert aws.faults() == []
    except NotInstalled as error:
        pytest.skip(str(error))


def shows(address: str, certificate: str) -> bool:
    name, port = address.rsplit(":", 1)
    return certificate in ssl.get_server_certificate((name, int(port)))


def is_refused(settings: Mapping[str, Any]) -> bool:
    try:
        AdminClient(dict(settings)).list_topics(timeout=5)
    except KafkaException:
        return True
    return False


def test_a_cluster_of_hosts_with_secrets(host: Host) -> None:
    waiting = host.copy()
    assert waiting.returncode == 1
    assert waiting.stderr.count("secret_awaited") == 2, waiting.stderr
    assert "--secret-id lake/tls" in waiting.stderr
    assert "ResourceNotFoundException" in waiting.stderr
    assert "Traceback" not in waiting.stderr

    host.put("first-admin", {"password": PASSWORD})
    host.put_certificate("10.42.0.99")
    waiting = host.copy()
    assert waiting.returncode == 1
    assert "IP address mismatch" in waiting.stderr
    host.put_certificate("127.0.0.1")
    ready = host.copy()
    assert ready.returncode == 0, ready.stderr
    assert PASSWORD not in ready.stdout + ready.stderr
    config = host.folder / "lakehead.toml"
    config.write_text(host.given + (host.copies / "first-admin.toml").read_text())

    with supervised(host.folder, NODES, "--config", str(config)) as nodes:
        nodes.wait_ready()
        serves_those_who_know_the_password(host, nodes)
        assert client_of_a_trial(host, nodes, "wait") == {"brokers": NODES}
        noticed = client_of_a_trial(host, nodes, "load")
        assert noticed["acknowledged"] > 0
        assert (noticed["lost"], noticed["twice"]) == (0, 0)
        assert [one["state"] for one in host.nodes_shown()] == ["live"] * NODES
        again = host.copy()
        assert again.returncode == 0, again.stderr
        assert {one.name for one in host.copies.iterdir()} == {
            *("host.pem", "ca.pem", "nodes.properties", "cluster-exists"),
        }, "users of a cluster are its own"
        (leaf, *_) = re.findall(
            r"-----BEGIN.*?END CERTIFICATE-----",
            host.put_certificate("127.0.0.1", "localhost"),
            re.DOTALL,
        )
        assert host.copy().returncode == 0
        for address in nodes.addresses:
            assert wait_until(partial(shows, address, leaf), LIMIT_S)
        serves_those_who_know_the_password(host, nodes)
        assert [len(nodes.pids(node_id)) for node_id in range(NODES)] == [1] * NODES
    assert PASSWORD not in nodes.log


def client_of_a_trial(host: Host, nodes: Supervised, what: str) -> dict[str, float]:
    """Run the program that `make aws-day` runs on hosts."""
    done = subprocess.run(
        [sys.executable, str(CLIENT), what, ",".join(nodes.addresses), "lake", "3"],
        env=host.aws.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    told = {"Status": "Success" if done.returncode == 0 else "Failed"}
    output = {"StandardOutputContent": done.stdout, "StandardErrorContent": done.stderr}
    return figures("client", told | output)


def serves_those_who_know_the_password(host: Host, nodes: Supervised) -> None:
    bootstrap = {"bootstrap.servers": ",".join(nodes.addresses), "socket.timeout.ms": "5000"}
    admin: dict[str, Any] = host.client(PASSWORD) | bootstrap
    client = AdminClient(admin)
    if "orders" not in client.list_topics(timeout=LIMIT_S).topics:
        client.create_topics([NewTopic("orders", 4)])["orders"].result(LIMIT_S)
    failed: list[object] = []
    producer = Producer(admin)
    for partition in range(4):
        producer.produce(
            "orders",
            b"record",
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(LIMIT_S) == 0
    assert failed == [], "leaders on both nodes take records"
    assert len(client.list_topics(timeout=LIMIT_S).brokers) == NODES
    assert is_refused(host.client("other words") | bootstrap)
    assert is_refused(bootstrap), "PLAINTEXT"
    stranger = {"ssl.ca.location": str(Path(ssl.get_default_verify_paths().cafile or "/dev/null"))}
    assert is_refused(admin | stranger), "clients check the certificate"
