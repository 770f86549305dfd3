"""The line to one other node, in virtual time: what it sends when, what it makes of failures."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lakehead.broker import api
from lakehead.broker.cluster.broker_lifecycle import HeartbeatChannel
from lakehead.broker.cluster.heartbeat import (
    Heartbeat,
    HeartbeatResponse,
    decode_heartbeat,
    encode_heartbeat_response,
)
from lakehead.broker.cluster.inter_broker_client import PeerChannel
from lakehead.broker.protocol.frame import read_header
from lakehead.broker.protocol.node_proof import NO_PROOF, NodeProof
from lakehead.storage.metadata.state import NodeState
from lakehead.storage.tasks import TaskScope
from tests.simulation.loop import LoopClock, simulate

INTERVAL, SESSION = 0.5, 3.0
PEER = NodeState(node_id=2, epoch=5, incarnation="i", host="h", port=9, rack=None)
REGISTRY = api.registry()


@dataclass(slots=True)
class Other:
    """The other node: what it does, and what it was asked when."""

    is_listening: bool = True
    is_silent: bool = False
    is_stranger: bool = False
    does_hang_up: bool = False
    attempts: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    channels: list["Channel"] = field(default_factory=list)

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        assert (host, port) == (PEER.host, PEER.port)
        self.attempts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.001)
        if not self.is_listening:
            raise ConnectionRefusedError
        self.channels.append(Channel(self, on_closed))
        return self.channels[-1]

    async def probe(self, host: str, port: int) -> None:
        (await self.connect(host, port, lambda: None)).close()

    def die(self) -> None:
        self.is_listening = False
        for channel in self.channels:
            channel.end()


class Channel:
    def __init__(self, other: Other, on_closed: Callable[[], None]) -> None:
        self.is_open = True
        self._other = other
        self._on_closed = on_closed
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(self, frame: bytes) -> memoryview:
        loop, view = asyncio.get_running_loop(), memoryview(frame)[4:]
        self._other.asked.append(loop.time())
        if self._other.is_silent:
            await asyncio.wait([self._ended])
        if self._other.does_hang_up or not self.is_open:
            self.end()
            raise ConnectionResetError
        await asyncio.sleep(0.001)
        header = read_header(view, REGISTRY)
        heartbeat = decode_heartbeat(view, header.body)
        if self._other.is_stranger:
            return memoryview(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        answer = HeartbeatResponse(node_id=2, epoch=5, next_entry=heartbeat.next_entry)
        return memoryview(encode_heartbeat_response(answer, header.correlation_id))[4:]

    def end(self) -> None:
        if self.is_open:
            self.is_open = False
            self._ended.set_result(None)
            self._on_closed()

    def close(self) -> None:
        self.end()


class Listener:
    """Whom the line tells."""

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.refusals: list[float] = []
        self.losses: list[float] = []
        self.accepted_total = 0

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(node_id=1, epoch=1, next_entry=7)

    def proof(self, peer: NodeState) -> NodeProof:
        return NO_PROOF

    def responded(self, peer: NodeState, answer: HeartbeatResponse, sent_at: float) -> None:
        assert answer.next_entry == 7
        self.answers.append(asyncio.get_running_loop().time())

    def refused(self, peer: NodeState) -> None:
        self.refusals.append(asyncio.get_running_loop().time())

    def accepted(self, peer: NodeState) -> None:
        self.accepted_total += 1

    def lost(self, peer: NodeState) -> None:
        self.losses.append(asyncio.get_running_loop().time())


Scenario = Callable[[Other, HeartbeatChannel, Listener], Awaitable[None]]


def run(scenario: Scenario, **other: Any) -> None:
    async def world() -> None:
        crashes: list[str] = []
        scope = TaskScope(lambda name, error: crashes.append(f"{name}: {error!r}"))
        made, listener = Other(**other), Listener()
        clock = LoopClock(asyncio.get_running_loop())
        line = HeartbeatChannel(PEER, made, listener, clock, interval_s=INTERVAL, session_s=SESSION)
        scope.spawn(line.run(), name="line")
        await scenario(made, line, listener)
        await scope.close()
        assert crashes == []

    simulate(world, seed=3)


def test_one_heartbeat_an_interval() -> None:
    async def scenario(other: Other, line: HeartbeatChannel, listener: Listener) -> None:
        await asyncio.sleep(10)
        assert len(other.attempts) == 1
        assert 20 <= len(listener.answers) <= 21
        assert line.known_entry == 7

    run(scenario)


def test_a_nudge_is_sent_at_once_and_many_are_one() -> None:
    async def scenario(other: Other, line: HeartbeatChannel, listener: Listener) -> None:
        await asyncio.sleep(0.1)
        before = len(other.asked)
        for _ in range(50):
            line.nudge()
        await asyncio.sleep(0.01)
        assert len(other.asked) - before == 1
        assert other.asked[-1] - 0.1 < 0.001

    run(scenario)


def test_an_end_is_told_at_once_and_refusals_soon_and_often() -> None:
    async def scenario(other: Other, line: HeartbeatChannel, listener: Listener) -> None:
        await asyncio.sleep(1.3)
        other.die()
        assert len(listener.losses) == 1
        await asyncio.sleep(0.01)
        assert len(listener.refusals) == 1
        await asyncio.sleep(INTERVAL / 2)
        assert 4 <= len(listener.refusals) <= 6
        other.is_listening = True
        await asyncio.sleep(0.1)
        assert listener.answers[-1] > listener.refusals[-1]

    run(scenario)


def test_silence_ends_the_connection_after_a_session_and_another_is_tried() -> None:
    async def scenario(other: Other, line: HeartbeatChannel, listener: Listener) -> None:
        await asyncio.sleep(SESSION - 0.1)
        assert len(other.attempts) == 1
        await asyncio.sleep(0.3)
        assert len(other.attempts) == 2
        assert listener.answers == []

    run(scenario, is_silent=True)


def test_a_look_at_a_silent_node_tells_one_that_hangs_and_keeps_the_connection() -> None:
    async def scenario(other: Other, line: HeartbeatChannel, listener: Listener) -> None:
        await asyncio.sleep(1)
        await line.check_address()
        assert listener.accepted_total == 1
        assert [channel.is_open for channel in other.channels] == [True, False]
        assert listener.losses == []
        other.is_listening = False
        await line.check_address()
        assert (listener.accepted_total, len(listener.refusals)) == (1, 1)

    run(scenario, is_silent=True)


def test_an_address_with_another_tenant_is_not_asked_in_a_tight_loop() -> None:
    async def scenario(other: Other, line: HeartbeatChannel, listener: Listener) -> None:
        await asyncio.sleep(10)
        assert listener.answers == []
        assert len(other.attempts) < 200

    run(scenario, is_stranger=True)


def test_an_address_that_hangs_up_at_once_is_not_asked_in_a_tight_loop() -> None:
    async def scenario(other: Other, line: HeartbeatChannel, listener: Listener) -> None:
        await asyncio.sleep(10)
        assert len(other.attempts) < 200

    run(scenario, does_hang_up=True)


def test_nudges_do_not_make_a_dead_address_be_asked_in_a_tight_loop() -> None:
    async def scenario(other: Other, line: HeartbeatChannel, listener: Listener) -> None:
        for _ in range(1000):
            line.nudge()
            await asyncio.sleep(0)
        assert len(other.attempts) < 20

    run(scenario, is_listening=False)
