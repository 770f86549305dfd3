"""Histograms of latencies."""

import math

from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.latency import LATENCY_BUCKETS_S, LatencyHistogram


@given(st.lists(st.floats(min_value=0, max_value=100) | st.sampled_from(LATENCY_BUCKETS_S)))
def test_a_bucket_counts_all_operations_up_to_its_bound(seconds: list[float]) -> None:
    histogram = LatencyHistogram()
    for one in seconds:
        histogram.observe(one)
    for bound, count in histogram.cumulative():
        assert count == sum(one <= float(bound) for one in seconds), bound
    assert math.isclose(histogram.seconds, sum(seconds))
