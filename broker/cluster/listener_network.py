"""Channels to other nodes by the listener that each of them has for nodes.

A rolling restart that changes `inter.broker.listener.name` has nodes with either name at a time. A
node takes requests of nodes on its own listener for them alone, and registers the address of that
one first. So the sender goes by the receiver's choice, with the security that the sender has for
the listener of this name. It never speaks a protocol that it has no such listener for.
"""

from collections.abc import Callable, Mapping

from lakehead.broker.cluster.inter_broker_client import PeerChannel, PeerNetwork
from lakehead.storage.metadata.endpoints import parse_endpoints
from lakehead.storage.metadata.state import MetadataImage, NodeState


class ListenerNetwork:
    """A `PeerNetwork` over one for each listener, by name. `own` is the name of the listener
    between nodes, `protocols` are the security protocols of all.
    """

    def __init__(
        self, own: str, networks: Mapping[str, PeerNetwork], protocols: Mapping[str, str]
    ) -> None:
        self._own = own
        self._networks = networks
        self._protocols = protocols
        self.state: Callable[[], MetadataImage] = MetadataImage
        """Returns the newest metadata; without nodes until they are read."""

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        """See `PeerNetwork.connect`."""
        return await self._networks[self._listener(host, port)].connect(host, port, on_closed)

    async def probe(self, host: str, port: int) -> None:
        """See `PeerNetwork.probe`."""
        await self._networks[self._own].probe(host, port)

    def _listener(self, host: str, port: int) -> str:
        """Return the name of the listener at a node's address, as it is known here."""
        there = [one for one in self.state().nodes.values() if (one.host, one.port) == (host, port)]
        if not there:
            return self._own
        for endpoint in parse_endpoints(max(there, key=_newness).endpoints).values():
            if (endpoint.host, endpoint.port) == (host, port) and (
                self._protocols.get(endpoint.listener) == endpoint.protocol
            ):
                return endpoint.listener
        return self._own


def _newness(node: NodeState) -> tuple[bool, int]:
    return not node.is_fenced, node.epoch
