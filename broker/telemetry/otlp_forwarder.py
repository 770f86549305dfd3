"""Sends messages to a collector, by OTLP over HTTP, in Protobuf.

They wait in a queue, bounded in bytes, and are sent one after the other in a thread. One that
cannot be sent is dropped and counted: a collector that is away must not fill a node's memory.
"""

import asyncio
import http.client
import ssl
from collections import deque
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

import structlog

from lakehead.storage.errors import SettingsError

QUEUE_MAX = 8 << 20
"""Bytes of messages that may wait."""
_TIMEOUT_S = 10.0
_PAUSE_S = 1.0
_BODY_MAX = 64 << 10
_OK = range(200, 300)
_log = structlog.get_logger("broker.telemetry")


class OtlpForwarder:
    """Sends messages of one signal to an endpoint. `setting` begins the names of its settings:
    telemetry, or trace. Raises SettingsError for an endpoint that is not a URL.
    """

    def __init__(self, endpoint: str, headers: str, setting: str, signal: str) -> None:
        self._setting = setting
        self._place = _place(endpoint, setting, signal)
        self._headers = {"Content-Type": "application/x-protobuf", **_headers(headers, setting)}
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._has_pushes = asyncio.Event()
        self._is_failing = False
        self.forwarded_total = 0
        """Messages that the collector took."""
        self.dropped_total = 0
        """Messages that were dropped."""

    def offer(self, push: bytes | None) -> None:
        """Queue an Export*ServiceRequest, or drop it if the queue is full. None: it is too long
        for any.
        """
        if push is None or self._queued + len(push) > QUEUE_MAX:
            self.dropped_total += 1
            return
        self._queue.append(push)
        self._queued += len(push)
        self._has_pushes.set()

    async def run(self) -> None:
        """Send messages as they come, until this is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._has_pushes.wait()
            push = self._queue.popleft()
            self._queued -= len(push)
            if not self._queue:
                self._has_pushes.clear()
            try:
                await loop.run_in_executor(None, self._send, push)
            except (OSError, http.client.HTTPException) as error:
                self.dropped_total += 1
                if not self._is_failing:
                    _log.warning(f"{self._setting}_not_forwarded", reason=str(error))
                self._is_failing = True
                await asyncio.sleep(_PAUSE_S)
            else:
                self.forwarded_total += 1
                self._is_failing = False

    def _send(self, push: bytes) -> None:
        place = self._place
        connection = _connection(place)
        try:
            target = (place.path or "/") + (f"?{place.query}" if place.query else "")
            connection.request("POST", target, push, self._headers)
            response = connection.getresponse()
            response.read(_BODY_MAX)
            if response.status not in _OK:
                raise OSError(f"the collector responded with status {response.status}")
        finally:
            connection.close()


def _connection(place: SplitResult) -> http.client.HTTPConnection:
    host = place.hostname or ""
    if place.scheme == "http":
        return http.client.HTTPConnection(host, place.port, timeout=_TIMEOUT_S)
    context = ssl.create_default_context()
    return http.client.HTTPSConnection(host, place.port, timeout=_TIMEOUT_S, context=context)


def _place(endpoint: str, setting: str, signal: str) -> SplitResult:
    try:
        place = urlsplit(endpoint)
        is_url = place.scheme in {"http", "https"} and bool(place.hostname) and place.port != 0
    except ValueError:
        is_url, place = False, urlsplit("")
    if not is_url or place.username is not None:
        raise SettingsError(
            f"{setting}.otlp.endpoint is not the URL of a collector: write "
            f"https://host:4318/v1/{signal}, without a password"
        )
    return place


def _headers(text: str, setting: str) -> Mapping[str, str]:
    """Return the headers of `name=value,name=value`. Raises SettingsError."""
    found = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, separator, value = item.partition("=")
        if not separator or not name.strip() or not item.isprintable() or not item.isascii():
            raise SettingsError(f"{setting}.otlp.headers: write name=value, separated by commas")
        found[name.strip()] = value.strip()
    return found
