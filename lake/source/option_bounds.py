"""The options that say where a read starts and ends, with the rules of Spark's Kafka source: a
timestamp for all partitions wins over one for each, and that over offsets.
"""

from collections.abc import Callable, Mapping

from lakehead.lake.catalog import TopicPartition
from lakehead.lake.offsets import EARLIEST, LATEST, Bounds, Position
from lakehead.lake.source.option_values import Options, choice, flag, json_object, not_json, number
from lakehead.storage.errors import SettingsError

_EARLIEST_NUMBER = -2
_LATEST_NUMBER = -1

Positions = Position | Mapping[TopicPartition, Position]


def batch_bounds(options: Options) -> Bounds:
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


def stream_bounds(options: Options) -> Bounds:
    """Return where a new stream starts. Raises SettingsError."""
    if "endingOffsets" in options:
        raise SettingsError("ending offset not valid in streaming queries")
    for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
        if name in options:
            raise SettingsError(f"ending timestamp not valid in streaming queries: remove {name!r}")
    return _bounds(options, _positions(options, "starting", default="latest"), LATEST)


def _bounds(options: Options, starting: Positions, ending: Positions) -> Bounds:
    name = "startingOffsetsByTimestampStrategy"
    strategy = choice(options, name, ("error", "latest"), default="error")
    return Bounds(
        starting=starting,
        ending=ending,
        latest_without_match=strategy == "latest",
        fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
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
    match options.get(name, default).strip().lower():
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
    wrong = not_json(options, name, example)
    positions = {}
    for topic, partitions in json_object(options, name, example).items():
        if not isinstance(partitions, dict):
            raise wrong
        for partition, value in partitions.items():
            found = position(value) if type(value) is int else None
            if found is None or not partition.isascii() or not partition.isdigit():
                raise wrong
            positions[TopicPartition(topic, int(partition))] = found
    return positions


def _each(positions: Positions) -> list[tuple[TopicPartition, Position]]:
    return [] if isinstance(positions, Position) else list(positions.items())


def _check_order(starting: Positions, ending: Positions) -> None:
    """Refuse a start beyond its end, where both are named alike."""
    ends = dict(_each(ending))
    for id_, start in _each(starting):
        end = ends.get(id_, start)
        if start.kind == end.kind and start.value > end.value:
            raise SettingsError(
                f"the start {start.kind} {start.value} of {id_} is greater than its end {end.value}"
            )
