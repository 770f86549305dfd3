"""The output of librdkafka's performance tool, as figures; the loads that it puts on a server."""

import pytest

from bench.librdkafka.performance import reported
from bench.loads import LOADS, Client, Kind
from bench.workloads import RunFailed

PRODUCED = (
    "% Sending 2048 messages of size 1024 bytes\n"
    "% 2048 messages produced (2097152 bytes), 1024 delivered (offset 255, 0 failed) in 250ms: "
    "4096 msgs/s and 4.19 MB/s, 0 produce failures, 1024 in queue, no compression\n"
    "% 2048 messages produced (2097152 bytes), 2048 delivered (offset 511, 0 failed) in 500ms: "
    "4096 msgs/s and 4.19 MB/s, 0 produce failures, 0 in queue, no compression\n"
)
CONSUMED = (
    "% 1024 messages (1048576 bytes) consumed in 100ms: 10240 msgs/s (10.49 MB/s)\n"
    "% 2048 messages (2097152 bytes) consumed in 250ms: 8192 msgs/s (8.39 MB/s)\n"
    "% Average application fetch latency: 12us\n"
)


@pytest.mark.parametrize(("output", "rate"), [(PRODUCED, 4.0), (CONSUMED, 8.0)])
def test_the_last_report_counts_in_mb_of_two_to_the_twentieth(output: str, rate: float) -> None:
    assert reported(output, 2048) == rate


@pytest.mark.parametrize("output", [PRODUCED, CONSUMED, "% ERROR CALLBACK: all brokers down"])
def test_fewer_records_than_wanted_are_a_failure(output: str) -> None:
    with pytest.raises(RunFailed):
        reported(output, 2049)


def test_records_that_were_sent_and_not_delivered_are_a_failure() -> None:
    with pytest.raises(RunFailed):
        reported(PRODUCED.replace("2048 delivered", "2047 delivered"), 2048)


def test_several_producers_are_librdkafkas() -> None:
    assert {load.producers for load in LOADS if load.client is Client.LIBRDKAFKA} >= {1, 10, 100}
    assert {load.producers for load in LOADS if load.client is Client.JAVA} == {1}


def test_tails_are_read_once_and_five_times() -> None:
    assert {load.consumers for load in LOADS if load.kind is Kind.TAIL} == {1, 5}
