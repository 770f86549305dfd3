"""Where Lakehead answers other than Kafka, and why that is right.

A rule admits what its reason argues and no more: it names what both answer, and where it can the
requests or the fields around for which that is so.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.differential.brokers import PRODUCE, ProducerEpoch, Records, Request, SessionEpoch
from tests.differential.trees import Difference, Tree

_ANY = object()
_SUFFIXES = "dDfF"
"""Letters that Java takes at the end of a number."""
_RELEASE = 2
"""The type of an acknowledgement."""
_FEW_BYTES = 400
"""The most that a ShareFetch request with few bytes has room for."""
_NOT_IN_STATE = {"invalid_record_state", 121}
"""The error of a verdict on records that the member does not have."""
_FENCED = 6
"""NOT_LEADER_OR_FOLLOWER, of a verdict on records of a state that is gone."""


def _fits(wanted: Any, value: Any) -> bool:
    if callable(wanted):
        return bool(wanted(value))
    if isinstance(wanted, str) and isinstance(value, str):
        return re.fullmatch(wanted, value) is not None
    return wanted is _ANY or bool(wanted == value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Differences of an API at a path, perhaps of these values alone: regular expressions, or a
    condition.
    """

    api: str
    path: str
    reason: str
    theirs: Any = _ANY
    ours: Any = _ANY
    below: int | None = None
    """Of versions below this one alone."""
    when: Callable[[Any], bool] = lambda _: True
    """Of the request's tree."""
    around: Callable[[Any, Any], bool] = lambda _, __: True
    """Of the fields around, theirs and ours."""
    whole: Callable[[Any, Any, Any], bool] = lambda _, __, ___: True
    """Of the request's tree and the whole responses, theirs and ours."""

    def holds(self, request: Request, difference: Difference, responses: tuple[Tree, Tree]) -> bool:
        """Return true if this difference is of this rule."""
        path, theirs, ours, around = difference
        return (
            re.fullmatch(self.api, request.name) is not None
            and (self.below is None or request.version < self.below)
            and re.fullmatch(self.path, path) is not None
            and _fits(self.theirs, theirs)
            and _fits(self.ours, ours)
            and self.when(request.tree)
            and self.around(*around)
            and self.whole(request.tree, *responses)
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


def _is_of_the_epoch_before(epoch: Any) -> bool:
    return isinstance(epoch, ProducerEpoch) and epoch.off == -1


def _leaves_out_a_marker(answer: Tree) -> bool:
    """Return true if a marker of several has no partition that there is, and another has one."""
    is_unknown = [
        all(
            part["error_code"] == "unknown_topic_or_partition"
            for topic in marker["topics"]
            for part in topic["partitions"]
        )
        for marker in answer["markers"]
    ]
    return any(is_unknown) and not all(is_unknown)


def _is_cut(theirs: Tree, ours: Tree) -> bool:
    """Return true if Kafka names the first of the same records, and Lakehead more of them."""
    first = [batch for batch in ours["records"] if batch in theirs["records"]]
    rest = [batch for batch in ours["records"] if batch not in theirs["records"]]
    ends = [batch["base_offset"] for batch in first]
    return first == theirs["records"] and all(
        batch["base_offset"] > max(ends, default=-1) for batch in rest
    )


def _has_any(creation: Mapping[str, Any]) -> bool:
    """Return true if a rule of CreateAcls has a value that only filters have."""
    return creation["resource_pattern_type"] in (1, 2) or any(
        creation[part] == 1 for part in ("resource_type", "operation", "permission_type")
    )


def _plain(value: str) -> str:
    """Return a config's value as both have it when they act by it."""
    if value.strip().lower() in {"true", "false"}:
        return value.strip().lower()
    with suppress(ValueError):
        return f"{float(value.strip().rstrip(_SUFFIXES)):g}"
    return ",".join(dict.fromkeys(item.strip() for item in value.split(",")))


def _verdicts(tree: Any) -> Iterator[Mapping[str, Any]]:
    for topic in tree["topics"]:
        for partition in topic["partitions"]:
            yield from partition["acknowledgement_batches"]


_RECORDS = r"responses|responses\.partitions|responses\.partitions\.(acquired_)?records(\..*)?"
"""Paths of what a response to ShareFetch has of records."""

Acquired = dict[tuple[str, int], list[tuple[int, int, int]]]


def acquired(response: Tree) -> Acquired:
    """Return the ranges (first and last offset, deliveries) that a response to ShareFetch has of
    each partition that it has records of.
    """
    if not isinstance(response, dict):
        return {}
    return {
        (topic["topic_id"], part["partition_index"]): [
            (one["first_offset"], one["last_offset"], one["delivery_count"])
            for one in part["acquired_records"]
        ]
        for topic in response["responses"]
        for part in topic["partitions"]
        if part["acquired_records"]
    }


def _offsets(ranges: Acquired) -> dict[tuple[str, int, int], int]:
    """Return how often each offset has been delivered."""
    return {
        (*place, offset): count
        for place, found in ranges.items()
        for first, last, count in found
        for offset in range(first, last + 1)
    }


def _takes_another_first(tree: Any, theirs: Tree, ours: Tree) -> bool:
    """Return true if both have as many records as the request has room for, and each partition of
    both begins with the same record.
    """
    one, other = acquired(theirs), acquired(ours)
    room = tree["max_records"]
    return (
        len(one.keys() | other.keys()) > 1
        and len(_offsets(one)) >= room
        and len(_offsets(other)) >= room
        and all(one[place][0][::2] == other[place][0][::2] for place in one.keys() & other.keys())
    )


def _takes_what_it_releases(tree: Any, theirs: Tree, ours: Tree) -> bool:
    """Return true if Lakehead has records that the request releases, and of others those of Kafka
    or as many as the request has room for.
    """
    released = {
        (topic["topic_id"].name, part["partition_index"], offset)
        for topic in tree["topics"]
        for part in topic["partitions"]
        for batch in part["acknowledgement_batches"]
        for offset in range(batch["first_offset"], batch["last_offset"] + 1)
        if _RELEASE in batch["acknowledge_types"]
    }
    one, other = _offsets(acquired(theirs)), _offsets(acquired(ours))
    added = other.keys() - one.keys()
    return bool(added & released) and (
        (added <= released and one.items() <= other.items()) or len(other) >= tree["max_records"]
    )


def _shares_out_bytes(tree: Any, theirs: Tree, ours: Tree) -> bool:
    """Return true if both have records, up to a number of bytes, and of each partition of both one
    has the first of the other's.
    """
    one, other = acquired(theirs), acquired(ours)
    return (
        tree["max_bytes"] <= _FEW_BYTES
        and bool(one)
        and bool(other)
        and len(one.keys() | other.keys()) > 1
        and all(_begins(one[place], other[place]) for place in one.keys() & other.keys())
    )


def _begins(one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]) -> bool:
    shorter, longer = sorted([_counts(one), _counts(other)], key=len)
    return longer[: len(shorter)] == shorter


def _counts(ranges: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(offset, count) for first, last, count in ranges for offset in range(first, last + 1)]


def _reaches_over(tree: Any, _theirs: Tree, ours: Tree) -> bool:
    """Return true if a verdict is on a range of which Lakehead has nothing in flight."""
    refused = {
        (topic["topic_id"], part["partition_index"])
        for topic in ours["responses"]
        for part in topic["partitions"]
        if _NOT_IN_STATE & {part["error_code"], part.get("acknowledge_error_code")}
    }
    return any(
        (topic["topic_id"].name, part["partition_index"]) in refused
        for topic in tree["topics"]
        for part in topic["partitions"]
        for batch in part["acknowledgement_batches"]
        if batch["first_offset"] < batch["last_offset"]
    )


def _began_again(theirs: Tree, ours: Tree) -> bool:
    """Return true if acknowledgements of a partition were fenced by its new state."""
    fenced = [one["acknowledge_error_code"] == _FENCED for one in (theirs, ours)]
    return all(fenced) and not theirs["records"]


def _failed(theirs: Tree, _ours: Tree) -> bool:
    """Return true if Kafka answered that it failed inside."""
    failure = "unknown_server_error"
    return theirs.get("error_code") == failure or any(
        topic["error_code"] == failure for topic in theirs.get("topics", ())
    )


RULES: tuple[Rule, ...] = (
    Rule(
        api="Produce",
        path=r"responses\.partition_responses\.log_append_time",
        theirs="there",
        ours=None,
        when=_has("base_sequence"),
        reason="Kafka's response to a batch that is sent again has the time of its records",
    ),
    Rule(
        api="Metadata",
        path=r"topics\.error_code",
        below=4,
        theirs="unknown_topic_or_partition",
        ours="none",
        reason="a topic is created before the response, and in Kafka after it",
    ),
    Rule(
        api="WriteTxnMarkers",
        path=r".*error_code",
        theirs="none|unknown_topic_or_partition|invalid_producer_epoch|.*fenced.*",
        ours="cluster_authorization_failed",
        reason="of a client that is not a node, only certain aborts are taken",
    ),
    Rule(
        api="EndTxn",
        path=r"error_code|producer_id|producer_epoch",
        when=lambda tree: _is_of_the_epoch_before(tree["producer_epoch"]),
        around=lambda theirs, ours: (
            theirs["error_code"] in {"none", "concurrent_transactions", "invalid_txn_state"}
            and ours["error_code"] == "producer_fenced"
        ),
        reason="a fenced producer does not become its successor of an older version",
    ),
    Rule(
        api="CreateAcls",
        path=r"results|results\.error_code",
        when=lambda tree: any(map(_has_any, tree["creations"])),
        reason="Kafka fails inside on a rule with a part of the value ANY, and on its neighbours",
    ),
    Rule(
        api="DescribeTopicPartitions",
        path=r"topics.*|next_cursor",
        when=lambda tree: any(topic["name"] == "" for topic in tree["topics"]),
        around=_failed,
        reason="Kafka fails inside on a topic without a name, with access rules",
    ),
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
        path="",
        theirs="silent",
        ours=_leaves_out_a_marker,
        when=lambda tree: len(tree["markers"]) > 1,
        reason="Kafka never responds if the last marker has no partition that there is",
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
        around=lambda theirs, ours: _plain(theirs["value"]) == _plain(ours["value"]),
        reason="a value is kept in its plain form: without blanks, elements of a list once",
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
        api="DescribeShareGroupOffsets",
        path=r"groups\.topics\.partitions\.(start_offset|lag)",
        theirs=-1,
        ours=lambda one: one >= 0,
        around=lambda theirs, _: theirs["start_offset"] == -1,
        reason="the first offset of a share group is stored at once, in Kafka with a verdict",
    ),
    Rule(
        api="DescribeShareGroupOffsets",
        path=r"groups\.topics\.partitions\.lag",
        theirs=lambda one: one < -1,
        ours=0,
        reason="a group that begins beyond the end of a log lags by nothing",
    ),
    Rule(
        api="DescribeShareGroupOffsets",
        path=r"|groups\.error_code",
        theirs="silent|unknown_server_error",
        when=lambda tree: any(
            index < 0 or index > 1
            for group in tree["groups"]
            for topic in group["topics"] or ()
            for index in topic["partitions"]
        ),
        reason="Kafka fails inside on a partition that there is not, or never responds",
    ),
    Rule(
        api="DescribeShareGroupOffsets",
        path=r"groups\.topics\.partitions\.start_offset",
        around=lambda theirs, ours: (
            0 <= theirs["start_offset"] < ours["start_offset"]
            and theirs.get("lag") == ours.get("lag")
        ),
        reason="the first offset after a last lock has ended is stored at once, in Kafka later",
    ),
    Rule(
        api="DescribeShareGroupOffsets",
        path=r"groups\.topics\.partitions\.lag",
        ours=-1,
        around=lambda theirs, ours: theirs["start_offset"] == ours["start_offset"] < -1,
        reason="a group that begins below the first offset has no lag",
    ),
    Rule(
        api="DescribeShareGroupOffsets",
        path=r"groups\.error_code",
        theirs="unknown_server_error",
        ours="none",
        around=lambda theirs, _: theirs["group_id"] == "",
        reason="Kafka fails inside on partitions of a group without a name",
    ),
    Rule(
        api="AlterShareGroupOffsets",
        path=r"error_code",
        theirs="unknown_server_error",
        ours="none",
        when=lambda tree: any(
            partition["partition_index"] < 0
            for topic in tree["topics"]
            for partition in topic["partitions"]
        ),
        reason="Kafka fails inside on a partition below the first",
    ),
    Rule(
        api="ShareFetch|ShareAcknowledge",
        path=r"error_code",
        theirs="unknown_server_error",
        ours="none",
        when=lambda tree: any(one["first_offset"] < 0 for one in _verdicts(tree)),
        reason="Kafka fails inside on a verdict below the first offset",
    ),
    Rule(
        api="ShareFetch|ShareAcknowledge",
        path=r"error_code",
        theirs="unknown_server_error",
        ours="none",
        whole=_reaches_over,
        reason="Kafka fails inside on a verdict from below the first offset to where nothing is",
    ),
    Rule(
        api="ShareFetch",
        path=r"error_code",
        theirs="unknown_server_error",
        ours="none",
        when=lambda tree: any(topic["topic_id"].name.endswith("none") for topic in tree["topics"]),
        reason="Kafka fails inside on a share session with a topic that it does not know",
    ),
    Rule(
        api="ShareFetch",
        path=r"responses\.partitions\.acquired_records",
        theirs=lambda one: one is not None and one["last_offset"] < one["first_offset"],
        ours=None,
        when=lambda tree: tree["batch_size"] < 1,
        reason="Kafka acquires what ends before it begins, where batches have no records",
    ),
    Rule(
        api="ShareGroupHeartbeat",
        path=r"assignment",
        theirs=lambda one: one in ("some", None),
        ours=lambda one: one in ("some", None),
        whole=lambda tree, theirs, _: 0 < tree["member_epoch"] < theirs["member_epoch"],
        reason="with a new epoch each assignor takes partitions from other members, or gives them",
    ),
    Rule(
        api="ShareFetch",
        path=_RECORDS,
        whole=_takes_another_first,
        reason="each partition of a share session is first in its turn; Kafka has another order",
    ),
    Rule(
        api="ShareFetch",
        path=_RECORDS,
        whole=_shares_out_bytes,
        reason="bytes are for the first partitions in turn; Kafka shares them out to all",
    ),
    Rule(
        api="ShareFetch",
        path=_RECORDS,
        whole=_takes_what_it_releases,
        reason="records that a request releases are available to it; Kafka fetches meanwhile",
    ),
    Rule(
        api="ShareFetch",
        path=r"responses\.partitions\.(acquired_)?records",
        theirs=None,
        around=_began_again,
        reason="a share-partition that begins again has records at once; Kafka notes it first",
    ),
    Rule(
        api="ShareFetch",
        path=r"error_code",
        theirs="unknown_server_error",
        when=lambda tree: tree.get("share_acquire_mode", 0) not in (0, 1),
        reason="Kafka fails inside on an acquire mode that there is not",
    ),
    Rule(
        api="Fetch|ListOffsets",
        path=r".*error_code",
        theirs="unknown_server_error",
        when=lambda tree: tree["isolation_level"] not in (0, 1),
        reason="Kafka fails inside on a level of isolation that there is not",
    ),
)


def reason_for(
    request: Request, difference: Difference, responses: tuple[Tree, Tree]
) -> str | None:
    """Return why this difference of the two responses is right, None if nothing says so."""
    held = (rule.reason for rule in RULES if rule.holds(request, difference, responses))
    return next(held, None)


def has_hidden_effect(request: Request) -> bool:
    """Return true if one may have taken records by design that the other refused, and no response
    shows it: a Produce with acks=0.
    """
    return (
        request.key == PRODUCE
        and request.tree["acks"] == 0
        and any(
            one.epoch_off == -1
            or fields.get("body") == b""
            or fields.get("magic") == 3
            or fields.get("length") == 10
            or fields["attributes"] & 7 == 5
            for one, fields in _batches(request.tree)
        )
    )
