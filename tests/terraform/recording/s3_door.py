"""A proxy before an S3 server that writes down each request with its answer's status."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree as ET

from tests.support.http_messages import Head, pass_body, read_head

_BODY_MAX = 4 << 20
"""Of a DeleteObjects, which names at most 1,000 keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Call:
    """A request as it came to the door. `deleted` are the keys that a DeleteObjects names."""

    run: str
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    status: int
    deleted: tuple[str, ...] = ()


class S3Door:
    """The proxy, on the running loop. `calls` grows; `run` says what is going on behind it."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition("/")[2].rpartition(":")
        self._upstream = (host, int(port))
        self._connections: set[asyncio.Task[None]] = set()
        self.calls: list[S3Call] = []
        self.run = ""
        self.endpoint = ""

    async def serve(self, started: threading.Event, end: asyncio.Event) -> None:
        """Listen until `end`; `started` once the endpoint is known."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 20)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await end.wait()
        server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while (request := await read_head(reader)) is not None:
                if request.header("expect"):
                    request = request.without("expect")
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                if server is None or server[0].at_eof() or server[1].is_closing():
                    server = await asyncio.open_connection(*self._upstream, limit=1 << 20)
                if not await self._pass(request, (reader, writer), server):
                    server[1].transport.abort()
                    server = None
        except (OSError, EOFError):
            pass  # the client is gone
        finally:
            self._connections.discard(task)
            writer.transport.abort()
            if server is not None:
                server[1].transport.abort()

    async def _pass(
        self,
        request: Head,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """Carry a request and its answer. False: the server closes after it."""
        run = self.run
        path, _, query = request.target.partition("?")
        names = dict(parse_qsl(query, keep_blank_values=True))
        server[1].write(request.raw)
        deleted: tuple[str, ...] = ()
        if request.method == "POST" and "delete" in names and 0 <= request.length <= _BODY_MAX:
            body = await client[0].readexactly(request.length)
            server[1].write(body)
            deleted = _keys(body)
        else:
            await pass_body(request, client[0], server[1])
        answer = await read_head(server[0], answers=request.method)
        if answer is None:
            raise EOFError("the server closed")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        self.calls.append(
            S3Call(
                run=run,
                method=request.method,
                bucket=bucket,
                key=key,
                query=names,
                headers=request.headers,
                status=answer.status,
                deleted=deleted,
            )
        )
        client[1].write(answer.raw)
        await pass_body(answer, server[0], client[1])
        return answer.header("connection").lower() != "close"


def _keys(body: bytes) -> tuple[str, ...]:
    found = ET.fromstring(body).iter()
    return tuple(one.text or "" for one in found if one.tag.rpartition("}")[2] == "Key")


@contextlib.contextmanager
def recorded(upstream: str) -> Iterator[S3Door]:
    """Run a door on a loop of its own, in a thread."""
    door = S3Door(upstream)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(door.serve(started, end),))
    thread.start()
    try:
        if not started.wait(10):
            raise RuntimeError("the door does not open")
        yield door
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(10)
        loop.close()
