"""`lakehead maintain`: what it shows, what it does, and what it leaves alone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lakehead import scan
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.placement import node_commands
from lakehead.storage.metadata.records import TopicConfig
from tests.integration.test_compaction_crashes import in_log, newest
from tests.support.command_line import CommandLine
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def fill(folder: Path, topic: str, *, timestamp: int = 1000) -> None:
    values = [
        TestRecord(offset=0, timestamp=timestamp, key=b"k%d" % (n % 3), value=b"v")
        for n in range(9)
    ]
    write_topic(folder / "store", topic, {0: values})


def configure(folder: Path, topic: str, **configs: str) -> None:
    topic_id = in_log(folder).topics[topic].topic_id
    named: dict[str, str | None] = {key.replace("_", "."): one for key, one in configs.items()}
    in_log(folder, TopicConfig(topic_id=topic_id, configs=named))


def rows(folder: Path) -> int:
    return int(scan(str(folder / "store"), "t").read_all().num_rows)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Topic `t` is to be compacted, `old` has outlived its retention, `kept` has not, and the
    offsets of groups are nobody's business here.
    """
    for topic in ("t", "old", "kept", "__consumer_offsets"):
        fill(tmp_path, topic)
    configure(tmp_path, "t", cleanup_policy="compact")
    configure(tmp_path, "kept", retention_ms="-1")
    return tmp_path


def test_what_is_due_is_shown_done_and_due_no_more(lakehead: CommandLine, cluster: Path) -> None:
    path = ("--path", str(cluster), "--json")
    shown = [json.loads(line) for line in lakehead("maintain", "--dry-run", *path).out.splitlines()]
    assert shown == [
        {"topic": "old", "partition": 0, "due": "trim to 9"},
        {"topic": "t", "partition": 0, "due": "compact from 0"},
    ]
    before = newest(cluster)
    figures = json.loads(lakehead("maintain", *path).out)
    assert (figures["compacted_partitions"], figures["trimmed_partitions"]) == (1, 1)
    assert figures["bytes_after"] < figures["bytes_before"]
    assert newest(cluster) == before
    starts = {
        name: in_log(cluster).streams[topic.partitions[0]].start_offset
        for name, topic in in_log(cluster).topics.items()
    }
    assert starts == {"t": 0, "old": 9, "kept": 0, "__consumer_offsets": 0}
    assert lakehead("maintain", "--dry-run", *path).out == ""
    assert lakehead("maintain", "--quiet", *path).out == ""


def test_declared_tables_are_brought_up_before_retention(
    lakehead: CommandLine, cluster: Path
) -> None:
    configure(cluster, "old", lakehead_table_enable="true", lakehead_table_freshness_ms="1000")
    path = ("--path", str(cluster), "--json")
    assert lakehead("apply-retention", "--dry-run", *path).out == "", "it waits for the table"
    without = json.loads(lakehead("maintain", "--no-lake", *path).out)
    assert (without["tables"], without["trimmed_partitions"]) == (0, 0)
    assert wait_until(lambda: bool(lakehead("maintain", "--dry-run", *path).out), 20)
    shown = [json.loads(line) for line in lakehead("maintain", "--dry-run", *path).out.splitlines()]
    assert [row["due"].split()[0] for row in shown] == ["materialize"]
    figures = json.loads(lakehead("maintain", *path).out)
    assert (figures["tables"], figures["records_in_tables"]) == (1, 9)
    assert figures["trimmed_partitions"] == 1
    assert lakehead("maintain", "--dry-run", *path).out == ""


def test_defaults_come_from_the_settings_of_the_nodes(
    lakehead: CommandLine, cluster: Path, tmp_path: Path
) -> None:
    config = tmp_path / "nodes.toml"
    config.write_text('log.retention.ms = -1\nlog.cleanup.policy = "delete"\n')
    path = ("--path", str(cluster), "--config", str(config), "--json")
    shown = [json.loads(line) for line in lakehead("maintain", "--dry-run", *path).out.splitlines()]
    assert [row["topic"] for row in shown] == ["t"]
    assert "no cluster" in lakehead.fails("maintain", "--path", str(tmp_path / "elsewhere"))


def test_following_does_what_becomes_due(cluster: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lakehead", "maintain", "--path", str(cluster), "--follow"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "LAKEHEAD_MAINTENANCE_INTERVAL_MS": "20"},
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(2):
            assert wait_until(lambda: len(newest(cluster)) == rows(cluster), 30)
            fill(cluster, "t")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.mark.parametrize(
    ("flags", "is_done"),
    [((), True), (("--no-maintain",), False), (("--maintain", "false"), False)],
)
def test_nodes_are_told_to_leave_it_to_others(
    lakehead: CommandLine, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], is_done: bool
) -> None:
    started: list[Settings] = []
    monkeypatch.setattr(
        "lakehead.broker.process.run", lambda settings, on_ready: started.append(settings)
    )
    assert lakehead("start", *flags).status == 0
    assert [settings.maintain for settings in started] == [is_done]


def test_supervised_nodes_are_told_too() -> None:
    """The supervisor hands on what it was given as flags."""
    flags = {"maintain": "false", "nodes": "2", "port": None}
    commands = node_commands(Settings(nodes=2, maintain=False), flags, None)
    assert all("--maintain=false" in command.arguments for command in commands)
