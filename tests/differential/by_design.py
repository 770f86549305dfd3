"""Where Lakehead answers other than Kafka, and why that is right."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.differential.brokers import Request

_ANY = object()


def _fits(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, str) and isinstance(value, str):
        return re.fullmatch(wanted, value) is not None
    return wanted is _ANY or bool(wanted == value)


@dataclass(frozen=True, slots=True)
class Rule:
    """Differences of an API at a path, perhaps of these values alone: all regular expressions."""

    api: str
    path: str
    reason: str
    theirs: Any = _ANY
    ours: Any = _ANY
    when: Callable[[Any], bool] = lambda _: True
    """Of the request's tree."""

    def holds(self, request: Request, path: str, theirs: Any, ours: Any) -> bool:
        """Whether this difference is of this rule."""
        return (
            re.fullmatch(self.api, request.name) is not None
            and re.fullmatch(self.path, path) is not None
            and _fits(self.theirs, theirs)
            and _fits(self.ours, ours)
            and self.when(request.tree)
        )


RULES: tuple[Rule, ...] = (
    Rule(
        api="CreateTopics|DescribeConfigs",
        path=r".*\.config_source|.*\.source",
        theirs=3,
        ours=5,
        reason="Kafka keeps min.insync.replicas as a setting of the cluster, for its elections",
    ),
    Rule(
        api="Produce",
        path="",
        theirs="silent",
        reason="Kafka fails inside on records that are null, and never answers",
    ),
    Rule(
        api="Produce",
        path=r"responses\.partition_responses\.(log_start_offset|error_message)",
        ours=-1,
        reason="beside an error code, Lakehead tells no start of the log",
    ),
    Rule(
        api=".*",
        path=r".*error_message",
        reason="beside the same code, either may say what is wrong, or not",
    ),
    Rule(
        api="Produce",
        path=r".*log_append_time",
        theirs="there",
        reason="of a batch that it has already, Kafka tells the producer's time as its own",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        ours="invalid_required_acks",
        reason="acks are checked before anything is done, such as adding to a transaction",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="invalid_.*|transactional_id_authorization_failed|out_of_order_sequence_number",
        ours="invalid_record|unsupported_.*|corrupt_message|message_too_large|unknown_topic.*",
        reason="partitions and batches are checked before their transaction's coordinator is asked",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="invalid_producer_epoch",
        ours="invalid_producer_id_mapping",
        reason="of an id that nobody gave out, the coordinator knows before the partition does",
    ),
    Rule(
        api="DescribeTopicPartitions",
        path=r".*error_code",
        theirs="unknown_server_error",
        when=lambda tree: tree["response_partition_limit"] < 0,
        reason="Kafka fails inside on a page of less than nothing",
    ),
    Rule(
        api="DescribeTransactions",
        path=r"transaction_states\.topics",
        ours=None,
        reason="Kafka adds a partition to a transaction even for a batch that it refuses",
    ),
    Rule(
        api="TxnOffsetCommit",
        path=r".*error_code",
        ours="offset_metadata_too_large",
        reason="the length of metadata is checked before the transaction's coordinator is asked",
    ),
    Rule(
        api="ListOffsets|IncrementalAlterConfigs",
        path=r".*error_code",
        theirs="unsupported_version|invalid_config",
        ours="unknown_topic_or_partition|unknown_leader_epoch",
        reason="which partition, and of which leader, comes before what is asked of it",
    ),
    Rule(
        api="CreateTopics",
        path=r".*error_code",
        theirs="topic_already_exists|invalid_config",
        ours="invalid_replica_assignment|invalid_partitions|invalid_replication_factor",
        reason="of two things that are wrong, numbers come before names and configs",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="corrupt_message",
        ours="invalid_record",
        when=lambda tree: "('magic', " in repr(tree),
        reason="a batch of another format stays wrong: no code that has producers try again",
    ),
    Rule(
        api="Produce",
        path=r".*record_errors",
        ours=None,
        reason="brokers do not read records: they tell the batch that is wrong",
    ),
    Rule(
        api="Fetch",
        path=r"responses\.partitions\.records",
        theirs=None,
        reason="Kafka reads from one segment at a time",
    ),
    Rule(
        api="IncrementalAlterConfigs",
        path=r".*error_code",
        theirs="unknown_server_error",
        reason="Kafka fails inside on an operation that there is not",
    ),
    Rule(
        api="CreateTopics",
        path=r"topics\.topic_id",
        when=lambda tree: bool(tree.get("validate_only")),
        reason="Kafka makes up an id even for a topic that it only checks",
    ),
    Rule(
        api="DescribeConfigs",
        path=r"results\.configs\.synonyms",
        reason="Lakehead has one setting where Kafka has one for each unit of time",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="none",
        ours="invalid_record",
        reason="a producer id without an epoch or a sequence is refused",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="invalid_record",
        ours="none",
        when=lambda tree: "body" in repr(tree),
        reason="brokers do not read records: that there are none is for readers to find",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="unknown_server_error",
        ours="unsupported_compression_type",
        reason="Kafka fails inside on a compression that there is not",
    ),
    Rule(
        api="Fetch|ListOffsets",
        path=r".*",
        when=lambda tree: tree["isolation_level"] not in (0, 1),
        reason="Kafka fails inside on a level of isolation that there is not",
    ),
)


def reason_for(request: Request, path: str, theirs: Any, ours: Any) -> str | None:
    """Return why this difference is right, None if nothing says so."""
    held = (rule.reason for rule in RULES if rule.holds(request, path, theirs, ours))
    return next(held, None)
