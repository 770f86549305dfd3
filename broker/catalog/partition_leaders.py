"""Which node leads a partition, by topic name and index, as this node knows it."""

from collections.abc import Callable, Collection
from typing import TypeAlias

from lakehead.broker.catalog.leaders import leader_of
from lakehead.storage.metadata.state import ClusterState, NodeState, StreamState

TopicPartition: TypeAlias = tuple[str, int]


class PartitionLeaders:
    """Looks leaders up. `unreachable` are the nodes that nobody can connect to now."""

    def __init__(
        self, state: Callable[[], ClusterState], unreachable: Callable[[], Collection[int]]
    ) -> None:
        self._state = state
        self._unreachable = unreachable

    def exists(self, where: TopicPartition) -> bool:
        """Whether there is such a partition."""
        return self._stream(where) is not None

    def leader(self, where: TopicPartition) -> int | None:
        """Return the node that leads a partition, None when none does now."""
        node = self.node(where)
        return None if node is None else node.node_id

    def node(self, where: TopicPartition) -> NodeState | None:
        """Return the node that leads a partition, with its address; None when none does now."""
        stream = self._stream(where)
        if stream is None:
            return None
        leader = leader_of(self._state(), stream, self._unreachable())
        return None if leader is None else leader.node

    def _stream(self, where: TopicPartition) -> StreamState | None:
        name, index = where
        state = self._state()
        topic = state.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return state.streams.get(topic.partitions[index])
