"""Kafka requests from this node to others, and to itself: what coordinators and partitions tell
each other.

A connection to a node carries one request at a time, and each API has one of its own, so that a
slow answer to one kind holds up no other. Whoever asks often groups its questions.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from lakehead.broker.cluster.network import PeerChannel, PeerNetwork
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.storage.metadata.state import ClusterState, NodeState

_CORRELATION_SIZE = 4

Answer = Callable[[int, int, Any], Awaitable[Any]]
"""Answers (api key, version, request) in this process."""


class _Line:
    """The connection to one epoch of a node for one API."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.channel: PeerChannel | None = None
        self.sent = 0


class Inquiries:
    """What this node asks of nodes."""

    def __init__(
        self,
        own_id: int,
        network: PeerNetwork,
        state: Callable[[], ClusterState],
        answer: Answer,
        *,
        timeout_s: float,
    ) -> None:
        self._own_id = own_id
        self._network = network
        self._state = state
        self._answer = answer
        self._timeout_s = timeout_s
        self._lines: dict[tuple[int, int, int], _Line] = defaultdict(_Line)

    async def ask(self, node_id: int, key: int, version: int, request: Any) -> Any:
        """Return a node's answer; it may have acted on the request when it gave none.

        Raises OSError (also for a node that is not known, or fenced), TimeoutError, MalformedFrame.
        """
        async with asyncio.timeout(self._timeout_s):
            if node_id == self._own_id:
                return await self._answer(key, version, request)
            node = self._state().nodes.get(node_id)
            if node is None or node.is_fenced:
                raise ConnectionRefusedError(f"node {node_id} does not serve")
            line = self._lines[node_id, node.epoch, key]
            async with line.lock:
                try:
                    return await self._talk(line, node, key, version, request)
                except BaseException:
                    # Whatever comes on this connection would be taken for the next answer.
                    self._drop(line)
                    raise

    def close(self) -> None:
        """Close every connection."""
        for line in self._lines.values():
            self._drop(line)
        self._lines.clear()

    async def _talk(
        self, line: _Line, node: NodeState, key: int, version: int, request: Any
    ) -> Any:
        if line.channel is None or not line.channel.is_open:
            self._forget_strangers()
            line.channel = await self._network.connect(node.host, node.port, _nothing)
        line.sent = line.sent + 1 & 0x7FFFFFFF
        proof = NodeProof(secret=self._state().node_secret, to_node=node.node_id)
        frame = encode_request(key, version, line.sent, request, proof)
        answer = await line.channel.ask(frame)
        message = schema(key, version)
        start = _CORRELATION_SIZE + (1 if message.flexible_response else 0)
        if int.from_bytes(answer[:_CORRELATION_SIZE], "big") != line.sent:
            raise MalformedFrame(f"an answer of {node.host}:{node.port} to another question")
        return decode(message.response_class, answer, start)

    def _forget_strangers(self) -> None:
        """Close what led to nodes that have gone, or begun a new epoch, since."""
        nodes = self._state().nodes
        for place in list(self._lines):
            node = nodes.get(place[0])
            if node is None or node.epoch != place[1]:
                self._drop(self._lines.pop(place))

    @staticmethod
    def _drop(line: _Line) -> None:
        if line.channel is not None:
            line.channel.close()
            line.channel = None


def _nothing() -> None:
    """Nobody waits for the end of a connection: the next question makes another."""
