"""Which listener a node goes by to reach another one: the other's own for nodes, and never with
less security than its own settings have for a listener of that name.
"""

from collections.abc import Callable

import pytest
from immutables import Map

from lakehead.broker.cluster.inter_broker_client import PeerChannel
from lakehead.broker.cluster.listener_network import ListenerNetwork
from lakehead.storage.metadata.state import MetadataImage, NodeState

HOST = "127.0.0.1"
PLAIN, SECURE = "PLAINTEXT=PLAINTEXT://127.0.0.1:9092", "NODES=SSL://127.0.0.1:9094"


class Recorded:
    """A network that notes by which name it was used."""

    def __init__(self, name: str, used: list[str]) -> None:
        self._name = name
        self._used = used

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        self._used.append(self._name)
        raise ConnectionRefusedError

    async def probe(self, host: str, port: int) -> None:
        self._used.append(self._name)


def node(port: int, endpoints: str, *, node_id: int = 1, is_fenced: bool = False) -> NodeState:
    return NodeState(
        node_id=node_id,
        epoch=node_id,
        incarnation="i",
        host=HOST,
        port=port,
        rack=None,
        is_fenced=is_fenced,
        endpoints=endpoints,
    )


async def reached(port: int, *nodes: NodeState, own: str, names: dict[str, str]) -> str:
    """Return the listener by which a node with these names and protocols goes to a port."""
    used: list[str] = []
    network = ListenerNetwork(own, {name: Recorded(name, used) for name in names}, names)
    network.state = lambda: MetadataImage(nodes=Map({one.node_id: one for one in nodes}))
    with pytest.raises(ConnectionRefusedError):
        await network.connect(HOST, port, lambda: None)
    (found,) = used
    return found


BOTH = {"PLAINTEXT": "PLAINTEXT", "NODES": "SSL"}


@pytest.mark.parametrize("own", list(BOTH))
async def test_each_reaches_the_other_while_their_listener_changes(own: str) -> None:
    before, after = node(9092, f"{PLAIN},{SECURE}"), node(9094, f"{SECURE},{PLAIN}")
    assert await reached(9092, before, own=own, names=BOTH) == "PLAINTEXT"
    assert await reached(9094, after, own=own, names=BOTH) == "NODES"


async def test_a_node_without_plaintext_never_speaks_it() -> None:
    names = {"NODES": "SSL"}
    assert await reached(9092, node(9092, f"{PLAIN},{SECURE}"), own="NODES", names=names) == "NODES"


async def test_a_name_with_another_protocol_is_another_listener() -> None:
    names = {"NODES": "SSL", "PLAINTEXT": "SASL_SSL"}
    assert await reached(9092, node(9092, PLAIN), own="NODES", names=names) == "NODES"


async def test_addresses_that_say_no_listener_are_reached_by_the_own_one() -> None:
    for nodes in ((), (node(9092, ""),), (node(9092, "PLAINTEXT=NONSENSE"),)):
        assert await reached(9092, *nodes, own="NODES", names=BOTH) == "NODES"


async def test_of_two_nodes_at_an_address_the_living_one_counts() -> None:
    gone = node(9094, "PLAINTEXT=PLAINTEXT://127.0.0.1:9094", node_id=9, is_fenced=True)
    assert await reached(9094, gone, node(9094, SECURE), own="PLAINTEXT", names=BOTH) == "NODES"
