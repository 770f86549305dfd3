"""The options that say whether values are decoded, and of which topic."""

from dataclasses import dataclass
from typing import Literal, cast

from lakehead.lake.catalog import TopicPartition
from lakehead.lake.source.option_table import ASSIGN, SUBSCRIBE
from lakehead.lake.source.option_values import Options, choice, json_object, not_json
from lakehead.storage.errors import SettingsError

Undecodable = Literal["fail", "null"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Values of `topic` become columns: as it declares, or as JSON whatever it declares."""

    topic: str
    by: Literal["declared", "json"]
    undecodable: Undecodable


def decoding_in(options: Options, strategy: str) -> Decoding | None:
    """Return how values are decoded, None if they stay bytes. Raises SettingsError."""
    by = choice(options, "decode", ("none", "declared", "json"), default="none")
    undecodable = choice(options, "undecodable", ("fail", "null"), default="fail")
    if by == "none":
        if "undecodable" in options:
            raise SettingsError("option 'undecodable' is for values that are decoded: set 'decode'")
        return None
    topics: set[str] = set()
    if strategy == SUBSCRIBE:
        topics = {name.strip() for name in options[strategy].split(",") if name.strip()}
    elif strategy == ASSIGN:
        topics = {id_.topic for id_ in assigned_in(options[strategy])}
    if len(topics) != 1:
        raise SettingsError(
            "option 'decode' is for one topic, since each has columns of its own: name it with "
            "'subscribe' or 'assign', and read others on their own"
        )
    return Decoding(
        topic=topics.pop(),
        by=cast(Literal["declared", "json"], by),
        undecodable=cast(Undecodable, undecodable),
    )


def assigned_in(value: str) -> list[TopicPartition]:
    """Return the partitions that option `assign` names. Raises SettingsError."""
    options, example = {ASSIGN: value}, 'must be like {"topicA":[0,1],"topicB":[2,4]}'
    assigned = []
    for topic, partitions in json_object(options, ASSIGN, example).items():
        if not isinstance(partitions, list) or not all(type(one) is int for one in partitions):
            raise not_json(options, ASSIGN, example)
        assigned += [TopicPartition(topic, partition) for partition in partitions]
    if not assigned:
        raise SettingsError(f"No topicpartitions to assign: option 'assign' is {value}")
    return list(dict.fromkeys(assigned))
