"""Topics of as many partitions as one request may make: how the metadata state takes them."""

import gc
import time
from collections.abc import Generator, Iterator

import pytest

from lakehead.broker.api.topic_rules import PARTITIONS_MAX
from lakehead.storage.errors import EntryRejected
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.records import Record
from lakehead.storage.metadata.rules import apply_in_steps, apply_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.metadata.table import Table
from tests.support.processor_time import check_within, measured

STEP_S_MAX = 0.05
TOPIC, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def _frozen() -> Iterator[None]:
    """The collector leaves alone what the tests imported, as in a node's process."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def started() -> MetadataImage:
    node = r.RegisterNode(node_id=0, epoch=0, incarnation="i", host="h", port=1)
    return apply_records(MetadataImage(), [node], 0)


def streams(topic_id: str, first: int, count: int, partition: int = 0) -> list[Record]:
    return [
        r.CreateStream(stream_id=first + n, topic_id=topic_id, partition=partition + n)
        for n in range(count)
    ]


def large(count: int = PARTITIONS_MAX) -> list[Record]:
    return [
        r.CreateTopic(name="large", topic_id=TOPIC),
        *streams(TOPIC, 0, count),
        r.AssignStreams(node_id=0, stream_ids=tuple(range(count))),
    ]


def uploaded(count: int, key: str = "data/00/0") -> r.CommitObjects:
    """An object with a record of each stream."""
    spans = tuple(
        r.CommittedRange(
            stream_id=n, epoch=0, start_offset=0, end_offset=1, max_timestamp=0, size=1
        )
        for n in range(count)
    )
    made = r.CommittedObject(key=key, kind="sso", size=count, created_ms=0, ranges=spans)
    return r.CommitObjects(node_id=0, node_epoch=0, objects=(made,))


def longest_step(steps: Generator[None, None, MetadataImage]) -> tuple[MetadataImage, float, int]:
    """Return the state, the longest step in seconds of processor time, and the number of steps."""
    longest, count, began = 0.0, 0, time.thread_time()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, max(longest, time.thread_time() - began), count
        finally:
            now = time.thread_time()
            longest, began, count = max(longest, now - began), now, count + 1


@measured
@pytest.mark.usefixtures("_frozen")
def test_the_largest_topic_is_made_and_deleted_in_short_steps() -> None:
    state, longest, count = longest_step(apply_in_steps(started(), large(), 0))
    assert state.topics["large"].partitions == tuple(range(PARTITIONS_MAX))
    assert all(state.streams[n].assigned == 0 for n in range(PARTITIONS_MAX))
    assert count > 20
    check_within(longest, STEP_S_MAX)
    opened = [
        r.OpenStream(stream_id=n, epoch=0, node_id=0, node_epoch=0) for n in range(PARTITIONS_MAX)
    ]
    state = apply_records(state, [*opened, uploaded(PARTITIONS_MAX)], 0)
    state, longest, count = longest_step(apply_in_steps(state, [r.DeleteTopic(topic_id=TOPIC)], 7))
    assert not len(state.streams)
    assert dict(state.unreferenced) == {"data/00/0": 7}
    assert count > 10
    check_within(longest, STEP_S_MAX)


def test_streams_of_topics_in_turn_mean_the_same_together_and_one_by_one() -> None:
    records = [
        r.CreateTopic(name="a.b", topic_id=TOPIC),
        r.CreateTopic(name="other", topic_id=OTHER),
        *streams(TOPIC, 0, 700),
        *streams(OTHER, 700, 3),
        *streams(TOPIC, 703, 2, 700),
        r.AssignStreams(node_id=0, stream_ids=tuple(range(705))),
        r.DeleteTopic(topic_id=TOPIC),
        r.CreateTopic(name="a_b", topic_id=TOPIC),
        *streams(TOPIC, 705, 2),
    ]
    state = started()
    for record in records:
        state = apply_records(state, [record], 0)
    assert state == apply_records(started(), records, 0)
    assert len(state.streams) == 5
    assert dict(state.unified_names) == {"a_b": frozenset({"a_b"})}


@pytest.mark.parametrize(
    "wrong",
    [
        streams(TOPIC, 3, 2),  # a number that is not next
        streams(TOPIC, 2, 2, 3),  # a partition that is not next
        streams(OTHER, 2, 2),  # no such topic
        [*streams(TOPIC, 2, 2, 2), *streams(TOPIC, 4, 1, 5)],
    ],
)
def test_a_stream_out_of_order_is_refused_among_others_too(wrong: list[Record]) -> None:
    state = apply_records(started(), large(2), 0)
    with pytest.raises(EntryRejected):
        apply_records(state, wrong, 0)


@pytest.mark.parametrize(("node_id", "term"), [(1, -1), (0, 7)])
def test_an_assignment_of_no_stream_is_judged_as_any(node_id: int, term: int) -> None:
    """By its node and its term: readers of every release refuse the same entries."""
    for count in (0, 1, 501):
        record = r.AssignStreams(node_id=node_id, stream_ids=tuple(range(count)), term=term)
        with pytest.raises(EntryRejected):
            apply_records(started(), [*large(600), record], 0)


def test_a_table_takes_many_changes_as_it_takes_each() -> None:
    table = Table[int, str]().update((n, str(n)) for n in range(5))
    assert table == Table[int, str]().update([(0, "x")]).update((n, str(n)) for n in range(5))
    assert (len(table), dict(table.items())) == (5, {n: str(n) for n in range(5)})
    left = table.without([1, 3])
    assert (len(left), sorted(left)) == (3, [0, 2, 4])
    assert len(left.update([(1, "again"), (2, "two")])) == 4
    for gone in (1, 9):
        with pytest.raises(KeyError):
            left.without([gone])
