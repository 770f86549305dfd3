"""Marked secrets in the settings of a node are in none of its outputs.

Outputs are: its log at debug, its metrics, DescribeConfigs, `lakehead inspect`, command lines of
all its processes, and its last words when it ends by an error. Its environment holds references.
"""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from bench.process import free_port
from lakehead.broker.setting_sources import SETTINGS
from tests.integration.test_page_access import certificate, status
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

SECRETS = tuple(setting.name for setting in SETTINGS if setting.is_secret)
PLAIN_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_alice="{}" username="admin" password="{}";'
)


def values(pem: Path) -> dict[str, str]:
    """Return a value for each secret setting that a node takes beside the others; each has the mark
    of its setting, or is the key of `pem`.
    """
    key, _, chain = pem.read_text().partition("-----END ENCRYPTED PRIVATE KEY-----\n")
    found = {name: f"m4rk-{name.replace('.', '-')}" for name in SECRETS}
    found["metrics.users"] = f"prom:{found['metrics.users']}"
    found["sasl.jaas.config"] = PLAIN_LOGIN.format(*[found["sasl.jaas.config"]] * 2)
    found["ssl.keystore.key"] = f"{key}-----END ENCRYPTED PRIVATE KEY-----\n"
    found["ssl.keystore.certificate.chain"] = chain
    found["ssl.truststore.certificates"] = chain
    # They need a keystore of another type, or are named by a file here.
    for name in ("ssl.keystore.password", "ssl.truststore.password"):
        found.pop(name, None)
    return found


@pytest.mark.slow
def test_no_secret_of_a_setting_is_in_any_output(tmp_path: Path) -> None:
    pem, port, tls_port = tmp_path / "page.pem", free_port(), free_port()
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    password = "m4rk-ssl-key-password"
    certificate(pem, password=password)
    given = values(pem)
    given["ssl.key.password"] = given["metrics.ssl.key.password"] = password
    for name, value in given.items():
        (secrets / name).write_text(f"{value}\n")
    lines = [
        *(f'"{name}" = "${{directory:{secrets}:{name}}}"' for name in given),
        f'"metrics.port" = {port}\n"metrics.ssl.keystore.location" = "{pem}"',
        f'"extra.listeners" = "SECURE://127.0.0.1:{tls_port}"',
        f'"extra.advertised.listeners" = "SECURE://127.0.0.1:{tls_port}"',
        '"listener.security.protocol.map" = "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL"',
        '"sasl.enabled.mechanisms" = "PLAIN,SCRAM-SHA-512"\n"log.level" = "debug"',
        '"ssl.keystore.type" = "PEM"\n"ssl.truststore.type" = "PEM"\n"bootstrap.admin" = "admin"',
    ]
    file = tmp_path / "lakehead.toml"
    file.write_text("\n".join(lines))
    broker = BrokerProcess(tmp_path, ("--wal.size", "64m", "--config", str(file)))
    outputs: dict[str, str] = {}
    broker.start()
    try:
        token = {"authorization": f"Bearer {given['metrics.tokens']}"}
        page, trusted = f"https://localhost:{port}", pem.with_suffix(".cert")
        assert wait_until(lambda: status(f"{page}/ready", {}, trusted)[0] == 200, 60)
        outputs["metrics"] = status(f"{page}/metrics", token, trusted)[1]
        assert "lakehead_connections" in outputs["metrics"]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        resource = ConfigResource(ResourceType.BROKER, "0")
        configs = admin.describe_configs([resource])[resource].result(30)
        assert set(given) <= set(configs)
        assert {configs[name].value for name in given} == {None}
        outputs["configs"] = repr({name: vars(config) for name, config in configs.items()})
        process = psutil.Process(broker.server.process.pid)
        processes = [process, *process.children(recursive=True)]
        outputs["processes"] = json.dumps([one.cmdline() for one in processes])
        outputs["environment"] = json.dumps(process.environ())
        for number in range(4):
            outputs[f"entry {number}"] = inspected(tmp_path, "log", str(number))
        outputs["state"] = inspected(tmp_path, "state")
    finally:
        broker.kill()
    outputs["log"] = (tmp_path / "lakehead.log").read_text()
    wrong = f'"port" = "${{directory:{secrets}:metrics.tokens}}"'
    file.write_text("\n".join([*lines, wrong]))
    failed = subprocess.run(
        [sys.executable, "-m", "lakehead", "start", "--config", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert failed.returncode != 0
    outputs["last words"] = failed.stdout + failed.stderr
    assert "port: [hidden] is not a whole number" in outputs["last words"]
    body = given["ssl.keystore.key"].splitlines()[1]
    found = {name for name, text in outputs.items() if "m4rk" in text or body in text}
    assert found == set()


def inspected(folder: Path, *arguments: str) -> str:
    """Return the print of `lakehead inspect`."""
    command = [sys.executable, "-m", "lakehead", "inspect", *arguments]
    done = subprocess.run(
        [*command, "--path", str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    return done.stdout + done.stderr
