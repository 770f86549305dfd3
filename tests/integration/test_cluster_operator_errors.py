"""What an operator can do wrong with a cluster of several nodes: a clear word, nothing harmed.

The cluster takes records before, during and after each mistake; they are all there at the end.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from bench.process import ServerFailed, free_port
from lakehead.broker.cli.cluster import load_state
from lakehead.storage.metadata.state import MetadataImage, NodeState
from tests.checker.clocks import WallClock, library
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.refusal import refusal
from tests.support.traffic import IDEMPOTENT, ProducerThread, create_topic, read_log
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("cluster operator errors")

TOPIC, PARTITIONS = "kept", 4
ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    *HASTY,
    *("--broker.heartbeat.interval.ms", "100", "--broker.session.timeout.ms", "1500"),
    *("--metadata.poll.max.ms", "200", "--leader.imbalance.check.interval.seconds", "1"),
)


class Cluster:
    """Nodes on one store, each a process, and a producer that never stops."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.flags = (*QUICK, "--store", f"file:{folder}/store", "--wal", "object:", *flags)
        self.nodes: dict[int, BrokerProcess] = {}
        self.history = History()
        self._producer: ProducerThread | None = None

    def node(self, node_id: int, *flags: str) -> BrokerProcess:
        """A node, not started."""
        folder = self.folder / f"node-{node_id}-{time.monotonic_ns()}"
        folder.mkdir()
        return BrokerProcess(folder, (*self.flags, "--node.id", str(node_id), *flags))

    def start(self, node_id: int, *flags: str) -> BrokerProcess:
        self.nodes[node_id] = node = self.node(node_id, *flags)
        node.start()
        return node

    def starts(self, node_id: int) -> bool:
        """Start a node unless another holds its log, because it recovers that."""
        try:
            self.start(node_id)
        except ServerFailed as error:
            if "is in use by process" not in str(error):
                raise
            return False
        return True

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values() if node.is_running)

    def produce(self) -> None:
        create_topic(self.bootstrap, TOPIC, PARTITIONS)
        self._producer = ProducerThread(
            "kept",
            self.bootstrap,
            TOPIC,
            partitions=PARTITIONS,
            history=self.history,
            config=IDEMPOTENT,
            records_per_s=200,
        )
        self._producer.start()
        self.goes_on()

    def goes_on(self) -> None:
        """Wait until more records are acknowledged."""
        assert self._producer is not None
        mark = self._producer.acknowledged + 50
        producer = self._producer
        assert wait_until(lambda: producer.acknowledged >= mark, 30), "producing does not go on"

    def judge(self) -> None:
        """Every acknowledged record is there, once and in order."""
        assert self._producer is not None
        self.goes_on()
        assert self._producer.finish() == 0
        log = read_log(self.bootstrap, TOPIC, PARTITIONS)
        assert violations(self.history, log) == []

    def state(self) -> MetadataImage:
        return asyncio.run(load_state(f"file:{self.folder}/store"))

    def registered(self, node_id: int) -> NodeState:
        return self.state().nodes[node_id]

    def leaders(self) -> set[int]:
        """The nodes that lead something, or are to."""
        return {stream.assigned for stream in self.state().streams.values()}

    def refused(self, *flags: str) -> str:
        folder = self.folder / f"refused-{time.monotonic_ns()}"
        return refusal(folder, *self.flags, *flags)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.drop()
        for node in self.nodes.values():
            node.kill()


@contextmanager
def cluster(folder: Path, *flags: str) -> Iterator[Cluster]:
    """Nodes 0 and 1, with records that keep coming; judged at the end."""
    made = Cluster(folder, *flags)
    try:
        made.start(0)
        made.start(1)
        made.produce()
        yield made
        made.judge()
    finally:
        made.close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all mistakes that touch neither its metadata nor its clocks."""
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, "--wal", f"block:{folder}/wal?slices=8&size=512m") as made:
        yield made


def test_a_second_node_of_an_id_is_refused_while_the_first_answers(nodes: Cluster) -> None:
    first = nodes.nodes[1]
    before = nodes.registered(1)
    line = nodes.refused("--node.id", "1")
    assert f"node 1 is alive at {first.bootstrap}" in line
    assert nodes.registered(1).epoch == before.epoch, "it did not even register"
    assert first.is_running
    first.kill()
    assert wait_until(lambda: nodes.starts(1), 30)  # now it may
    assert nodes.registered(1).epoch == before.epoch + 1


def test_of_two_nodes_of_an_id_that_start_at_once_one_is_left(nodes: Cluster) -> None:
    """Neither finds the other at its address, nor at a disk; the metadata lets one be node 2."""
    twins = [subprocess.Popen(command(nodes, nodes.folder / f"twin-{n}", 2)) for n in range(2)]
    try:
        assert wait_until(lambda: any(twin.poll() is not None for twin in twins), 30)
        assert wait_until(lambda: sum(twin.poll() is None for twin in twins) == 1, 30)
        nodes.goes_on()
        assert sum(twin.poll() is None for twin in twins) == 1
        assert 1 in {twin.poll() for twin in twins}
    finally:
        for twin in twins:
            twin.kill()
            twin.wait(30)


def command(nodes: Cluster, folder: Path, node_id: int) -> list[str]:
    start = [sys.executable, "-m", "lakehead", "start", "--data", str(folder), "--port", "0"]
    return [*start, *nodes.flags, "--node.id", str(node_id), "--wal", "object:"]


def test_a_node_with_a_wrong_prefix(nodes: Cluster) -> None:
    """With cluster.id it refuses, and makes nothing there."""
    cluster_id = nodes.state().cluster_id
    wrong = ("--store", f"file:{nodes.folder}/stroe", "--cluster.id", cluster_id)
    line = nodes.refused("--node.id", "3", *wrong)
    assert "stroe" in line
    assert "has no cluster" in line
    assert not (nodes.folder / "stroe/meta").exists()
    line = nodes.refused("--node.id", "3", "--cluster.id", "ab" * 16)
    assert f"has cluster {cluster_id}" in line
    assert 3 not in nodes.state().nodes
    nodes.start(3, "--cluster.id", cluster_id)


@pytest.mark.slow
def test_a_node_with_the_volume_of_another_cluster(nodes: Cluster) -> None:
    """Its slices are somebody's: it gets none, and its owner loses nothing, not even in a crash."""
    other = nodes.folder / "other"
    line = nodes.refused("--node.id", "7", "--store", f"file:{other}")
    assert f"{nodes.folder}/wal is the WAL of cluster {nodes.state().cluster_id}" in line
    nodes.nodes[0].kill()
    line = nodes.refused("--node.id", "0", "--store", f"file:{other}")
    assert "is the WAL of cluster" in line
    nodes.nodes[0].start()
    nodes.goes_on()


def test_an_advertised_address_at_which_nobody_answers(nodes: Cluster) -> None:
    """The node says so. Others hear of it, cannot reach it, and give it nothing to lead."""
    nowhere = free_port()
    lost = nodes.start(4, "--advertised.port", str(nowhere))
    assert wait_until(lambda: "advertised_address_unreachable" in lost.log, 20), lost.log
    assert f'port={nowhere} reason="no node responds there"' in lost.log
    nodes.start(6)  # one that can be reached gets its share
    assert wait_until(lambda: 6 in nodes.leaders(), 30), nodes.leaders()
    assert 4 not in nodes.leaders()
    assert nodes.registered(4).port == nowhere
    assert not nodes.registered(4).is_fenced
    nodes.goes_on()
    assert lost.stop() == 0


def test_an_advertised_address_of_another_node(nodes: Cluster) -> None:
    port = nodes.nodes[0].port
    wrong = nodes.node(5, "--advertised.port", str(port))
    try:
        with suppress(ServerFailed):  # it may have listened for a moment
            wrong.start()
        assert wait_until(lambda: not wrong.is_running, 20)
    finally:
        wrong.kill()
    assert f"lead to node 0 of this cluster, at 127.0.0.1:{port}" in wrong.log
    assert wrong.exit_status == 1


def test_an_address_that_is_none_to_connect_to(tmp_path: Path) -> None:
    line = refusal(tmp_path, *QUICK, "--host", "0.0.0.0")
    assert "cannot connect to 0.0.0.0" in line
    assert "advertised.host" in line


@pytest.mark.slow
def test_a_node_older_than_the_metadata(tmp_path: Path) -> None:
    """Running nodes end rather than guess; nothing is written after what they cannot read."""
    made = Cluster(tmp_path)
    with ExitStack() as stack:
        stack.callback(made.close)
        made.start(0)
        made.start(1)
        made.produce()
        log = tmp_path / "store/meta/log"

        def put_newer() -> Path:
            while True:
                last = max(log.iterdir())
                newer = last.with_name(f"{int(last.stem) + 1:020d}.json")
                entry = json.loads(last.read_text())
                try:
                    with newer.open("x") as file:
                        file.write(json.dumps(entry | {"version": entry["version"] + 1}))
                except FileExistsError:
                    continue
                return newer

        newer = put_newer()
        nodes = list(made.nodes.values())
        assert wait_until(lambda: not any(node.is_running for node in nodes), 30)
        for node in nodes:
            assert node.exit_status == 1
            assert "upgrade" in node.log
        assert max(log.iterdir()) == newer
        assert "upgrade" in made.refused("--node.id", "2")
        newer.unlink()
        for node in nodes:
            node.start()
        made.judge()


def test_a_controller_with_a_wrong_clock(tmp_path: Path) -> None:
    """A year in the future, the others in the past: it fences nobody who lives and keeps nobody who
    is dead, and its own end is noticed as any other's.
    """
    if library() is None:
        pytest.skip("libfaketime is not installed")
    made = Cluster(tmp_path, "--log.message.timestamp.after.max.ms", str(2**62))
    with ExitStack() as stack:
        stack.callback(made.close)
        for node_id, days in ((0, 400), (1, -400), (2, 0)):
            clock = WallClock(tmp_path / f"clock-{node_id}")
            clock.jump(days * 86_400)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in clock.environment.items():
                    patch.setenv(name, value)
                made.start(node_id)
        made.produce()
        assert made.state().controller.node_id == 0
        assert not [n for n, node in made.state().nodes.items() if node.is_fenced]
        made.nodes[2].kill()
        made.goes_on()
        assert wait_until(lambda: made.registered(2).is_fenced, 30)
        made.nodes[0].kill()
        made.goes_on()
        assert wait_until(lambda: made.state().controller.node_id == 1, 30)
        made.judge()
