"""The brokers that clients are told of."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.node import Node


class Broker(NamedTuple):
    """A broker as clients see it."""

    node_id: int
    host: str
    port: int
    rack: str | None


def live_nodes(node: "Node") -> list[Broker]:
    """Return the brokers that serve, by id."""
    return [
        Broker(known.node_id, known.host, known.port, known.rack)
        for known in sorted(node.state.nodes.values(), key=lambda known: known.node_id)
        if not known.is_fenced
    ]
