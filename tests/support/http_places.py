"""A small HTTP server on loopback, for what a broker fetches."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Respond = Callable[[str, Mapping[str, str]], tuple[int, bytes]]
"""Returns status and body of (target, headers)."""


@dataclass
class HttpPlace:
    """Serves what `respond` returns; `requests` are the targets so far."""

    respond: Respond
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        place = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place.requests.append(self.path)
                status, body = place.respond(self.path, dict(self.headers.items()))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
