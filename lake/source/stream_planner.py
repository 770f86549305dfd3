"""The planner of streams, which decides what each batch reads.

`initial` is the start of a new stream, `latest` the end of the next batch, and `plan` the splits
between a start and an end. Both may come from a checkpoint that an earlier run left in the middle
of a batch. A repeated call has the same result, or fails.

Spark writes down the end of a batch before it runs, and never the start of the first one: after a
restart it calls `initial` again, when `latest` has moved. So the first batch of a new stream is
empty and ends where the stream starts, if it is not the only one (`once`; and each one of a Spark
that limits no batches). From then on every start is the end of the batch before, in the checkpoint.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.errors import DataLoss
from lakehead.lake.offsets import start_offsets
from lakehead.lake.planner import OffsetRange
from lakehead.lake.positions import LATEST, TopicPartition
from lakehead.lake.snapshot import Snapshot
from lakehead.lake.source.options import ReadOptions
from lakehead.lake.source.stream_offsets import (
    Offsets,
    StreamOffsets,
    offsets_between,
    rate_limited,
)
from lakehead.lake.source.view import NO_TOPICS, View, Viewer

T = TypeVar("T")

_log = logging.getLogger(__name__)

_PAUSE_S = 0.05
_PAUSE_MAX_S = 0.5
_SLOWER = 1.5


class StreamPlanner:
    """The state of one run; see the module's docstring. For one thread. `monotonic` and `sleep`
    in seconds.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.viewer = Viewer(options)
        self.newest: StreamOffsets | None = None
        """The end of everything there is, at the last call of `latest`."""
        self._options = options
        self._monotonic = monotonic
        self._sleep = sleep
        self._initial: StreamOffsets | None = None
        self._is_new = False
        self._target: View | None = None
        self._triggered_at = float("-inf")
        self._looked_at = float("-inf")
        self._pause_s = 0.0

    def initial(self) -> StreamOffsets:
        """Return where a new stream starts. Raises SettingsError, UnknownTopic, DataLoss."""
        if self._initial is None:
            self._initial = self.viewer.look(self._start)
            self._is_new = True
        return self._initial

    def stop_at_present(self) -> None:
        """Behave from now on as if nothing were added any more (`availableNow`)."""
        self._target = self.viewer.look(lambda view: view, self._known())

    def latest(self, start: StreamOffsets, *, is_unlimited: bool) -> StreamOffsets:
        """Return where the next batch ends: `start` if there is nothing (or not enough) to read.

        `is_unlimited`: this is the only batch of the query (`once`), whatever the options say.
        Raises DataLoss, and what looking raises.
        """
        is_first, self._is_new = self._is_new and start == self._initial, False
        if is_first and not is_unlimited:
            self.newest = start
            return start
        view = self._target or self._look(start)
        begin = self._begin(start, view)
        offsets = {id_: max(log.end_offset, begin[id_]) for id_, log in view.logs.items()}
        end = self.newest = StreamOffsets(offsets=offsets, topic_ids=view.topic_ids())
        if is_first:
            end = self._first_end(begin, end)
        if not is_unlimited:
            end = start if self._waits(begin, end) else self._limited(begin, end)
        has_news = end != start
        self._pause_s = 0.0 if has_news else min(self._pause_s * _SLOWER + _PAUSE_S, _PAUSE_MAX_S)
        return end

    def plan(
        self,
        start: StreamOffsets,
        end: StreamOffsets,
        make: Callable[[Snapshot, Sequence[OffsetRange]], T],
    ) -> T:
        """Return what `make` makes of the offsets of a batch. Raises DataLoss, and what looking and
        `make` raise.
        """
        self._is_new = False
        return self.viewer.look(
            lambda view: make(view.snapshot, self._ranges(view, start, end)),
            self._known(start, end),
        )

    def _ranges(self, view: View, start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
        ranges = []
        for id_, end_offset in end.offsets.items():
            log = view.logs.get(id_)
            if log is None or not end.is_of(id_.topic, log.topic_id):
                if start.offsets.get(id_) != end_offset:
                    self._lose(f"{id_} was deleted before its offsets up to {end_offset} were read")
                continue
            range_ = self._range(log, start, end_offset)
            if range_ is not None:
                ranges.append(range_)
        return ranges

    def _start(self, view: View) -> StreamOffsets:
        logs = list(view.logs.values())
        offsets = start_offsets(view.snapshot, logs, self._options.bounds)
        return StreamOffsets(offsets=offsets, topic_ids=view.topic_ids())

    def _look(self, start: StreamOffsets) -> View:
        """Look at the cluster; while nothing comes, not more often than is worth its requests."""
        wait = self._looked_at + self._pause_s - self._monotonic()
        if wait > 0:
            self._sleep(wait)
        view = self.viewer.look(lambda view: view, self._known(start))
        self._looked_at = self._monotonic()
        return view

    def _begin(self, start: StreamOffsets, view: View) -> Offsets:
        """Return where the next batch begins in each partition of the view. Raises DataLoss."""
        for id_ in start.offsets:
            if id_ not in view.logs:
                self._lose(f"{id_} is gone: its topic was deleted")
        return {id_: self._begin_of(log, start) for id_, log in view.logs.items()}

    def _begin_of(self, log: PartitionLog, start: StreamOffsets) -> int:
        known = start.offsets.get(log.id)
        if known is None:
            return log.start_offset
        if not start.is_of(log.id.topic, log.topic_id):
            self._lose(f"topic {log.id.topic} was deleted and created again after offset {known}")
            return log.start_offset
        if known > log.end_offset and log.id.topic not in start.topic_ids:
            self._lose(f"the end of {log.id} was changed from {known} to {log.end_offset}")
            return log.end_offset
        if known < log.start_offset:
            self._lose(f"offsets {known} to {log.start_offset - 1} of {log.id} were deleted")
            return log.start_offset
        return known

    def _first_end(self, begin: Offsets, end: StreamOffsets) -> StreamOffsets:
        """Return the end of a first batch that is not empty. Partitions that the stream reads from
        their end on have none of it: what comes in between would be in no batch if the process
        ended before this one is done.
        """
        starting = self._options.bounds.starting
        positions = starting if isinstance(starting, Mapping) else dict.fromkeys(begin, starting)
        at_end = {id_: begin[id_] for id_ in begin if positions.get(id_) == LATEST}
        return replace(end, offsets={**end.offsets, **at_end})

    def _waits(self, begin: Offsets, end: StreamOffsets) -> bool:
        """Return whether there is not enough to read yet. A stream with
        `availableNow` ends with the present records, so it does not wait.
        """
        least = self._options.offsets_min
        if least is None or self._target is not None:
            return False
        now = self._monotonic()
        waited_ms = (now - self._triggered_at) * 1000
        if offsets_between(begin, end.offsets) < least and waited_ms < self._options.delay_max_ms:
            return True
        self._triggered_at = now
        return False

    def _limited(self, begin: Offsets, end: StreamOffsets) -> StreamOffsets:
        most = self._options.offsets_max
        return end if most is None else replace(end, offsets=rate_limited(begin, end.offsets, most))

    def _range(self, log: PartitionLog, start: StreamOffsets, end: int) -> OffsetRange | None:
        known = start.offsets.get(log.id)
        if known is None or not start.is_of(log.id.topic, log.topic_id):
            begin = log.start_offset  # found later: all of it, or what there is of it
            if begin > 0:
                self._lose(f"{log.id} was added, and starts at offset {begin} instead of 0")
        elif known > end:
            # The first batch of a new stream, run again: it is empty, and its start was requested
            # again.
            if start != self._initial:
                self._lose(f"the offset of {log.id} was changed from {known} to {end}")
            return None
        else:
            begin = max(known, log.start_offset)
            if begin != known and known < end:
                self._lose(f"offsets {known} to {min(begin, end) - 1} of {log.id} were deleted")
        if end > log.end_offset:
            self._not_there(log.id, end, log.end_offset)
        end = min(end, log.end_offset)
        return OffsetRange(log=log, start=begin, end=end) if begin < end else None

    def _not_there(self, id_: TopicPartition, end: int, there: int) -> None:
        raise DataLoss(
            f"a batch in the checkpoint ends at offset {end} of {id_}, and what may be read ends "
            f"at {there}. If it was begun with tail=wal or read_uncommitted, run it so again"
        )

    def _known(self, *offsets: StreamOffsets) -> frozenset[str]:
        """Return the topics that may be gone: those that were there, or, if that is no failure, any
        that is waited for.
        """
        may_be_gone = NO_TOPICS.union(*(one.topics for one in offsets))
        if not self._options.bounds.fail_on_data_loss:
            may_be_gone |= self._options.subscription.named()
        return may_be_gone

    def _lose(self, what: str) -> None:
        """Raise DataLoss, or only say so."""
        if self._options.bounds.fail_on_data_loss:
            raise DataLoss(
                f"{what}. Some data may have been missed; set failOnDataLoss to false to go on "
                "with what is there"
            )
        _log.warning("%s", what)
