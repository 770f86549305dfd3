"""Options of the Spark source: names, defaults, rules and messages of Spark's Kafka source, with
`path` in place of `kafka.bootstrap.servers`.

An unknown option is an error: an option that is misspelt, or lost on its way (`CREATE TABLE … USING
lakehead OPTIONS` loses them all), must not silently read something else.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehead.lake.catalog import Catalog, TopicPartition
from lakehead.lake.decode.columns import chosen_columns
from lakehead.lake.decode.invalid import Mode, checked_mode
from lakehead.lake.offsets import Bounds
from lakehead.lake.source.option_bounds import batch_bounds, stream_bounds
from lakehead.lake.source.option_catalog import CatalogOptions, catalog_in
from lakehead.lake.source.option_decoding import Decoding, assigned_in, decoding_in
from lakehead.lake.source.option_table import ASSIGN, BY_NAME, OPTIONS, STRATEGIES, SUBSCRIBE
from lakehead.lake.source.option_values import (
    Options,
    choice,
    duration_ms,
    flag,
    positive,
)
from lakehead.storage.errors import SettingsError

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
    """Which partitions to read. `topics` is what one of the three strategies was given."""

    strategy: str
    topics: str

    def partitions(self, catalog: Catalog, *, known: frozenset[str]) -> list[TopicPartition]:
        """Return the partitions to read, sorted. Topics in `known` may have been deleted.

        Raises UnknownTopic; DataLoss for an assigned partition that a topic does not have.
        """
        if self.strategy == ASSIGN:
            gone = known - set(catalog.topics())
            assigned = [id_ for id_ in sorted(assigned_in(self.topics)) if id_.topic not in gone]
            return [catalog.partition(id_).id for id_ in assigned]
        return [
            TopicPartition(name, number)
            for name in self._names(catalog, known)
            for number in range(len(catalog.topic(name).partitions))
        ]

    def named(self) -> frozenset[str]:
        """Return the topics that are named; none with a pattern."""
        if self.strategy == ASSIGN:
            return frozenset(id_.topic for id_ in assigned_in(self.topics))
        names = self.topics.split(",") if self.strategy == SUBSCRIBE else ()
        return frozenset(name.strip() for name in names if name.strip())

    def _names(self, catalog: Catalog, known: frozenset[str]) -> list[str]:
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


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check what options of a batch and of a stream have in common. Raises SettingsError."""
    return _read_options(_checked(given), Bounds())


def catalog_options(given: Mapping[str, str]) -> CatalogOptions | None:
    """Return which table of the catalog is asked for, if it is one. Raises SettingsError."""
    options = {name.lower(): value for name, value in given.items()}
    return catalog_in(_named(given)) if "catalog" in options else None


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a batch read. Raises SettingsError, with one line for the user."""
    options = _checked(given)
    return _read_options(options, batch_bounds(options))


def stream_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a stream. Raises SettingsError, with one line for the user."""
    options = _checked(given)
    return _read_options(options, stream_bounds(options))


def _read_options(options: Options, bounds: Bounds) -> ReadOptions:
    strategy = next(name for name in STRATEGIES if name in options)
    decoding = decoding_in(options, strategy)
    columns = _columns(options)
    includes_headers = flag(options, "includeHeaders", default=False)
    if decoding is None:
        columns = chosen_columns(columns, include_headers=includes_headers)
    levels = ("read_committed", "read_uncommitted")
    level = choice(options, "kafka.isolation.level", levels, default=levels[0])
    offsets_min = positive(options, "minOffsetsPerTrigger")
    offsets_max = positive(options, "maxOffsetsPerTrigger")
    if offsets_min is not None and offsets_max is not None and offsets_min > offsets_max:
        raise SettingsError(
            f"the value of minOffsetsPerTrigger ({offsets_min}) is higher than that of "
            f"maxOffsetsPerTrigger ({offsets_max})"
        )
    return ReadOptions(
        path=options["path"].strip(),
        subscription=Subscription(strategy=strategy, topics=options[strategy]),
        columns=columns,
        includes_headers=includes_headers,
        decoding=decoding,
        bounds=bounds,
        splits_min=positive(options, "minPartitions", most=_INT_MAX) or 1,
        offsets_in_split_max=positive(options, "maxRecordsPerPartition"),
        read_committed=level == levels[0],
        reads_wal=choice(options, "tail", ("objects", "wal"), default="objects") == "wal",
        offsets_min=offsets_min,
        offsets_max=offsets_max,
        delay_max_ms=duration_ms(options, "maxTriggerDelay", default="15m"),
        mode=_mode(options),
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
                f"option {_SERVERS!r} names brokers, and none is asked here: Spark reads the "
                "cluster's objects in place. Set 'path' to where they are, the brokers' --store, "
                "such as /data/lakehead/store or s3://bucket/prefix"
            )
        raise SettingsError(
            "option 'path' is missing: it names the cluster's place, such as /data/lakehead/store "
            "or s3://bucket/prefix. (Spark drops the OPTIONS of CREATE TABLE … USING lakehead: "
            "use CREATE TEMPORARY VIEW.)"
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
        assigned_in(value)
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
