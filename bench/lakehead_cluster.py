"""A Lakehead cluster of several node processes on one machine, each with its own life.

All nodes share the folder's store and its WAL volume. A caller that kills or pauses a node starts
it again; there is no supervisor.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from bench.lakehead_server import PYTHON_PATH
from bench.process import ServerFailed, ServerProcess, free_port, log_tail

READY_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node's start: its address, the command that runs it, and its own flags."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one, chosen once."""
    under: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


class ClusterNode:
    """One node of a cluster, over many lives."""

    def __init__(self, node_id: int, folder: Path, flags: Sequence[str], place: Place) -> None:
        self.node_id = node_id
        self.metrics_port = free_port()
        self.server = ServerProcess(
            f"node {node_id}",
            [
                *place.under,
                *(sys.executable, "-m", "lakehead", "start", "--node.id", str(node_id)),
                *("--host", place.host, "--port", str(place.port)),
                *("--data", str(folder / "data"), "--metrics.port", str(self.metrics_port)),
                *flags,
                *place.flags,
            ],
            port=place.port,
            log=folder / f"node-{node_id}.log",
            environment={"PYTHONPATH": PYTHON_PATH} | dict(place.environment),
            host=place.host,
            metrics_port=self.metrics_port,
        )

    def pause(self) -> None:
        """SIGSTOP, if it runs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, if it runs."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`, whatever it does, and wait for the end."""
        if self.server.is_running:
            self.server.kill()

    def metric(self, name: str) -> float:
        """The sum of a metric over all its labels, as the node's page has it now."""
        return self.server.metric(name)

    def log_tail(self, lines: int = 15) -> str:
        """The end of what it printed in all its lives."""
        return log_tail(self.server.log, lines)

    def _signal(self, number: int) -> None:
        if self.server.is_running:
            self.server.process.send_signal(number)


class LakeheadCluster:
    """Nodes 0, 1, ... of one cluster in a folder; on entry to a `with` they are started.

    `wal` is `object`, or `block` with `wal_size` bytes for each node, all in one file. Without a
    store it is a folder of the machine. `flags` are those of `lakehead start`. `client` is what
    librdkafka needs beside the address.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        nodes: int = 3,
        wal: str = "block",
        wal_size: int = 64 << 20,
        slices: int = 0,
        places: Sequence[Place] = (),
        client: Mapping[str, str | int | float] = MappingProxyType({}),
    ) -> None:
        assert wal in ("block", "object"), wal
        self.folder = folder
        self.wal = wal
        self.client = client
        size = wal_size * (slices or nodes)
        self.volume = folder / "volume"
        volume = f"block:{self.volume}?size={size}&slices={slices or nodes}"
        self._flags = ("--wal", "object:" if wal == "object" else volume, *flags)
        self.nodes = [
            self._node(number, places[number] if places else Place()) for number in range(nodes)
        ]

    @property
    def bootstrap(self) -> str:
        """Kafka's `bootstrap.servers`: every node's address."""
        return ",".join(node.server.bootstrap for node in self.nodes)

    def add_node(self, place: Place | None = None) -> ClusterNode:
        """Add a node with the next id, not started."""
        node = self._node(len(self.nodes), place or Place())
        self.nodes.append(node)
        return node

    def replace_node(self, node_id: int, place: Place) -> ClusterNode:
        """Put a node at the place of one that has ended, with its id and its log; not started."""
        node = self.nodes[node_id] = self._node(node_id, place)
        return node

    def start(self) -> Self:
        """Start all nodes at once and wait until they see each other, or raise ServerFailed."""
        for node in self.nodes:
            node.server.spawn()
        for node in self.nodes:
            node.server.wait_listening()
        self.wait_members(len(self.nodes))
        return self

    def wait_members(self, count: int, within_s: float = READY_S) -> None:
        """Wait until each running node has metadata with `count` live ones. Raises ServerFailed."""
        deadline = time.monotonic() + within_s
        for node in self.nodes:
            while node.server.is_running and _members(node.server.bootstrap, self.client) != count:
                if time.monotonic() > deadline:
                    raise ServerFailed(f"no cluster of {count}:\n{node.log_tail()}")
                time.sleep(_POLL_S)

    def stop(self) -> None:
        """End all nodes politely, one after the other; by force those that will not."""
        for node in self.nodes:
            node.resume()
            if node.server.is_running:
                node.server.stop()

    def kill(self) -> None:
        """End whatever runs, by force."""
        for node in self.nodes:
            node.kill()

    def _node(self, node_id: int, place: Place) -> ClusterNode:
        if not place.port:
            place = replace(place, port=free_port())
        return ClusterNode(node_id, self.folder, self._flags, place)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        self.kill()


def _members(bootstrap: str, client: Mapping[str, str | int | float]) -> int:
    """Return the number of nodes in a node's metadata; 0 if it does not respond."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **client})
    with contextlib.suppress(KafkaException):
        return len(admin.list_topics(timeout=5).brokers)
    return 0
