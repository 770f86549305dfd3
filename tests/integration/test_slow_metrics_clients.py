"""Clients of the metrics page that send slowly, or nothing: few threads, and not for long."""

import asyncio
import contextlib
import socket
import threading
import urllib.request

import pytest

from lakehead.broker.observability import page
from tests.integration.test_node_protocol import running, until


def answering() -> set[threading.Thread]:
    """Threads of this process that answer HTTP, those of other tests' servers too."""
    return {one for one in threading.enumerate() if "process_request_thread" in one.name}


def live(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def test_silent_and_slow_connections_are_few_and_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "REQUEST_S_MAX", 1.0)
    others = answering()

    def page_threads() -> int:
        return len(answering() - others)

    with contextlib.ExitStack() as connections:
        async with running(metrics_port=0) as node:
            assert node.page is not None
            port = node.page.port
            address = ("127.0.0.1", port)
            most = 0
            for one in [
                connections.enter_context(socket.create_connection(address, 5)) for _ in range(100)
            ]:
                with contextlib.suppress(OSError):  # there was no place for it
                    one.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
                most = max(most, page_threads())
            while most == 0:
                await asyncio.sleep(0.01)
                most = page_threads()
            # A thread that gave its place back is there for a moment more, beside its successor.
            assert most <= 2 * page.CONNECTIONS_MAX
            await until(lambda: page_threads() == 0)
            assert await asyncio.to_thread(live, port)
