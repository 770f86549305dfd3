"""The node from which consumers of a zone read, and the bounded tail that it keeps (KIP-392)."""

import pytest
from immutables import Map

from lakehead.broker.cluster.replica_selector import ReplicaSelector
from lakehead.storage.errors import StreamClosed
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState
from lakehead.storage.stream.log_cache import CachedBatch
from lakehead.storage.stream.read_replica import ReadReplicaServices, TailCache
from lakehead.storage.stream.stream import Stream

RACKS = {1: "a", 2: "b", 3: "b", 4: "c", 5: None}


def node(node_id: int, *, is_fenced: bool = False, is_draining: bool = False) -> NodeState:
    return NodeState(
        node_id=node_id,
        epoch=0,
        incarnation="i",
        host="h",
        port=1,
        rack=RACKS[node_id],
        is_fenced=is_fenced,
        is_draining=is_draining,
    )


def stream(stream_id: int, leader: int = 1) -> StreamState:
    return StreamState(stream_id=stream_id, topic_id="0" * 32, partition=0, node_id=leader)


class Cluster:
    def __init__(self, *, is_enabled: bool = True) -> None:
        self.state = MetadataImage(nodes=Map({one: node(one) for one in RACKS}))
        self.unreachable: set[int] = set()
        self.selector = ReplicaSelector(
            lambda: self.state, lambda: self.unreachable, is_enabled=is_enabled
        )

    def set(self, changed: NodeState) -> None:
        nodes = self.state.nodes.set(changed.node_id, changed)
        self.state = MetadataImage(nodes=nodes)

    def chosen(self, stream_id: int, rack: str, leader: int = 1) -> int | None:
        found = self.selector.in_rack(stream(stream_id, leader), rack)
        return None if found is None else found.node_id


def test_each_partition_has_one_node_of_a_rack_and_the_partitions_spread() -> None:
    cluster = Cluster()
    assert [cluster.chosen(one, "b") for one in range(4)] == [2, 3, 2, 3]
    assert [cluster.chosen(one, "c") for one in range(4)] == [4, 4, 4, 4]
    assert cluster.selector.all_of(stream(0)) == [2, 4]


def test_consumers_in_the_leaders_rack_or_in_none_stay_with_the_leader() -> None:
    cluster = Cluster()
    assert cluster.chosen(0, "a") is None
    assert cluster.chosen(0, "b", leader=3) is None
    assert cluster.chosen(0, "") is None
    assert cluster.chosen(0, "nowhere") is None
    assert Cluster(is_enabled=False).chosen(0, "b") is None


@pytest.mark.parametrize("how", ["fenced", "draining", "unreachable"])
def test_a_node_that_goes_is_replaced_by_another_of_its_rack(how: str) -> None:
    cluster = Cluster()
    assert cluster.chosen(0, "b") == 2
    if how == "unreachable":
        cluster.unreachable.add(2)
    else:
        cluster.set(node(2, is_fenced=how == "fenced", is_draining=how == "draining"))
    assert cluster.chosen(0, "b") == 3
    cluster.unreachable.add(3)
    assert cluster.chosen(0, "b") is None


def batch(start: int, end: int) -> CachedBatch:
    return CachedBatch(start, end, 0, 0, memoryview(b"%d" % start * 10))


def test_a_tail_is_found_by_offset_and_dropped_below_what_is_committed() -> None:
    tail = TailCache(1_000)
    for start in range(0, 40, 10):
        tail.add(7, batch(start, start + 10))
    first = [bytes(one) for one in tail.fetch(7, 15, 10_000) or ()]
    assert first == [b"%d" % start * 10 for start in (10, 20, 30)]
    assert tail.fetch(7, 15, 1) == [batch(10, 20).payload]  # one at least
    tail.committed(7, 20)
    assert tail.fetch(7, 15, 1) is None
    assert tail.fetch(7, 20, 1) == [batch(20, 30).payload]
    assert tail.fetch(8, 0, 1) is None


def test_the_size_of_tails_is_known_and_comes_back() -> None:
    tail = TailCache(1_000)
    count = 0
    while tail.has_room:
        tail.add(count % 3, batch(count, count + 1))
        count += 1
    assert 1_000 <= tail.size < 2_000
    tail.forget(0)
    tail.committed(1, count)
    tail.committed(2, count)
    assert tail.size == 0
    assert tail.has_room


def test_a_read_replica_takes_no_records() -> None:
    services = ReadReplicaServices(TailCache(1), None, None)  # type: ignore[arg-type]
    replica = Stream(services, stream(3))
    with pytest.raises(StreamClosed):
        replica.append(memoryview(b"x"), count=1, max_timestamp=0)
