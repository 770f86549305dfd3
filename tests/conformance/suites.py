"""The suites: which script runs one, in what order, against which broker, and what has to wait.

The scripts and Apache Kafka's results are in a folder of their own (`--suites`): they fetch and
build what they run.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

PROFILE = (
    *("--node.id", "0"),
    *("--num.partitions", "4"),
    *("--group.min.session.timeout.ms", "1000"),
    *("--group.initial.rebalance.delay.ms", "3000"),
)
"""What the suites expect of a broker. The last is Kafka's default; ours is its quickstart's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite. `waiting` says of tests, by pattern, which part of Kafka they need that is not
    there yet: they are run and shown like all others.
    """

    name: str
    script: str
    baseline: str
    arguments: Sequence[str] = ()
    flags: Sequence[str] = ()
    waiting: Sequence[tuple[str, str]] = ()

    def waits_for(self, test: str) -> str:
        """Return what a test needs that is not there yet; empty for nothing."""
        found = (what for pattern, what in self.waiting if re.match(pattern, test))
        return next(found, "")


_LIBRDKAFKA_WAITS = (
    (r"0081_", "ACLs and SCRAM, in part"),
    (r"0115_", "SASL and SCRAM"),
    (r"0109_|0119_", "ACLs, in part"),
    (r"01[5-8]\d_share|01(5[5-9]|[67]\d|8\d)_", "share groups"),
)

SUITES = (
    Suite(
        name="kafka-python",
        script="run-kafka-python",
        baseline="kafka-4.2.0-kafka-python.json",
        waiting=((r".*[Aa][Cc][Ll]", "ACLs"), (r".*scram", "SCRAM"), (r".*share", "share groups")),
    ),
    Suite(
        name="franz-go",
        script="run-franz-go",
        baseline="kafka-4.2.0-franz-go.json",
        waiting=(
            (r".*848", "consumer groups of KIP-848"),
            (r".*Share", "share groups"),
            (r".*S(CRAM|cram)", "SCRAM"),
        ),
    ),
    Suite(
        name="librdkafka-noautocreate",
        script="run-librdkafka",
        baseline="kafka-4.2.0-librdkafka-noautocreate.json",
        arguments=("--scenario", "noautocreate", "--jobs", "2"),
        flags=("--auto.create.topics.enable", "false"),
    ),
    Suite(
        name="librdkafka",
        script="run-librdkafka",
        baseline="kafka-4.2.0-librdkafka.json",
        arguments=("--jobs", "4"),
        waiting=_LIBRDKAFKA_WAITS,
    ),
)
