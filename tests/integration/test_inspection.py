"""`lakehead inspect` on what a real broker has left, object WAL and checkpoints included."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bench.s3_server import S3Server
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine

FLAGS = ("--wal", "object:", "--upload.age.ms", "600000", "--offsets.topic.num.partitions", "2")


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def produce(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        producer.produce("orders", f"{number}")
        assert producer.flush(30) == 0


def test_an_object_wal_is_shown_before_and_after_its_epoch_was_sealed(
    tmp_path: Path, lakehead: CommandLine, s3_server: S3Server
) -> None:
    store = f"{s3_server.uri}/cluster"
    broker = BrokerProcess(tmp_path, (*FLAGS, "--store", store))
    broker.start()
    produce(broker)
    broker.kill()
    (log,) = rows(lakehead("inspect", "wal", "object:", "--path", store, "--json").out)
    assert (log["node"], log["epoch"], log["first"], log["sealed_at"]) == (0, 0, 0, None)
    assert log["last"] + 1 == log["objects"] >= 20
    assert log["floor"] == "0/0"
    listed = lakehead("inspect", "wal", "object:", "--path", store, "--records", "--json")
    keys = [row["key"] for row in rows(listed.out)]
    assert len(keys) == log["objects"]
    items = rows(lakehead("inspect", "object", keys[0], "--path", store, "--json").out)
    assert [(item["topic"], item["crc"]) for item in items] == [("orders", "ok")]
    batches = lakehead("inspect", "object", keys[0], "--batches", "--path", store)
    assert "orders" in batches.out

    broker.start()
    broker.stop()
    logs = rows(lakehead("inspect", "wal", "object:", "--path", store, "--json").out)
    assert logs[0]["sealed_at"] == log["last"] + 1
    assert logs[0]["floor"].startswith("1/")
    key = f"wal/0/0000000000/{logs[0]['sealed_at']:020d}"
    shown = lakehead("inspect", "object", key, "--path", store).out
    assert "tombstone" in shown
    assert "sealed by" in shown
    assert "node 0" in shown
    (node,) = rows(lakehead("inspect", "state", "--path", store, "--json").out)[0]["nodes"]
    assert node["epoch"] == 1


def test_a_checkpoint_is_listed_and_shown_by_table(tmp_path: Path, lakehead: CommandLine) -> None:
    broker = BrokerProcess(
        tmp_path,
        ("--wal.size", "64m", "--metadata.checkpoint.entries", "10", "--metadata.poll.ms", "50"),
    )
    broker.start()
    data = str(tmp_path / "data")
    for n in range(30):
        name = f"topic-{n}"
        created = lakehead("topics", "create", name, "--bootstrap-server", broker.bootstrap)
        assert created.status == 0, created.err
    broker.stop()
    found = rows(lakehead("inspect", "checkpoint", "--path", data, "--json").out)
    assert found
    number = str(found[-1]["checkpoint"])
    tables = rows(lakehead("inspect", "checkpoint", number, "--path", data, "--json").out)
    sizes = {row["table"]: row["rows"] for row in tables}
    assert sizes["cluster"] == 1
    assert sizes["topics"] > 5
    topics = lakehead(
        *("inspect", "checkpoint", number, "--table", "topics", "--path", data, "--json")
    )
    assert {row["topic"] for row in rows(topics.out)} >= {"topic-0", "topic-1"}
    fails = lakehead.fails("inspect", "checkpoint", number, "--table", "nope", "--path", data)
    assert "there is no table 'nope'" in fails
    fails = lakehead.fails("inspect", "checkpoint", "7777", "--path", data)
    assert "there is no checkpoint 7777" in fails


def test_a_topic_is_made_altered_and_deleted_by_commands(
    tmp_path: Path, lakehead: CommandLine
) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    at = ("--bootstrap-server", broker.bootstrap)
    data = str(tmp_path / "data")

    def described() -> dict[str, Any]:
        return rows(lakehead("topics", "describe", "t", "--path", data, "--json").out)[0]

    made = ("--set", "retention.ms=5000", "--set", "cleanup.policy=compact")
    assert lakehead("topics", "create", "t", *made, *at).status == 0
    changes = ("--set", "retention.ms=7000", "--unset", "cleanup.policy", "--partitions", "3")
    altered = lakehead("topics", "alter", "t", *changes, *at)
    assert altered.status == 0, altered.err
    assert described()["configs"] == {"retention.ms": "7000"}
    assert len(described()["partitions"]) == 3
    refused = lakehead.fails("topics", "alter", "t", "--set", "a=1", "--set", "retention.ms=1", *at)
    assert "Unknown topic config name: a" in refused
    mistyped = lakehead.fails("topics", "alter", "t", "--set", "retention.msec=1", *at)
    assert "did you mean retention.ms?" in mistyped
    assert described()["configs"] == {"retention.ms": "7000"}, "all together or not at all"
    assert "already has 3" in lakehead.fails("topics", "alter", "t", "--partitions", "2", *at)
    assert "nothing to change" in lakehead.fails("topics", "alter", "t", *at)
    for many in ("1000000", "999999999999"):  # more than a client sends
        assert "topic t: " in lakehead.fails("topics", "alter", "t", "--partitions", many, *at)
        assert "topic u: " in lakehead.fails("topics", "create", "u", "--partitions", many, *at)
    assert "topic u: " in lakehead.fails("topics", "create", "u", "--set", "a=\udcff", *at)
    twice = ("--set", "retention.ms=1", "--unset", "retention.ms")
    assert "both name retention.ms" in lakehead.fails("topics", "alter", "t", *twice, *at)
    mistyped = lakehead.fails("topics", "alter", "t", "--unset", "retention.msec", *at)
    assert "did you mean retention.ms?" in mistyped
    assert lakehead("topics", "delete", "t", "--yes", *at).status == 0
    assert "does not exist" in lakehead.fails(
        "topics", "alter", "t", "--set", "retention.ms=1", *at
    )
    broker.stop()
