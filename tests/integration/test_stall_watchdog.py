"""Every API that a node advertises gets the largest requests of its schema, one array of it filled
after the other, while another client is served: nothing holds the event loop.

Takes minutes: `make stalls`, which prints a table. VERSIONS=all drives every version of each API,
not the last one alone.
"""

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from broker import api
from broker.api.turns import elements_max
from broker.network.connection import CONTROL_REQUEST_MAX
from broker.protocol.api import Api
from tests.support.watched_node import Stall, WatchedNode
from tests.support.wire import Wire, frame, header
from tests.support.worst_requests import worst_requests

STALL_S_MAX = 0.1
PROCESS_STALL_S_MAX = 0.3
ANSWER_S_MAX = 1.0
"""A request that is at work for longer is left; the node is watched for so long."""
IS_THOROUGH = os.environ.get("VERSIONS") == "all"
PARTITIONS = 2000
NAME = "worst"
APIS = [served for served in api.registry().apis() if not served.is_internal]


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


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as in a node's own process
    with WatchedNode(tmp_path_factory.mktemp("watchdog")) as running:
        topic = (
            struct.pack(">h", len(NAME)) + NAME.encode() + struct.pack(">ihii", PARTITIONS, 1, 0, 0)
        )
        with Wire(running.port) as client:
            body = struct.pack(">i", 1) + topic + struct.pack(">i?", 30_000, False)
            assert client.ask(header(19, 4) + body) is not None
        yield running
    sys.setswitchinterval(before)


@pytest.fixture(scope="module", autouse=True)
def _head() -> None:
    print(f"\n{'API':<34}{'array':<44}{'bytes':>10}{'loop ms':>9}{'process':>9}{'honest':>9}")


def versions(served: Api) -> range | list[int]:
    first, last = served.versions
    return range(first, last + 1) if IS_THOROUGH else [last]


@pytest.mark.slow
@pytest.mark.parametrize("served", APIS, ids=[served.name for served in APIS])
def test_no_request_of_an_api_holds_the_loop(node: WatchedNode, served: Api) -> None:
    topic_id = node.node.topics.by_name[NAME].uuid
    slow: list[tuple[str, Stall]] = []
    for version in versions(served):
        count = elements_max(node.node, served) - 2
        found = worst_requests(served.key, version, NAME, topic_id, count, CONTROL_REQUEST_MAX)
        for array, request in found:
            label = f"{served.name} v{version}"
            stall, honest_s = driven(node, request)
            assert node.is_well, f"{label} {array} ended the node"
            print(
                f"{label:<34}{array:<44}{len(request):>10}{stall.loop_s * 1e3:>9.0f}"
                f"{stall.process_s * 1e3:>9.0f}{honest_s * 1e3:>9.0f}",
                flush=True,
            )
            if stall.loop_s > STALL_S_MAX or stall.process_s > PROCESS_STALL_S_MAX:
                slow.append((f"{label} {array} {len(request)} bytes", stall))
            if NAME not in node.node.topics.by_name:
                pytest.fail(f"{label} {array} deleted the topic")
    assert not slow


def driven(node: WatchedNode, request: bytes) -> tuple[Stall, float]:
    """Send one request; return the longest stall, and what another client waited at most."""
    with Wire(node.port) as client, HonestClient(node.port) as honest:
        client.socket.settimeout(ANSWER_S_MAX)
        node.longest_stall()
        client.send(frame(request))
        with contextlib.suppress(TimeoutError, socket.timeout):
            client.receive()
        stall = node.longest_stall()
        return stall, honest.slowest_s
