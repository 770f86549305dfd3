"""Where Lakehead answers other than Kafka, and why that is right.

A rule admits what its reason argues and no more: it names what both answer, and where it can the
requests or the fields around for which that is so.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.differential.brokers import ProducerEpoch, Records, Request, SessionEpoch
from tests.differential.trees import Difference, Tree

_ANY = object()


def _fits(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, str) and isinstance(value, str):
        return re.fullmatch(wanted, value) is not None
    return wanted is _ANY or bool(wanted == value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Differences of an API at a path, perhaps of these values alone: all regular expressions."""

    api: str
    path: str
    reason: str
    theirs: Any = _ANY
    ours: Any = _ANY
    when: Callable[[Any], bool] = lambda _: True
    """Of the request's tree."""
    around: Callable[[Any, Any], bool] = lambda _, __: True
    """Of the fields around, theirs and ours."""

    def holds(self, request: Request, difference: Difference) -> bool:
        """Return true if this difference is of this rule."""
        path, theirs, ours, around = difference
        return (
            re.fullmatch(self.api, request.name) is not None
            and re.fullmatch(self.path, path) is not None
            and _fits(self.theirs, theirs)
            and _fits(self.ours, ours)
            and self.when(request.tree)
            and self.around(*around)
        )


def _partitions(tree: Any) -> Iterator[Mapping[str, Any]]:
    for topic in tree["topic_data"]:
        yield from topic["partition_data"]


def _batches(tree: Any) -> Iterator[tuple[Records, dict[str, Any]]]:
    for part in _partitions(tree):
        if isinstance(part["records"], Records):
            yield part["records"], dict(part["records"].fields)


def _has(field: str, value: Any = _ANY) -> Callable[[Any], bool]:
    """Return true if a batch of a Produce request has this field, perhaps of this value."""
    return lambda tree: any(
        field in fields and (value is _ANY or fields[field] == value)
        for _, fields in _batches(tree)
    )


def _is_nobodys(marker: Mapping[str, Any]) -> bool:
    producer, epoch = marker["producer_id"], marker["producer_epoch"]
    return producer == -1 or epoch == -1 or (isinstance(epoch, ProducerEpoch) and epoch.off == -1)


def _is_cut(theirs: Tree, ours: Tree) -> bool:
    """Return true if Kafka names the first of the same records, and Lakehead more of them."""
    first = [batch for batch in ours["records"] if batch in theirs["records"]]
    rest = [batch for batch in ours["records"] if batch not in theirs["records"]]
    ends = [batch["base_offset"] for batch in first]
    return first == theirs["records"] and all(
        batch["base_offset"] > max(ends, default=-1) for batch in rest
    )


RULES: tuple[Rule, ...] = (
    Rule(
        api="CreateTopics|DescribeConfigs",
        path=r".*\.config_source|.*\.source",
        theirs=3,
        ours=5,
        around=lambda theirs, _: theirs["name"] == "min.insync.replicas",
        reason="Kafka keeps min.insync.replicas as a setting of the cluster, for its elections",
    ),
    Rule(
        api="DescribeConfigs",
        path=r"results\.configs\.synonyms",
        theirs={"name": "min.insync.replicas", "value": "1", "source": 3},
        ours=None,
        reason="Kafka keeps min.insync.replicas as a setting of the cluster, for its elections",
    ),
    Rule(
        api="WriteTxnMarkers",
        path=r".*error_code",
        theirs="unknown_server_error",
        when=lambda tree: any(map(_is_nobodys, tree["markers"])),
        reason="Kafka fails inside on a marker without a producer or an epoch",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="corrupt_message",
        when=lambda tree: _has("length", 10)(tree) or _has("magic", 3)(tree),
        reason="of a batch that cannot be one, Kafka refuses the neighbours, too",
    ),
    Rule(
        api="Produce",
        path="",
        theirs="silent",
        when=lambda tree: any(part["records"] is None for part in _partitions(tree)),
        reason="Kafka fails inside on records that are null, and never responds",
    ),
    Rule(
        api=".*",
        path=r".*error_message",
        reason="with the same code, either may give a reason, or not",
    ),
    Rule(
        api="Produce",
        path=r".*log_append_time",
        theirs="there",
        ours="negative",
        around=lambda theirs, ours: theirs["base_offset"] == ours["base_offset"],
        reason="for a batch that it has already, Kafka returns the producer's time as its own",
    ),
    Rule(
        api="DescribeTopicPartitions",
        path=r".*error_code",
        theirs="unknown_server_error",
        when=lambda tree: tree["response_partition_limit"] < 0,
        reason="Kafka fails inside on a page of less than nothing",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="corrupt_message",
        ours="invalid_record",
        when=_has("magic", 3),
        reason="a batch of another format stays wrong: no code that has producers try again",
    ),
    Rule(
        api="Produce",
        path=r".*record_errors",
        ours=None,
        around=lambda theirs, ours: theirs["error_code"] in ("invalid_record", "invalid_timestamp"),
        reason="brokers do not read records: they name the wrong batch",
    ),
    Rule(
        api="Fetch",
        path=r"responses\.partitions\.records",
        theirs=None,
        around=_is_cut,
        reason="Kafka reads from one segment at a time",
    ),
    Rule(
        api="Fetch",
        path=r"responses\.partitions\.error_code",
        theirs="unknown_topic_or_partition|inconsistent_topic_id",
        ours="unknown_topic_id",
        when=lambda tree: isinstance(tree["session_epoch"], SessionEpoch),
        reason="in a session, too, the id of a topic that is gone is unknown; Kafka knows its name",
    ),
    Rule(
        api="IncrementalAlterConfigs",
        path=r".*error_code",
        theirs="unknown_server_error|invalid_config",
        ours="invalid_request|invalid_config",
        when=lambda tree: any(
            config["config_operation"] not in range(4)
            for resource in tree["resources"]
            for config in resource["configs"]
        ),
        reason="Kafka fails inside on an operation that there is not, or sees another fault first",
    ),
    Rule(
        api="UpdateFeatures",
        path=r"error_code",
        theirs="none",
        ours="invalid_update_version",
        when=lambda tree: all(
            one["feature"] == "transaction.version" and one["max_version_level"] in (0, 1)
            for one in tree["feature_updates"]
        ),
        reason="transaction.version stays at the level of the release",
    ),
    Rule(
        api="CreateTopics",
        path=r"topics\.topic_id",
        theirs="another",
        ours="none",
        when=lambda tree: bool(tree.get("validate_only")),
        reason="Kafka makes up an id even for a topic that it only checks",
    ),
    Rule(
        api="CreateTopics",
        path=r"topics\.configs\.value",
        around=lambda theirs, ours: theirs["value"].strip() == ours["value"],
        reason="a value is kept without the blanks around it",
    ),
    Rule(
        api="DescribeConfigs",
        path=r"results\.configs\.synonyms",
        around=lambda theirs, _: theirs["name"] in ("retention.ms", "segment.ms"),
        reason="Lakehead has one setting where Kafka has one for each unit of time",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="none|invalid_producer_epoch|out_of_order_sequence_number",
        ours="invalid_record",
        when=lambda tree: any(one.epoch_off == -1 for one, _ in _batches(tree)),
        reason="a producer id without an epoch is refused: nothing could fence it",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="invalid_record",
        ours="none",
        when=_has("body", b""),
        reason="brokers do not read records: readers find out that there are none",
    ),
    Rule(
        api="Produce",
        path=r".*error_code",
        theirs="unknown_server_error",
        when=lambda tree: any(fields["attributes"] & 7 == 5 for _, fields in _batches(tree)),
        reason="Kafka fails inside on a compression that there is not, and on its neighbours",
    ),
    Rule(
        api="Fetch|ListOffsets",
        path=r".*error_code",
        theirs="unknown_server_error",
        when=lambda tree: tree["isolation_level"] not in (0, 1),
        reason="Kafka fails inside on a level of isolation that there is not",
    ),
)


def reason_for(request: Request, difference: Difference) -> str | None:
    """Return why this difference is right, None if nothing says so."""
    held = (rule.reason for rule in RULES if rule.holds(request, difference))
    return next(held, None)
