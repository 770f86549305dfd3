"""Options of the Spark source: names, defaults, rules and messages of Spark's Kafka source, with
`path` in place of `kafka.bootstrap.servers`.

An unknown option is an error: an option that is misspelt, or lost on its way (`CREATE TABLE … USING
lakehead OPTIONS` loses them all), must not silently read something else.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lake.catalog import Catalog, TopicPartition
from lake.decode.columns import chosen_columns
from lake.offsets import EARLIEST, LATEST, Bounds, Position
from storage.errors import SettingsError

_STRATEGIES = ("assign", "subscribe", "subscribePattern")
_OFFSETS = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
_READING = (
    "path",
    "columns",
    "includeHeaders",
    "failOnDataLoss",
    "minPartitions",
    "kafka.isolation.level",
)
NO_EFFECT = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Options of the Kafka source that mean nothing where no broker is asked, or on a batch."""

KNOWN = {name.lower(): name for name in (*_READING, *_STRATEGIES, *_OFFSETS, *NO_EFFECT)}

_INT_MAX = 2**31 - 1
_EARLIEST_NUMBER = -2
_LATEST_NUMBER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read, checked. `topics` is what one of the three strategies was given."""

    path: str
    strategy: str
    topics: str
    columns: tuple[str, ...]
    bounds: Bounds
    splits_min: int
    read_committed: bool

    def partitions(self, catalog: Catalog) -> list[TopicPartition]:
        """Return the partitions to read. Raises UnknownTopic, SettingsError."""
        match self.strategy:
            case "assign":
                return sorted(_assigned(self.topics))
            case "subscribe":
                names = sorted(
                    dict.fromkeys(name.strip() for name in self.topics.split(",") if name.strip())
                )
            case _:
                names = _matching(self.topics, catalog.topics())
        return [log.id for name in names for log in catalog.partitions(name)]


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a batch read. Raises SettingsError, with one line for the user."""
    options = {_known(name): value for name, value in given.items()}
    path = options.get("path", "").strip()
    if not path:
        raise SettingsError(
            "option 'path' is missing: it names the cluster's place, such as /data/lakehead/store "
            "or s3://bucket/prefix. (Spark drops the OPTIONS of CREATE TABLE … USING lakehead: "
            "use CREATE TEMPORARY VIEW.)"
        )
    strategy = _strategy(options)
    return ReadOptions(
        path=path,
        strategy=strategy,
        topics=options[strategy],
        columns=_columns(options),
        bounds=Bounds(
            starting=_starting(options),
            ending=_ending(options),
            latest_without_match=_latest_without_match(options),
            fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        ),
        splits_min=_splits_min(options),
        read_committed=_read_committed(options),
    )


def _known(name: str) -> str:
    known = KNOWN.get(name.lower())
    if known is not None:
        return known
    if name.lower().startswith("kafka."):
        raise SettingsError(
            f"option {name!r} sets up a Kafka client, and there is none here: Spark reads the "
            "objects in 'path' and asks no broker. Remove it"
        )
    raise SettingsError(f"unknown option {name!r}: there are {', '.join(sorted(KNOWN.values()))}")


def _strategy(options: Mapping[str, str]) -> str:
    named = [name for name in _STRATEGIES if name in options]
    if len(named) != 1:
        what = "Only one" if named else "One"
        raise SettingsError(
            f"{what} of the following options {'can' if named else 'must'} be specified for "
            f"lakehead source: {', '.join(_STRATEGIES)}."
        )
    strategy, value = named[0], options[named[0]]
    if strategy == "assign":
        _assigned(value)
    elif not value.strip(" ,"):
        raise SettingsError(
            f"No topics to subscribe to as specified value for option {strategy!r} is {value!r}"
        )
    return strategy


def _assigned(value: str) -> list[TopicPartition]:
    example = 'must be like {"topicA":[0,1],"topicB":[2,4]}'
    topics = _json(value, "assign", example)
    assigned = []
    for topic, partitions in topics.items():
        if not isinstance(partitions, list) or not all(type(one) is int for one in partitions):
            raise SettingsError(f"Expected option 'assign' to be JSON: it {example}, got {value}")
        assigned += [TopicPartition(topic, partition) for partition in partitions]
    if not assigned:
        raise SettingsError(f"No partitions to assign: option 'assign' is {value}")
    return list(dict.fromkeys(assigned))


def _matching(pattern: str, topics: tuple[str, ...]) -> list[str]:
    try:
        matcher = re.compile(pattern.strip())
    except re.error as error:
        raise SettingsError(f"option 'subscribePattern' {pattern!r}: {error}") from None
    return [topic for topic in topics if matcher.fullmatch(topic)]


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    include_headers = _flag(options, "includeHeaders", default=False)
    if "columns" not in options:
        return chosen_columns(None, include_headers=include_headers)
    return chosen_columns([name.strip() for name in options["columns"].split(",") if name.strip()])


def _starting(options: Mapping[str, str]) -> Position | dict[TopicPartition, Position]:
    if "startingTimestamp" in options:
        return Position("timestamp", _timestamp(options, "startingTimestamp"))
    if "startingOffsetsByTimestamp" in options:
        return _by_partition(options, "startingOffsetsByTimestamp", _at_timestamp)
    value = options.get("startingOffsets", "earliest").strip()
    if value.lower() == "latest":
        raise SettingsError("starting offset can't be latest for batch queries on lakehead")
    if value.lower() == "earliest":
        return EARLIEST
    positions = _by_partition(options, "startingOffsets", _at_offset)
    for partition, position in positions.items():
        if position == LATEST:
            raise SettingsError(
                f"startingOffsets for {partition} can't be latest for batch queries on lakehead"
            )
    return positions


def _ending(options: Mapping[str, str]) -> Position | dict[TopicPartition, Position]:
    if "endingTimestamp" in options:
        return Position("timestamp", _timestamp(options, "endingTimestamp"))
    if "endingOffsetsByTimestamp" in options:
        return _by_partition(options, "endingOffsetsByTimestamp", _at_timestamp)
    value = options.get("endingOffsets", "latest").strip()
    if value.lower() == "earliest":
        raise SettingsError("ending offset can't be earliest for batch queries on lakehead")
    if value.lower() == "latest":
        return LATEST
    positions = _by_partition(options, "endingOffsets", _at_offset)
    for partition, position in positions.items():
        if position == EARLIEST:
            raise SettingsError(
                f"ending offset for {partition} can't be earliest for batch queries on lakehead"
            )
    return positions


def _at_offset(number: int) -> Position | None:
    if number in (_EARLIEST_NUMBER, _LATEST_NUMBER):
        return EARLIEST if number == _EARLIEST_NUMBER else LATEST
    return Position("offset", number) if number >= 0 else None


def _at_timestamp(number: int) -> Position | None:
    return Position("timestamp", number) if number >= 0 else None


def _by_partition(
    options: Mapping[str, str], name: str, position: Callable[[int], Position | None]
) -> dict[TopicPartition, Position]:
    example = 'must be like {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    wrong = SettingsError(f"Expected option {name!r} to be JSON: it {example}, got {options[name]}")
    positions = {}
    for topic, partitions in _json(options[name], name, example).items():
        if not isinstance(partitions, dict):
            raise wrong
        for partition, number in partitions.items():
            found = position(number) if type(number) is int else None
            if found is None or not partition.isascii() or not partition.isdigit():
                raise wrong
            positions[TopicPartition(topic, int(partition))] = found
    return positions


def _json(value: str, name: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SettingsError(f"Expected option {name!r} to be JSON: it {example}, got {value}")
    return found


def _timestamp(options: Mapping[str, str], name: str) -> int:
    return _number(options, name, "milliseconds since the epoch, 0 or more", least=0, most=1 << 62)


def _latest_without_match(options: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    return _choice(options, name, ("error", "latest"), default="error") == "latest"


def _splits_min(options: Mapping[str, str]) -> int:
    if "minPartitions" not in options:
        return 1
    return _number(options, "minPartitions", "a positive number", least=1, most=_INT_MAX)


def _read_committed(options: Mapping[str, str]) -> bool:
    levels = ("read_committed", "read_uncommitted")
    return _choice(options, "kafka.isolation.level", levels, default=levels[0]) == levels[0]


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice(options, name, ("true", "false"), default=str(default).lower()) == "true"


def _choice(
    options: Mapping[str, str], name: str, choices: tuple[str, ...], *, default: str
) -> str:
    value = options.get(name, default).strip().lower()
    if value not in choices:
        raise SettingsError(f"option {name!r} is {' or '.join(choices)}, not {options[name]!r}")
    return value


def _number(options: Mapping[str, str], name: str, what: str, *, least: int, most: int) -> int:
    try:
        value = int(options[name])
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise SettingsError(f"option {name!r} is {what}, not {options[name]!r}")
    return value
