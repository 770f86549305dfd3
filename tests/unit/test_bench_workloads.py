"""The output of Kafka's performance tools, as figures."""

import pytest

from bench.workloads import Figures, RunFailed, consumed, end_to_end, produced

PRODUCED = (
    "1234 records sent, 246.8 records/sec (0.24 MB/sec), 5.0 ms avg latency, 9.0 ms max latency.\n"
    "400000 records sent, 81833.1 records/sec (79.92 MB/sec), 371.25 ms avg latency, "
    "893.00 ms max latency, 372 ms 50th, 671 ms 95th, 808 ms 99th, 884 ms 99.9th.\n"
)
CONSUMED = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
    "2026-11-26 19:00:00:000, 2026-11-26 19:00:02:000, 390.6250, 195.3125, 400000, 200000.0, "
    "1000, 1000, 390.6250, 400000.0\n"
)


def test_the_last_report_of_a_producer_counts() -> None:
    wanted = Figures(mb_per_second=79.92, p50_ms=372, p99_ms=808, p999_ms=884)
    assert produced(PRODUCED) == wanted


def test_a_consumers_rate_leaves_out_the_join() -> None:
    assert consumed(CONSUMED, 400_000) == 390.625


def test_a_consumer_that_saw_fewer_records_has_failed() -> None:
    with pytest.raises(RunFailed, match="400000 of 400001"):
        consumed(CONSUMED, 400_001)


def test_end_to_end_percentiles() -> None:
    output = "Avg latency: 1.1 ms\nPercentiles: 50th = 1, 99th = 8, 99.9th = 16\n"
    assert end_to_end(output) == Figures(p50_ms=1, p99_ms=8, p999_ms=16)


@pytest.mark.parametrize("parse", [produced, end_to_end, lambda output: consumed(output, 1)])
def test_an_output_without_figures_has_failed(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(RunFailed, match="no broker"):
        parse("WARN no broker is available")
