"""Options of the Spark source: names, defaults, rules and messages of Spark's Kafka source, with
`path` in place of `kafka.bootstrap.servers`.

`OPTIONS` declares each option; the options table of the documentation is made from it. An unknown
option is an error: an option that is misspelt, or lost on its way (`CREATE TABLE … USING lakehead
OPTIONS` loses them all), must not silently read something else. Every function raises
SettingsError, with one line for the user.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from lakehead.lake.cluster_table_columns import CLUSTER_TABLES, OFFSETS_FOR
from lakehead.lake.decode.columns import chosen_columns
from lakehead.lake.decode.modes import Mode, checked_mode
from lakehead.lake.needs import ALL, Needs
from lakehead.lake.positions import (
    EARLIEST,
    LATEST,
    Bounds,
    GroupPosition,
    Position,
    Positions,
    TopicPartition,
)
from lakehead.storage.encryption.settings import (
    KEY_FILE,
    KMS_KEY,
    PROVIDER,
    REQUIRED,
    joined_address,
)
from lakehead.storage.encryption.settings import OPTIONS as ENCRYPTION_OPTIONS
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from lakehead.lake.catalog import Catalog


Reads = Literal["both", "batch", "stream"]


class Option(NamedTuple):
    """An option. `has_effect` is False for settings of brokers, which are not used: accepted, so
    that a query of Spark's Kafka source runs as it is.
    """

    name: str
    default: str
    reads: Reads
    meaning: str
    has_effect: bool = True


ASSIGN, SUBSCRIBE, SUBSCRIBE_PATTERN = STRATEGIES = ("assign", "subscribe", "subscribePattern")

OPTIONS = (
    Option(
        "path",
        "required",
        "both",
        "the cluster's place: `/data/lakehead/store`, `s3://bucket/prefix`",
    ),
    Option(ASSIGN, "", "both", 'partitions: `{"topicA":[0,1],"topicB":[2]}`'),
    Option(SUBSCRIBE, "", "both", "topics, separated by commas"),
    Option(
        SUBSCRIBE_PATTERN,
        "",
        "both",
        "a regular expression (Python's) that whole topic names match; one of these three is "
        "needed. Kafka's internal topics are matched by none",
    ),
    Option(
        "columns",
        "all",
        "both",
        "only these are decoded: `value,offset`; a narrower `.schema(…)` does the same",
    ),
    Option("includeHeaders", "false", "both", "add the column `headers` (decoded: `_headers`)"),
    Option(
        "decode",
        "`none`",
        "both",
        "`declared`: values of the topic become columns as its configs `lakehead.table.*` declare "
        "(a topic that declares nothing is read as with `none`); `json`: as JSON, whatever is "
        "declared. For one topic",
    ),
    Option(
        "undecodable",
        "`fail`",
        "both",
        "a value that cannot be decoded: `fail` names topic, partition and offset; `null` gives "
        "NULL in its columns and says why in a column `_error`",
    ),
    Option(
        "mode",
        "`FAILFAST`",
        "both",
        "a batch that no reader can read, or a record whose time is beyond a TIMESTAMP: "
        "`FAILFAST` names topic, partition and offsets; `DROPMALFORMED` leaves it out; "
        "`PERMISSIVE` gives NULL for the time, and for a batch one row with NULL in all but "
        "topic, partition and first offset",
    ),
    Option(
        "catalog",
        "",
        "batch",
        "a table about the cluster instead of records: `topics`, `partitions`, `objects`, "
        "`groups`, `nodes`, `tables`, or `offsets_for` a `timestamp`",
    ),
    Option(
        "timestamp",
        "",
        "batch",
        "milliseconds, for `catalog=offsets_for`: from which offset on a record may be that new",
    ),
    Option(
        "startingOffsets",
        "`earliest`; stream: `latest`",
        "both",
        "`earliest`, `latest` (streams), `group:NAME` (batch: what a consumer group has committed) "
        'or `{"t":{"0":23,"1":-2}}`: -2 earliest, -1 latest',
    ),
    Option(
        "startingTimestamp",
        "",
        "both",
        "milliseconds: from the first record at or after it; wins over the next, and that over "
        "`startingOffsets`",
    ),
    Option("startingOffsetsByTimestamp", "", "both", '`{"t":{"0":1000}}`'),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        "both",
        "a start without a record at or after it: `error` or `latest`",
    ),
    Option(
        "endingOffsets",
        "`latest`",
        "batch",
        "`latest`, `group:NAME` or offsets, exclusive; -1 latest",
    ),
    Option("endingTimestamp", "", "batch", "to before the first record at or after it"),
    Option("endingOffsetsByTimestamp", "", "batch", '`{"t":{"0":1000}}`'),
    Option(
        "kafka.isolation.level",
        "`read_committed`",
        "both",
        "`read_uncommitted` shows aborted and undecided transactions too (the default of Spark's "
        "Kafka source)",
    ),
    Option(
        "failOnDataLoss",
        "true",
        "both",
        "fail when offsets are gone, or a topic was deleted or made again; else read what is there",
    ),
    Option(
        "tail",
        "`objects`",
        "both",
        "`wal`: read what is acknowledged and not uploaded yet from WAL objects (needs nodes "
        "with `--wal object:`)",
    ),
    Option(
        "needs",
        "",
        "batch",
        'a hint: `{"columns":["value"],"partitions":[0],"offsets":[0,100],"since":1700000000000,'
        '"limit":10}`. Rows of other partitions and offsets, blocks of older records and rows '
        "beyond the limit may be left out, and other columns may be NULL. `lakehead sql` sets it "
        "by what a query needs",
    ),
    Option(
        "minPartitions",
        "",
        "both",
        "at least about this number of tasks, as far as blocks of about 1 MB go",
    ),
    Option("maxRecordsPerPartition", "", "both", "at most this number of offsets in a task"),
    Option(
        "maxOffsetsPerTrigger",
        "",
        "stream",
        "at most about this number of offsets in a batch, shared in proportion to what waits",
    ),
    Option("minOffsetsPerTrigger", "", "stream", "wait until this number of offsets is there"),
    Option("maxTriggerDelay", "15m", "stream", "but not longer than this"),
    Option(
        PROVIDER,
        "`none`",
        "both",
        "provider of the key of an encrypted cluster: `file` or `kms`. Without these options "
        "the environment of driver and executors has them, as `LAKEHEAD_ENCRYPTION_KEY_PROVIDER` "
        "and so on",
    ),
    Option(KEY_FILE, "", "both", "file with the keys, on driver and executors"),
    Option(KMS_KEY, "", "both", "not needed to read"),
    Option(REQUIRED, "`false`", "both", "`true`: fail at an object that is not encrypted"),
    Option("groupIdPrefix", "", "both", "there is no group", has_effect=False),
    Option("kafkaConsumer.pollTimeoutMs", "", "both", "nothing is polled", has_effect=False),
    Option("fetchOffset.numRetries", "", "both", "requests are repeated anyway", has_effect=False),
    Option("fetchOffset.retryIntervalMs", "", "both", "as above", has_effect=False),
)

BY_NAME = {option.name.lower(): option for option in OPTIONS}


def options_table() -> str:
    """Return the options as a table in Markdown."""
    lines = ["| option | default | for | meaning |", "| --- | --- | --- | --- |"]
    for name, default, reads, meaning, has_effect in OPTIONS:
        shown = (
            default if not default or "`" in default or default == "required" else f"`{default}`"
        )
        said = meaning if has_effect else f"no effect: {meaning}"
        lines.append(f"| `{name}` | {shown} | {reads} | {said.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


Options = Mapping[str, str]
"""By the name as the options table has it."""

LONG_MAX = 2**63 - 1

_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_UNITS_MS["d"] = 24 * _UNITS_MS["h"]
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")


def _flag(options: Options, name: str, *, default: bool) -> bool:
    """Return whether an option is true."""
    return _choice(options, name, ("true", "false"), default=str(default).lower()) == "true"


def _choice(options: Options, name: str, choices: tuple[str, ...], *, default: str) -> str:
    """Return one of `choices`, in lower case."""
    value = options.get(name, default).strip().lower()
    if value not in choices:
        raise SettingsError(f"option {name!r} is {' or '.join(choices)}, not {options[name]!r}")
    return value


def _positive(options: Options, name: str, *, most: int = LONG_MAX) -> int | None:
    """Return a number from 1 on, None without the option."""
    return number(options, name, "a positive number", least=1, most=most)


def number(
    options: Options, name: str, what: str, *, least: int, most: int = LONG_MAX
) -> int | None:
    """Return a whole number, None without the option. `what` it is, for the error."""
    if name not in options:
        return None
    try:
        value = int(options[name])
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise SettingsError(f"option {name!r} is {what}, not {options[name]!r}")
    return value


def _duration_ms(options: Options, name: str, *, default: str) -> float:
    """Return a span of time as Spark writes it (`15m`, `30s`, `500ms`; milliseconds without a
    unit).
    """
    text = options.get(name, default).strip().lower()
    match = _DURATION.fullmatch(text)
    unit = (match[2] or "ms") if match else ""
    if match is None or unit not in _UNITS_MS:
        raise SettingsError(
            f"option {name!r} is a time such as 500ms, 30s or 15m, not {options[name]!r}"
        )
    return int(match[1]) * _UNITS_MS[unit]


def _json_object(options: Options, name: str, example: str) -> dict[str, Any]:
    """Return an object in JSON. `example` says how it looks, for the error."""
    try:
        found = json.loads(options[name])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _not_json(options, name, example)
    return found


def _not_json(options: Options, name: str, example: str) -> SettingsError:
    """Return the error of an option that is not the JSON it should be."""
    return SettingsError(f"Expected option {name!r} to be JSON: it {example}, got {options[name]}")


_EARLIEST_NUMBER = -2
_LATEST_NUMBER = -1


def _batch_bounds(options: Options) -> Bounds:
    """Return from where to where a batch reads. Raises SettingsError."""
    starting = _positions(options, "starting", default="earliest")
    ending = _positions(options, "ending", default="latest")
    if starting == LATEST:
        raise SettingsError("starting offset can't be latest for batch queries on lakehead")
    if ending == EARLIEST:
        raise SettingsError("ending offset can't be earliest for batch queries on lakehead")
    for id_, position in _each(starting):
        if position == LATEST:
            raise SettingsError(
                f"startingOffsets for {id_} can't be latest for batch queries on lakehead"
            )
    for id_, position in _each(ending):
        if position == EARLIEST:
            raise SettingsError(
                f"ending offset for {id_} can't be earliest for batch queries on lakehead"
            )
    _check_order(starting, ending)
    return _bounds(options, starting, ending)


def _stream_bounds(options: Options) -> Bounds:
    """Return where a new stream starts. Raises SettingsError."""
    if "endingOffsets" in options:
        raise SettingsError("ending offset not valid in streaming queries")
    if "needs" in options:
        raise SettingsError("option 'needs' is for batch queries")
    for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
        if name in options:
            raise SettingsError(f"ending timestamp not valid in streaming queries: remove {name!r}")
    starting = _positions(options, "starting", default="latest")
    if isinstance(starting, GroupPosition):
        raise SettingsError(
            "option 'startingOffsets': group:NAME is for batch queries, since a stream keeps its "
            "own offsets: name them by JSON"
        )
    return _bounds(options, starting, LATEST)


def _bounds(options: Options, starting: Positions, ending: Positions) -> Bounds:
    name = "startingOffsetsByTimestampStrategy"
    strategy = _choice(options, name, ("error", "latest"), default="error")
    return Bounds(
        starting=starting,
        ending=ending,
        latest_without_match=strategy == "latest",
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
    )


def _positions(options: Options, which: str, *, default: str) -> Positions:
    timestamp = number(
        options, f"{which}Timestamp", "milliseconds since the epoch, 0 or more", least=0
    )
    if timestamp is not None:
        return Position("timestamp", timestamp)
    by_timestamp = f"{which}OffsetsByTimestamp"
    if by_timestamp in options:
        return _by_partition(options, by_timestamp, _at_timestamp)
    name = f"{which}Offsets"
    text = options.get(name, default).strip()
    if (of_group := GroupPosition.parse(text)) is not None:
        return of_group
    match text.lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
    return _by_partition(options, name, _at_offset)


def _at_offset(value: int) -> Position | None:
    if value in (_EARLIEST_NUMBER, _LATEST_NUMBER):
        return EARLIEST if value == _EARLIEST_NUMBER else LATEST
    return Position("offset", value) if value >= 0 else None


def _at_timestamp(value: int) -> Position | None:
    return Position("timestamp", value) if value >= 0 else None


def _by_partition(
    options: Options, name: str, position: Callable[[int], Position | None]
) -> dict[TopicPartition, Position]:
    example = 'must be like {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    wrong = _not_json(options, name, example)
    positions = {}
    for topic, partitions in _json_object(options, name, example).items():
        if not isinstance(partitions, dict):
            raise wrong
        for partition, value in partitions.items():
            found = position(value) if type(value) is int else None
            if found is None or not partition.isascii() or not partition.isdigit():
                raise wrong
            positions[TopicPartition(topic, int(partition))] = found
    return positions


def _each(positions: Positions) -> list[tuple[TopicPartition, Position]]:
    return list(positions.items()) if isinstance(positions, Mapping) else []


def _check_order(starting: Positions, ending: Positions) -> None:
    """Refuse a start beyond its end, where both are named alike."""
    ends = dict(_each(ending))
    for id_, start in _each(starting):
        end = ends.get(id_, start)
        if start.kind == end.kind and start.value > end.value:
            raise SettingsError(
                f"the start {start.kind} {start.value} of {id_} is greater than its end {end.value}"
            )


Undecodable = Literal["fail", "null"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Values of `topic` become columns: by its declaration, or as JSON whatever its declaration."""

    topic: str
    by: Literal["declared", "json"]
    undecodable: Undecodable


def _decoding_in(options: Options, strategy: str) -> Decoding | None:
    """Return how values are decoded, None if they stay bytes. Raises SettingsError."""
    by = _choice(options, "decode", ("none", "declared", "json"), default="none")
    undecodable = _choice(options, "undecodable", ("fail", "null"), default="fail")
    if by == "none":
        if "undecodable" in options:
            raise SettingsError("option 'undecodable' is for values that are decoded: set 'decode'")
        return None
    topics: set[str] = set()
    if strategy == SUBSCRIBE:
        topics = {name.strip() for name in options[strategy].split(",") if name.strip()}
    elif strategy == ASSIGN:
        topics = {id_.topic for id_ in _assigned_in(options[strategy])}
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


def _assigned_in(value: str) -> list[TopicPartition]:
    """Return the partitions that option `assign` names. Raises SettingsError."""
    options, example = {ASSIGN: value}, 'must be like {"topicA":[0,1],"topicB":[2,4]}'
    assigned = []
    for topic, partitions in _json_object(options, ASSIGN, example).items():
        if not isinstance(partitions, list) or not all(type(one) is int for one in partitions):
            raise _not_json(options, ASSIGN, example)
        assigned += [TopicPartition(topic, partition) for partition in partitions]
    if not assigned:
        raise SettingsError(f"No topicpartitions to assign: option 'assign' is {value}")
    return list(dict.fromkeys(assigned))


_TAKEN = ("path", "catalog", "timestamp", "subscribe", *ENCRYPTION_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOptions:
    """A table of the catalog. `timestamp` (milliseconds) and `topics` (none: all) are for
    `offsets_for`.
    """

    path: str
    table: str
    timestamp: int = -1
    topics: tuple[str, ...] = ()


def _catalog_in(options: Options) -> CatalogOptions:
    """Return the name of the requested table of the catalog. Raises SettingsError."""
    table = _choice(options, "catalog", tuple(CLUSTER_TABLES), default="")
    timestamp = number(options, "timestamp", "milliseconds since the epoch", least=0)
    others = [name for name in options if name not in _TAKEN]
    if table != OFFSETS_FOR:
        others += [name for name in ("timestamp", "subscribe") if name in options]
    if others:
        raise SettingsError(f"option {others[0]!r} is not for catalog={table}")
    if table == OFFSETS_FOR and timestamp is None:
        raise SettingsError(f"catalog={OFFSETS_FOR} needs option 'timestamp', in milliseconds")
    names = options.get("subscribe", "").split(",")
    return CatalogOptions(
        path=joined_address(options["path"].strip(), options),
        table=table,
        timestamp=-1 if timestamp is None else timestamp,
        topics=tuple(name.strip() for name in names if name.strip()),
    )


_INT_MAX = 2**31 - 1
_SERVERS = "kafka.bootstrap.servers"
_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_REFUSED = {
    "kafka.auto.offset.reset": (
        "set 'startingOffsets' to 'earliest' or 'latest' to say where to start; it counts for a "
        "new stream only, which then keeps its offsets itself"
    ),
    "kafka.key.deserializer": "keys are binary: take them apart by DataFrame operations",
    "kafka.value.deserializer": "values are binary: take them apart by DataFrame operations",
    "kafka.enable.auto.commit": "nothing is committed to a group",
    "kafka.interceptor.classes": "there is no consumer to intercept",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The partitions to read. `topics` is the value of one of the three strategies."""

    strategy: str
    topics: str

    def partitions(self, catalog: "Catalog", *, known: frozenset[str]) -> list[TopicPartition]:
        """Return the partitions to read, sorted. Topics in `known` may have been deleted.

        Raises UnknownTopic; DataLoss for an assigned partition that a topic does not have.
        """
        if self.strategy == ASSIGN:
            gone = known - set(catalog.topics())
            assigned = [id_ for id_ in sorted(_assigned_in(self.topics)) if id_.topic not in gone]
            return [catalog.partition(id_).id for id_ in assigned]
        return [
            TopicPartition(name, number)
            for name in self._names(catalog, known)
            for number in range(len(catalog.topic(name).partitions))
        ]

    def named(self) -> frozenset[str]:
        """Return the topics that are named; none with a pattern."""
        if self.strategy == ASSIGN:
            return frozenset(id_.topic for id_ in _assigned_in(self.topics))
        names = self.topics.split(",") if self.strategy == SUBSCRIBE else ()
        return frozenset(name.strip() for name in names if name.strip())

    def _names(self, catalog: "Catalog", known: frozenset[str]) -> list[str]:
        there = catalog.topics()
        if self.strategy == SUBSCRIBE:
            return sorted(self.named() - (known - set(there)))
        matcher = re.compile(self.topics.strip())
        return [name for name in there if matcher.fullmatch(name) and name not in _INTERNAL_TOPICS]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read, checked.

    `columns` are those to read (of decoded values None, if none were named). `offsets_min` and
    `offsets_max` of a batch of a stream, which waits at most `delay_max_ms`.
    """

    path: str
    subscription: Subscription
    columns: tuple[str, ...] | None
    includes_headers: bool = False
    decoding: Decoding | None = None
    bounds: Bounds = field(default_factory=Bounds)
    splits_min: int = 1
    offsets_in_split_max: int | None = None
    read_committed: bool = True
    reads_wal: bool = False
    offsets_min: int | None = None
    offsets_max: int | None = None
    delay_max_ms: float = 0.0
    mode: Mode = "FAILFAST"
    needs: Needs = ALL


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check what options of a batch and of a stream have in common. Raises SettingsError."""
    return _read_options(_checked(given), Bounds())


def catalog_options(given: Mapping[str, str]) -> CatalogOptions | None:
    """Return the name of the requested table of the catalog, if any. Raises SettingsError."""
    options = {name.lower(): value for name, value in given.items()}
    return _catalog_in(_named(given)) if "catalog" in options else None


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a batch read. Raises SettingsError, with one line for the user."""
    options = _checked(given)
    return _read_options(options, _batch_bounds(options))


def stream_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a stream. Raises SettingsError, with one line for the user."""
    options = _checked(given)
    return _read_options(options, _stream_bounds(options))


def _read_options(options: Options, bounds: Bounds) -> ReadOptions:
    strategy = next(name for name in STRATEGIES if name in options)
    decoding = _decoding_in(options, strategy)
    columns = _columns(options)
    includes_headers = _flag(options, "includeHeaders", default=False)
    if decoding is None:
        columns = chosen_columns(columns, include_headers=includes_headers)
    levels = ("read_committed", "read_uncommitted")
    level = _choice(options, "kafka.isolation.level", levels, default=levels[0])
    offsets_min = _positive(options, "minOffsetsPerTrigger")
    offsets_max = _positive(options, "maxOffsetsPerTrigger")
    if offsets_min is not None and offsets_max is not None and offsets_min > offsets_max:
        raise SettingsError(
            f"the value of minOffsetsPerTrigger ({offsets_min}) is higher than that of "
            f"maxOffsetsPerTrigger ({offsets_max})"
        )
    return ReadOptions(
        path=joined_address(options["path"].strip(), options),
        subscription=Subscription(strategy=strategy, topics=options[strategy]),
        columns=columns,
        includes_headers=includes_headers,
        decoding=decoding,
        bounds=bounds,
        splits_min=_positive(options, "minPartitions", most=_INT_MAX) or 1,
        offsets_in_split_max=_positive(options, "maxRecordsPerPartition"),
        read_committed=level == levels[0],
        reads_wal=_choice(options, "tail", ("objects", "wal"), default="objects") == "wal",
        offsets_min=offsets_min,
        offsets_max=offsets_max,
        delay_max_ms=_duration_ms(options, "maxTriggerDelay", default="15m"),
        mode=_mode(options),
        needs=Needs.parse(options["needs"]) if "needs" in options else ALL,
    )


def _mode(options: Options) -> Mode:
    try:
        return checked_mode(options.get("mode", "FAILFAST"))
    except SettingsError as error:
        raise SettingsError(f"option {error}") from None


def _checked(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their right names. Raises SettingsError for what no read may have."""
    options = _named(given)
    _check_strategy(options)
    return options


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their right names, with a path among them. Raises SettingsError."""
    options = {_known(name): value for name, value in given.items()}
    if not options.get("path", "").strip():
        if _SERVERS in options:
            raise SettingsError(
                f"option {_SERVERS!r} names brokers, which Spark does not use: it reads the "
                "cluster's objects in place. Set 'path' to where they are, the brokers' --store, "
                "such as /data/lakehead/store or s3://bucket/prefix"
            )
        raise SettingsError(
            "option 'path' is missing: it names the cluster's place, such as /data/lakehead/store "
            "or s3://bucket/prefix. (Spark drops the OPTIONS of CREATE TABLE … USING lakehead: "
            "use CREATE TEMPORARY VIEW, or lakehead.lake.source.catalog_table.create_table.)"
        )
    return options


def _known(name: str) -> str:
    lower = name.lower()
    known = BY_NAME.get(lower)
    if known is not None:
        return known.name
    if lower in _REFUSED:
        raise SettingsError(f"Kafka option {name!r} is not supported: {_REFUSED[lower]}")
    if lower.startswith("kafka."):
        return lower  # a Kafka client's own: there is none here
    names = ", ".join(sorted(option.name for option in OPTIONS))
    raise SettingsError(f"unknown option {name!r}: there are {names}")


def _check_strategy(options: Options) -> None:
    named = [name for name in STRATEGIES if name in options]
    if len(named) != 1:
        what = "Only one" if named else "One"
        raise SettingsError(
            f"{what} of the following options {'can' if named else 'must'} be specified for "
            f"lakehead source: {', '.join(STRATEGIES)}."
        )
    strategy, value = named[0], options[named[0]]
    if strategy == ASSIGN:
        _assigned_in(value)
    elif strategy == SUBSCRIBE:
        if not value.strip(" ,"):
            raise SettingsError(
                f"No topics to subscribe to as specified value for option {strategy!r} is {value!r}"
            )
    else:
        _check_pattern(value)


def _check_pattern(value: str) -> None:
    if not value.strip():
        raise SettingsError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is "
            f"{value!r}"
        )
    try:
        re.compile(value.strip())
    except re.error as error:
        raise SettingsError(f"option 'subscribePattern' {value!r}: {error}") from None


def _columns(options: Options) -> tuple[str, ...] | None:
    if "columns" not in options:
        return None
    return tuple(name.strip() for name in options["columns"].split(",") if name.strip())
