"""Every API that a node serves gets the largest requests of its schema, one array or field of bytes
filled after the other, and those that come furthest, while another client is served: nothing holds
the event loop.

Takes many minutes: `make stalls`, which writes the table of docs/operations.md. VERSIONS=all drives
every version of each API, not the last one alone; APIS="A or B" drives these.
"""

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from lakehead.broker import api
from lakehead.broker.api.turns import elements_max
from lakehead.broker.network.connection import CONTROL_REQUEST_MAX
from lakehead.broker.protocol.api import Api, schema
from lakehead.broker.protocol.node_proof import NodeProof
from tests.support.deep_requests import DEEP, Asker, commit_offsets
from tests.support.watched_node import Stall, WatchedNode
from tests.support.wire import Wire, array, frame, header, string
from tests.support.worst_requests import Filling, Limits, Names, worst_requests

STALL_S_MAX = 0.1
PROCESS_STALL_S_MAX = 0.3
ANSWER_S_MAX = 1.0
DEEP_ANSWER_S_MAX = 5.0
"""A request that is at work for longer is left; the node is watched for so long."""
IS_THOROUGH = os.environ.get("VERSIONS") == "all"
RESULTS = os.environ.get("STALLS_FILE")
PARTITIONS = 2000
NAME = "worst"
APIS = api.registry().apis()
OF_NODES = {24, 27, 63}
"""What nodes send each other: the requests bear the proof that one of them did."""
OWN_NODE = {19, 20, 37}
"""They change the topics that others are measured with."""
TOPIC_RESOURCE = 2
FIXED: dict[int, dict[str, Any]] = {
    0: {"acks": -1, "transactional_id": None},
    8: {"generation_id": -1, "generation_id_or_member_epoch": -1, "member_id": ""},
    11: {"session_timeout": timedelta(seconds=10), "member_id": "", "group_instance_id": None},
    19: {"num_partitions": 1, "replication_factor": 1},
    21: {"offset": 0},
    28: {"generation_id": -1, "member_id": "", "group_instance_id": None},
    32: {"resource_type": TOPIC_RESOURCE},
    33: {"resource_type": TOPIC_RESOURCE},
    44: {"resource_type": TOPIC_RESOURCE},
    68: {
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": timedelta(seconds=10),
        "server_assignor": None,
        "subscribed_topic_regex": "t.*",
    },
}
"""Values of fields, by API key, with which a request comes further."""


class HonestClient:
    """Asks for the end of a partition again and again, and notes how long the slowest took."""

    def __init__(self, port: int) -> None:
        self._wire = Wire(port)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.slowest_s = 0.0
        self.served = 0

    def __enter__(self) -> "HonestClient":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._wire.close()

    def _run(self) -> None:
        while not self._is_over.wait(0.005):
            began = time.perf_counter()
            self._wire.end_offset(NAME, 0)
            self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
            self.served += 1


@contextlib.contextmanager
def started(folder: Path) -> Iterator[WatchedNode]:
    """A node with a topic, and a group that has committed offsets of all its partitions."""
    with WatchedNode(folder) as running:
        topic = string(NAME) + struct.pack(">ihii", PARTITIONS, 1, 0, 0)
        with Wire(running.port) as client:
            client.socket.settimeout(60)
            body = array(topic) + struct.pack(">i?", 30_000, False)
            assert client.ask(header(19, 4) + body) is not None
            commit_offsets(Asker(client, NAME, PARTITIONS), NAME)
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    with started(tmp_path_factory.mktemp("watchdog")) as running:
        yield running


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path, served: Api) -> Iterator[WatchedNode]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as in a node's own process
    if served.key in OWN_NODE:
        with started(tmp_path) as running:
            yield running
    else:
        yield request.getfixturevalue("shared")
    sys.setswitchinterval(before)


@pytest.fixture(scope="module", autouse=True)
def _head() -> None:
    print(f"\n{'API':<34}{'filled':<50}{'bytes':>10}{'loop ms':>9}{'process':>9}{'honest':>9}")


def versions(served: Api) -> range | list[int]:
    first, last = served.versions
    return range(first, last + 1) if IS_THOROUGH else [last]


def requests(node: WatchedNode, served: Api, version: int) -> Iterator[tuple[str, bytes]]:
    """Yield the largest requests of an API: what is filled, and the request."""
    named = Names(
        name=NAME,
        topic_id=node.node.topics.by_name[NAME].uuid,
        fixed=FIXED.get(served.key, {}),
    )
    limits = Limits(count=elements_max(node.node.services, served) - 2, size=CONTROL_REQUEST_MAX)
    secret = ""
    if served.key in OF_NODES and schema(served.key, version).flexible_request:
        secret = node.node.state.node_secret
    proof = NodeProof(secret=secret, to_node=node.node.node_id)
    yield from worst_requests(served.key, version, named, limits, list(Filling), proof)


@pytest.mark.slow
@pytest.mark.parametrize("served", APIS, ids=[served.name for served in APIS])
def test_no_request_of_an_api_holds_the_loop(node: WatchedNode, served: Api) -> None:
    slow: list[tuple[str, Stall]] = []
    epoch = node.node.state.nodes[node.node.node_id].epoch
    with Wire(node.port) as other:
        other.socket.settimeout(60)
        asker, deeper = Asker(other, NAME, PARTITIONS), DEEP.get(served.key)
        deep = iter(()) if deeper is None else deeper(asker)
        by_schema = (
            (version, *one)
            for version in versions(served)
            for one in requests(node, served, version)
        )
        for version, filled, request in chain(by_schema, ((-1, *one) for one in deep)):
            label = f"{served.name} v{version}" if version >= 0 else served.name
            patience_s = ANSWER_S_MAX if version >= 0 else DEEP_ANSWER_S_MAX
            stall, honest_s = driven(node, request, patience_s)
            assert node.is_well, f"{label} {filled} ended the node"
            note(label, filled, len(request), stall, honest_s)
            if stall.loop_s > STALL_S_MAX or stall.process_s > PROCESS_STALL_S_MAX:
                slow.append((f"{label} {filled} {len(request)} bytes", stall))
            if NAME not in node.node.topics.by_name:
                assert served.key in OWN_NODE, f"{label} {filled} deleted the topic"
                break
    known = node.node.state.nodes[node.node.node_id]
    assert (known.epoch, known.is_fenced) == (epoch, False)
    assert not slow


def note(label: str, filled: str, size: int, stall: Stall, honest_s: float) -> None:
    """Print a line of the table, and keep it for the table of the docs."""
    print(
        f"{label:<34}{filled:<50}{size:>10}{stall.loop_s * 1e3:>9.0f}"
        f"{stall.process_s * 1e3:>9.0f}{honest_s * 1e3:>9.0f}",
        flush=True,
    )
    if RESULTS:
        line = {"api": label, "filled": filled, "bytes": size, "loop_s": stall.loop_s}
        with Path(RESULTS).open("a") as file:
            file.write(json.dumps(line) + "\n")


def driven(node: WatchedNode, request: bytes, patience_s: float) -> tuple[Stall, float]:
    """Send one request; return the longest stall, and what another client waited at most."""
    with Wire(node.port) as client, HonestClient(node.port) as honest:
        client.socket.settimeout(patience_s)
        node.longest_stall()
        with contextlib.suppress(ConnectionError, TimeoutError, socket.timeout):
            client.send(frame(request))
            client.receive()
        stall = node.longest_stall()
        return stall, honest.slowest_s
