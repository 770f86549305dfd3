"""A coordinator's own log: one partition of an internal topic, kept short by the coordinator.

State is a map of keys to their last values, as bytes. Records are appended, and answered when they
are durable. When the log holds far more records than keys, the whole map is written once more and
the log is trimmed below it. The map is brought up to date when a record is appended, not when it is
durable, so such a snapshot contains every record that it lets go of.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from storage.clock import Clock
from storage.errors import LakeheadError
from storage.format.batch_writer import KeyValue, encode_batch
from storage.format.record_batch import iter_headers
from storage.format.records import iter_kafka_records
from storage.tasks import TaskScope

OnDone = Callable[[Exception | None], None]

_FETCH_SIZE = 1 << 20
_BATCH_SIZE = 256 << 10


class LogStream(Protocol):
    """What is needed of a stream (`storage.stream.Stream`)."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def confirmed_offset(self) -> int:
        """The end of what is durable."""

    @property
    def next_offset(self) -> int:
        """The next offset to assign."""

    async def fetch(self, offset: int, max_bytes: int) -> list[memoryview]:
        """Return whole batches from the one that contains `offset`."""

    async def trim(self, offset: int) -> None:
        """Make `offset` the start offset."""


class LogPartition(Protocol):
    """What is needed of a partition (`broker.partition.Partition`)."""

    @property
    def stream(self) -> LogStream:
        """Its storage."""

    def append(self, batch: memoryview, on_done: OnDone | None = None) -> object:
        """Append a batch; `on_done` is called in order, once it is durable."""


class CoordinatorLog:
    """One partition as a durable map; no snapshot below `snapshot_min_records` records."""

    def __init__(
        self,
        partition: LogPartition,
        clock: Clock,
        scope: TaskScope,
        *,
        name: str,
        snapshot_min_records: int = 20_000,
    ) -> None:
        self._partition = partition
        self._clock = clock
        self._scope = scope
        self._name = name
        self._snapshot_min_records = snapshot_min_records
        self._latest: dict[bytes, bytes] = {}
        self._is_trimming = False

    @property
    def latest(self) -> Mapping[bytes, bytes]:
        """The last value of every live key, of records that may not be durable yet too."""
        return MappingProxyType(self._latest)

    @property
    def record_count(self) -> int:
        """Offsets in the log."""
        return self._partition.stream.next_offset - self._partition.stream.start_offset

    async def replay(self) -> None:
        """Read the log from its start; to be called once, before the first append."""
        stream = self._partition.stream
        offset = stream.start_offset
        while offset < stream.confirmed_offset:
            for piece in await stream.fetch(offset, _FETCH_SIZE):
                for position, header in iter_headers(piece):
                    if header.end_offset > offset and not header.is_control:
                        self._replay_batch(piece[position : position + header.size], offset)
                    offset = max(offset, header.end_offset)

    def _replay_batch(self, batch: memoryview, start_offset: int) -> None:
        for record in iter_kafka_records(batch):
            if record.offset >= start_offset and record.key is not None:
                self._remember(record.key, record.value)

    def append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        """Append records, in order. `on_done` is called once all of them are durable, or with what
        went wrong: at once if they could not even be begun.
        """
        try:
            self._append(records, on_done)
        except LakeheadError as error:
            on_done(error)
            return
        self._maybe_snapshot()

    def _append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        batches = list(_split(records))
        for number, batch in enumerate(batches, 1):
            encoded = memoryview(encode_batch(batch, self._clock.now_ms()))
            self._partition.append(encoded, on_done if number == len(batches) else _ignore)
            for key, value in batch:
                self._remember(key, value)

    def _remember(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._latest.pop(key, None)
        else:
            self._latest[key] = value

    def _maybe_snapshot(self) -> None:
        limit = max(self._snapshot_min_records, 4 * len(self._latest))
        if self._is_trimming or self.record_count < limit:
            return
        self._is_trimming = True
        start = self._partition.stream.next_offset
        records = list(self._latest.items())
        if not records:
            self._scope.spawn(self._trim(start), name=f"trim {self._name}")
            return

        def on_done(error: Exception | None) -> None:
            if error is None:
                self._scope.spawn(self._trim(start), name=f"trim {self._name}")
            else:
                self._is_trimming = False

        try:
            self._append(records, on_done)
        except LakeheadError:  # nothing is lost: the log only stays longer
            self._is_trimming = False

    async def _trim(self, offset: int) -> None:
        try:
            await self._partition.stream.trim(offset)
        except LakeheadError:  # tried again at the next append
            pass
        finally:
            self._is_trimming = False


def _ignore(_error: Exception | None) -> None:
    """The last batch speaks for those before it: completions are in order."""


def _split(records: Sequence[KeyValue]) -> list[list[KeyValue]]:
    """Cut records into batches of about `_BATCH_SIZE` bytes."""
    batches: list[list[KeyValue]] = [[]]
    size = 0
    for key, value in records:
        size += len(key) + len(value or b"") + 16
        if size > _BATCH_SIZE and batches[-1]:
            batches.append([])
            size = 0
        batches[-1].append((key, value))
    return batches
