"""Metrics and probes of a node over HTTP, from a thread of its own.

`/metrics` is for Prometheus. `/live`, `/ready` and `/health` are probes: a status of 200 or 503
with the node's health as JSON. Any other path is 404.
"""

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from broker.observability.health import PROBES, health
from broker.observability.metrics import NodeCollector
from storage.errors import SettingsError

if TYPE_CHECKING:
    from broker.node import Node


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing: scrapes come every few seconds."""


class ObservabilityPage:
    """Serves the page of a node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        registry = CollectorRegistry(auto_describe=False)
        registry.register(NodeCollector(node))
        self._metrics: Any = make_wsgi_app(registry)
        self._close: Callable[[], None] | None = None
        self.port = 0

    def start(self, host: str, port: int) -> None:
        """Listen. Raises SettingsError when the address cannot be had."""
        try:
            server = make_server(host, port, self._answer, _Server, _SilentHandler)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port} for metrics: {error.strerror or error}"
            ) from None
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, name="observability", daemon=True)
        thread.start()

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._close = close

    def close(self) -> None:
        """Stop listening."""
        if self._close is not None:
            self._close()
            self._close = None

    def _answer(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environment.get("PATH_INFO")
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environment, start_response)
            return answer
        passes = PROBES.get(path or "")
        if passes is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [f"{' '.join(('/metrics', *PROBES))}\n".encode()]
        found = health(self._node)
        code = "200 OK" if passes(found) else "503 Service Unavailable"
        start_response(code, [("Content-Type", "application/json")])
        return [json.dumps(asdict(found)).encode() + b"\n"]
