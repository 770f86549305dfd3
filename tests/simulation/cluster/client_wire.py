"""A client's connections to the nodes of a simulated cluster: requests of Kafka's protocol, one at
a time to each node.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from lakehead.broker.cluster.inter_broker_client import PeerChannel
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.storage.metadata.state import MetadataImage

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.lives import Life

PATIENCE_S = 4.0
"""A client takes a request for lost that has no response for so long."""
_CORRELATION_ID = 1
_CORRELATION_SIZE = 4


class ClientWire:
    """The connections of one client, which lives in a process of its own (`life`)."""

    def __init__(self, world: ClusterWorld, life: Life, host: str) -> None:
        self._world = world
        self._network = world.network.of(host, life)
        self._channels: dict[Address, PeerChannel] = {}
        self._locks: dict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._late: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> MetadataImage:
        """The newest metadata, as a client reads it from any node."""
        return self._world.oracle.state

    def leader(self, topic: str, partition: int) -> Address | None:
        """Return the node that leads a partition now, None without one."""
        known = self.state.topics.get(topic)
        if known is None:
            return None
        stream = self.state.streams[known.partitions[partition]]
        node = self.state.nodes.get(stream.node_id)
        return None if node is None or not stream.is_open else Address(node.host, node.port)

    async def send(self, where: Address, key: int, version: int, name: str, **fields: Any) -> Any:
        """Send a request and return the response. After an error the node may have handled it.

        Raises OSError, TimeoutError.
        """
        frame = encoded(key, version, name, **fields)
        response = await self.exchange(where, frame)
        message = schema(key, version)
        start = _CORRELATION_SIZE + message.flexible_response
        return decode(message.response_class, response, start)

    async def exchange(self, where: Address, frame: bytes) -> memoryview:
        """Send a whole request and return the response with its header; raises as `send`."""
        async with self._locks[where]:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    channel = self._channels.get(where)
                    if channel is None or not channel.is_open:
                        channel = await self._network.connect(where.host, where.port, _nothing)
                        self._channels[where] = channel
                    return await channel.send(frame)
            except BaseException:
                self._drop(where)
                raise

    def send_late(self, where: Address, frame: bytes, delay_s: float) -> None:
        """Let a request arrive later, on a connection of its own; its response is lost."""

        async def arrive() -> None:
            await asyncio.sleep(delay_s)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    channel = await self._network.connect(where.host, where.port, _nothing)
                    await channel.send(frame)
            except (OSError, TimeoutError):
                pass

        task = asyncio.get_running_loop().create_task(arrive(), name="a late request")
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def close(self) -> None:
        """Close every connection."""
        for where in list(self._channels):
            self._drop(where)

    def _drop(self, where: Address) -> None:
        channel = self._channels.pop(where, None)
        if channel is not None:
            channel.close()


def encoded(key: int, version: int, name: str, **fields: Any) -> bytes:
    """Return a request as bytes."""
    request = entity(schema(key, version).request_module, name, **fields)
    return encode_request(key, version, _CORRELATION_ID, request)


def _nothing() -> None:
    """The next request finds out that a connection has ended."""
