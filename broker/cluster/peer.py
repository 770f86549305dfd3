"""The line to one other node: connected again and again, a heartbeat every interval or when nudged.

Connections that are refused are tried again quickly: a refusal that lasts is how a node that is
gone is told from one that is slow.
"""

import asyncio
from typing import Protocol

import structlog

from lakehead.broker.cluster.heartbeat import (
    Heartbeat,
    HeartbeatAnswer,
    decode_answer,
    encode_heartbeat,
)
from lakehead.broker.cluster.network import PeerChannel, PeerNetwork
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.storage.clock import Clock
from lakehead.storage.metadata.state import NodeState

_log = structlog.get_logger("broker.cluster")

_RETRIES = 8
"""Attempts to connect within an interval."""


class PeerListener(Protocol):
    """Whom a line tells what it learns."""

    def heartbeat(self) -> Heartbeat:
        """Return what to send now."""

    def proof(self, peer: NodeState) -> NodeProof:
        """Return what proves to a peer that it comes from a node."""

    def answered(self, peer: NodeState, answer: HeartbeatAnswer, sent_at: float) -> None:
        """Take note of an answer to a heartbeat sent at `sent_at` (monotonic seconds)."""

    def lost(self, peer: NodeState) -> None:
        """Take note that the connection to it has ended."""

    def refused(self, peer: NodeState) -> None:
        """Take note that nobody listens at its address."""

    def accepted(self, peer: NodeState) -> None:
        """Take note that its address takes connections."""


def _nothing() -> None:
    """What the end of a connection means that was made only to see that it can be."""


class PeerLine:
    """One epoch of one other node, from this node's side. `run` is its task."""

    def __init__(
        self,
        peer: NodeState,
        network: PeerNetwork,
        listener: PeerListener,
        clock: Clock,
        *,
        interval_s: float,
        session_s: float,
    ) -> None:
        self.peer = peer
        self.known_entry = -1
        """It has said that it has the metadata below this number."""
        self.agreed_at = float("-inf")
        """When it was asked last (monotonic seconds) and knew this node, and no more than it."""
        self._network = network
        self._listener = listener
        self._clock = clock
        self._interval_s = interval_s
        self._session_s = session_s
        self._wakeup = asyncio.Event()
        self._sent = 0

    def nudge(self) -> None:
        """Send a heartbeat now."""
        self._wakeup.set()

    async def run(self) -> None:
        """Keep the line until cancelled."""
        while True:
            channel = await self._connect()
            was_answered = False
            if channel is not None:
                try:
                    was_answered = await self._talk(channel)
                finally:
                    channel.close()
            if not was_answered:  # else at once: a refusal tells at once
                self._wakeup.clear()
                await self._pause(self._interval_s / _RETRIES)

    async def look(self) -> None:
        """See whether the node, which is silent, takes connections. The present one stays."""
        try:
            async with asyncio.timeout(self._session_s / 3):
                channel = await self._network.connect(self.peer.host, self.peer.port, _nothing)
        except ConnectionRefusedError:
            self._listener.refused(self.peer)
        except (OSError, TimeoutError):
            pass
        else:
            channel.close()
            self._listener.accepted(self.peer)

    def _closed(self) -> None:
        self._listener.lost(self.peer)
        self._wakeup.set()

    async def _connect(self) -> PeerChannel | None:
        try:
            async with asyncio.timeout(self._session_s):
                return await self._network.connect(self.peer.host, self.peer.port, self._closed)
        except ConnectionRefusedError:
            self._listener.refused(self.peer)
        except (OSError, TimeoutError):
            pass  # silence says it
        return None

    async def _talk(self, channel: PeerChannel) -> bool:
        """Send heartbeats until the connection ends or stays silent; whether any was answered."""
        was_answered = False
        while channel.is_open:
            sent_at = self._clock.monotonic()
            self._wakeup.clear()
            self._sent += 1
            proof = self._listener.proof(self.peer)
            frame = encode_heartbeat(self._listener.heartbeat(), self._sent & 0x7FFFFFFF, proof)
            try:
                async with asyncio.timeout(self._session_s):
                    number, answer = decode_answer(await channel.ask(frame))
            except (OSError, TimeoutError):
                break
            except MalformedFrame as error:
                self._log_stranger(str(error))
                return False
            if number != self._sent & 0x7FFFFFFF:
                return False
            was_answered = True
            self.known_entry = max(self.known_entry, answer.next_entry)
            self._listener.answered(self.peer, answer, sent_at)
            await self._pause(self._interval_s - (self._clock.monotonic() - sent_at))
        return was_answered

    async def _pause(self, seconds: float) -> None:
        """Wait for the next heartbeat's time, a nudge, or the end of the connection."""
        if seconds <= 0 or self._wakeup.is_set():
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            pass

    def _log_stranger(self, reason: str) -> None:
        _log.warning(
            "peer_address_has_another_tenant",
            peer_id=self.peer.node_id,
            host=self.peer.host,
            port=self.peer.port,
            reason=reason,
        )
