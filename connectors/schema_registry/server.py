"""The registry as a process: its topic, its socket, its end.

The HTTP server runs on a thread, so that SIGTERM and SIGINT are ours: requests under way are
answered, then the log is closed.
"""

import random
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import structlog
import uvicorn

from lakehead.connectors.schema_registry.log import SchemaLog
from lakehead.connectors.schema_registry.registry import Registry
from lakehead.connectors.schema_registry.routes import Routes
from lakehead.connectors.schema_registry.service import Service
from lakehead.connectors.schema_registry.settings import RegistrySettings
from lakehead.connectors.schema_registry.topic import prepare_topic
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError

_CONNECTIONS_MAX = 1000
_IDLE_S = 60
_STOP_S = 10
_log = structlog.get_logger("connectors.schema_registry")


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
    service = Service(Routes(Registry(log)), settings.users, body_bytes_max=settings.body_bytes_max)
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
    on_ready(f"{host}:{port}")
    stop.wait()
    server.should_exit = True
    thread.join()


def _listening(settings: RegistrySettings) -> socket.socket:
    try:
        return socket.create_server((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"the registry cannot listen at {settings.host}:{settings.port}: "
            f"{getattr(error, 'strerror', None) or error}; choose another with --host and --port"
        ) from None


def _certificate(settings: RegistrySettings) -> dict[str, Any]:
    """What TLS needs of the HTTP server, after a try."""
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
