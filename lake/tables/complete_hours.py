"""Hours of a topic that are complete in its table: no record of theirs comes any more, by the
declared lateness, and the table has them all.

The table decides. It has the records below an offset of each partition, all of them below the last
stable offset. An hour is complete at a version of the table if each partition has a record in it
that is `lateness` or more younger than the hour. A record of an hour that comes behind such a one
is later than declared. A partition without new records would hold all others up, so one that is
in the table up to its end counts as far as the clock is, less `idle`.

Times are those of records (`timestamp`), milliseconds. For a time in the values, the lateness is
the longest time between that and the record's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.committed import committed_now
from lakehead.lake.offsets import offset_for_timestamp
from lakehead.lake.store_reader import ObjectReader
from lakehead.lake.tables.delta_table import open_table
from lakehead.storage.errors import LakeheadError, SettingsError

HOUR_MS = 3_600_000
_KEY = "%Y-%m-%dT%H"
HOURS_MAX = 168
"""Hours that one look finds at most; the next look goes on."""


class HourIncomplete(LakeheadError):
    """An hour is not complete in the table yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteHour:
    """An hour from `start_ms` on, and the version of the table that has it. `offsets` has the range
    [first, end) of each partition in which its records are, among some of its neighbours';
    partitions without a record in it are left out. Records of the hour beyond the end came later
    than declared.
    """

    start_ms: int
    version: int
    offsets: Mapping[int, tuple[int, int]]

    @property
    def key(self) -> str:
        """The hour as Airflow's StartOfHourMapper names it, in UTC: 2026-11-27T03."""
        return hour_key(self.start_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """`lateness_ms`: longest time that a record comes after its time. `idle_ms`: time after which a
    partition without new records does not hold hours up; longer than a node may need to upload.
    None: it holds them up until a record comes.
    """

    lateness_ms: int
    idle_ms: int | None


def hour_key(start_ms: int) -> str:
    """Return the name of the hour from `start_ms` on."""
    return datetime.fromtimestamp(start_ms / 1000, UTC).strftime(_KEY)


def hour_start(key: str) -> int:
    """Return the beginning of a named hour, milliseconds. Raises SettingsError."""
    try:
        return int(datetime.strptime(key, _KEY).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        raise SettingsError(f"{key!r} is not an hour, such as 2026-11-27T03") from None


class HoursOfTable:
    """The hours of a topic at the newest version of its table, as of one look at the cluster.

    Raises UnknownTopic, SettingsError for a topic without a table at `uri`, and the errors of
    reading both.
    """

    def __init__(
        self,
        reader: ObjectReader,
        topic: str,
        uri: str,
        late: Lateness,
        *,
        now_ms: int,
    ) -> None:
        table = open_table(uri)
        if table is None:
            raise SettingsError(f"there is no table of topic {topic} at {uri}")
        # After the table: else it might seem to have all that objects have.
        catalog = reader.open_catalog()
        self._logs: Sequence[PartitionLog] = committed_now(reader, catalog, topic)
        self._reader = reader
        self._late = late
        self._now_ms = now_ms
        self._version = table.version
        topic_id = catalog.topic(topic).topic_id
        self._streams_end = {log.id.partition: log.end_offset for log in catalog.partitions(topic)}
        self._ends = {
            log.id.partition: table.last_offset(topic_id, log.id.partition) + 1
            for log in self._logs
        }
        self._known: dict[tuple[int, int], int | None] = {}

    def complete(self, after_ms: int, most: int = HOURS_MAX) -> list[CompleteHour]:
        """Return the hours from the one that begins at `after_ms` on, up to the first that is not
        complete.
        """
        found: list[CompleteHour] = []
        while len(found) < most and (hour := self._hour(after_ms + len(found) * HOUR_MS)):
            found.append(hour)
        return found

    def hour(self, key: str) -> CompleteHour:
        """Return a named hour. Raises HourIncomplete, SettingsError."""
        hour = self._hour(hour_start(key))
        if hour is None:
            raise HourIncomplete(
                f"the hour {key} is not complete in version {self._version} of the table"
            )
        return hour

    def _hour(self, start_ms: int) -> CompleteHour | None:
        closed_ms = start_ms + HOUR_MS + self._late.lateness_ms
        if not all(self._is_past(log, closed_ms) for log in self._logs):
            return None
        offsets = {
            log.id.partition: (self._offset(log, start_ms), self._offset(log, closed_ms))
            for log in self._logs
        }
        return CompleteHour(
            start_ms=start_ms,
            version=self._version,
            offsets={
                partition: (first, end)
                for partition, (first, end) in offsets.items()
                if first < end
            },
        )

    def _is_past(self, log: PartitionLog, time_ms: int) -> bool:
        """Return whether the table has all records of a partition from before a time."""
        partition = log.id.partition
        if self._offset(log, time_ms) < self._ends[partition]:
            return True
        is_at_end = self._ends[partition] >= max(log.end_offset, self._streams_end[partition])
        idle_ms = self._late.idle_ms
        return is_at_end and idle_ms is not None and self._now_ms >= time_ms + idle_ms

    def _offset(self, log: PartitionLog, time_ms: int) -> int:
        """Return the first offset of a time or later that the table has; its end without one."""
        known = (log.id.partition, time_ms)
        if known not in self._known:
            self._known[known] = offset_for_timestamp(self._reader, log, time_ms)
        found, end = self._known[known], self._ends[log.id.partition]
        return end if found is None else min(found, end)
