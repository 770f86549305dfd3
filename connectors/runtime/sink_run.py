"""Topics into a sink: units of records, each with the offsets behind it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Place

from lakehead.connectors.runtime.errors import (
    ConnectorError,
    InputLost,
    KafkaAway,
    KafkaFailed,
    RunStopped,
    TransactionAborted,
)
from lakehead.connectors.runtime.interfaces import (
    ConnectResult,
    Consumed,
    Offsets,
    Progress,
    Sink,
    SourceOffset,
    TopicPartition,
)
from lakehead.connectors.runtime.kafka_clients import Cluster, KafkaConfig, consumed, made_client
from lakehead.connectors.runtime.settings import RunSettings
from lakehead.connectors.runtime.stop import Stop
from lakehead.storage.clock import Clock
from lakehead.storage.failpoints import failpoint

_AT_ONCE = 2_000
_POLL_S = 0.2
_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.5


class Reading:
    """The position of a reader of topics, and its end if it has one."""

    def __init__(self) -> None:
        self.next: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.topic_ids: dict[str, str] = {}


class SinkRun:
    """Runs a sink. Not for two threads; `stop` may be requested by another."""

    def __init__(
        self,
        sink: Sink,
        topics: Sequence[str],
        config: KafkaConfig,
        group: str,
        settings: RunSettings,
        clock: Clock,
        *,
        start: Literal["earliest", "latest"],
        when_lost: Literal["fail", "earliest"],
        stop: Stop,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.result = ConnectResult()
        self._sink = sink
        self._topics = tuple(topics)
        self._settings = settings
        self._clock = clock
        self._start = start
        self._when_lost = when_lost
        self._stop = stop
        self._on_progress = on_progress
        self._has_open_unit = False
        self._cluster = Cluster(config, stop, is_needed=lambda: self._has_open_unit)
        defaults: KafkaConfig = {"queued.max.messages.kbytes": 16 * 1024}
        ours: KafkaConfig = {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self._reader: Any = made_client(Consumer, {**defaults, **config, **ours})
        self._open_result = ConnectResult()
        self._reading = Reading()
        self._failures = 0
        self._away_s = math.inf
        """Since when the cluster that is read has been away."""
        self._looked_s = 0.0

    def run(self, *, follow: bool) -> ConnectResult:
        """Read up to the present ends of the topics, or until stopped.

        Raises ConnectorError, and what the sink raises.
        """
        started = self._clock.monotonic()
        try:
            while not self._stop.is_requested:
                if self._round(follow=follow):
                    break
        finally:
            self._reader.close()
            self._sink.close()
            seconds = self._clock.monotonic() - started
            self.result = replace(self.result, seconds=seconds)
        return self.result

    def _round(self, *, follow: bool) -> bool:
        """Go on from what the target has; whether all is done."""
        try:
            self._begin()
            while not self._stop.is_requested and (follow or self._reading.ends):
                self._unit(follow=follow)
                if follow and self._has_more_partitions():
                    return False
        except TransactionAborted as error:
            self.result = self.result.plus(ConnectResult(aborted=1))
            self._failures += 1
            if self._failures >= _ATTEMPTS:
                raise
            return self._begin_again(error, _FIRST_PAUSE_S * 2 ** (self._failures - 1))
        except KafkaAway as error:
            now_s = self._clock.monotonic()
            self._away_s = min(self._away_s, now_s)
            if now_s - self._away_s > self._settings.retry_seconds:
                raise
            return self._begin_again(error, _FIRST_PAUSE_S)
        except RunStopped:
            if self._has_open_unit:
                raise
        return True

    def _begin_again(self, error: ConnectorError, pause_s: float) -> bool:
        """Forget the present unit, which is read again after a pause; whether the run was stopped
        meanwhile, with nothing to read again. Raises RunStopped.
        """
        has_lost_unit, self._has_open_unit = self._has_open_unit, False
        self._sink.abort()
        self._open_result = ConnectResult()
        is_stopped = self._stop.wait(pause_s)
        if is_stopped and has_lost_unit:
            raise RunStopped(f"stopped while it repeated: {error}") from None
        return is_stopped

    def _begin(self) -> None:
        topic_ids = self._topic_ids()
        partitions = self._cluster.partitions(self._topics)
        known = self._sink.open(partitions)
        self._reading = Reading()
        self._reading.topic_ids = topic_ids
        for at, (low, high) in self._cluster.ends(partitions, committed=True).items():
            position = low if self._start == "earliest" else high
            if (found := known.get(at)) is not None:
                position = self._checked(at, found, low, high)
            self._reading.next[at] = position
            if position < high:
                self._reading.ends[at] = high
        self._check_topics()  # what was found above is of these topics, not of later ones
        offsets = self._offsets(self._reading.next)
        changed = {at: one for at, one in offsets.items() if known.get(at) != one}
        if changed:  # so that "latest" means that of the first run
            self._sink.commit(changed)
        self._assign()
        self._away_s = math.inf

    def _assign(self) -> None:
        self._reader.assign([Place(*at, offset) for at, offset in self._reading.next.items()])

    def _has_more_partitions(self) -> bool:
        """Return whether a topic has got partitions that are not read yet; it is checked at
        intervals.
        """
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < self._settings.poll_seconds:
            return False
        self._looked_s = now_s
        return len(self._cluster.partitions(self._topics)) > len(self._reading.next)

    def _checked(self, at: TopicPartition, known: SourceOffset, low: int, high: int) -> int:
        """Return where to go on in a partition that was read before. Raises InputLost."""
        topic_id = self._reading.topic_ids[at.topic]
        is_another = bool(topic_id and known.topic_id) and topic_id != known.topic_id
        if not is_another and low <= known.next <= high:
            return known.next
        if self._when_lost == "earliest":
            return low
        if is_another or known.next > high:
            raise InputLost(
                f"{_shown(at)} ends at {high}, and was read to {known.next}: the topic was made "
                'again; give the connector another name, or set when_lost = "earliest" to read the '
                "new one from its beginning"
            )
        raise InputLost(
            f"{_shown(at)}: offsets {known.next} to {low - 1} were removed by retention before "
            'they were read: set when_lost = "earliest" to go on without them'
        )

    def _offsets(self, found: Mapping[TopicPartition, int]) -> Offsets:
        """Return offsets with the ids of the topics that are read."""
        ids = self._reading.topic_ids
        return {at: SourceOffset(offset, ids[at.topic]) for at, offset in found.items()}

    def _topic_ids(self) -> dict[str, str]:
        """Return the topics' ids as they are now; a broker is waited for. Raises KafkaFailed."""
        deadline = self._clock.monotonic() + self._settings.retry_seconds
        while True:
            try:
                return self._cluster.topic_ids(self._topics)
            except KafkaAway:
                if self._clock.monotonic() > deadline or self._stop.wait(_FIRST_PAUSE_S):
                    raise

    def _check_topics(self) -> None:
        """Raise TransactionAborted if a topic was made again since the reader began: offsets of
        the one are not those of the other. `_begin` says then what becomes of it.
        """
        now = self._topic_ids()
        for topic, topic_id in self._reading.topic_ids.items():
            if now[topic] != topic_id:
                raise TransactionAborted(f"topic {topic} was made again while it was read")

    def _unit(self, *, follow: bool) -> None:
        """Read until the unit is large or old enough, or there is no more; then commit it."""
        begun_s, size = self._clock.monotonic(), 0
        moved: dict[TopicPartition, int] = {}
        wait_s = self._settings.transaction_seconds
        while not self._stop.is_requested and size < self._settings.transaction_bytes:
            messages = consumed(self._reader, _AT_ONCE, _POLL_S)
            self._has_open_unit = self._has_open_unit or bool(messages)
            records = [one for message in messages if (one := self._consumed(message, moved))]
            if records:
                written = self._sink.write(records)
                size += sum(len(one.key or b"") + len(one.value or b"") for one in records)
                self._open_result = self._open_result.plus(written)
                failpoint("connect_unit_written")
            self._reading.next |= moved
            self._passed_ends()
            is_over = not self._reading.ends if not follow else not messages
            if is_over or self._clock.monotonic() - begun_s >= wait_s:
                break
        if moved:
            self._check_topics()
            self._sink.commit(self._offsets(moved))
            self._failures = 0
            self._open_result = self._open_result.plus(ConnectResult(bytes=size, transactions=1))
        self._has_open_unit = False
        self.result = self.result.plus(self._open_result)
        self._open_result = ConnectResult()
        words = ", ".join(self._topics)
        self._on_progress(Progress(self.result, words, self.result.records, 0))

    def _passed_ends(self) -> None:
        passed = [at for at, end in self._reading.ends.items() if self._reading.next[at] >= end]
        for at in passed:
            del self._reading.ends[at]
            self._open_result = self._open_result.plus(ConnectResult(finished=1))

    def _consumed(self, message: Any, moved: dict[TopicPartition, int]) -> Consumed | None:
        error = message.error()
        if error is not None:
            self._ended(message, error, moved)
            return None
        at = TopicPartition(message.topic(), message.partition())
        moved[at] = message.offset() + 1
        kind, timestamp = message.timestamp()
        return Consumed(
            at=at,
            offset=message.offset(),
            key=message.key(),
            value=message.value(),
            headers=tuple(message.headers() or ()),
            timestamp_ms=timestamp if kind else None,
        )

    def _ended(self, message: Any, error: KafkaError, moved: dict[TopicPartition, int]) -> None:
        """Take note of the end of a partition, behind the marks of transactions; or fail."""
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            at = TopicPartition(message.topic(), message.partition())
            if message.offset() > moved.get(at, self._reading.next.get(at, 0)):
                moved[at] = message.offset()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise TransactionAborted(f"{message.topic()}: {error.str()}")
        elif not error.retriable():
            raise KafkaFailed(f"cannot read {message.topic()}: {error.str()}")


def _shown(at: TopicPartition) -> str:
    return f"partition {at.partition} of topic {at.topic}"
