"""Requests from this node to other nodes, and to itself.

`PeerNetwork` is the seam: `TcpNetwork` is the real one, a simulation brings its own. A channel
carries one request at a time. `InterBrokerClient` sends the requests of coordinators and partitions
over a channel for each node and API, so that a slow response of one API delays no other; a caller
with many requests groups them. `probe` sends a single heartbeat.
"""

import asyncio
import errno
import ssl
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from lakehead.broker.cluster.heartbeat import (
    Heartbeat,
    HeartbeatResponse,
    decode_heartbeat_response,
    encode_heartbeat,
)
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.node_proof import NO_PROOF, NodeProof
from lakehead.storage.metadata.state import MetadataImage, NodeState

_LENGTH = struct.Struct(">i")
RESPONSE_MAX = 1 << 20
"""Bytes of a response without records, and of what a response has beside records."""
_CORRELATION_SIZE = 4

HandleLocally = Callable[[int, int, Any], Awaitable[Any]]
"""Returns the response to (api key, version, request) from this process."""


class PeerChannel(Protocol):
    """An open connection to another node."""

    @property
    def is_open(self) -> bool:
        """Return true if a request may be sent."""

    async def send(self, frame: bytes) -> memoryview:
        """Send one request and return the response without its length field. One at a time.

        Raises OSError if the connection ends before, MalformedFrame for an invalid response.
        """

    def close(self) -> None:
        """Close it."""


class PeerNetwork(Protocol):
    """Opens channels to other nodes."""

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        """Connect; `on_closed` is called once when the connection has ended, on either side.

        Raises ConnectionRefusedError if the address refuses connections, else OSError.
        """

    async def probe(self, host: str, port: int) -> None:
        """Connect, send nothing and close: TLS and authentication would need the other process,
        and for one that was stopped the system takes connections. Raises like `connect`.
        """


class TcpNetwork:
    """Opens channels over TCP, with TLS if `context` returns a context. A longer response than
    `response_max` bytes ends a channel.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
        response_max: int = RESPONSE_MAX,
    ) -> None:
        self._context = context
        self._response_max = response_max

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        """See `PeerNetwork.connect`."""
        return await self._open(host, port, on_closed, self._context())

    async def probe(self, host: str, port: int) -> None:
        """See `PeerNetwork.probe`."""
        channel = await self._open(host, port, lambda: None, None)
        channel.close()

    async def _open(
        self, host: str, port: int, on_closed: Callable[[], None], context: ssl.SSLContext | None
    ) -> "_TcpChannel":
        loop = asyncio.get_running_loop()
        try:
            _, channel = await loop.create_connection(
                lambda: _TcpChannel(on_closed, self._response_max), host, port, ssl=context
            )
        except OSError as error:
            raise _plain(error) from error
        return channel


def _plain(error: OSError) -> OSError:
    """Return one ConnectionRefusedError if every address of a host name refused."""
    text = str(error)
    attempts = text.count("[Errno ")
    if attempts and attempts == text.count(f"[Errno {errno.ECONNREFUSED}]"):
        return ConnectionRefusedError(text)
    return error


class _TcpChannel(asyncio.Protocol):
    """A `PeerChannel` over a socket."""

    def __init__(self, on_closed: Callable[[], None], response_max: int) -> None:
        self._on_closed = on_closed
        self._response_max = response_max
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._response: asyncio.Future[memoryview] | None = None
        self._error: Exception | None = None
        self._is_ended = False

    @property
    def is_open(self) -> bool:
        """See `PeerChannel.is_open`."""
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, frame: bytes) -> memoryview:
        """See `PeerChannel.send`."""
        if self._transport is None or self._error is not None:
            raise self._error or ConnectionResetError("the connection has ended")
        assert self._response is None, "one request at a time"
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        try:
            return await self._response
        finally:
            self._response = None

    def close(self) -> None:
        """See `PeerChannel.close`."""
        if self._transport is not None:
            self._transport.abort()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Gather bytes until the response is whole."""
        self._received += data
        if len(self._received) < _LENGTH.size:
            return
        size = _LENGTH.unpack_from(self._received)[0]
        if not 0 < size <= self._response_max or self._response is None:
            self._fail(MalformedFrame(f"{size} bytes from a node without a request"))
        elif len(self._received) >= _LENGTH.size + size:
            frame, self._received = self._received, bytearray()
            self._received += memoryview(frame)[_LENGTH.size + size :]
            if not self._response.done():
                self._response.set_result(memoryview(frame)[_LENGTH.size : _LENGTH.size + size])

    def eof_received(self) -> bool:
        """Report the end before the transport closes: clients that lost their connections at the
        same moment are about to send requests here.
        """
        self._end(ConnectionResetError("the other node closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that waits, if any."""
        self._transport = None
        self._end(exc or ConnectionResetError("the connection was closed"))

    def _end(self, error: Exception) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._fail(error)
            self._on_closed()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        if self._response is not None and not self._response.done():
            self._response.set_exception(self._error)
        self.close()


class _ApiChannel:
    """The channel to one epoch of a node for one API."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.connection: PeerChannel | None = None
        self.sent = 0


class InterBrokerClient:
    """Sends requests of this node to nodes by id; `handle_locally` handles those to itself."""

    def __init__(
        self,
        own_id: int,
        network: PeerNetwork,
        state: Callable[[], MetadataImage],
        handle_locally: HandleLocally,
        *,
        timeout_s: float,
    ) -> None:
        self._own_id = own_id
        self._network = network
        self._state = state
        self._handle_locally = handle_locally
        self._timeout_s = timeout_s
        self._channels: dict[tuple[int, int, int], _ApiChannel] = defaultdict(_ApiChannel)

    async def send(self, node_id: int, key: int, version: int, request: Any) -> Any:
        """Send a request and return the response. After an error the node may have handled the
        request or not.

        Raises OSError (also for a node that is unknown or fenced), TimeoutError, MalformedFrame.
        """
        async with asyncio.timeout(self._timeout_s):
            if node_id == self._own_id:
                return await self._handle_locally(key, version, request)
            node = self._state().nodes.get(node_id)
            if node is None or node.is_fenced:
                raise ConnectionRefusedError(f"node {node_id} does not serve")
            channel = self._channels[node_id, node.epoch, key]
            async with channel.lock:
                try:
                    return await self._exchange(channel, node, key, version, request)
                except BaseException:
                    # A late response on this connection would be taken for the next one.
                    self._drop(channel)
                    raise

    def close(self) -> None:
        """Close every connection."""
        for channel in self._channels.values():
            self._drop(channel)
        self._channels.clear()

    async def _exchange(
        self, channel: _ApiChannel, node: NodeState, key: int, version: int, request: Any
    ) -> Any:
        if channel.connection is None or not channel.connection.is_open:
            self._drop_stale()
            channel.connection = await self._network.connect(node.host, node.port, _nothing)
        channel.sent = channel.sent + 1 & 0x7FFFFFFF
        proof = NodeProof(secret=self._state().node_secret, to_node=node.node_id)
        frame = encode_request(key, version, channel.sent, request, proof)
        response = await channel.connection.send(frame)
        message = schema(key, version)
        start = _CORRELATION_SIZE + (1 if message.flexible_response else 0)
        if int.from_bytes(response[:_CORRELATION_SIZE], "big") != channel.sent:
            raise MalformedFrame(f"a response of {node.host}:{node.port} to another request")
        return decode(message.response_class, response, start)

    def _drop_stale(self) -> None:
        """Close the channels to nodes that are gone or in a new epoch."""
        nodes = self._state().nodes
        for place in list(self._channels):
            node = nodes.get(place[0])
            if node is None or node.epoch != place[1]:
                self._drop(self._channels.pop(place))

    @staticmethod
    def _drop(channel: _ApiChannel) -> None:
        if channel.connection is not None:
            channel.connection.close()
            channel.connection = None


def _nothing() -> None:
    """Ignore the end of a connection: the next request opens another."""


async def probe(
    network: PeerNetwork,
    host: str,
    port: int,
    heartbeat: Heartbeat,
    timeout_s: float,
    proof: NodeProof = NO_PROOF,
) -> HeartbeatResponse | None:
    """Send one heartbeat to an address; return the response, or None if no node of Lakehead sends
    one within `timeout_s` seconds.
    """
    try:
        async with asyncio.timeout(timeout_s):
            channel = await network.connect(host, port, lambda: None)
            try:
                frame = encode_heartbeat(heartbeat, 1, proof)
                _, response = decode_heartbeat_response(await channel.send(frame))
            finally:
                channel.close()
    except (OSError, TimeoutError, MalformedFrame):
        return None
    return response
