"""The conditions that sensors wait for, judged by a cluster's metadata alone. Pure values.

Offsets and times are those of records that lie in objects: what a broker has acknowledged and not
uploaded yet does not count, as it does not for tables and scans.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from lakehead.lake.jobs.table_due import Lag
    from lakehead.storage.metadata.state import MetadataImage, StreamState, TopicState


class Verdict(NamedTuple):
    """A look's result: `is_met` if the condition holds, one line about how far it is, and the small
    value of JSON that is handed on once it holds.
    """

    is_met: bool
    text: str
    found: dict[str, Any]


class TopicOffset(msgspec.Struct, frozen=True, kw_only=True, tag="topic_offset"):
    """Partitions of a topic end at these offsets or beyond: one for all, or one for each partition
    by its number in text. With `in_table` the records below them are in the topic's table.
    """

    topic: str
    offsets: int | dict[str, int]
    in_table: bool = False
    topic_id: str = ""

    def verdict(self, state: "MetadataImage", now_ms: int) -> Verdict:
        """Judge. Raises UnknownTopic, SettingsError for a partition that the topic does not have
        and for a topic without a table.
        """
        del now_ms
        topic = _topic(state, self)
        if self.in_table:
            _declared(topic)
        ends = held_offsets(state, topic) if self.in_table else end_offsets(state, topic)
        wanted = self._wanted(len(ends))
        late = [number for number, offset in wanted.items() if ends[number] < offset]
        if not late:
            return Verdict(True, f"{self.topic}: all offsets are reached", _found(topic, ends))
        first = late[0]
        where = "in its table" if self.in_table else "in objects"
        return Verdict(
            False,
            f"{self.topic}: {len(late)} of {len(wanted)} partitions are behind; partition {first} "
            f"is at offset {ends[first]} of {wanted[first]} {where}",
            {},
        )

    def _wanted(self, partitions: int) -> dict[int, int]:
        from lakehead.storage.errors import SettingsError

        if isinstance(self.offsets, int):
            return dict.fromkeys(range(partitions), self.offsets)
        wanted = {}
        for text, offset in self.offsets.items():
            if not text.isdecimal() or int(text) >= partitions:
                raise SettingsError(
                    f"offsets name partition {text!r} of topic {self.topic}, which has partitions "
                    f"0 to {partitions - 1}"
                )
            wanted[int(text)] = offset
        return wanted


class TopicTime(msgspec.Struct, frozen=True, kw_only=True, tag="topic_time"):
    """Partitions of a topic (`all` of them, or `any`) have or had a record whose timestamp, in
    milliseconds since 1970, is this or later.
    """

    topic: str
    timestamp_ms: int
    partitions: Literal["all", "any"] = "all"
    topic_id: str = ""

    def verdict(self, state: "MetadataImage", now_ms: int) -> Verdict:
        """Judge. Raises UnknownTopic."""
        del now_ms
        topic = _topic(state, self)
        streams = _streams(state, topic)
        reached = [self._is_reached(state, stream) for stream in streams]
        is_met = any(reached) if self.partitions == "any" else all(reached)
        text = f"{self.topic}: {sum(reached)} of {len(reached)} partitions have reached the time"
        return Verdict(is_met, text, _found(topic, end_offsets(state, topic)) if is_met else {})

    def _is_reached(self, state: "MetadataImage", stream: "StreamState") -> bool:
        # The newest first: times grow, as a rule. Retention may have removed all records; the
        # newest objects are known still, for the sake of the producers in them.
        known = reversed(stream.state_extents.then(state.uploaded_extents(stream)))
        return any(one.max_timestamp >= self.timestamp_ms for one in known)


class TableFresh(msgspec.Struct, frozen=True, kw_only=True, tag="table_fresh"):
    """A topic's table lacks nothing that has lain in objects for longer than `seconds`."""

    topic: str
    seconds: float
    topic_id: str = ""

    def verdict(self, state: "MetadataImage", now_ms: int) -> Verdict:
        """Judge. Raises UnknownTopic, SettingsError for a topic without a table."""
        topic, lag = _lag(state, self)
        behind = lag.seconds(now_ms)
        is_met = behind <= self.seconds
        text = f"the table of {self.topic} is {behind:.1f} s behind; wanted: {self.seconds:g} s"
        return Verdict(is_met, text, _found(topic, held_offsets(state, topic)) if is_met else {})


class LagUnder(msgspec.Struct, frozen=True, kw_only=True, tag="lag_under"):
    """A topic's table lacks fewer than `records` of the records that lie in objects."""

    topic: str
    records: int
    topic_id: str = ""

    def verdict(self, state: "MetadataImage", now_ms: int) -> Verdict:
        """Judge. Raises UnknownTopic, SettingsError for a topic without a table."""
        del now_ms
        topic, lag = _lag(state, self)
        is_met = lag.records < self.records
        text = (
            f"the table of {self.topic} is {lag.records} records behind; wanted: fewer than "
            f"{self.records}"
        )
        return Verdict(is_met, text, _found(topic, held_offsets(state, topic)) if is_met else {})


Condition = TopicOffset | TopicTime | TableFresh | LagUnder


def encoded(condition: Condition) -> dict[str, Any]:
    """Return a condition as a value of JSON, which names its kind as `type`."""
    value: dict[str, Any] = msgspec.to_builtins(condition)
    return value


def decoded(value: Mapping[str, Any]) -> Condition:
    """Return the condition that `encoded` gave. Raises msgspec.ValidationError."""
    return msgspec.convert(dict(value), type=Condition)  # type: ignore[no-any-return]


def end_offsets(state: "MetadataImage", topic: "TopicState") -> list[int]:
    """Return the offset after the last record of each partition that lies in objects."""
    return [state.uploaded_end(stream) for stream in _streams(state, topic)]


def held_offsets(state: "MetadataImage", topic: "TopicState") -> list[int]:
    """Return the offset of each partition below which its table holds the records."""
    from lakehead.storage.metadata.state import TableState

    table = state.tables.get(topic.topic_id, TableState())
    return [table.end_offset(partition) for partition in range(len(topic.partitions))]


def _streams(state: "MetadataImage", topic: "TopicState") -> list["StreamState"]:
    return [state.stream(stream_id) for stream_id in topic.partitions]


def of_its_topic(condition: Condition, state: "MetadataImage") -> Condition:
    """Return the condition for the topic that has the name now: it is not met by another one that
    is made under that name later. A condition that has its topic stays. Raises UnknownTopic.
    """
    if condition.topic_id:
        return condition
    topic_id = _topic(state, condition).topic_id
    return msgspec.structs.replace(condition, topic_id=topic_id)


def _topic(state: "MetadataImage", condition: "Condition") -> "TopicState":
    from lakehead.storage.errors import UnknownTopic

    name = condition.topic
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"topic {name!r} does not exist in cluster {state.cluster_id}")
    if condition.topic_id not in {"", topic.topic_id}:
        raise UnknownTopic(
            f"topic {name!r} was deleted and made again while its sensor waited, and has other "
            "records at its offsets now: clear the task to wait for the new topic"
        )
    return topic


def _declared(topic: "TopicState") -> None:
    from lakehead.storage.errors import SettingsError

    if not topic.declares_table:
        raise SettingsError(
            f"topic {topic.name} declares no table: set lakehead.table.enable=true on it"
        )


def _lag(state: "MetadataImage", condition: "Condition") -> tuple["TopicState", "Lag"]:
    from lakehead.lake.jobs.table_due import lag_of

    topic = _topic(state, condition)
    _declared(topic)
    return topic, lag_of(state, topic, held_offsets(state, topic))


def _found(topic: "TopicState", ends: list[int]) -> dict[str, Any]:
    offsets = {str(partition): offset for partition, offset in enumerate(ends)}
    return {"topic": topic.name, "offsets": offsets}
