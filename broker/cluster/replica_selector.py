"""The node from which a consumer reads in its own zone (KIP-392): Kafka's RackAwareReplicaSelector,
on storage that every node shares.

Any node could serve any partition. So that a partition is in the memory of one node of a zone
alone, its id chooses that node: the same one for every consumer and at every node, as long as they
have read the same metadata.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from lakehead.broker.cluster.metadata_image import live_nodes
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState

_NOTHING: Mapping[str, Sequence[NodeState]] = {}


class ReplicaSelector:
    """Chooses nodes by the newest image. One that is not `is_enabled` chooses none."""

    def __init__(
        self,
        state: Callable[[], MetadataImage],
        unreachable: Callable[[], Collection[int]],
        *,
        is_enabled: bool,
    ) -> None:
        self._state = state
        self._unreachable = unreachable
        self.is_enabled = is_enabled
        self._nodes: object = None
        self._by_rack = _NOTHING

    def in_rack(self, stream: StreamState, rack: str) -> NodeState | None:
        """Return the node of a rack that serves a partition to consumers there. None: there is
        none, or its leader is of this rack.
        """
        if not self.is_enabled or not rack:
            return None
        state = self._state()
        leader = state.nodes.get(stream.node_id)
        if leader is not None and leader.rack == rack:
            return None
        return self._chosen(stream, self._racks(state).get(rack, ()))

    def all_of(self, stream: StreamState) -> list[int]:
        """Return the ids of the nodes that serve a partition in the racks without its leader."""
        if not self.is_enabled:
            return []
        chosen = (self.in_rack(stream, rack) for rack in self._racks(self._state()))
        return [node.node_id for node in chosen if node is not None]

    def _chosen(self, stream: StreamState, nodes: Sequence[NodeState]) -> NodeState | None:
        unreachable = self._unreachable()
        count = len(nodes)
        for step in range(count):
            node = nodes[(stream.stream_id + step) % count]
            if node.node_id not in unreachable:
                return node
        return None

    def _racks(self, state: MetadataImage) -> Mapping[str, Sequence[NodeState]]:
        """Return the live nodes of each rack that stay, by id."""
        if state.nodes is not self._nodes:
            found: dict[str, list[NodeState]] = {}
            for node in live_nodes(state):
                if node.rack and not node.is_draining:
                    found.setdefault(node.rack, []).append(node)
            self._by_rack, self._nodes = found, state.nodes
        return self._by_rack
