"""The suites: which script runs one, in what order, against which broker, and what has to wait.

The scripts and Apache Kafka's results are in a folder of their own (`--suites`): they fetch and
build what they run.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.broker.security.standard_authorizer import CLASS_NAME

USER, PASSWORD = "suite", "suite-s3cret"
"""The user of tests that log in by SCRAM."""

PROFILE = (
    *("--node.id", "0"),
    *("--num.partitions", "4"),
    *("--group.min.session.timeout.ms", "1000"),
    # Kafka's default; ours is its quickstart's.
    *("--group.initial.rebalance.delay.ms", "3000"),
    *("--group.share.min.record.lock.duration.ms", "1000"),
    *("--authorizer.class.name", CLASS_NAME),
    *("--allow.everyone.if.no.acl.found", "true"),
    *("--listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,SCRAM:SASL_PLAINTEXT"),
    *("--sasl.enabled.mechanisms", "SCRAM-SHA-256"),
    *("--bootstrap.admin", USER),
)
"""Settings that the suites expect of a broker; `listeners` and the user's password come to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite. `waiting` says of tests, by pattern, what they wait for: a part of Kafka that is
    not there yet, or a suite that knows Kafka's present release. They are run and shown like all
    others.
    """

    name: str
    script: str
    baseline: str
    arguments: Sequence[str] = ()
    tests: Sequence[str] = ()
    """Those that are run; empty for all."""
    flags: Sequence[str] = ()
    waiting: Sequence[tuple[str, str]] = ()

    def waits_for(self, test: str) -> str:
        """Return what a test waits for; empty for nothing."""
        found = (what for pattern, what in self.waiting if re.match(pattern, test))
        return next(found, "")


_A_SUITE_OF_4_3 = "a suite for Kafka 4.3: Kafka 4.3.0 fails this one in the same words"
_OF_KAFKA_4_2 = (
    ("test_consumer_integration.py::test_kafka_version_infer", _A_SUITE_OF_4_3),
    # It joins again within group.consumer.assignment.interval.ms.
    ("0045_resubscribe_with_regex", _A_SUITE_OF_4_3),
)

_OF_GROUPS = (
    *("0018", "0019", "0022", "0026", "0029", "0030", "0033", "0040", "0041", "0045", "0049"),
    *("0050", "0051", "0054", "0056", "0059", "0060", "0061", "0064", "0067", "0069", "0073"),
    *("0081", "0083", "0084", "0089", "0091", "0093", "0098", "0099", "0102", "0103", "0109"),
    *("0112", "0113", "0118", "0119", "0122", "0127", "0129", "0130", "0132", "0137", "0140"),
)
"""Tests of librdkafka that have to do with groups: those of Kafka's results."""

SUITES = (
    Suite(
        name="kafka-python",
        script="run-kafka-python",
        baseline="kafka-4.2.0-kafka-python.json",
        waiting=_OF_KAFKA_4_2,
    ),
    Suite(
        name="franz-go",
        script="run-franz-go",
        baseline="kafka-4.2.0-franz-go.json",
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
    ),
    Suite(
        name="librdkafka-consumer-protocol",
        script="run-librdkafka",
        baseline="kafka-4.2.0-librdkafka-consumer-protocol.json",
        tests=_OF_GROUPS,
        arguments=("--group-protocol", "consumer", "--jobs", "2"),
        waiting=_OF_KAFKA_4_2,
    ),
)
