"""Small HTTP responses of identity providers: JWK sets, tokens, and what AWS STS proves.

Requests run in threads, since `http.client` blocks. All is bounded: time, size, and the number of
requests at once. No redirect is followed.
"""

import asyncio
import http.client
import ssl
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from lakehead.storage.clock import Clock

_PIECE = 64 << 10
_AT_ONCE = 4


class HttpResponse(NamedTuple):
    """Status and body of a response."""

    status: int
    body: bytes


class HttpClient(Protocol):
    """Sends GET requests."""

    async def get(self, url: str, *, headers: Mapping[str, str], body_max: int) -> HttpResponse:
        """Return a response. Raises OSError: also for a body that is longer than `body_max`, and
        for a response that does not arrive in time.
        """


class HttpsClient:
    """An `HttpClient` with certificates checked by the authorities of the system."""

    def __init__(self, clock: Clock, *, connect_s: float, read_s: float) -> None:
        self._clock = clock
        self._connect_s = connect_s
        self._read_s = read_s
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def get(self, url: str, *, headers: Mapping[str, str], body_max: int) -> HttpResponse:
        """See `HttpClient.get`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(2 * (self._connect_s + self._read_s)), self._slots:
            get = partial(self.request, "GET", url, headers=headers, body_max=body_max)
            return await loop.run_in_executor(None, get)

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body_max: int,
        content: bytes | None = None,
    ) -> HttpResponse:
        """Send a request and wait for the response, in this thread. Raises as `HttpClient.get`."""
        place = urlsplit(url)
        connection = self._connection(place.scheme, place.hostname or "", place.port)
        until = self._clock.monotonic() + self._connect_s + self._read_s
        target = (place.path or "/") + (f"?{place.query}" if place.query else "")
        try:
            connection.connect()
            connection.sock.settimeout(self._read_s)
            connection.putrequest(
                method, target, skip_host="Host" in headers, skip_accept_encoding=True
            )
            for name, value in {"Connection": "close", **headers}.items():
                connection.putheader(name, value)
            if content is not None:
                connection.putheader("Content-Length", str(len(content)))
            connection.endheaders(content)
            response = connection.getresponse()
            body = bytearray()
            while piece := response.read1(_PIECE):
                body += piece
                if len(body) > body_max:
                    raise OSError(f"the response has more than {body_max} bytes")
                if self._clock.monotonic() > until:
                    raise TimeoutError("the response did not arrive in time")
            return HttpResponse(response.status, bytes(body))
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"the response is not HTTP: {type(error).__name__}") from None
        finally:
            connection.close()

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._connect_s)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=self._connect_s, context=context)
