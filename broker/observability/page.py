"""Metrics and probes of a node over HTTP, from a thread of its own.

`/metrics` is for Prometheus. `/live`, `/ready` and `/health` are probes: a status of 200 or 503
with the node's health as JSON. `/` and all below `/console/` are pages for people
(`lakehead.broker.console`). Any other path is 404.

If clients have to authenticate, `/live` and `/ready` need no credentials even so, since load
balancers have none to send; the response has no reasons then.
"""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from lakehead.broker.network.acceptor import SCARCE, SCARCE_S
from lakehead.broker.observability.health import PROBES, Health, health
from lakehead.broker.observability.metrics import NodeCollector
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.broker.observability.page_access import PageAccess
from lakehead.storage.errors import SettingsError
from lakehead.storage.plain_text import address_text

if TYPE_CHECKING:
    from lakehead.broker.console.application import Console

CONNECTIONS_MAX = 16
"""Maximum connections that are served at once, each by a thread; more are closed."""
TIMEOUT_S = 10.0
"""A client that sends or takes nothing for so long is let go."""
_OPEN_PROBES = frozenset({"/live", "/ready"})
REQUEST_S_MAX = 30.0
"""A connection is closed after this, however little it sends at a time."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128
    """Connections that wait to be accepted. With the library's 5, the kernel drops a probe's
    connection beside a flood of others, and the probe tries again after one second, three, seven.
    """

    access: PageAccess

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def get_request(self) -> Any:
        """Accept a connection. If the process has no descriptor for it, it waits in the kernel, and
        the system would say again at once that it is there.
        """
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in SCARCE:
                time.sleep(SCARCE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, if there is a free one."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, for a bounded time."""
        current = [request]
        end = threading.Timer(REQUEST_S_MAX, lambda: _cut(current[0]))
        end.daemon = True
        try:
            end.start()
        except RuntimeError:  # the process can have no more threads
            self._places.release()
            self.shutdown_request(request)
            return
        try:
            if (context := self.access.tls()) is not None:
                request.settimeout(TIMEOUT_S)
                try:
                    current[0] = context.wrap_socket(request, True, False)
                    current[0].do_handshake()
                except (OSError, ValueError):  # of ssl, too: it is not a client of this page
                    self.shutdown_request(current[0])
                    return
            super().process_request_thread(current[0], client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client has gone, or was too slow."""


def _cut(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        request.shutdown(socket.SHUT_RDWR)


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
    timeout = TIMEOUT_S

    def log_message(self, *_: Any) -> None:
        """Say nothing: scrapes come every few seconds."""


def _shown(found: Health) -> dict[str, Any]:
    fields = asdict(found)
    if found.copy is None:
        del fields["copy"]
    return fields


class ObservabilityPage:
    """Serves the page of a node."""

    def __init__(self, node: ObservedNode, access: PageAccess) -> None:
        self._node = node
        self._access = access
        registry = CollectorRegistry(auto_describe=False)
        registry.register(NodeCollector(node))
        self._metrics: Any = make_wsgi_app(registry)
        self._close: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._console: Console | None = None
        self._opening = threading.Lock()
        self.port = 0

    def start(self, port: int) -> None:
        """Listen. Raises SettingsError when the address cannot be had."""
        host = self._access.host
        try:
            kind = _Ipv6Server if ":" in host else _Server
            server = make_server(host, port, self._respond, kind, _SilentHandler)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {address_text(host, port)} for metrics: "
                f"{error.strerror or error}: set another metrics.port, or metrics.host"
            ) from None
        server.access = self._access
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
        if self._console is not None:
            self._console.close()

    def _respond(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environment.get("PATH_INFO", "")
        if path in {"/", "/console"} or path.startswith("/console/"):
            return self._opened_console().respond(environment, start_response)
        is_known = self._access.is_known(environment.get("HTTP_AUTHORIZATION", ""))
        if not is_known and path not in _OPEN_PROBES:
            start_response("401 Unauthorized", [("WWW-Authenticate", self._access.challenge)])
            return []
        if path == "/metrics":
            response: Iterable[bytes] = self._metrics(environment, start_response)
            return response
        passes = PROBES.get(path)
        if passes is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [f"{' '.join(('/metrics', *PROBES))}\n".encode()]
        found = health(self._node)
        code = "200 OK" if passes(found) else "503 Service Unavailable"
        start_response(code, [("Content-Type", "application/json")])
        shown = _shown(found) if is_known else {"status": found.status}
        return [json.dumps(shown).encode() + b"\n"]

    def _opened_console(self) -> "Console":
        """Return the console, whose modules are imported when it is first opened."""
        with self._opening:
            if self._console is None:
                from lakehead.broker.console.application import Console

                self._console = Console(self._node, self._access, self._loop)
            return self._console
