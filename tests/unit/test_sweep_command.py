"""`lakehead sweep` and `lakehead leak-check`: what they show, and what they leave."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.format.object_names import DataName
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DeleteTopic, FenceNode
from lakehead.storage.object_store import FileStore
from tests.support.command_line import CommandLine
from tests.support.topic_writer import write_topic


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    leave_garbage(tmp_path)
    return tmp_path


def leave_garbage(folder: Path) -> None:
    """Make a cluster in a data folder with two topics, one of them deleted, and a crash's
    orphan.
    """
    for topic in ("kept", "gone"):
        write_topic(folder / "store", topic, {0: [b"v" * 100] * 50})
    asyncio.run(_leave_garbage(folder / "store"))


async def _leave_garbage(root: Path) -> None:
    store = FileStore(root)
    log = await MetadataLog.open(store, writer_id="t", clock=SystemClock(), rng=random.Random(1))
    epoch = log.state.nodes[0].epoch
    topic_id = log.state.topics["gone"].topic_id
    await log.commit([DeleteTopic(topic_id=topic_id), FenceNode(node_id=0, epoch=epoch)])
    await store.create(DataName(0, epoch, 999).key, [b"never committed"])
    await store.close()


def data_files(folder: Path) -> int:
    return sum(path.is_file() for path in (folder / "store" / "data").rglob("*"))


def test_a_dry_run_shows_what_a_sweep_deletes(lakehead: CommandLine, cluster: Path) -> None:
    at_once = ("--path", str(cluster), "--grace", "0", "--margin", "0", "--json")
    shown = [json.loads(line) for line in lakehead("sweep", "--dry-run", *at_once).out.splitlines()]
    assert sorted(row["why"] for row in shown) == ["orphan", "unreferenced"]
    assert data_files(cluster) == 3

    assert json.loads(lakehead("sweep", "--yes", "--path", str(cluster), "--json").out) == {
        "deleted_objects": 0,
        "deleted_bytes": 0,
        "dropped_from_the_metadata": 0,
        "abandoned_uploads_given_up": 0,
    }
    done = json.loads(lakehead("sweep", "--yes", *at_once).out)
    assert (done["deleted_objects"], done["dropped_from_the_metadata"]) == (2, 1)
    assert done["deleted_bytes"] == sum(row["bytes"] for row in shown)
    assert data_files(cluster) == 1
    report = json.loads(lakehead("leak-check", "--path", str(cluster), "--json").out)
    assert report["referenced_objects"] == 1
    assert not any(report[name] for name in ("missing", "leaked", "waiting_for_their_grace"))


def test_a_leak_check_says_what_is_wrong(lakehead: CommandLine, cluster: Path) -> None:
    assert "leaked" in lakehead.fails("leak-check", "--path", str(cluster))
    for path in (cluster / "store" / "data").rglob("*"):
        if path.is_file():
            path.unlink()
    assert "missing" in lakehead.fails("leak-check", "--path", str(cluster))
