"""What each batch of a stream reads, asked as Spark asks, without Spark."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakehead.lake.errors import DataLoss
from lakehead.lake.planner import OffsetRange
from lakehead.lake.snapshot import Snapshot
from lakehead.lake.source.options import stream_options
from lakehead.lake.source.progress import offsets_behind_latest
from lakehead.lake.source.stream_offsets import StreamOffsets, rate_limited
from lakehead.lake.source.stream_planner import StreamPlanner
from lakehead.storage.errors import UnknownTopic
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

Form = dict[str, dict[str, int]]


def batch(start: int, count: int = 10, **options: Any) -> bytes:
    records = [TestRecord(offset=start + i, timestamp=1_000 + start + i) for i in range(count)]
    return encode_batch(records, **options)


@pytest.fixture
def cluster(tmp_path: Path) -> LakeCluster:
    """Topic `orders`: partition 0 has offsets 0-29, 1 has 0-9."""
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders", 2)
    made.write({("orders", 0): [batch(0), batch(10), batch(20)], ("orders", 1): [batch(0)]})
    return made


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., "Run"]:
    return lambda **options: Run(str(tmp_path), options)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Run:
    """A run of a query: its planner, asked by forms as Spark asks the reader."""

    def __init__(self, path: str, options: dict[str, str]) -> None:
        self.clock = Clock()
        given = {"path": path, "subscribe": "orders", "startingOffsets": "earliest"} | options
        self.planner = StreamPlanner(
            stream_options(given), monotonic=self.clock.monotonic, sleep=self.clock.sleep
        )

    def initial(self) -> Form:
        return self.planner.initial().form()

    def latest(self, start: Form, *, is_unlimited: bool = False) -> Form:
        return self.planner.latest(StreamOffsets.parse(start), is_unlimited=is_unlimited).form()

    def read(self, start: Form, end: Form) -> list[tuple[str, int, int]]:
        def made(_: Snapshot, ranges: Sequence[OffsetRange]) -> list[tuple[str, int, int]]:
            return [(str(one.log.id), one.start, one.end) for one in ranges]

        return self.planner.plan(StreamOffsets.parse(start), StreamOffsets.parse(end), made)

    def begun(self) -> Form:
        """Run the first batch; return where the second starts."""
        end = self.latest(self.initial())
        assert not self.read(self.initial(), end)
        return end


def offsets(form: Form) -> dict[str, dict[str, int]]:
    return {topic: partitions for topic, partitions in form.items() if "@" not in topic}


def test_the_first_batch_is_empty_and_says_where_the_stream_starts(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    first = run(startingOffsets="latest")
    start = first.begun()
    assert offsets(start) == {"orders": {"0": 30, "1": 10}}
    cluster.write({("orders", 0): [batch(30)]})
    # The process ends before the batch is done. The next run is asked for the start anew.
    again = run(startingOffsets="latest")
    asked = again.initial()
    assert offsets(asked) == {"orders": {"0": 40, "1": 10}}
    assert again.read(asked, start) == []
    end = again.latest(start)
    assert again.read(start, end) == [("orders-0", 30, 40)]


def test_the_first_batch_run_again_is_not_the_last(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    """Where it starts at the same offsets as before, too: `availableNow` ends with a batch that
    reads nothing.
    """
    start = run().begun()
    again = run()
    again.planner.stop_at_present()
    assert again.read(again.initial(), start) == []
    assert offsets(again.latest(start)) == {"orders": {"0": 30, "1": 10}}


def test_once_reads_all_in_its_only_batch(cluster: LakeCluster, run: Callable[..., Run]) -> None:
    once = run(maxOffsetsPerTrigger="5")
    start = once.initial()
    end = once.latest(start, is_unlimited=True)
    assert once.read(start, end) == [("orders-0", 0, 30), ("orders-1", 0, 10)]


@pytest.mark.parametrize(
    ("starting", "ends"),
    [("latest", {"0": 30, "1": 10}), ('{"orders":{"0":-1,"1":5}}', {"0": 30, "1": 20})],
)
def test_no_record_is_left_out_if_the_first_batch_of_once_is_run_again(
    cluster: LakeCluster, run: Callable[..., Run], starting: str, ends: dict[str, int]
) -> None:
    """The end of a partition has moved by then, and with it the start of a stream from there."""
    once = run(startingOffsets=starting)
    start = once.initial()
    cluster.write({("orders", 0): [batch(30)], ("orders", 1): [batch(10)]})
    end = once.latest(start, is_unlimited=True)
    assert offsets(end) == {"orders": ends}
    again = run(startingOffsets=starting)
    first = again.read(again.initial(), end)
    rest = again.read(end, again.latest(end, is_unlimited=True))
    assert ("orders-0", 30, 40) in rest
    assert sum(until - begin for id_, begin, until in first + rest if id_ == "orders-1") >= 10


def test_the_form_is_kafkas_and_names_the_topic(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    form = run().begun()
    assert form == {"orders": {"0": 0, "1": 0}, "orders@" + "1".zfill(32): {}}
    assert StreamOffsets.parse(form).form() == form
    with pytest.raises(DataLoss, match="not of this source"):
        StreamOffsets.parse({"offset": 7})


def test_nothing_new_is_the_start_again_and_is_not_asked_for_in_a_hurry(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    stream = run(startingOffsets="latest")
    start = stream.begun()
    for _ in range(20):
        assert stream.latest(start) == start
    assert 5 < stream.clock.now < 10


def test_starting_positions(cluster: LakeCluster, run: Callable[..., Run]) -> None:
    given = run(startingOffsets='{"orders":{"0":7,"1":-1}}')
    assert offsets(given.begun()) == {"orders": {"0": 7, "1": 10}}
    given = run(startingTimestamp="1009")
    assert offsets(given.begun()) == {"orders": {"0": 9, "1": 9}}
    given = run(startingTimestamp="1015", startingOffsetsByTimestampStrategy="latest")
    assert offsets(given.begun()) == {"orders": {"0": 15, "1": 10}}


def test_offsets_are_shared_in_proportion(cluster: LakeCluster, run: Callable[..., Run]) -> None:
    stream = run(maxOffsetsPerTrigger="8")
    start, seen = stream.begun(), 0
    while (end := stream.latest(start)) != start:
        read = stream.read(start, end)
        assert 0 < sum(until - begin for _, begin, until in read) <= 8
        seen += sum(until - begin for _, begin, until in read)
        start = end
    assert seen == 40
    assert stream.planner.newest is not None
    assert offsets(stream.planner.newest.form()) == {"orders": {"0": 30, "1": 10}}


def test_a_small_partition_does_not_starve() -> None:
    from lakehead.lake.positions import TopicPartition

    big, small = TopicPartition("t", 0), TopicPartition("t", 1)
    end = {big: 1_000_000, small: 1}
    assert rate_limited({big: 0, small: 0}, end, 10) == {big: 9, small: 1}
    assert rate_limited({big: 0, small: 0}, end, 2_000_000) == end


def test_a_batch_waits_for_enough_but_not_for_ever(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    stream = run(minOffsetsPerTrigger="50", maxTriggerDelay="60s")
    start = stream.latest(stream.begun())
    assert offsets(start) == {"orders": {"0": 30, "1": 10}}  # the first one does not wait
    cluster.write({("orders", 0): [batch(30)]})
    assert stream.latest(start) == start
    stream.clock.now += 61
    end = stream.latest(start)
    assert offsets(end) == {"orders": {"0": 40, "1": 10}}
    cluster.write({("orders", 0): [batch(40, 50)]})
    assert offsets(stream.latest(end)) == {"orders": {"0": 90, "1": 10}}


def test_available_now_ends_at_what_was_there(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    stream = run(maxOffsetsPerTrigger="30", minOffsetsPerTrigger="20")
    stream.planner.stop_at_present()
    start = stream.begun()
    cluster.write({("orders", 0): [batch(30)]})
    cluster.add_partitions("orders", 1)
    ends = []
    while (end := stream.latest(start)) != start:
        ends.append(offsets(end))
        start = end
    assert ends[-1] == {"orders": {"0": 30, "1": 10}}
    assert len(ends) == 2


def test_what_is_found_later_starts_at_its_beginning(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    stream = run(startingOffsets="latest")
    start = stream.begun()
    cluster.add_partitions("orders", 1)
    cluster.write({("orders", 2): [batch(0)]})
    end = stream.latest(start)
    assert stream.read(start, end) == [("orders-2", 0, 10)]
    # A batch that a checkpoint holds is the same in the next run.
    assert run(startingOffsets="latest").read(start, end) == [("orders-2", 0, 10)]


def test_topics_that_match_later_are_read_from_their_beginning(
    cluster: LakeCluster, tmp_path: Path
) -> None:
    given = {"path": str(tmp_path), "subscribePattern": "or.*", "startingOffsets": "latest"}
    stream = StreamPlanner(stream_options(given), sleep=lambda _: None)
    start = stream.latest(stream.initial(), is_unlimited=False)
    cluster.create_topic("oranges")
    cluster.create_topic("apples")
    cluster.write({("oranges", 0): [batch(0)], ("apples", 0): [batch(0)]})
    end = stream.latest(start, is_unlimited=False)
    assert offsets(end.form()) == {"oranges": {"0": 10}, "orders": {"0": 30, "1": 10}}


def test_a_topic_that_is_made_again_is_told(cluster: LakeCluster, run: Callable[..., Run]) -> None:
    stream = run()
    start = stream.begun()
    end = stream.latest(start)
    cluster.delete_topic("orders")
    with pytest.raises(DataLoss, match="orders-0 is gone: its topic was deleted"):
        stream.latest(end)
    cluster.create_topic("orders", 1)
    cluster.write({("orders", 0): [batch(0, 100)]})  # beyond what the checkpoint has
    with pytest.raises(DataLoss, match="orders-1 is gone"):
        stream.latest(end)
    again = run(failOnDataLoss="false")
    assert again.read(start, end) == []
    after = again.latest(end)
    assert offsets(after) == {"orders": {"0": 100}}
    assert again.read(end, after) == [("orders-0", 0, 100)]


def test_a_topic_that_is_made_again_with_less_is_read_from_its_beginning(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    end = run().latest(run().begun())
    cluster.delete_topic("orders")
    cluster.create_topic("orders", 2)
    cluster.write({("orders", 0): [batch(0, 5)]})
    again = run(failOnDataLoss="false")
    assert again.read(end, again.latest(end)) == [("orders-0", 0, 5)]


def test_a_topic_that_is_gone_is_waited_for_if_that_is_no_failure(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    stream = run(failOnDataLoss="false")
    start = stream.latest(stream.begun())
    cluster.delete_topic("orders")
    nothing = stream.latest(start)
    assert nothing == {}
    assert stream.read(start, nothing) == []
    assert stream.latest(nothing) == nothing
    cluster.create_topic("orders")
    cluster.write({("orders", 0): [batch(0)]})
    assert stream.read(nothing, stream.latest(nothing)) == [("orders-0", 0, 10)]


def test_a_topic_of_the_same_shape_is_another_topic(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    end = run().latest(run().begun())
    cluster.delete_topic("orders")
    cluster.create_topic("orders", 2)
    cluster.write({("orders", 0): [batch(0, 100)], ("orders", 1): [batch(0, 100)]})
    with pytest.raises(DataLoss, match="topic orders was deleted and created again after offset"):
        run().latest(end)
    with pytest.raises(DataLoss, match="orders-0 was deleted before its offsets up to"):
        run().read({}, end)


def test_a_topic_that_never_was_is_an_error(cluster: LakeCluster, run: Callable[..., Run]) -> None:
    with pytest.raises(UnknownTopic, match="topic 'ordres' does not exist"):
        run(subscribe="ordres").initial()


def test_retention_under_a_stream_is_told(cluster: LakeCluster, run: Callable[..., Run]) -> None:
    stream = run()
    start = stream.begun()
    planned = stream.latest(start)
    cluster.trim("orders", 0, 20)
    for ask in (stream.latest, lambda start: stream.read(start, planned)):
        with pytest.raises(DataLoss, match="offsets 0 to 19 of orders-0 were deleted"):
            ask(start)
    rest = run(failOnDataLoss="false", maxOffsetsPerTrigger="10")
    assert rest.read(start, planned) == [("orders-0", 20, 30), ("orders-1", 0, 10)]
    # What is gone takes nothing of the limit.
    assert rest.read(start, rest.latest(start)) == [("orders-0", 20, 25), ("orders-1", 0, 5)]


def test_an_undecided_transaction_ends_what_is_read(
    cluster: LakeCluster, run: Callable[..., Run]
) -> None:
    open_batch = batch(30, producer_id=7, transactional=True)
    cluster.write({("orders", 0): [open_batch, batch(40)]})
    stream = run(startingOffsets="latest")
    start = stream.begun()
    assert offsets(start) == {"orders": {"0": 30, "1": 10}}
    assert stream.latest(start) == start
    everything = run(**{"startingOffsets": "latest", "kafka.isolation.level": "read_uncommitted"})
    ahead = everything.begun()
    assert offsets(ahead) == {"orders": {"0": 50, "1": 10}}
    # A checkpoint that is ahead of what may be read: nothing is new, nothing is lost.
    assert stream.latest(ahead) == ahead
    with pytest.raises(DataLoss, match="may be read ends at 30"):
        stream.read(start, ahead)


def test_how_far_a_stream_is_behind() -> None:
    source = {
        "latestOffset": {"t": {"0": 10, "1": 30}, "t@ab": {}},
        "endOffset": {"t": {"0": 10, "1": 10}, "t@ab": {}},
    }
    assert offsets_behind_latest(source) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 20,
        "avgOffsetsBehindLatest": 10.0,
    }
    assert offsets_behind_latest({"latestOffset": None, "endOffset": None}) == {}
    as_text = {name: json.dumps(offsets) for name, offsets in source.items()}
    assert offsets_behind_latest(as_text) == offsets_behind_latest(source)
    for other in ("7", "{", '{"t": 7}', 7):
        assert offsets_behind_latest({"latestOffset": other, "endOffset": other}) == {}
