"""The release before beside this one: a rolling update both ways, with clients that notice nothing.

At the level that both know, nodes of both serve one cluster and each may go back. Once the level is
raised the release before is refused with one line, and harms nothing.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lakehead_server import ROOT
from bench.process import free_port
from lakehead.broker.cli.cluster import load_state, run
from lakehead.broker.cluster.node_status import leads
from lakehead.storage.format.feature_level import BASE_LEVEL, NEWEST_LEVEL
from lakehead.storage.metadata.layout import checkpoint_number
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.release_before import ReleaseNode, unpack_release
from tests.support.traffic import (
    IDEMPOTENT,
    ProducerThread,
    TailThread,
    create_topic,
    read_log,
)
from tests.support.waiting import wait_until

TOPIC, PARTITIONS = "t", 4
FLAGS = (
    *("--wal.size", "64m", "--cache.size", "16m"),
    *("--upload.size", "1m", "--upload.age.ms", "200"),
    *("--metadata.checkpoint.entries", "10", "--metadata.poll.ms", "50"),
    *("--offsets.topic.num.partitions", "2", "--no-maintain", "--metrics.port", "-1"),
)
"""Such as both releases know."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_release(tmp_path_factory.mktemp("release"))


class Cluster:
    """Nodes 0 to 2 on one store in a folder."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        port = free_port()
        self.nodes = []
        for node_id in range(3):
            place = folder / str(node_id)
            place.mkdir()
            flags = (
                *FLAGS,
                *("--node.id", str(node_id), "--store", f"file:{self.store}"),
                *("--wal", f"block:{place}/wal"),
            )
            self.nodes.append(ReleaseNode(place, node_id, port + node_id, flags))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def level(self) -> int:
        return run(load_state(str(self.store))).metadata_version

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "lakehead", *words, "--path", f"file:{self.store}"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        for node in made.nodes:
            if node._server is not None:
                node.server.kill()


class Traffic:
    """A producer and a consumer that go on through it all."""

    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.history = History()
        create_topic(self.bootstrap, TOPIC, PARTITIONS)
        self.producer = ProducerThread(
            "p",
            self.bootstrap,
            TOPIC,
            partitions=PARTITIONS,
            history=self.history,
            config=IDEMPOTENT,
            records_per_s=200,
        )
        self.tail = TailThread(self.bootstrap, TOPIC, partitions=PARTITIONS, history=self.history)
        self.producer.start()
        self.tail.start()

    def goes_on(self) -> None:
        """Fail unless records are acknowledged from now on, in every partition in turn."""
        enough = self.producer.acknowledged + 10 * PARTITIONS
        assert wait_until(lambda: self.producer.acknowledged >= enough, 60)

    def finish(self) -> None:
        assert self.producer.finish() == 0
        self.tail.finish()
        log = read_log(self.bootstrap, TOPIC, PARTITIONS)
        assert violations(self.history, log, staleness_s=10) == []


def roll(cluster: Cluster, traffic: Traffic, release: Path | None) -> None:
    """Put the nodes that serve on a release, one after the other."""
    for node in cluster.nodes[:2]:
        node.stop()
        node.start(release)
        traffic.goes_on()


def checkpoints(cluster: Cluster) -> int:
    keys = [f"meta/checkpoint/{path.name}" for path in cluster.store.glob("meta/checkpoint/*")]
    return max((checkpoint_number(key) or 0 for key in keys), default=0)


def test_nodes_roll_to_this_release_and_back_until_the_level_is_raised(
    cluster: Cluster, before: Path
) -> None:
    first, second, third = cluster.nodes
    first.start(before)
    second.start(before)
    traffic = Traffic(cluster)
    traffic.goes_on()

    first.stop()
    first.start()
    traffic.goes_on()
    refused = cluster.command("features", "upgrade", "--yes")
    assert refused.returncode == 1
    assert "Broker 1 does not say which versions it supports" in refused.stderr
    described = cluster.command("features", "describe", "--json").stdout.splitlines()
    ranges = {one["node"]: (one["min"], one["max"]) for one in map(json.loads, described)}
    assert (ranges[0], ranges[1]) == ((1, NEWEST_LEVEL), (None, None))

    roll(cluster, traffic, None)
    written = checkpoints(cluster)
    assert wait_until(lambda: checkpoints(cluster) > written, 60), "checkpoints by this release"
    assert cluster.level == BASE_LEVEL
    roll(cluster, traffic, before)
    assert "corrupt" not in first.log + second.log

    roll(cluster, traffic, None)
    raised = cluster.command("features", "upgrade", "--yes")
    assert (raised.returncode, raised.stderr) == (0, "")
    assert "metadata.version was 1 and is 2 now" in raised.stdout
    traffic.goes_on()
    assert cluster.level == NEWEST_LEVEL

    third.spawn(before)
    assert third.server.process.wait(60) == 1
    (line,) = [line for line in third.log.splitlines() if "upgrade Lakehead" in line]
    assert "newer than this release reads" in line
    assert "Traceback" not in third.log
    third.start()
    traffic.goes_on()
    for node in (first, second):
        node.stop()
        node.start()
    written = checkpoints(cluster)
    assert wait_until(lambda: checkpoints(cluster) > written, 60)
    traffic.goes_on()
    traffic.finish()


def leaders(cluster: Cluster) -> set[int]:
    led = leads(run(load_state(str(cluster.store))))
    return {node_id for node_id, count in led.items() if count}


def hand_over(cluster: Cluster, nodes: list[int], heirs: set[int]) -> None:
    """Drain nodes together, after their heirs are free to lead."""
    words = [str(node_id) for node_id in sorted(heirs)]
    assert cluster.command("drain", *words, "--undo").returncode == 0
    done = cluster.command("drain", *map(str, nodes), "--wait")
    assert (done.returncode, done.stderr) == (0, "")
    assert wait_until(lambda: leaders(cluster) <= heirs, 60)


@pytest.mark.slow
def test_nodes_of_this_release_beside_the_others_take_over_give_back_and_stay(
    cluster: Cluster, before: Path
) -> None:
    """Blue/green: two sets of nodes on one store, and a way back until the level is raised."""
    old, *new = cluster.nodes
    old.start(before)
    traffic = Traffic(cluster)
    traffic.goes_on()
    for node in new:
        node.start()
    traffic.goes_on()
    hand_over(cluster, [0], {1, 2})
    traffic.goes_on()
    hand_over(cluster, [1, 2], {0})
    traffic.goes_on()
    hand_over(cluster, [0], {1, 2})
    assert cluster.level == BASE_LEVEL
    refused = cluster.command("features", "upgrade", "--yes")
    assert refused.returncode == 1
    assert "Broker 0 does not say which versions it supports" in refused.stderr
    old.stop()
    raised = cluster.command("features", "upgrade", "--yes")
    assert (raised.returncode, raised.stderr) == (0, "")
    assert cluster.level == NEWEST_LEVEL
    traffic.goes_on()
    traffic.finish()


def test_a_node_of_the_release_before_that_meets_the_raised_level_stops_with_one_line(
    cluster: Cluster, before: Path
) -> None:
    """Raised though it lives: nothing is lost and nothing is called corrupt."""
    first, second, _ = cluster.nodes
    first.start()
    assert cluster.level == NEWEST_LEVEL, "a new cluster begins at the newest level"
    second.spawn(before)
    assert second.server.process.wait(60) == 1
    assert "upgrade Lakehead" in second.log
    assert "corrupt" not in second.log
    assert "Traceback" not in second.log
