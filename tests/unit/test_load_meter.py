"""What a node says of its own traffic: rates from counters that somebody else moves."""

from collections.abc import Iterator

import pytest

from lakehead.broker.cluster.heartbeat import HOTTEST_MAX
from lakehead.broker.cluster.load_meter import SAMPLE_S, LoadMeter, Traffic
from lakehead.broker.partition.partition import TrafficTotal


class Node:
    """A node whose partitions' counters, CPU and clock are moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cpu = 7.0
        self.counters: dict[int, list[int]] = {}
        self.samples = 0
        self.total = TrafficTotal()
        self.dollars = 3.0
        self.meter = LoadMeter(
            self._traffic, self.total, self, lambda: self.cpu, lambda: self.dollars
        )

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def _traffic(self) -> Iterator[Traffic]:
        self.samples += 1
        for stream_id, (bytes_in, bytes_out) in self.counters.items():
            yield Traffic(stream_id, bytes_in, bytes_out)

    def run(self, seconds: float, flows: dict[int, tuple[int, int]], cores: float = 0.0) -> None:
        """Let traffic flow: bytes per second in and out by stream."""
        for _ in range(round(seconds / SAMPLE_S)):
            self.now += SAMPLE_S
            self.cpu += cores * SAMPLE_S
            for stream_id, (rate_in, rate_out) in flows.items():
                counter = self.counters.setdefault(stream_id, [0, 0])
                counter[0] += round(rate_in * SAMPLE_S)
                counter[1] += round(rate_out * SAMPLE_S)
                self.total.bytes += round(rate_in * SAMPLE_S) + round(rate_out * SAMPLE_S)
            self.meter.load()


def test_steady_traffic_is_told_as_it_is() -> None:
    node = Node()
    node.run(60, {1: (1000, 3000), 2: (50, 0)}, cores=0.5)
    load = node.meter.load()
    assert load.bytes_in == pytest.approx(1050, rel=0.01)
    assert load.bytes_out == pytest.approx(3000, rel=0.01)
    assert load.cpu == pytest.approx(0.5, rel=0.01)
    assert [stream_id for stream_id, _ in load.hottest] == [1, 2]
    assert dict(load.hottest)[1] == pytest.approx(4000, rel=0.01)


def test_the_price_of_requests_is_told_an_hour_also_without_traffic() -> None:
    node = Node()
    for _ in range(300):
        node.dollars += 0.01 * SAMPLE_S
        node.run(SAMPLE_S, {})
    assert node.meter.load().dollars_an_hour == pytest.approx(36, rel=0.01)


def test_a_partition_that_has_just_come_is_told_at_its_rate_and_not_by_its_past() -> None:
    node = Node()
    node.counters[9] = [10**9, 10**9]  # brought along
    node.run(2 * SAMPLE_S, {9: (100, 0)})
    assert node.meter.load().bytes_in == pytest.approx(100)


def test_a_burst_is_smoothed_and_what_stopped_fades() -> None:
    node = Node()
    node.run(60, {1: (1000, 0)})
    node.run(SAMPLE_S, {1: (100_000, 0)})
    assert node.meter.load().bytes_in < 30_000
    node.run(60, {1: (0, 0)})
    assert node.meter.load().bytes_in < 200


def test_a_partition_that_left_is_forgotten() -> None:
    node = Node()
    node.run(20, {1: (1000, 0), 2: (10, 0)})
    del node.counters[1]
    node.run(SAMPLE_S, {2: (10, 0)})
    load = node.meter.load()
    assert load.bytes_in == pytest.approx(10)
    assert [stream_id for stream_id, _ in load.hottest] == [2]


def test_only_the_hottest_are_named_and_idle_ones_never() -> None:
    node = Node()
    flows = {stream_id: (stream_id * 10, 0) for stream_id in range(1, 101)}
    node.run(10, {**flows, 500: (0, 0)})
    named = [stream_id for stream_id, _ in node.meter.load().hottest]
    assert named == list(range(100, 100 - HOTTEST_MAX, -1))


def test_counters_are_read_seldom_however_often_one_asks() -> None:
    node = Node()
    for _ in range(100):
        node.now += 0.1
        node.meter.load()
    assert node.samples <= 10 / SAMPLE_S


def test_partitions_of_an_idle_node_are_not_looked_at_one_by_one() -> None:
    node = Node()
    node.run(60, {1: (1_000_000, 0)})
    node.run(300, {1: (0, 0)})
    assert node.meter.load().bytes_in == 0
    before = node.samples
    node.run(60, {1: (0, 0)}, cores=0.5)
    assert node.samples == before
    assert node.meter.load().cpu == pytest.approx(0.5, rel=0.01)
    node.run(60, {1: (1000, 0)})
    assert node.meter.load().bytes_in == pytest.approx(1000, rel=0.01)
