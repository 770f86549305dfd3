"""The network between the nodes of a simulated cluster: slow, lossy, cut in two, one way or both.

A connection is between two processes. What is sent over it arrives late, or never while the line is
cut: then nobody is told, as with a real network, until the one who waits loses patience. A process
that was killed has its connections reset, unless the line is cut; nobody listens at its address any
more. One that is frozen still has what is sent to it delivered, and answers when it wakes.

Heartbeats go to the lifecycle at once. All other requests, of nodes and of clients, go through a
real `Connection` and the real dispatcher of the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lakehead.broker import api
from lakehead.broker.cluster.heartbeat import API_KEY as HEARTBEAT_KEY
from lakehead.broker.cluster.heartbeat import Heartbeat as HeartbeatRequest
from lakehead.broker.cluster.heartbeat import (
    HeartbeatResponse,
    decode_heartbeat,
    encode_heartbeat_response,
)
from lakehead.broker.network.connection import Connection
from lakehead.broker.protocol.frame import read_header
from tests.simulation.cluster.transport import SimulatedTransport
from tests.simulation.lives import Life, outside

_REGISTRY = api.registry()

Heard = Callable[[HeartbeatRequest, bool], HeartbeatResponse]
"""Takes a heartbeat and whether its proof is there."""
_LENGTH_SIZE = 4


@dataclass(frozen=True, slots=True)
class _Listener:
    life: Life
    heard: Heard
    accept: Callable[[], Connection]
    """Returns a connection for requests other than heartbeats."""


class SimulatedNetwork:
    """All lines there are. `latency_s_max` is for one way; `loss` is a share of what is sent."""

    def __init__(self, rng: random.Random) -> None:
        self.latency_s_max = 0.002
        self.loss = 0.0
        self._rng = rng
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._channels: list[_Channel] = []
        self._cut: set[tuple[str, str]] = set()

    def listen(
        self, host: str, port: int, life: Life, heard: Heard, accept: Callable[[], Connection]
    ) -> None:
        """Let a process serve heartbeats and other requests at an address, until it dies."""
        listener = self._listeners[host, port] = _Listener(life, heard, accept)

        def close() -> None:
            if self._listeners.get((host, port)) is listener:
                del self._listeners[host, port]

        life.on_death.append(close)

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from one host to another."""
        self._cut.add((source, target))

    def heal(self) -> None:
        """Let everything through again; processes that died meanwhile are noticed."""
        self._cut.clear()
        self.loss = 0.0
        for channel in list(self._channels):
            channel.notice()

    def goes(self, source: str, target: str) -> bool:
        """Return true if something that is sent now arrives."""
        return (source, target) not in self._cut and self._rng.random() >= self.loss

    def listener(self, host: str, port: int) -> _Listener | None:
        """Return who listens at an address."""
        return self._listeners.get((host, port))

    def of(self, host: str, life: Life) -> NodeNetwork:
        """Return the network as a process of a host reaches it."""
        return NodeNetwork(self, host, life)

    async def pass_time(self) -> None:
        """Wait as long as something is on its way."""
        await asyncio.sleep(self._rng.random() * self.latency_s_max)

    def opened(self, channel: _Channel) -> None:
        """Keep a connection."""
        self._channels.append(channel)

    def closed(self, channel: _Channel) -> None:
        """Forget a connection."""
        if channel in self._channels:
            self._channels.remove(channel)


class NodeNetwork:
    """A `PeerNetwork` for one process."""

    def __init__(self, network: SimulatedNetwork, host: str, life: Life) -> None:
        self._network = network
        self._host = host
        self._life = life

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> _Channel:
        """See `PeerNetwork.connect`."""
        network = self._network
        await network.pass_time()
        if not (network.goes(self._host, host) and network.goes(host, self._host)):
            await asyncio.get_running_loop().create_future()  # until the caller loses patience
        listener = network.listener(host, port)
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        return _Channel(network, self._life, (self._host, host), listener, on_closed)

    async def probe(self, host: str, port: int) -> None:
        """See `PeerNetwork.probe`."""
        channel = await self.connect(host, port, lambda: None)
        channel.close()


class _Channel:
    """A `PeerChannel`."""

    def __init__(
        self,
        network: SimulatedNetwork,
        life: Life,
        ends: tuple[str, str],
        listener: _Listener,
        on_closed: Callable[[], None],
    ) -> None:
        self.is_open = True
        self._network = network
        self._life = life
        self._here, self._there = ends
        self._listener = listener
        self._on_closed = on_closed
        self._answer: asyncio.Future[memoryview] | None = None
        self._transport: SimulatedTransport | None = None
        self._received = bytearray()
        network.opened(self)
        listener.life.on_death.append(self.notice)
        life.on_death.append(self._forget)

    def notice(self) -> None:
        """Learn that the other process is dead, if the line is not cut."""
        is_gone = self.is_open and self._listener.life.is_dead
        if is_gone and self._network.goes(self._there, self._here):
            self._life.call(self._reset)

    async def send(self, frame: bytes) -> memoryview:
        """See `PeerChannel.send`."""
        if not self.is_open:
            raise ConnectionResetError("the connection was reset")
        assert self._answer is None or self._answer.done(), "one request at a time"
        self._answer = asyncio.get_running_loop().create_future()
        outside(asyncio.get_running_loop().create_task, self._deliver(frame, self._answer))
        return await self._answer

    def close(self) -> None:
        """See `PeerChannel.close`."""
        if self.is_open:
            self.is_open = False
            self._forget()
            self._on_closed()

    async def _deliver(self, frame: bytes, answer: asyncio.Future[memoryview]) -> None:
        """Carry a request there and its answer back, as the world does it."""
        await self._network.pass_time()
        if not self._network.goes(self._here, self._there) or self._listener.life.is_dead:
            return
        if read_key(frame) != HEARTBEAT_KEY:
            self._listener.life.call(partial(self._receive, frame))
            return
        asked = asyncio.get_running_loop().create_future()

        async def handle() -> None:
            header = read_header(memoryview(frame)[4:], _REGISTRY)
            heartbeat = decode_heartbeat(memoryview(frame), header.body + 4)
            found = self._listener.heard(heartbeat, bool(header.proof))
            asked.set_result(encode_heartbeat_response(found, int.from_bytes(frame[8:12], "big")))

        self._listener.life.spawn(handle(), "answer a heartbeat")
        body = await asked
        await self._network.pass_time()
        if self._network.goes(self._there, self._here) and not answer.done():
            answer.set_result(memoryview(body)[4:])

    # Requests other than heartbeats, in the process that serves them.

    def _receive(self, frame: bytes) -> None:
        if self._transport is None:
            connection = self._listener.accept()
            self._transport = SimulatedTransport(
                connection, self._here, self._send_back, self._closed_there
            )
        self._transport.receive(frame)

    def _send_back(self, data: bytes) -> None:
        outside(asyncio.get_running_loop().create_task, self._carry_back(data))

    def _closed_there(self) -> None:
        outside(asyncio.get_running_loop().create_task, self._carry_end())

    def _gone(self) -> None:
        if self._transport is not None:
            self._transport.end()

    async def _carry_back(self, data: bytes) -> None:
        await self._network.pass_time()
        answer = self._answer
        if not self._network.goes(self._there, self._here) or answer is None or answer.done():
            return
        self._received += data
        size = int.from_bytes(self._received[:_LENGTH_SIZE], "big")
        if len(self._received) - _LENGTH_SIZE >= size:
            body = bytes(self._received[_LENGTH_SIZE : _LENGTH_SIZE + size])
            self._received.clear()
            answer.set_result(memoryview(body))

    async def _carry_end(self) -> None:
        await self._network.pass_time()
        if self._network.goes(self._there, self._here):
            self._life.call(self._reset)

    def _reset(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the other process is gone"))
        self.close()

    def _forget(self) -> None:
        self._network.closed(self)
        if self._transport is not None and not self._listener.life.is_dead:
            outside(asyncio.get_running_loop().create_task, self._tell_end())

    async def _tell_end(self) -> None:
        await self._network.pass_time()
        if self._network.goes(self._here, self._there):
            self._listener.life.call(self._gone)


def read_key(frame: bytes) -> int:
    """Return the API key of a request with its length field."""
    return int.from_bytes(frame[_LENGTH_SIZE : _LENGTH_SIZE + 2], "big")
