"""Requests for a partition that is about to be led here wait for it, for a moment.

A producer that the old leader sent away is here before the partition is. Refused, it would come
again only after its back-off, which grows with each refusal (librdkafka: 100 ms, then 200 ms), so
that a hand-over of a few milliseconds would cost it hundreds. A request that waits holds its
connection, and what comes after it there; so each partition is waited for `WAIT_S` in all, from the
first that asks, and then no more until it has come.
"""

from collections.abc import Callable

from lakehead.broker.partition.topic import Topic
from lakehead.storage.clock import Clock
from lakehead.storage.metadata.state import ClusterState, StreamState

WAIT_S = 0.5

OnArrival = Callable[[], None]


class Arrivals:
    """What is on its way to node `node_id`, and who waits for it. `state` tells the newest known
    state.
    """

    def __init__(self, state: Callable[[], ClusterState], node_id: int, clock: Clock) -> None:
        self._state = state
        self._node_id = node_id
        self._clock = clock
        self.wait_s = WAIT_S
        self._until: dict[int, float] = {}
        self._waiters: dict[int, dict[OnArrival, None]] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._waiters.values()))

    def is_expected(self, topic: Topic, index: int) -> bool:
        """Whether a request for a partition should wait: it is not served here, and soon will be.
        Its time runs from the first call.
        """
        if not 0 <= index < len(topic.partitions) or topic.partitions[index] is not None:
            return False
        state = self._state()
        stream = state.streams.get(topic.stream_ids[index])
        if stream is None or not is_coming(state, stream, self._node_id):
            return False
        now = self._clock.monotonic()
        return now < self._until.setdefault(stream.stream_id, now + self.wait_s)

    def wait(self, stream_id: int, waiter: OnArrival) -> None:
        """Call `waiter` once the stream's partition is served here, until `unwait`."""
        self._waiters.setdefault(stream_id, {})[waiter] = None

    def unwait(self, stream_id: int, waiter: OnArrival) -> None:
        """Stop calling `waiter`. Harmless when it does not wait."""
        waiters = self._waiters.get(stream_id, {})
        waiters.pop(waiter, None)
        if not waiters:
            self._waiters.pop(stream_id, None)

    def arrived(self, topic: Topic, index: int) -> None:
        """Wake who waits for a partition that is served from now on."""
        stream_id = topic.stream_ids[index]
        self._until.pop(stream_id, None)
        for waiter in self._waiters.pop(stream_id, {}):
            waiter()

    def forget(self, topic: Topic) -> None:
        """Wake who waits for a topic that was deleted."""
        for index in range(len(topic.stream_ids)):
            self.arrived(topic, index)


def is_coming(state: ClusterState, stream: StreamState, node_id: int) -> bool:
    """Whether a node is to lead a stream, and nothing long stands before it: not the recovery of
    another node.
    """
    if stream.assigned != node_id:
        return False
    owner = state.nodes.get(stream.node_id)
    return not stream.is_open or owner is None or not owner.is_fenced or owner.is_recovered
