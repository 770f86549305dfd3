"""Commands wait for a broker that has taken their connection and is slow to respond."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from lakehead.broker.cli.kafka_admin import KafkaAdmin
from lakehead.storage.errors import BrokerUnavailable
from tests.support.watched_node import WatchedNode

SLOW_S = 0.2


@contextlib.contextmanager
def busy(port: int, lets_through: threading.Event) -> Iterator[str]:
    """The address of a broker whose connections are accepted, and served from an event on."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def forward(source: socket.socket, target: socket.socket) -> None:
            lets_through.wait()
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    broker = socket.create_connection(("127.0.0.1", port))
                    for ends in ((client, broker), (broker, client)):
                        threading.Thread(target=forward, args=ends, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        lets_through.set()


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehead.broker.cli.kafka_admin._CONNECT_S", SLOW_S)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    with WatchedNode(tmp_path_factory.mktemp("slow")) as running:
        yield running


def test_a_slow_broker_is_waited_for(node: WatchedNode) -> None:
    lets_through = threading.Event()
    with busy(node.port, lets_through) as address:
        threading.Timer(2 * SLOW_S, lets_through.set).start()
        assert KafkaAdmin(address).topics() == set()


def test_a_broker_that_never_responds_is_reported(node: WatchedNode) -> None:
    with (
        busy(node.port, threading.Event()) as address,
        pytest.raises(BrokerUnavailable, match="no broker responds"),
    ):
        KafkaAdmin(address)
