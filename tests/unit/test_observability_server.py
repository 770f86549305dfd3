"""The server of metrics and probes while the system has no descriptors and no threads to give."""

import contextlib
import errno
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from wsgiref.simple_server import make_server

import pytest

from lakehead.broker.observability import page
from lakehead.broker.observability.page import CONNECTIONS_MAX

LIMIT_S = 5.0


@contextlib.contextmanager
def serving() -> Iterator[Any]:
    """Serve a page that says `well`."""

    def respond(_: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"well"]

    server = make_server("127.0.0.1", 0, respond, page._Server, page._SilentHandler)
    access: Any = SimpleNamespace(tls=lambda: None)
    server.access = access
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def shown(server: Any) -> bytes:
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT_S)
    with contextlib.closing(client):
        client.request("GET", "/live")
        return client.getresponse().read()


def test_connections_that_got_no_thread_leave_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Timer, "start", refused)
            for _ in range(CONNECTIONS_MAX):
                with pytest.raises((http.client.HTTPException, OSError)):
                    shown(server)
        assert shown(server) == b"well"


class WithoutDescriptors:
    """A listening socket of a process that has no descriptor left for connections."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.count = 0

    def accept(self) -> Any:
        self.count += 1
        raise OSError(errno.EMFILE, "Too many open files")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listening, name)


def test_a_node_without_descriptors_spends_no_time_on_connections_of_the_page() -> None:
    with serving() as server:
        listening = server.socket
        server.socket = without = WithoutDescriptors(listening)
        with socket.create_connection(("127.0.0.1", server.server_port)):
            time.sleep(0.5)
            server.socket = listening
        assert 0 < without.count < 20
        assert shown(server) == b"well"
