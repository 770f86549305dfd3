"""The goals of a comparison: limits of Lakehead's figures, of their ratios to a peer's, and of
their ratios to the same figure of another load.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.contenders import KAFKA, KAFKA_FLUSHING, LAKEHEAD, LAKEHEAD_S3
from bench.figures import Figure
from bench.report import MORE_IS_BETTER, UNITS, Report

EVERY_LOAD = "every load"
"""Of the figure that is the largest one since the server's start: its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure is at least (latencies, CPU seconds, memory: at most) the limit. With a peer or
    another load, its ratio is.
    """

    load: str
    figure: str
    limit: float
    contender: str = LAKEHEAD.name
    peer: str = ""
    """A contender under the same load."""
    beside: str = ""
    """Another load of the same contender."""

    def judged(self, report: Report) -> Figure | None:
        """Return the figure beside the goal; None if it was not measured."""
        if self.load == EVERY_LOAD:
            value = report.peak_rss_bytes(self.contender)
        else:
            spread = report.spread(self.load, self.contender, self.figure)
            value = spread.median if spread else None
        if value is None:
            return None
        peer_value = None
        if self.peer or self.beside:
            other = (self.beside or self.load, self.peer or self.contender)
            ratio = report.ratio_of((self.load, self.contender), other, self.figure)
            if ratio is None:
                return None
            peer_value = value / ratio.median
        return Figure(
            part=self.load
            if self.contender == LAKEHEAD.name
            else f"{self.load} ({self.contender})",
            name=UNITS[self.figure] if self.figure in MORE_IS_BETTER else self.figure,
            value=value,
            unit=UNITS[self.figure],
            peer=self.peer or self.beside,
            peer_value=peer_value,
            goal=self.limit,
            more_is_better=self.figure in MORE_IS_BETTER,
        )


def _against_kafka(
    *loads: str, figure: str = "mb_per_second", limit: float = 1.0
) -> Iterator[Goal]:
    for load in loads:
        yield Goal(load=load, figure=figure, peer=KAFKA.name, limit=limit)


def _cpu(*loads: str, limit: float, contender: str = LAKEHEAD.name) -> Iterator[Goal]:
    for load in loads:
        yield Goal(load=load, figure="cpu_seconds_per_gb", contender=contender, limit=limit)


GOALS = (
    *_against_kafka("produce-16k", "librdkafka-produce-16k", limit=1.2),
    Goal(load="produce-16k", figure="mb_per_second", peer=KAFKA_FLUSHING.name, limit=2.0),
    *_cpu("produce-16k", "librdkafka-produce-16k", limit=2.5),
    *_against_kafka(
        "librdkafka-produce-100b-linger-0-10-producers",
        "librdkafka-produce-100b-linger-0-100-producers",
        "consume-recent",
        "consume-older",
        "librdkafka-consume-recent",
        "librdkafka-consume-older",
        "librdkafka-tail-5",
    ),
    *_cpu(
        "consume-recent",
        "consume-older",
        "librdkafka-consume-recent",
        "librdkafka-consume-older",
        limit=0.6,
    ),
    Goal(load="mixed", figure="p99_ms", beside="paced-25", limit=2.0),
    Goal(load="latency", figure="p50_ms", limit=1.0),
    *_against_kafka("latency", figure="p99_ms"),
    *_against_kafka("latency", figure="p999_ms"),
    Goal(load="produce-16k", figure="mb_per_second", contender=LAKEHEAD_S3.name, limit=60.0),
    *_cpu("produce-16k", contender=LAKEHEAD_S3.name, limit=5.0),
    *_cpu("consume-older", contender=LAKEHEAD_S3.name, limit=1.0),
    Goal(
        load="librdkafka-produce-1000-partitions-100-producers",
        figure="mb_per_second",
        beside="librdkafka-produce-4-producers",
        limit=0.8,
    ),
    Goal(load=EVERY_LOAD, figure="peak_rss_bytes", limit=700 * 2**20),
)


def judged(report: Report) -> list[Figure]:
    """Return the goals of loads that were run, beside the figures that were reached."""
    return [figure for goal in GOALS if (figure := goal.judged(report))]
