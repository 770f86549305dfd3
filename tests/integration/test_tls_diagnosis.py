"""Commands of an operator beside a node that talks to others by mutual TLS."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.process import free_port
from lakehead.broker.cli import node_network
from lakehead.broker.cli.cluster import COMMAND_CONFIG
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.secure_cluster import SecureCluster


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv(COMMAND_CONFIG, "")  # the commands set it: it is restored afterwards
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def secure(tmp_path: Path) -> SecureCluster:
    return SecureCluster.make(tmp_path / "tls", ["127.0.0.1", "localhost"])


@pytest.fixture
def settings(tmp_path: Path, secure: SecureCluster) -> Path:
    """The settings file of a node with a listener of mutual TLS for nodes."""
    address = f"NODES://127.0.0.1:{free_port()}"
    lines = {
        "extra.listeners": address,
        "extra.advertised.listeners": address,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NODES:SSL",
        "inter.broker.listener.name": "NODES",
        "ssl.keystore.location": str(secure.folder / "node.pem"),
        "ssl.truststore.location": str(secure.authority),
        "data": str(tmp_path / "data"),
    }
    file = tmp_path / "node.toml"
    file.write_text("".join(f'"{name}" = "{value}"\n' for name, value in lines.items()))
    return file


@pytest.fixture
def data(tmp_path: Path, settings: Path) -> Iterator[str]:
    broker = BrokerProcess(tmp_path, (*HASTY, "--config", str(settings)))
    broker.start()
    yield str(tmp_path / "data")
    broker.kill()


def client_config(folder: Path, secure: SecureCluster, **more: str) -> str:
    given = {"security.protocol": "SSL", "ssl.truststore.location": str(secure.authority), **more}
    file = folder / f"client-{len(more)}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    return str(file)


def states(lakehead: CommandLine, *arguments: str) -> tuple[list[str], str]:
    """The states of nodes, and the lines on standard error."""
    node_network._reported.clear()
    outcome = lakehead("nodes", "--json", *arguments)
    assert outcome.status == 0
    return [json.loads(line)["state"] for line in outcome.out.splitlines()], outcome.err


def test_a_command_without_a_certificate_says_so_and_calls_no_node_silent(
    lakehead: CommandLine, data: str, secure: SecureCluster, settings: Path, tmp_path: Path
) -> None:
    found, line = states(lakehead, "--path", data)
    assert found == ["unknown"]
    assert "name the settings of a client with a certificate" in line
    without = client_config(tmp_path, secure)
    found, line = states(lakehead, "--path", data, "--command-config", without)
    assert found == ["unknown"]
    assert f"{without} names no certificate (ssl.keystore.location)" in line
    pem = str(secure.folder / "node.pem")
    with_one = client_config(tmp_path, secure, **{"ssl.keystore.location": pem})
    assert states(lakehead, "--path", data, "--command-config", with_one) == (["live"], "")


def test_doctor_reaches_nodes_by_the_settings_of_a_node(
    lakehead: CommandLine, data: str, settings: Path
) -> None:
    node_network._reported.clear()
    outcome = lakehead("doctor", "--json", "--config", str(settings), "--data", data)
    found = {row["check"]: row for row in map(json.loads, outcome.out.splitlines())}
    assert found["nodes"]["found"] == "1 of 1 respond"
    assert found["certificate NODES"]["verdict"] == "ok"
    assert outcome.err == ""


def test_doctor_blames_a_broken_certificate_and_not_the_cluster(
    lakehead: CommandLine, data: str, secure: SecureCluster, settings: Path
) -> None:
    (secure.folder / "node.pem").write_text("no certificate")
    outcome = lakehead("doctor", "--json", "--config", str(settings), "--data", data)
    found = {row["check"]: row for row in map(json.loads, outcome.out.splitlines())}
    assert found["certificates"]["verdict"] == "failed"
    assert (found["cluster"]["verdict"], found["nodes"]["verdict"]) == ("ok", "warning")


def test_warnings_of_a_command_are_on_standard_error(tmp_path: Path) -> None:
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "PATH": "/usr/bin:/bin",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "lakehead", "topics", "list", "--json", "-p", "s3://bucket/prefix"],
        capture_output=True,
        check=False,
        text=True,
        env=environment,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    lines = ended.stderr.splitlines()
    assert "event=store_unavailable" in lines[0]
    assert lines[-1].startswith("lakehead: s3://bucket/prefix: meta/: no response")
    assert lines[-1].endswith("(look at the store's endpoint, and at the network)")
