"""The registry as a process: an ASGI application around `Routes`, on a socket, until a signal.

The application bounds bodies, requires credentials where users are set, and turns failures into
Confluent's errors. Calls block on Kafka and on protoc, so each runs on a thread; the server bounds
their number. The HTTP server runs on a thread, so that SIGTERM and SIGINT are ours: running
requests get their responses, then the log is closed.
"""

import json
import random
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import structlog
import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakehead.connectors.schema_registry.access import Access, Caller
from lakehead.connectors.schema_registry.errors import RegistryError, malformed_request
from lakehead.connectors.schema_registry.log import SchemaLog, prepare_topic
from lakehead.connectors.schema_registry.registry import Registry
from lakehead.connectors.schema_registry.routes import BareText, Call, Routes
from lakehead.connectors.schema_registry.settings import RegistrySettings
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.plain_text import address_text

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_log = structlog.get_logger("connectors.schema_registry")


class Service:
    """An ASGI application, for the clients that `access` knows."""

    def __init__(self, routes: Routes, access: Access, *, body_bytes_max: int) -> None:
        self._routes = routes
        self._access = access
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        response = await self._response(Request(scope, receive))
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        try:
            caller = self._access.caller(request.headers.get("authorization", ""))
            if caller is None:
                challenge = {"www-authenticate": self._access.challenge}
                return _error(401, 401, "Unauthorized", challenge)
            call = await self._call(request, caller)
            found = await run_in_threadpool(self._routes.respond, call)
        except RegistryError as error:
            return _error(error.status, error.code, str(error))
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception:  # noqa: BLE001 - the root of a request: the client gets a response
            _log.exception("registry_call_failed", method=request.method, path=request.url.path)
            return _error(500, 50001, "Internal Server Error")
        if isinstance(found, BareText):
            return _response(200, found.text)
        return _response(200, json.dumps(found, ensure_ascii=False, separators=(",", ":")))

    async def _call(self, request: Request, caller: Caller) -> Call:
        raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
        segments = raw_path.decode("ascii", "replace").partition("?")[0].split("/")
        return Call(
            method=request.method,
            path=tuple(unquote(segment) for segment in segments if segment),
            query=dict(request.query_params),
            body=await self._body(request),
            caller=caller,
        )

    async def _body(self, request: Request) -> Any:
        received = bytearray()
        async for piece in request.stream():
            received += piece
            if len(received) > self._body_bytes_max:
                raise RegistryError(
                    413, 413, f"a request may have no more than {self._body_bytes_max} bytes"
                )
        if not received:
            return None
        try:
            return json.loads(bytes(received))
        except (ValueError, RecursionError):
            raise malformed_request("the body is not JSON") from None


def _response(status: int, body: str, headers: Mapping[str, str] | None = None) -> Response:
    # A schema may hold half of a surrogate pair, which UTF-8 has no bytes for.
    encoded = body.encode("utf-8", "backslashreplace")
    return Response(encoded, status, headers=headers, media_type=CONTENT_TYPE)


def _error(
    status: int, code: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    return _response(status, json.dumps({"error_code": code, "message": message}), headers)


_CONNECTIONS_MAX = 1000
_IDLE_S = 60
_STOP_S = 10


def run(settings: RegistrySettings, *, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `on_ready` is given host:port. Raises SettingsError,
    RegistryError.
    """
    with _listening(settings) as listener:
        certificate = _certificate(settings)
        timeout_s = settings.timeout_ms / 1000
        prepare_topic(
            settings.client,
            settings.topic,
            replication_factor=settings.replication_factor,
            timeout_s=timeout_s,
        )
        log = SchemaLog(
            settings.client,
            settings.topic,
            clock=SystemClock(),
            rng=random.SystemRandom(),
            timeout_s=timeout_s,
        )
        log.open()
        try:
            _serve(settings, log, listener, certificate, on_ready)
        finally:
            log.close()


def _serve(
    settings: RegistrySettings,
    log: SchemaLog,
    listener: socket.socket,
    certificate: dict[str, Any],
    on_ready: Callable[[str], None],
) -> None:
    routes = Routes(Registry(log))
    service = Service(routes, settings.access, body_bytes_max=settings.body_bytes_max)
    config = uvicorn.Config(
        service,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_STOP_S,
        **certificate,
    )
    server = uvicorn.Server(config)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def serve() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            stop.set()

    thread = threading.Thread(target=serve, name="http")
    thread.start()
    host, port = listener.getsockname()[:2]
    on_ready(address_text(host, port))
    stop.wait()
    server.should_exit = True
    thread.join()


def _listening(settings: RegistrySettings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family)
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"the registry cannot listen at {address_text(settings.host, settings.port)}: "
            f"{getattr(error, 'strerror', None) or error}; choose another with --host and --port"
        ) from None


def _certificate(settings: RegistrySettings) -> dict[str, Any]:
    """TLS settings of the HTTP server, after a trial."""
    if settings.tls_cert is None:
        if settings.tls_key is not None:
            raise SettingsError("--tls-key needs --tls-cert, the certificate that it belongs to")
        return {}
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(
            f"--tls-cert {settings.tls_cert}: no certificate and key in PEM: {error}"
        ) from None
    return {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key}
