"""Hostile clients of one kind, in a process of their own: `python -m tests.flood.hostile_clients`.

Prints a line of JSON each second: connections that are open now, and what was done since the start.
Ends when its standard input does.

- idle: connections that send nothing, half of them to the listener with TLS.
- slow: a byte each second of a request that announces 1 MiB, or of a TLS handshake.
- deaf: requests for records, pipelined, whose responses the client does not read.
- handshakes: the first message of TLS, so that the node signs; closed at the response, and again.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.support.wire import fetch_request, frame

AT_ONCE = 100
"""Connections that are being made at a time."""
ADDRESSES = 8
"""Addresses that hostile clients come from. The honest one has another."""
PAUSE_S = 0.2
"""Before a connection that was closed or refused is made again."""
SLOW_S = 1.0
ANNOUNCED = 1 << 20
PIPELINED = 50
RECEIVE_BUFFER = 4096


class HostileClients:
    """Clients of a node with a PLAINTEXT listener at one port, and one with TLS at another."""

    def __init__(self, open_port: int, tls_port: int, topic: str, partition: int) -> None:
        self.open_now = 0
        self.done: Counter[str] = Counter()
        self._open_port = open_port
        self._tls_port = tls_port
        self._requests = frame(fetch_request(topic, partition, 0)) * PIPELINED
        self._hello = client_hello()
        self._number = 0
        self._making = asyncio.Semaphore(AT_ONCE)

    async def run(self, kind: str, count: int) -> None:
        """Keep `count` clients at work until cancelled."""
        lives: dict[str, Callable[[int], Awaitable[None]]] = {
            "idle": self._idle,
            "slow": self._slow,
            "deaf": self._deaf,
            "handshakes": self._handshake,
        }
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self._again(lives[kind], number))

    async def _again(self, live: Callable[[int], Awaitable[None]], number: int) -> None:
        while True:
            try:
                await live(number)
            except OSError:
                self.done["failed"] += 1
            await asyncio.sleep(PAUSE_S)

    @contextlib.asynccontextmanager
    async def _connected(self, port: int):  # type: ignore[no-untyped-def]
        self._number += 1
        own = f"127.0.1.{self._number % ADDRESSES + 1}"
        async with self._making:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, limit=RECEIVE_BUFFER, local_addr=(own, 0)
            )
        self.open_now += 1
        self.done["opened"] += 1
        try:
            yield reader, writer
        finally:
            self.open_now -= 1
            writer.transport.abort()

    def _port(self, number: int) -> int:
        return self._tls_port if number % 2 else self._open_port

    async def _idle(self, number: int) -> None:
        async with self._connected(self._port(number)) as (reader, _):
            await reader.read(1)

    async def _slow(self, number: int) -> None:
        is_tls = number % 2 == 1
        text = self._hello if is_tls else struct.pack(">ihhih", ANNOUNCED, 0, 8, 1, -1)
        async with self._connected(self._port(number)) as (reader, writer):
            for index in range(ANNOUNCED):
                if reader.at_eof() or writer.transport.is_closing():
                    return
                writer.write(text[index : index + 1] or b"\0")
                await asyncio.sleep(SLOW_S)

    async def _deaf(self, number: int) -> None:
        async with self._connected(self._open_port) as (_, writer):
            writer.transport.pause_reading()
            writer.write(self._requests)
            await writer.drain()
            while not writer.transport.is_closing():
                await asyncio.sleep(SLOW_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SLOW_S):
                        writer.write(self._requests[: len(self._requests) // PIPELINED])
                        await writer.drain()

    async def _handshake(self, number: int) -> None:
        while True:
            async with self._connected(self._tls_port) as (reader, writer):
                writer.write(self._hello)
                if await reader.read(RECEIVE_BUFFER):
                    self.done["handshakes"] += 1


def client_hello() -> bytes:
    """Return the first message of a TLS client."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def _report(clients: HostileClients) -> None:
    while True:
        print(json.dumps({"open": clients.open_now, **clients.done}), flush=True)
        await asyncio.sleep(1)


async def _until_input_ends(*runs: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(one) for one in runs]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("idle", "slow", "deaf", "handshakes"))
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--open-port", type=int, required=True)
    parser.add_argument("--tls-port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partition", type=int, required=True)
    given = parser.parse_args()
    clients = HostileClients(given.open_port, given.tls_port, given.topic, given.partition)
    await _until_input_ends(clients.run(given.kind, given.count), _report(clients))


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # They stand for other machines, and are not to take the processor from the node.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    asyncio.run(_main())
