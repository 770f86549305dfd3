"""Where Lakehead answers other than Kafka, and why that is right."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.differential.brokers import Request

_ANY = object()


@dataclass(frozen=True, slots=True)
class Rule:
    """Differences of an API at a path (a regular expression), perhaps of these values alone."""

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
            and (self.theirs is _ANY or self.theirs == theirs)
            and (self.ours is _ANY or self.ours == ours)
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
        api="Produce|Delete.*|Create.*|Describe.*|Alter.*|Incremental.*",
        path=r".*error_message",
        theirs=None,
        ours="...",
        reason="Lakehead says what is wrong where Kafka gives the code alone",
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
