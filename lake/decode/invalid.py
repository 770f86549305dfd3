"""Invalid records, which cannot be read although their bytes are as the producer sent them and the
checksum is right; and the modes of a read that meets them.

The modes are those of Spark's readers of CSV and JSON. `FAILFAST`, the default, raises
InvalidRecord, as Kafka's consumers stop at such a batch. `DROPMALFORMED` leaves the batch out, and
a record whose time the column cannot hold; both with a warning. `PERMISSIVE` has nulls: such a time
is null, and a row of nothing but topic, partition and first offset stands for a batch (a record
always has a timestamp type, so null identifies such a row).
"""

import logging
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lakehead.lake.decode.modes import Mode
from lakehead.lake.errors import InvalidRecord

_WAYS_OUT = (
    "As its producer sent it, no reader can read it. Mode DROPMALFORMED (--mode of lakehead sql) "
    "leaves it out, mode PERMISSIVE has NULL in its place; or begin after it"
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidBatch:
    """A batch with a right checksum whose records cannot be read: they do not parse, do not inflate
    or inflate to more than is allowed. `data` is the batch as it is stored, header first, and
    shares memory with what was fetched. Offsets (inclusive) are those in the range that was read;
    the greatest timestamp (milliseconds) is what the header says.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    max_timestamp: int
    reason: str
    data: memoryview

    def __str__(self) -> str:
        return f"{place(self.topic, self.partition, self.first_offset, self.last_offset)}: " + (
            self.reason
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidTimes:
    """Records whose times (milliseconds) are beyond what a column in microseconds holds."""

    topic: str
    partition: int
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]

    def __str__(self) -> str:
        first = int(self.offsets[0])
        return f"{place(self.topic, self.partition, first, first)}: " + time_reason(
            int(self.times[0])
        )


class InvalidPolicy(Protocol):
    """Meets what cannot be read. With `keeps_batches` a row of nulls stands for a batch, with
    `keeps_times` a record is there, with null for its time; else neither has a row.
    """

    @property
    def keeps_batches(self) -> bool:
        """True if a row stands for a batch."""

    @property
    def keeps_times(self) -> bool:
        """True if records with such a time have a row."""

    def take_batch(self, found: InvalidBatch) -> None:
        """Meet a batch, before the records of its range. May raise."""

    def take_times(self, found: InvalidTimes) -> None:
        """Meet times, before the records of their range. May raise."""


@dataclass(slots=True, kw_only=True)
class ByMode:
    """The actions of a mode. Warns once for each partition."""

    mode: Mode = "FAILFAST"
    _warned: set[tuple[str, int, str]] = field(default_factory=set)

    @property
    def keeps_batches(self) -> bool:
        """See `InvalidPolicy`."""
        return self.mode == "PERMISSIVE"

    @property
    def keeps_times(self) -> bool:
        """See `InvalidPolicy`."""
        return self.mode == "PERMISSIVE"

    def take_batch(self, found: InvalidBatch) -> None:
        """Raise InvalidRecord, or warn."""
        self._meet(found, "batch")

    def take_times(self, found: InvalidTimes) -> None:
        """Raise InvalidRecord, or warn."""
        self._meet(found, "time")

    def _meet(self, found: InvalidBatch | InvalidTimes, kind: str) -> None:
        if self.mode == "FAILFAST":
            raise InvalidRecord(f"{found}. {_WAYS_OUT}")
        if (key := (found.topic, found.partition, kind)) not in self._warned:
            self._warned.add(key)
            _log.warning("mode %s: %s", self.mode, found)


class PassedOver:
    """The mode of a read that learns from readable records only. Of the others it keeps
    `first_offset`, the first of one whose time is at or after `since` (milliseconds), if there is
    one. A batch counts as one record: at its first offset, with its greatest timestamp.
    """

    keeps_batches = keeps_times = False

    def __init__(self, since: int | None = None) -> None:
        self._since = since
        self.first_offset: int | None = None

    def take_batch(self, found: InvalidBatch) -> None:
        """Pass over it."""
        if self._since is not None and found.max_timestamp >= self._since:
            self._note(found.first_offset)

    def take_times(self, found: InvalidTimes) -> None:
        """Pass over their records."""
        if self._since is not None and (late := found.times >= self._since).any():
            self._note(int(found.offsets[late][0]))

    def _note(self, offset: int) -> None:
        if self.first_offset is None or offset < self.first_offset:
            self.first_offset = offset


def place(topic: str, partition: int, first_offset: int, last_offset: int) -> str:
    """Return the name of a range of offsets (inclusive), or of one offset, for messages."""
    offsets = f"offset {first_offset}"
    if last_offset > first_offset:
        offsets = f"offsets {first_offset} to {last_offset}"
    return f"topic {topic}, partition {partition}, {offsets}"


def time_reason(milliseconds: int) -> str:
    """Return what is wrong with the time of a record."""
    return f"the record's time, {milliseconds} ms since 1970, is beyond what a TIMESTAMP holds"
