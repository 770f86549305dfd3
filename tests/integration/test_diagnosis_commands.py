"""`lakehead doctor`, `why`, `top` and `support` beside a node that runs, and after its end."""

import asyncio
import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from lakehead.broker.cli.cluster import load_state
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine

SECRET = "correct-horse-battery"


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    """Produce one record, and commit its end for the group `readers`."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers"}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()


def add_user(bootstrap: str, user: str, password: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion(user, info, password.encode())
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(20)


def secrets_of(folder: Path) -> list[bytes]:
    """The secrets in a cluster's metadata, as its files have them."""
    state = asyncio.run(load_state(str(folder)))
    credential = next(iter(state.scram_credentials.values()))
    secrets = (credential.salt, credential.stored_key, credential.server_key)
    assert state.node_secret
    return [state.node_secret.encode(), *(base64.b64encode(one) for one in secrets)]


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("TERM", "dumb")
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    one = BrokerProcess(tmp_path)
    one.start()
    yield one
    one.kill()


def rows(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines()]


def files_of(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as archive:
        return {
            member.name.removeprefix("lakehead-support/"): opened.read()
            for member in archive.getmembers()
            if (opened := archive.extractfile(member)) is not None
        }


def test_diagnosis_of_a_cluster_that_runs_and_of_one_that_has_ended(
    lakehead: CommandLine, broker: BrokerProcess, tmp_path: Path
) -> None:
    place = ("--path", str(tmp_path / "data"))
    produce(broker.bootstrap, "orders", b"card-4711")
    doctor = ("doctor", "--data", str(tmp_path / "data"), "--port", str(broker.port), "--json")

    healthy = lakehead(*doctor)
    found = {row["check"]: row["verdict"] for row in rows(healthy.out)}
    assert healthy.status == 0
    assert found["object store"] == found["nodes"] == found["partitions"] == "ok"
    assert found["listener PLAINTEXT"] == "warning"

    text = lakehead("why", "orders-0", *place).out
    assert "leader           node 0" in text
    assert "waits: for nothing" in text
    lags = lakehead("why", "orders-0", *place, "--json", "-b", broker.bootstrap).out
    assert json.loads(lags)["lags"] == {"readers": 0}

    frame = lakehead("top", "--count", "2", "--interval", "0.1", *place).out
    assert frame.count("live") == 2
    assert f"127.0.0.1:{broker.port}" in frame

    broker.kill()
    ended = lakehead(*doctor)
    assert {row["check"]: row["verdict"] for row in rows(ended.out)}["nodes"] == "warning"
    assert "does not respond" in lakehead("why", "orders-0", *place).out


def test_a_support_file_has_no_secret_and_no_record(
    lakehead: CommandLine, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker.bootstrap, "orders", b"card-4711")
    add_user(broker.bootstrap, "ann", SECRET)
    monkeypatch.setenv("LAKEHEAD_SSL_KEY_PASSWORD", SECRET)
    log = tmp_path / "node.log"
    log.write_text("event=node_ready\n")
    bundle = tmp_path / "support.tar.gz"

    outcome = lakehead(
        *("support", "--path", str(tmp_path / "data"), "--output", str(bundle), "--log", str(log)),
        *("--metrics", "http://127.0.0.1:1"),
    )
    assert outcome.status == 0
    files = files_of(bundle)
    assert bundle.stat().st_mode & 0o077 == 0
    assert json.loads(files["settings.json"])["ssl.key.password"] == "[hidden]"
    assert b"ScramUpsert" in files["metadata-log.jsonl"]
    assert b"node_ready" in files["logs/0-node.log"]
    assert b"127.0.0.1:1" in files["pages/0-health.txt"]
    whole = b"".join(files.values())
    for hidden in (SECRET.encode(), b"card-4711", *secrets_of(tmp_path / "data")):
        assert hidden not in whole

    assert "exists" in lakehead.fails(
        "support", "--path", str(tmp_path / "data"), "-o", str(bundle)
    )


def test_a_support_file_has_no_value_of_a_reference_and_no_login_of_a_url(
    lakehead: CommandLine, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}-aws")
    monkeypatch.setenv("REGISTRY", f"https://registry/?token={SECRET}-token")
    config, log = tmp_path / "node.toml", tmp_path / "node.log"
    config.write_text(
        f'"console.registry" = "${{env:REGISTRY}}"\n'
        f'"telemetry.otlp.endpoint" = "https://otlp:{SECRET}-login@collector:4318/v1/metrics"\n'
        f'"bootstrap.admin.password" = "{SECRET}-admin"\n"bootstrap.admin" = "admin"\n'
    )
    log.write_text(f"event=failed key={SECRET}-aws url=https://registry/?token={SECRET}-token\n")
    bundle = tmp_path / "support.tar.gz"
    place = ("--path", str(tmp_path / "data"), "--config", str(config), "--log", str(log))
    page = f"http://operator:{SECRET}-page@127.0.0.1:1"
    assert lakehead("support", *place, "-o", str(bundle), "--metrics", page).status == 0
    files = files_of(bundle)
    settings = json.loads(files["settings.json"])
    assert settings["console.registry"] == settings["bootstrap.admin.password"] == "[hidden]"
    assert settings["telemetry.otlp.endpoint"].startswith("https://[hidden]@collector")
    assert b"event=failed key=[hidden]" in files["logs/0-node.log"]
    assert not any(SECRET.encode() in body for body in files.values())
    wrong = ("--metrics", f"ftp://operator:{SECRET}-page@127.0.0.1:1")
    refused = lakehead.fails("support", *place, "-o", str(tmp_path / "other"), *wrong)
    assert "ftp://127.0.0.1:1/health is not an address like" in refused


def test_a_support_file_of_a_damaged_cluster_says_why_it_cannot_be_read(
    lakehead: CommandLine, broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.kill()
    for entry in (tmp_path / "data" / "store" / "meta").rglob("*"):
        if entry.is_file():
            entry.write_bytes(b"\0")
    bundle = tmp_path / "support.tar.gz"
    assert lakehead("support", "--path", str(tmp_path / "data"), "-o", str(bundle)).status == 0
    files = files_of(bundle)
    assert "versions.json" in files
    assert b"meta/" in files["cluster-error.txt"]
    doctor = lakehead("doctor", "--data", str(tmp_path / "data"), "--port", "0", "--json")
    assert doctor.status == 1
    assert {row["check"]: row["verdict"] for row in rows(doctor.out)}["cluster"] == "failed"


def test_a_wrong_setting_is_a_finding_and_the_rest_is_reported(
    lakehead: CommandLine, tmp_path: Path
) -> None:
    outcome = lakehead(
        "doctor", "--data", str(tmp_path / "data"), "--num.partitions", "0", "--json"
    )
    found = {row["check"]: row for row in rows(outcome.out)}
    assert outcome.status == 1
    assert found["settings"]["verdict"] == "failed"
    assert "num.partitions" in found["settings"]["found"]
    assert found["versions"]["verdict"] == "ok"
