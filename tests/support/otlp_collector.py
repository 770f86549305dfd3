"""An OpenTelemetry collector, as far as it takes messages by OTLP over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


class Collector(Generic[M]):
    """Keeps the messages of one kind, and the tokens that came with them."""

    def __init__(self, kind: type[M], signal: str) -> None:
        self.requests: list[M] = []
        self.tokens: set[str | None] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/x-protobuf"
                collector.tokens.add(self.headers["Authorization"])
                collector.requests.append(kind.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/{signal}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Take messages until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
