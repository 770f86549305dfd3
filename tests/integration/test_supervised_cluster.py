"""One machine with three nodes and a producer that must notice nothing: drained, replaced one by
one, killed, stopped and started with more nodes.
"""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakehead.broker.cli.cluster import load_state
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.command_line import CommandLine, Outcome
from tests.support.supervised import Supervised, supervised
from tests.support.traffic import IDEMPOTENT, ProducerThread, create_topic, read_log
from tests.support.waiting import wait_until

PARTITIONS = 9
SMALL = (
    *("--offsets.topic.num.partitions", "3"),
    *("--leader.imbalance.check.interval.seconds", "1"),
)


class Traffic:
    """A producer at work on a topic of its own in a cluster."""

    def __init__(self, nodes: Supervised, topic: str) -> None:
        self._bootstrap = ",".join(nodes.addresses)
        self._history = History()
        self._topic = topic
        create_topic(self._bootstrap, topic, PARTITIONS)
        self._producer = ProducerThread(
            topic,
            self._bootstrap,
            topic,
            partitions=PARTITIONS,
            history=self._history,
            config=IDEMPOTENT,
            records_per_s=300,
        )
        self._producer.start()
        self.goes_on()

    def goes_on(self) -> None:
        """Wait until each partition has had more records acknowledged."""
        mark = self._producer.acknowledged + 100
        assert wait_until(lambda: self._producer.acknowledged >= mark, 30), "nothing goes on"

    def finish(self) -> None:
        """All that was acknowledged is there, and not one record was refused."""
        assert self._producer.finish() == 0
        log = read_log(self._bootstrap, self._topic, PARTITIONS)
        assert violations(self._history, log) == []
        assert sum(map(len, log.values())) == self._producer.acknowledged


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Three nodes, on a volume that was made for one and has its records."""
    folder = tmp_path_factory.mktemp("cluster")
    with supervised(folder, 1, *SMALL) as alone:
        alone.wait_ready()
        traffic = Traffic(alone, "of_one")
        traffic.finish()
        alone.process.send_signal(signal.SIGTERM)
        assert alone.process.wait(60) == 0
    with supervised(folder, 3, *SMALL) as made:
        made.wait_ready()
        yield made


class Operator:
    """Types commands at the nodes' machine."""

    def __init__(self, lakehead: CommandLine, nodes: Supervised) -> None:
        self._lakehead = lakehead
        self._path = ("--path", str(nodes.data))

    def __call__(self, *arguments: str) -> Outcome:
        return self._lakehead(*arguments, *self._path)

    def listed(self) -> list[dict[str, Any]]:
        done = self("nodes", "--json")
        assert done.status == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def operator(
    nodes: Supervised, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Operator:
    return Operator(CommandLine(monkeypatch, capsys), nodes)


def leads(nodes: Supervised) -> list[int]:
    """How many partitions each node leads."""
    state = asyncio.run(load_state(str(nodes.data)))
    counts = Counter(s.node_id for s in state.streams.values() if s.is_open)
    return [counts[node_id] for node_id in range(nodes.nodes)]


def is_even(counts: list[int]) -> bool:
    """Return true if every partition is led, and no node leads two more than another."""
    return sum(counts) >= PARTITIONS and max(counts) - min(counts) <= 1


def soon(nodes: Supervised, condition: Callable[[list[int]], bool]) -> None:
    """Wait until what the nodes lead is so."""
    assert wait_until(lambda: condition(leads(nodes)), 60), leads(nodes)


def test_nodes_on_a_volume_that_was_made_for_one_share_its_partitions(nodes: Supervised) -> None:
    soon(nodes, is_even)


def test_nodes_are_listed_drained_and_take_part_again(
    nodes: Supervised, operator: Operator
) -> None:
    traffic = Traffic(nodes, "listed")
    soon(nodes, is_even)
    rows = operator.listed()
    assert [row["node"] for row in rows] == [0, 1, 2]
    assert [f"127.0.0.1:{row['address'].rpartition(':')[2]}" for row in rows] == nodes.addresses
    assert {row["state"] for row in rows} == {"live"}
    assert is_even([row["leads"] for row in rows])
    assert [row["controller"] for row in rows].count(True) == 1
    assert wait_until(lambda: all(row["bytes_in"] > 0 for row in operator.listed()), 30)

    done = operator("drain", "1", "--wait")
    assert done.out == "node 1 is drained: it leads nothing\n", done.err
    rows = operator.listed()
    assert rows[1]["state"] == "draining"
    assert rows[1]["leads"] == 0
    assert sum(leads(nodes)) >= PARTITIONS
    traffic.goes_on()
    assert "drain" not in operator("drain", "2").err
    soon(nodes, lambda counts: counts[0] >= PARTITIONS and not any(counts[1:]))
    refused = operator("drain", "0")
    assert refused.status == 1
    assert "node 0 is the only one that may lead" in refused.err
    for node_id in ("1", "2"):
        assert operator("drain", node_id, "--undo").status == 0
    soon(nodes, is_even)
    traffic.finish()

    table = operator("nodes").out.splitlines()
    assert re.match(r"NODE +EPOCH +STATE +ADDRESS +RACK +HOST +LEADS +IN +OUT +CPU", table[0])
    assert len(table) == 4
    assert "no node 7" in operator("drain", "7").err
    assert "--undo" in operator("drain", "1", "--undo", "--wait").err


def test_a_kill_and_a_rolling_restart_cost_no_record(nodes: Supervised) -> None:
    """The last of the module: it ends the nodes."""
    traffic = Traffic(nodes, "kept")
    soon(nodes, is_even)
    os.kill(nodes.pids(2)[-1], signal.SIGKILL)
    assert wait_until(lambda: nodes.lives_ready(2) == 2, 30), nodes.log
    traffic.goes_on()
    nodes.process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: "rolling_restart_completed" in nodes.log, 90), nodes.log
    assert [nodes.lives_ready(node_id) for node_id in range(3)] == [2, 2, 3]
    left = re.findall(r"event=leaderships_resigned.* left=(\d+)", nodes.log)
    assert left == ["0"] * 3, "each gave everything away before it stopped"
    soon(nodes, is_even)
    traffic.finish()
    nodes.process.send_signal(signal.SIGTERM)
    assert nodes.process.wait(60) == 0, nodes.log
