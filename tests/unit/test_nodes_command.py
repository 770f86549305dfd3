"""`lakehead nodes` and `lakehead drain` on a cluster whose nodes are silent: what its log says."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from bench.process import free_port
from lakehead.broker.cli.cluster import load_state
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import (
    AssignStreams,
    ControllerLease,
    CreateStream,
    CreateTopic,
    FenceNode,
    OpenStream,
    Record,
    RegisterNode,
)
from lakehead.storage.object_store import FileStore
from tests.support.command_line import CommandLine

TOPIC_ID = "ab" * 16


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("TERM", "dumb")
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Nodes 0 to 3, each with a partition but the last; 1 and 3 are fenced; 2 is the controller."""
    port = free_port()  # nobody listens
    nodes: list[Record] = [
        RegisterNode(
            node_id=n, epoch=0, incarnation=f"i{n}", host="127.0.0.1", port=port, rack=f"r{n}"
        )
        for n in range(4)
    ]
    topic: list[Record] = [CreateTopic(name="t", topic_id=TOPIC_ID)]
    for n in range(3):
        topic += [
            CreateStream(stream_id=n, topic_id=TOPIC_ID, partition=n),
            AssignStreams(node_id=n, stream_ids=(n,)),
            OpenStream(stream_id=n, epoch=0, node_id=n, node_epoch=0),
        ]
    end: list[Record] = [
        ControllerLease(node_id=2, node_epoch=0, term=0),
        *(FenceNode(node_id=n, epoch=0) for n in (1, 3)),
    ]
    asyncio.run(commit(tmp_path, [*nodes, *topic, *end]))
    return str(tmp_path)


async def commit(folder: Path, records: list[Record]) -> None:
    store = FileStore(str(folder / "store"))
    log = await MetadataLog.open(
        store, writer_id="w", clock=SystemClock(), rng=random.Random(len(records))
    )
    await log.create_cluster("cd" * 16)
    await log.commit(records)


def listed(lakehead: CommandLine, data: str) -> list[dict[str, Any]]:
    outcome = lakehead("nodes", "--json", "--path", data)
    assert outcome.status == 0
    return [json.loads(line) for line in outcome.out.splitlines()]


def draining(data: str) -> list[int]:
    nodes = asyncio.run(load_state(data)).nodes
    return [n for n, node in sorted(nodes.items()) if node.is_draining]


def test_nodes_by_what_the_log_says_of_them(lakehead: CommandLine, data: str) -> None:
    rows = listed(lakehead, data)
    assert [row["state"] for row in rows] == ["silent", "fenced", "silent", "gone"]
    assert [row["leads"] for row in rows] == [1, 1, 1, 0]
    assert [row["controller"] for row in rows] == [False, False, True, False]
    assert [row["rack"] for row in rows] == ["r0", "r1", "r2", "r3"]
    assert {row["bytes_in"] for row in rows} == {None}
    table = lakehead("nodes", "--path", data).out.splitlines()
    assert [line.split()[1] == "*" for line in table[1:]] == [False, False, True, False]


def test_a_drain_is_committed_though_nobody_answers(lakehead: CommandLine, data: str) -> None:
    outcome = lakehead("drain", "0", "--path", data)
    assert outcome.out == "node 0 is draining: it leads 1 partition yet\n"
    assert draining(data) == [0]
    assert lakehead("drain", "0", "--path", data).status == 0, "again: nothing changes"
    assert lakehead("drain", "0", "--undo", "--path", data).out == "node 0 may lead again\n"
    assert draining(data) == []


def test_what_cannot_be_drained(lakehead: CommandLine, data: str) -> None:
    assert "no node 9 in this cluster" in lakehead.fails("drain", "9", "--path", data)
    assert "node 1 is not live" in lakehead.fails("drain", "1", "--path", data)
    assert lakehead("drain", "2", "--path", data).status == 0
    assert "the only one that may lead" in lakehead.fails("drain", "0", "--path", data)
    assert "--undo" in lakehead.fails("drain", "2", "--undo", "--wait", "--path", data)
    assert draining(data) == [2]


def test_where_there_is_no_cluster(lakehead: CommandLine, tmp_path: Path) -> None:
    assert "no cluster" in lakehead.fails("nodes", "--path", str(tmp_path))
    assert "no cluster" in lakehead.fails("drain", "1", "--path", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_nodes_of_a_machine_are_drained_in_one_entry_or_not_at_all(
    lakehead: CommandLine, data: str
) -> None:
    assert "are the only ones that may lead" in lakehead.fails("drain", "0", "2", "--path", data)
    assert draining(data) == []
    assert "node 1 is not live" in lakehead.fails("drain", "0", "1", "--path", data)
    assert draining(data) == []
