"""A seeded proxy that stands before an S3 server and spoils what passes: faults and latency.

It speaks HTTP/1.1 with connections kept alive, and bodies stream through it. Rules say what happens
to which operations and keys, with what probability; they may be replaced while it runs. It runs on
the loop of its user (`FaultProxy`), in a thread (`running_proxy`), or as a process:
`python -m tests.support.s3_proxy --upstream http://127.0.0.1:7070 --port 7071 --latency-ms 20`.
"""

import argparse
import asyncio
import contextlib
import random
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.support.http_messages import Head, pass_body, read_head

OPERATIONS = (
    *("GET", "HEAD", "PUT", "DELETE", "LIST", "DELETE_OBJECTS", "LIST_UPLOADS"),
    *("CREATE_UPLOAD", "UPLOAD_PART", "COMPLETE_UPLOAD", "ABORT_UPLOAD"),
)
READS = ("GET", "HEAD", "LIST", "LIST_UPLOADS", "DELETE", "DELETE_OBJECTS")
"""What may be repeated without a thought."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the proxy's own; the server never sees the request."""

    status: int
    code: str


SLOW_DOWN = Answer(503, "SlowDown")
INTERNAL_ERROR = Answer(500, "InternalError")
TOO_MANY_REQUESTS = Answer(429, "TooManyRequests")
CONFLICT = Answer(409, "ConditionalRequestConflict")
ACCESS_DENIED = Answer(403, "AccessDenied")


@dataclass(frozen=True, slots=True)
class Delay:
    """The answer comes later by `seconds`, and up to `jitter` seconds more."""

    seconds: float
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Slow:
    """The answer's body comes at this pace."""

    bytes_per_s: float


class Fault(StrEnum):
    """What else can happen to a request."""

    HANG = "hang"
    """It is swallowed: no answer, the connection stays open."""
    HANG_AFTER = "hang after"
    """The server carries it out; the answer never comes."""
    RESET = "reset"
    """The connection breaks before the server sees it."""
    LOST_ANSWER = "lost answer"
    """The server carries it out; the connection breaks before the answer."""
    CUT_BODY = "cut body"
    """The answer breaks off in the middle of its body."""
    FLIP_BYTE = "flip byte"
    """One byte of the answer's body is another."""
    NO_CONDITION = "no condition"
    """A put whose condition failed is answered as if it had been carried out: what a store does
    that ignores conditions.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`fault` happens to the operations named (all, if none) on keys that `key` is found in."""

    fault: Answer | Delay | Slow | Fault
    operations: tuple[str, ...] = ()
    key: str = ""
    probability: float = 1.0
    first: int = sys.maxsize
    """How many requests it happens to before it is spent."""


@dataclass(slots=True)
class _Effects:
    """What the rules decided for one request."""

    fault: Answer | Fault | None = None
    delay: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(slots=True)
class Seen:
    """What the proxy saw: requests by operation, answers by status, injected faults by name."""

    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    bytes_up: int = 0
    bytes_down: int = 0


def operation(head: Head) -> tuple[str, str]:
    """Return which S3 operation a request is, and its key (without the bucket)."""
    path, _, query = head.target.partition("?")
    key = path.lstrip("/").partition("/")[2]
    names = {part.partition("=")[0] for part in query.split("&")}
    if head.method == "GET" and not key:
        return ("LIST_UPLOADS" if "uploads" in names else "LIST"), ""
    if head.method == "POST":
        if "delete" in names:
            return "DELETE_OBJECTS", ""
        return ("CREATE_UPLOAD" if "uploads" in names else "COMPLETE_UPLOAD"), key
    if head.method == "PUT" and "partNumber" in names:
        return "UPLOAD_PART", key
    if head.method == "DELETE" and "uploadId" in names:
        return "ABORT_UPLOAD", key
    return head.method, key


class _Broken(Exception):
    """The connection to the client is to be broken now."""


class FaultProxy:
    """The proxy on the running loop. `rules` may be replaced at any time; `seen` counts."""

    def __init__(
        self, upstream: str, *, seed: int = 0, rules: Sequence[Rule] = (), host: str = "127.0.0.1"
    ) -> None:
        self.host = host
        host, _, port = upstream.rpartition("/")[2].rpartition(":")
        self.seen = Seen()
        self.heads: deque[Head] = deque(maxlen=100)
        """The newest requests."""
        self.port = 0
        self._upstream = (host, int(port))
        self._rng = random.Random(seed)
        self._rules: list[Rule] = list(rules)
        self._spent: Counter[int] = Counter()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        """Where clients go."""
        return f"http://{self.host}:{self.port}"

    @property
    def rules(self) -> list[Rule]:
        """The rules, the first that matches deciding; delays add up."""
        return self._rules

    @rules.setter
    def rules(self, rules: Sequence[Rule]) -> None:
        self._spent = Counter()
        self._rules = list(rules)

    async def start(self, port: int = 0) -> None:
        """Listen, on the port of an earlier life if there was one."""
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(
            self._accept, self.host, port or self.port, limit=1 << 20
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and break the open ones: the store is gone until the next start."""
        server, self._server = self._server, None
        if server is not None:
            # asyncio trips over a connection that is accepted and not yet made when this closes.
            for listener in server.sockets:
                asyncio.get_running_loop().remove_reader(listener.fileno())
            await _turns()
            server.close()
        while self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections)
        await _turns()  # broken connections give their sockets back

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """The store is gone while the block runs. For users of another thread than the proxy's."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result(10)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self.start(), self._loop).result(10)

    async def __aenter__(self) -> "FaultProxy":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            writer.transport.abort()
            if not task.cancelled():  # by stop(), or by the client, or by a rule
                task.exception()

        task.add_done_callback(ended)
        if self._server is None:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while (request := await read_head(reader)) is not None:
                if request.header("expect"):
                    request = request.without("expect")
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                effects = self._decide(request)
                if isinstance(effects.fault, Answer):
                    await self._answer(request, effects, reader, writer)
                    continue
                if effects.fault is Fault.RESET:
                    raise _Broken
                if effects.fault is Fault.HANG:
                    await _wait_closed(reader)
                if server is not None and (server[1].is_closing() or server[0].at_eof()):
                    server[1].transport.abort()
                    server = None
                if server is None:
                    server = await asyncio.open_connection(*self._upstream, limit=1 << 20)
                if not await self._forward(request, effects, (reader, writer), server):
                    server[1].transport.abort()
                    server = None
        finally:
            if server is not None:
                server[1].transport.abort()

    async def _forward(
        self,
        request: Head,
        effects: _Effects,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """Carry a request to the server and its answer back. False: the server closes after it."""
        server[1].write(request.raw)
        # A server may answer, and close, before it has read the whole body.
        answering = asyncio.ensure_future(read_head(server[0], answers=request.method))
        try:
            self.seen.bytes_up += await pass_body(request, client[0], server[1])
            answer = await answering
        finally:
            answering.cancel()
        if answer is None:
            raise _Broken
        if effects.delay:
            await asyncio.sleep(effects.delay)
        if effects.fault is Fault.LOST_ANSWER:
            raise _Broken
        if effects.fault is Fault.HANG_AFTER:
            await _wait_closed(client[0])
        if effects.fault is Fault.NO_CONDITION and answer.status == 412:
            await pass_body(answer, server[0], None)
            self.seen.statuses[200] += 1
            client[1].write(b'HTTP/1.1 200 OK\r\nETag: "0"\r\nContent-Length: 0\r\n\r\n')
            return True
        self.seen.statuses[answer.status] += 1
        client[1].write(answer.raw)
        cut = answer.length // 2 if effects.fault is Fault.CUT_BODY else None
        self.seen.bytes_down += await pass_body(
            answer,
            server[0],
            client[1],
            bytes_per_s=effects.bytes_per_s,
            stop_after=cut,
            flip=effects.fault is Fault.FLIP_BYTE,
        )
        if cut is not None:
            await client[1].drain()
            raise _Broken
        return answer.header("connection").lower() != "close"

    async def _answer(
        self,
        request: Head,
        effects: _Effects,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        answer = effects.fault
        assert isinstance(answer, Answer)
        await pass_body(request, reader, None)
        await asyncio.sleep(effects.delay)
        self.seen.statuses[answer.status] += 1
        body = b""
        if request.method != "HEAD":
            text = f"<Error><Code>{answer.code}</Code><Message>injected</Message></Error>"
            body = b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode()
        writer.write(
            f"HTTP/1.1 {answer.status} {answer.code}\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()

    def _decide(self, request: Head) -> _Effects:
        name, key = operation(request)
        self.seen.requests[name] += 1
        self.heads.append(request)
        effects = _Effects()
        for index, rule in enumerate(self._rules):
            if rule.operations and name not in rule.operations:
                continue
            if rule.key and not re.search(rule.key, key):
                continue
            if self._spent[index] >= rule.first or self._rng.random() >= rule.probability:
                continue
            if isinstance(rule.fault, Delay):
                effects.delay += rule.fault.seconds + self._rng.random() * rule.fault.jitter
                continue
            if isinstance(rule.fault, Slow):
                effects.bytes_per_s = rule.fault.bytes_per_s
            elif effects.fault is not None:
                continue
            else:
                effects.fault = rule.fault
            self._spent[index] += 1
            self.seen.faults[_name(rule.fault)] += 1
        return effects


def _name(fault: Answer | Slow | Fault) -> str:
    if isinstance(fault, Answer):
        return fault.code
    return "slow" if isinstance(fault, Slow) else fault.value


async def _turns() -> None:
    """Let the loop go round a few times."""
    for _ in range(5):
        await asyncio.sleep(0)


async def _wait_closed(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass
    raise _Broken


@contextlib.contextmanager
def running_proxy(
    upstream: str, *, seed: int = 0, rules: Sequence[Rule] = (), host: str = "127.0.0.1"
) -> Iterator[FaultProxy]:
    """Run a proxy on a loop of its own, in a thread: for users whose own loop is busy or absent."""
    proxy = FaultProxy(upstream, seed=seed, rules=rules, host=host)
    started = threading.Event()
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        end = asyncio.Event()
        async with proxy:
            ends.append((asyncio.get_running_loop(), end))
            started.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    if not started.wait(10):
        raise RuntimeError("the proxy does not start")
    try:
        yield proxy
    finally:
        loop, end = ends[0]
        loop.call_soon_threadsafe(end.set)
        thread.join(10)


def main() -> None:
    """Serve until the process is ended; prints the endpoint first."""
    parser = argparse.ArgumentParser(description="A proxy with faults and latency before an S3.")
    parser.add_argument("--upstream", required=True, help="http://host:port of the S3 server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    parser.add_argument("--tail-ms", type=float, default=0.0, help="more, for a share of the puts")
    parser.add_argument("--tail-share", type=float, default=0.0)
    parser.add_argument("--tail-key", default="", help="which puts: a pattern found in their keys")
    parser.add_argument("--slow-down", type=float, default=0.0, help="probability of a 503")
    given = parser.parse_args()
    rules = [
        Rule(fault=Delay(given.latency_ms / 1000, given.jitter_ms / 1000)),
        Rule(
            fault=Delay(given.tail_ms / 1000),
            operations=("PUT",),
            key=given.tail_key,
            probability=given.tail_share,
        ),
        Rule(fault=SLOW_DOWN, probability=given.slow_down),
    ]

    async def serve() -> None:
        proxy = FaultProxy(given.upstream, seed=given.seed, rules=rules)
        await proxy.start(given.port)
        print(proxy.endpoint, flush=True)
        await asyncio.Event().wait()

    import uvloop

    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve())


if __name__ == "__main__":
    main()
