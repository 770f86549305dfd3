"""A load balancer of layer 4 for tests: each listener passes connections on to one target.

As a Network Load Balancer it reads nothing of what passes, prefers targets that take connections,
and with a TLS context speaks TLS to clients and plain TCP to targets.
"""

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TypeAlias

Address: TypeAlias = tuple[str, int]
Passing: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNK_BYTES = 65_536
START_S = 10


class Forwarder:
    """Listeners by their address, each with the targets that it leads to."""

    def __init__(
        self,
        listeners: Mapping[Address, Sequence[Address]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listeners = listeners
        self._tls = tls
        self.passed: Counter[Address] = Counter()
        """How many connections each listener has passed on."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve until it is closed. Raises OSError where an address is taken."""
        async with AsyncExitStack() as stack:
            for listener, targets in self._listeners.items():
                await stack.enter_async_context(
                    await asyncio.start_server(
                        self._passing(listener, targets), *listener, ssl=self._tls
                    )
                )
            yield

    def _passing(self, listener: Address, targets: Sequence[Address]) -> Passing:
        async def passing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                for target in targets:
                    try:
                        inward = await asyncio.open_connection(*target)
                    except OSError:
                        continue
                    self.passed[listener] += 1
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_copied(reader, inward[1]))
                        both.create_task(_copied(inward[0], writer))
                    return
            finally:
                writer.close()

        return passing


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@contextmanager
def forwarding(
    listeners: Mapping[Address, Sequence[Address]], tls: ssl.SSLContext | None = None
) -> Iterator[Forwarder]:
    """Forward in a thread of its own."""
    made, started = Forwarder(listeners, tls), threading.Event()
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        ends.append((asyncio.get_running_loop(), asyncio.Event()))
        async with made.serving():
            started.set()
            await ends[0][1].wait()

    # The loop's end cancels what is being passed on.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert started.wait(START_S), "the forwarder does not start"
        yield made
    finally:
        loop, end = ends[0]
        loop.call_soon_threadsafe(end.set)
        thread.join(START_S)
